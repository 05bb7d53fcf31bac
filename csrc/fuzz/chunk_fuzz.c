/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes are a chunk whose parts lie inside them, or an error of the contract;
 * what a header says is what writing it again gives; entries end where the data ends; a filter answers
 * whatever its bits are, and never no to a value that was noted in it.
 *
 * The first byte says how to look at the rest: 0, a stored chunk with its header check
 * (a fuzzer seldom finds those); 1, the same with the check put right first; else
 * bare entries.
 */
#include "../log/chunk.h"

#include <string.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "fuzz.h"

#define SEED 0x5EEDu
#define INPUT_MAX_BYTES 65536

static void entries_walk(const uint8_t *data, size_t size)
{
    const uint8_t *at = data, *end = data + size;
    struct chunk_entry e;
    for (;;) {
        const uint8_t *before = at;
        err result = chunk_entry_next(&at, end, &e);
        if (result != OK) {
            CHECK(result == ERR_END || result == ERR_TRUNCATED || result == ERR_CORRUPT);
            CHECK(at == before && (result == ERR_END) == (at == end));
            return;
        }
        CHECK(at > before && at <= end);
        CHECK(fuzz_inside(before, (size_t)(at - before), e.body, e.body_bytes) && e.body + e.body_bytes == at);
        CHECK(e.records > 0 && (e.is_sub_batch || e.records == 1));
    }
}

static void filter_look(const uint8_t *data, const struct chunk *c)
{
    static const uint8_t value[] = {'e', 'u'};
    uint8_t head[CHUNK_HEAD_BYTES_MAX];
    struct filter some, none;
    filter_init(&none, true);
    filter_init(&some, false);
    CHECK(filter_add(&some, value, sizeof value) == OK);
    CHECK(filter_is_whole(data, c) || c->bloom_bytes == 0 || filter_matches(&some, data, c));
    CHECK(c->bloom_bytes > 0 || (filter_matches(&none, data, c) && !filter_matches(&some, data, c)));
    if (c->bloom_bytes <= FILTER_CHECK_BYTES) return;
    memcpy(head, data, CHUNK_HEADER_BYTES + c->bloom_bytes);
    filter_note(head + CHUNK_HEADER_BYTES, c->bloom_bytes, value, sizeof value);
    filter_seal(head, c->bloom_bytes);
    CHECK(filter_is_whole(head, c) && filter_matches(&some, head, c));
}

static void chunk_look(const uint8_t *data, size_t size)
{
    struct chunk c;
    uint8_t again[CHUNK_HEADER_BYTES], wire[CHUNK_HEADER_BYTES];
    err result = chunk_header_read(data, size, SEED, &c);
    CHECK(result == OK || result == ERR_CORRUPT || (result == ERR_TRUNCATED && size < CHUNK_HEADER_BYTES));
    if (result != OK) return;
    chunk_header_write(&c, SEED, again);
    CHECK(memcmp(again, data, CHUNK_HEADER_BYTES) == 0);
    chunk_header_to_wire(data, wire);
    /* All but the checks and the bloom size goes out as it is. */
    CHECK(memcmp(wire, data, 16) == 0 && memcmp(wire + 20, data + 20, 24) == 0 && bytes_load32(wire + 44) == 0);
    if (size >= CHUNK_HEADER_BYTES + (size_t)c.bloom_bytes) filter_look(data, &c);
    result = chunk_verify(data, size, &c);
    CHECK((result == ERR_TRUNCATED) == (size < chunk_bytes(&c)));
    if (result != ERR_TRUNCATED) entries_walk(data + CHUNK_HEADER_BYTES + c.bloom_bytes, c.data_bytes);
}

/* As chunk_header_write computes it, so that a mutated header still gets past it. */
static void check_put_right(uint8_t *header)
{
    uint8_t input[4 + CHUNK_HEADER_BYTES];
    memset(header + 45, 0, 3);
    bytes_store32(input, SEED);
    memcpy(input + 4, header, CHUNK_HEADER_BYTES);
    bytes_store32(header + 44, bytes_load32(header + 44) | crc32_update(0, input, sizeof input) >> 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t copy[INPUT_MAX_BYTES];
    if (size == 0 || size > INPUT_MAX_BYTES) return 0;
    uint8_t look = *data++;
    size--;
    if (look == 1 && size >= CHUNK_HEADER_BYTES) {
        memcpy(copy, data, size);
        check_put_right(copy);
        chunk_look(copy, size);
    } else if (look <= 1) {
        chunk_look(data, size);
    } else {
        entries_walk(data, size);
    }
    return 0;
}
