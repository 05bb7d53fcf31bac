/* SPDX-License-Identifier: Apache-2.0
 *
 * seeds: writes the corpora the fuzzers start from.  The same bytes every time, so
 * that `make seeds` changes nothing unless this file did.
 *
 *   seeds DIRECTORY        one folder for each target, which must exist
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "../ledger/ledger.h"
#include "../log/chunk.h"
#include "../log/cold.h"
#include "../log/segment.h"
#include "../log/offsets.h"
#include "../log/tracking.h"

#define CHUNK_SEED 0x5EEDu /* as in chunk_fuzz.c */
#define PATH_BYTES 512

static const char *directory;

static void seed_write(const char *target, const char *name, const void *data, size_t size)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s/%s", directory, target, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

#define SEED(target, name, ...) \
    seed_write(target, name, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static void amqp_seeds(void)
{
    SEED("amqp", "data", 0x00, 0x53, 0x75, 0xA0, 5, 'h', 'e', 'l', 'l', 'o');
    SEED("amqp", "data-long", 0x00, 0x53, 0x75, 0xB0, 0, 0, 0, 1, 'x', 0x00, 0x53, 0x75, 0xA0, 0);
    SEED("amqp", "ulong-descriptor", 0x00, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x77, 0xA1, 2, 'o', 'k');
    SEED("amqp", "sequence", 0x00, 0x53, 0x76, 0xC0, 5, 3, 0x41, 0x54, 1, 0x40);
    SEED("amqp", "value-map", 0x00, 0x53, 0x77, 0xD1, 0, 0, 0, 9, 0, 0, 0, 2, 0xA3, 1, 'k', 0x54, 5);
    SEED("amqp", "value-array", 0x00, 0x53, 0x77, 0xE0, 6, 2, 0xA3, 1, 'a', 1, 'b');
    SEED("amqp", "value-array-long", 0x00, 0x53, 0x77, 0xF0, 0, 0, 0, 5, 0xFF, 0xFF, 0xFF, 0xFF, 0x40);
    SEED("amqp", "value-described", 0x00, 0x53, 0x77, 0x00, 0xA3, 1, 't', 0x83, 0, 0, 1, 2, 3, 4, 5, 6);
    SEED("amqp", "all", 0x00, 0x53, 0x70, 0xC0, 4, 2, 0x41, 0x50, 7, 0x00, 0x53, 0x71, 0xC1, 1, 0, 0x00, 0x53, 0x72,
         0xC1, 6, 2, 0xA3, 1, 'k', 0x54, 5, 0x00, 0x53, 0x73, 0x45, 0x00, 0x53, 0x74, 0xC1, 5, 2, 0xA1, 1, 'a', 0x42,
         0x00, 0x53, 0x75, 0xA0, 1, 'q', 0x00, 0x53, 0x78, 0xC1, 1, 0);
}

static void bytes_seeds(void)
{
    SEED("bytes", "each-width", 4, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    SEED("bytes", "take", 2, 3 << 3 | 5, 0, 'a', 'b', 'c', 'd');
    SEED("bytes", "too-much", 1, 4, 'a');
}

static void msgpack_seeds(void)
{
    SEED("msgpack", "map", 0x82, 0xA1, 'a', 0x93, 1, 0xCB, 0x3F, 0xE0, 0, 0, 0, 0, 0, 0, 0xC0, 0xA1, 'b', 0xC4, 2, 0, 0xFF);
    SEED("msgpack", "keys", 0x84, 1, 0xC3, 0x91, 0xC0, 0xA0, 0x80, 0xD0, 0x80, 0xD6, 0xFF, 0x65, 0x53, 0x97, 0x80, 0xC2);
    SEED("msgpack", "timestamps", 0x92, 0xD7, 0xFF, 0, 0, 1, 0x90, 0x65, 0x53, 0x97, 0x80, 0xC7, 12, 0xFF, 0x3B, 0x9A,
         0xC9, 0x9C, 0, 0, 0, 0x3A, 0xFF, 0xF4, 0x41, 0x7F);
    SEED("msgpack", "numbers", 0x95, 0xCA, 0x7F, 0xC0, 0, 0, 0xD3, 0x80, 0, 0, 0, 0, 0, 0, 0, 0xCD, 1, 0, 0xC7, 1, 5, 9,
         0xDA, 0, 1, 'x');
}

/* Two simple entries and one sub-batch, with a filter and a trailer. */
static void chunk_seeds(void)
{
    static const uint8_t entries[] = {
        0, 0, 0, 3, 'a', 'b', 'c', 0xB0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 2, 'x', 'y', 0, 0, 0, 0,
    };
    uint8_t data[1 + CHUNK_HEADER_BYTES + 16 + sizeof entries + 8] = {0};
    struct chunk c = {
        .type = CHUNK_USER, .bloom_bytes = 16, .entries = 3, .records = 7, .timestamp_ms = 1700000000000,
        .epoch = 1, .chunk_id = 42, .data_bytes = sizeof entries, .trailer_bytes = 8,
    };
    c.crc = crc32_update(0, entries, sizeof entries);
    chunk_header_write(&c, CHUNK_SEED, data + 1);
    memcpy(data + 1 + CHUNK_HEADER_BYTES + 16, entries, sizeof entries);
    filter_note(data + 1 + CHUNK_HEADER_BYTES, 16, (const uint8_t *)"eu", 2);
    seed_write("chunk", "damaged-filter", data, sizeof data);
    filter_seal(data + 1, 16);
    seed_write("chunk", "stored", data, sizeof data);
    data[0] = 1;
    seed_write("chunk", "check-put-right", data, sizeof data);

    uint8_t bare[1 + sizeof entries] = {2};
    memcpy(bare + 1, entries, sizeof entries);
    seed_write("chunk", "entries", bare, sizeof bare);
}

/* Two chunks, the second with a filter, and an index record: where `segment_fuzz.c` looks for it. */
static void log_seeds(void)
{
    static const uint8_t entries[] = {0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0};
    static const uint8_t trailer[] = {0, 1, 'p', 0, 0, 0, 0, 0, 0, 0, 9};
    enum { FILTER_BYTES = 20 };
    uint8_t data[2 + 2 * (CHUNK_HEADER_BYTES + sizeof entries + sizeof trailer) + FILTER_BYTES + INDEX_RECORD_BYTES] = {0};
    uint8_t *at = data + 2;
    struct chunk c = {.entries = 2, .records = 2, .timestamp_ms = 1700000000000, .epoch = 1, .data_bytes = sizeof entries,
                      .trailer_bytes = sizeof trailer};
    c.crc = crc32_update(0, entries, sizeof entries);
    c.trailer_crc = crc32_update(0, trailer, sizeof trailer);
    struct index_record r = {.timestamp_ms = 1700000000000, .position = 64, .chunk_bytes = (uint32_t)chunk_bytes(&c), .records = 2};
    for (int i = 0; i < 2; i++, c.chunk_id += 2, c.bloom_bytes = FILTER_BYTES) {
        chunk_header_write(&c, CHUNK_SEED, at);
        if (c.bloom_bytes) {
            filter_note(at + CHUNK_HEADER_BYTES, c.bloom_bytes, (const uint8_t *)"us", 2);
            filter_seal(at, c.bloom_bytes);
        }
        memcpy(at + CHUNK_HEADER_BYTES + c.bloom_bytes, entries, sizeof entries);
        memcpy(at + CHUNK_HEADER_BYTES + c.bloom_bytes + sizeof entries, trailer, sizeof trailer);
        at += chunk_bytes(&c);
    }
    index_record_write(&r, CHUNK_SEED, at);
    data[0] = (uint8_t)(INDEX_RECORD_BYTES * 256 / (sizeof data - 2) + 1);
    seed_write("segment", "two-chunks-and-an-index", data, sizeof data);
    data[0] = 0;
    data[1] = 255;
    seed_write("segment", "two-durable-chunks", data, sizeof data - INDEX_RECORD_BYTES);
    seed_write("index", "record", at, INDEX_RECORD_BYTES);

    /* The same as a cold segment, where `cold_fuzz.c` looks for it: stub, blocks, their mark, index, chunks. */
    enum { HEADERS = STUB_BYTES + COLD_HEADER_BYTES + 1 };
    uint8_t cold[2 + HEADERS + sizeof data - 2] = {0};
    size_t chunks_bytes = sizeof data - 2 - INDEX_RECORD_BYTES;
    struct stub stub = {.next = 4, .bytes = SEGMENT_HEADER_BYTES + chunks_bytes, .oldest_ms = 1700000000000,
                        .newest_ms = 1700000000000, .seed = CHUNK_SEED, .epoch = 1};
    stub_encode(&stub, cold + 2);
    cold_header_encode(0, stub.bytes, cold + 2 + STUB_BYTES);
    cold[2 + HEADERS - 1] = 1;
    memcpy(cold + 2 + HEADERS, at, INDEX_RECORD_BYTES);
    memcpy(cold + 2 + HEADERS + INDEX_RECORD_BYTES, data + 2, chunks_bytes);
    cold[1] = (uint8_t)(INDEX_RECORD_BYTES * 256 / (sizeof data - 2) + 1);
    seed_write("cold", "a-cold-segment", cold, sizeof cold);
    cold[0] = 3;
    seed_write("cold", "headers-put-right", cold, sizeof cold);

    uint8_t header[INDEX_HEADER_BYTES], snapshot[20 + 18 + 4] = {0};
    index_header_write(7, CHUNK_SEED, header);
    seed_write("index", "header", header, sizeof header);
    bytes_store32(snapshot, TRACKING_SNAPSHOT_MAGIC);
    bytes_store32(snapshot + 4, TRACKING_SNAPSHOT_VERSION);
    bytes_store32(snapshot + 16, 1);
    snapshot[20 + 16] = 1;
    snapshot[20 + 17] = 'p';
    bytes_store32(snapshot + sizeof snapshot - 4, crc32_update(0, snapshot, sizeof snapshot - 4));
    seed_write("tracking", "snapshot", snapshot, sizeof snapshot);
    bytes_store32(snapshot + 4, 1);
    bytes_store32(snapshot + sizeof snapshot - 4, crc32_update(0, snapshot, sizeof snapshot - 4));
    seed_write("tracking", "snapshot-of-version-1", snapshot, sizeof snapshot);
    seed_write("tracking", "trailer", trailer, sizeof trailer);
}

/* A header and two references; the first byte is offsets_fuzz.c's own. */
static void offsets_seeds(void)
{
    uint8_t data[1 + 3 * OFFSETS_RECORD_BYTES] = {0};
    uint8_t *header = data + 1;
    struct offsets_record r = {.written_ms = 1700000000000, .offset = 7, .bytes = 3, .reference = "new"};
    bytes_store32(header, OFFSETS_MAGIC);
    bytes_store32(header + 4, OFFSETS_VERSION);
    bytes_store64(header + 8, 5);
    bytes_store32(header + 16, crc32_update(0, header, 16));
    offsets_record_write(&r, header + OFFSETS_RECORD_BYTES);
    r.reference[2] = 't';
    offsets_record_write(&r, header + 2 * OFFSETS_RECORD_BYTES);
    seed_write("offsets", "two", data, sizeof data);
    seed_write("offsets", "cut", data, sizeof data - 100);
    data[0] = 1;
    seed_write("offsets", "put-right", data, sizeof data);
    bytes_store32(header + 4, OFFSETS_VERSION + 1);
    seed_write("offsets", "later-version", data, sizeof data);
}

/* As ledger_fuzz.c says: sizes, the log's offsets, five words of the page, entries of the blocks. */
static void ledger_seeds(void)
{
    struct {
        uint8_t how[2], log[8], page[40], entries[16 * 6];
    } seed = {.how = {0, 64}};
    _Static_assert(sizeof seed == 2 + 8 + 40 + 96, "no padding");
    uint32_t log[2] = {0, 2 * LEDGER_BLOCK_ENTRIES};
    uint64_t page[5] = {2, LEDGER_BLOCK_ENTRIES + 4, LEDGER_BLOCK_ENTRIES, 3, LEDGER_BLOCK_ENTRIES + 4};
    for (uint64_t i = 0; i < 6; i++) {
        uint64_t entry[2] = {ledger_pack((struct ledger_word){.state = (enum ledger_state)i, .attempts = 1}), i};
        if (i > 2) entry[0] = ledger_checked(entry[0], entry[1]);
        memcpy(seed.entries + 16 * i, entry, 16);
    }
    memcpy(seed.log, log, sizeof log);
    memcpy(seed.page, page, sizeof page);
    seed_write("ledger", "two-blocks", &seed, sizeof seed);
    seed.how[1] = 64 | 128;
    seed_write("ledger", "this-boot", &seed, sizeof seed);
    seed.how[1] = 64 | 16;
    seed_write("ledger", "short-block", &seed, sizeof seed);
    seed.how[0] = 2;
    seed_write("ledger", "wide-page", &seed, sizeof seed);
    seed.how[0] = 1;
    seed_write("ledger", "no-page", &seed, sizeof seed);
    log[1] = LEDGER_BLOCK_ENTRIES / 2; /* cut within the first block */
    memcpy(seed.log, log, sizeof log);
    seed.how[0] = seed.how[1] = 0;
    seed_write("ledger", "log-was-cut", &seed, sizeof seed);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: seeds DIRECTORY\n");
        return 2;
    }
    directory = argv[1];
    amqp_seeds();
    bytes_seeds();
    msgpack_seeds();
    chunk_seeds();
    log_seeds();
    offsets_seeds();
    ledger_seeds();
    return 0;
}
