/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk: headers and entries to fields and back; the bits of a filter.  No I/O and no memory of its own.
 */
#include "chunk.h"

#include <string.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "../base/crc32.h"

#define TRAILER_CRC_AT 16u
#define BLOOM_AT 44u
#define HEADER_CHECK_AT 45u
#define HEADER_CHECK_BYTES 3u

#define SUB_BATCH_COMPRESSION(first) ((first) >> 4 & 7u)
#define COMPRESSION_MAX 4u /* none, gzip, snappy, lz4, zstd; the others are not to be stored */

/* The 24 bits that stand at HEADER_CHECK_AT; what stands there now counts as zero. */
static uint32_t header_check(const uint8_t header[CHUNK_HEADER_BYTES], uint32_t seed)
{
    uint8_t input[4 + CHUNK_HEADER_BYTES];
    bytes_store32(input, seed);
    memcpy(input + 4, header, CHUNK_HEADER_BYTES);
    memset(input + 4 + HEADER_CHECK_AT, 0, HEADER_CHECK_BYTES);
    return crc32_update(0, input, sizeof input) >> 8;
}

static bool header_allowed(const struct chunk *c)
{
    return c->type <= CHUNK_TRACKING_SNAPSHOT && c->entries > 0 && c->records >= c->entries &&
           c->data_bytes <= CHUNK_DATA_MAX_BYTES && c->trailer_bytes <= CHUNK_TRAILER_MAX_BYTES;
}

void chunk_header_write(const struct chunk *c, uint32_t seed, uint8_t out[CHUNK_HEADER_BYTES])
{
    DEBUG_CHECK(header_allowed(c)); /* or nobody could read what is written here */
    struct writer_bytes w = bytes_writer(out, CHUNK_HEADER_BYTES);
    bytes_put8(&w, CHUNK_MAGIC);
    bytes_put8(&w, c->type);
    bytes_put16(&w, c->entries);
    bytes_put32(&w, c->records);
    bytes_put64(&w, (uint64_t)c->timestamp_ms);
    bytes_put32(&w, c->trailer_crc);
    bytes_put32(&w, c->epoch);
    bytes_put64(&w, c->chunk_id);
    bytes_put32(&w, c->crc);
    bytes_put32(&w, c->data_bytes);
    bytes_put32(&w, c->trailer_bytes);
    bytes_put32(&w, (uint32_t)c->bloom_bytes << 24);
    CHECK(!w.failed && w.at == w.end);
    /* The bloom size is already in its place above the 24 bits. */
    bytes_store32(out + BLOOM_AT, (uint32_t)c->bloom_bytes << 24 | header_check(out, seed));
}

err chunk_header_read(const uint8_t *data, uint64_t size, uint32_t seed, struct chunk *out)
{
    if (size < CHUNK_HEADER_BYTES) return ERR_TRUNCATED;
    struct reader_bytes r = bytes_reader(data, CHUNK_HEADER_BYTES);
    struct chunk c;
    if (bytes_u8(&r) != CHUNK_MAGIC) return ERR_CORRUPT;
    c.type = bytes_u8(&r);
    c.entries = bytes_u16(&r);
    c.records = bytes_u32(&r);
    c.timestamp_ms = (int64_t)bytes_u64(&r);
    c.trailer_crc = bytes_u32(&r);
    c.epoch = bytes_u32(&r);
    c.chunk_id = bytes_u64(&r);
    c.crc = bytes_u32(&r);
    c.data_bytes = bytes_u32(&r);
    c.trailer_bytes = bytes_u32(&r);
    uint32_t bloom_and_check = bytes_u32(&r);
    c.bloom_bytes = (uint8_t)(bloom_and_check >> 24);
    CHECK(!r.failed && r.at == r.end);

    if ((bloom_and_check & 0xFFFFFFu) != header_check(data, seed)) return ERR_CORRUPT;
    if (!header_allowed(&c)) return ERR_CORRUPT;
    *out = c;
    return OK;
}

err chunk_verify(const uint8_t *data, uint64_t size, const struct chunk *c)
{
    if (size < chunk_bytes(c)) return ERR_TRUNCATED;
    const uint8_t *entries = data + CHUNK_HEADER_BYTES + c->bloom_bytes;
    return crc32_update(0, entries, c->data_bytes) == c->crc ? OK : ERR_CORRUPT;
}

void chunk_header_to_wire(const uint8_t stored[CHUNK_HEADER_BYTES], uint8_t out[CHUNK_HEADER_BYTES])
{
    if (out != stored) memcpy(out, stored, BLOOM_AT);
    memset(out + TRAILER_CRC_AT, 0, 4);
    memset(out + BLOOM_AT, 0, CHUNK_HEADER_BYTES - BLOOM_AT);
}

