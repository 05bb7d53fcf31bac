/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk: headers and entries to fields and back.  No I/O and no memory of its own.
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
