/* SPDX-License-Identifier: Apache-2.0
 *
 * filter: hashing values, setting bits and asking for them.
 *
 * The hash and the places of the bits are part of the format: filters on disk outlive the program.
 */
#include "filter.h"

#include <string.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "../base/crc32.h"

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