static err sub_batch_read(struct reader_bytes *r, struct chunk_entry *e)
{
    uint8_t first = bytes_u8(r);
    e->is_sub_batch = 1;
    e->compression = SUB_BATCH_COMPRESSION(first);
    e->records = bytes_u16(r);
    e->uncompressed_bytes = bytes_u32(r);
    e->body_bytes = bytes_u32(r);
    e->body = bytes_take(r, e->body_bytes);
    if (e->compression > COMPRESSION_MAX) return ERR_CORRUPT; /* the four unused bits are the publisher's */
    if (r->failed) return ERR_TRUNCATED;
    return e->records == 0 ? ERR_CORRUPT : OK;
}

err chunk_entry_next(const uint8_t **at, const uint8_t *end, struct chunk_entry *out)
{
    CHECK(*at <= end);
    if (*at == end) return ERR_END;
    struct reader_bytes r = bytes_reader(*at, (size_t)(end - *at));
    struct chunk_entry e = {0};
    if (**at & CHUNK_SUB_BATCH_BIT) {
        err result = sub_batch_read(&r, &e);
        if (result != OK) return result;
    } else {
        e.records = 1;
        e.body_bytes = e.uncompressed_bytes = bytes_u32(&r);
        e.body = bytes_take(&r, e.body_bytes);
        if (r.failed) return ERR_TRUNCATED;
    }
    *at = r.at;
    *out = e;
    return OK;
}

/* ---- filters ----
 *
 * The hash and the places of the bits are part of the format: filters on disk outlive the program. */

#define HASH_FACTOR UINT64_C(0x9E3779B97F4A7C15)
#define UNFILTERED_BIT 0x80u /* of the first byte */

/* Eight bytes at a time, the last ones filled up with zeros; the size goes in first, so that zeros at
 * the end of a value count. */
static uint64_t filter_hash(const uint8_t *value, uint32_t size)
{
    uint64_t hash = size;
    for (uint32_t at = 0; at < size; at += 8) {
        uint8_t piece[8] = {0};
        memcpy(piece, value + at, size - at < 8 ? size - at : 8);
        hash = (hash ^ bytes_load64(piece)) * HASH_FACTOR;
        hash ^= hash >> 32;
    }
    return hash * HASH_FACTOR ^ hash >> 29;
}

struct place { uint32_t byte; uint8_t bit; };

/* One half of the hash, spread over all bits but bit 0. */
static struct place filter_place(uint32_t half, uint32_t bits)
{
    uint32_t bit = 1 + (uint32_t)((uint64_t)half * (bits - 1) >> 32);
    return (struct place){bit / 8, (uint8_t)(0x80u >> bit % 8)};
}

void filter_note(uint8_t *bits, uint32_t stored_bytes, const uint8_t *value, uint32_t size)
{
    CHECK(stored_bytes > FILTER_CHECK_BYTES && size > 0);
    uint32_t count = 8 * (stored_bytes - FILTER_CHECK_BYTES);
    uint64_t hash = filter_hash(value, size);
    struct place first = filter_place((uint32_t)(hash >> 32), count), second = filter_place((uint32_t)hash, count);
    bits[first.byte] |= first.bit;
    bits[second.byte] |= second.bit;
}

void filter_note_unfiltered(uint8_t *bits) { bits[0] |= UNFILTERED_BIT; }

void filter_seal(uint8_t *chunk, uint32_t stored_bytes)
{
    uint32_t covered = CHUNK_HEADER_BYTES + stored_bytes - FILTER_CHECK_BYTES;
    bytes_store32(chunk + covered, crc32_update(0, chunk, covered));
}

void filter_init(struct filter *f, bool match_unfiltered)
{
    f->match_unfiltered = match_unfiltered;
    f->count = 0;
}

err filter_add(struct filter *f, const uint8_t *value, uint32_t size)
{
    if (size == 0) {
        f->match_unfiltered = true;
        return OK;
    }
    if (f->count == FILTER_VALUES_MAX) return ERR_LIMIT;
    f->hashes[f->count++] = filter_hash(value, size);
    return OK;
}

bool filter_is_whole(const uint8_t *data, const struct chunk *c)
{
    if (c->bloom_bytes <= FILTER_CHECK_BYTES) return false;
    uint32_t covered = CHUNK_HEADER_BYTES + c->bloom_bytes - FILTER_CHECK_BYTES;
    return bytes_load32(data + covered) == crc32_update(0, data, covered);
}

bool filter_matches(const struct filter *f, const uint8_t *data, const struct chunk *c)
{
    if (c->bloom_bytes == 0) return f->match_unfiltered;
    if (!filter_is_whole(data, c)) return true;

    const uint8_t *bits = data + CHUNK_HEADER_BYTES;
    uint32_t count = 8 * (c->bloom_bytes - FILTER_CHECK_BYTES);
    if (f->match_unfiltered && bits[0] & UNFILTERED_BIT) return true;
    for (uint32_t i = 0; i < f->count; i++) {
        struct place first = filter_place((uint32_t)(f->hashes[i] >> 32), count);
        struct place second = filter_place((uint32_t)f->hashes[i], count);
        if (bits[first.byte] & first.bit && bits[second.byte] & second.bit) return true;
    }
    return false;
}
