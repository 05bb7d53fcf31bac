/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk: the unit that is written, checksummed, committed and delivered.
 *
 * On disk and on the wire a chunk begins with the same 48 bytes (all integers
 * big-endian), except that two places that are 0 on the wire hold checks on disk:
 * the three reserved bytes one of the header, and the upper half of the epoch one of
 * the trailer, which the CRC over the entries does not cover and whose size clients compare:
 *
 *   0        1        2                 4                          8
 *   +--------+--------+-----------------+--------------------------+
 *   | 0x50   | type   | entries u16     | records u32              |
 *   +--------+--------+-----------------+--------------------------+ 8
 *   | timestamp i64, ms since the Unix epoch                       |
 *   +--------------------------------------------------------------+ 16
 *   | CRC-32 of the trailer u32   | epoch u32                      |
 *   +--------------------------------------------------------------+ 24
 *   | chunk id u64 = offset of the first record                    |
 *   +-----------------------------+--------------------------------+ 32
 *   | CRC-32 of the entries u32   | data size u32                  |
 *   +-----------------------------+--------+-----------------------+ 40
 *   | trailer size u32            | filter | header check u24      |
 *   +-----------------------------+--------+-----------------------+ 48
 *   | filter      | entries (data size) | trailer (trailer size)   |
 *
 * header check = the upper 24 bits of CRC-32(segment seed as u32, header with the
 * check zeroed).  The seed differs for each segment, so bytes inside a message
 * cannot pose as a chunk.  filter.h says what the filter holds: it has a check of its own.
 */
#ifndef VIBEMQ_LOG_CHUNK_H
#define VIBEMQ_LOG_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/error.h"

#define CHUNK_SUB_BATCH_BIT 0x80u  /* of an entry's first byte */
#define CHUNK_HEADER_BYTES 48u
#define CHUNK_HEAD_BYTES_MAX (CHUNK_HEADER_BYTES + 255u) /* the header and the filter behind it */
#define CHUNK_MAGIC 0x50u
#define CHUNK_MESSAGES_MAX 2048u         /* a burst must be several chunks, so that `last` is a real tail; one entry may hold more */
#define CHUNK_MESSAGES_FIRST 32u         /* where a stream that was idle begins, see batch_chunk_messages */
#define CHUNK_DATA_TARGET_BYTES (1u << 20) /* a chunk is closed before it grows past this, unless one entry is larger */
#define CHUNK_DATA_MAX_BYTES (256u << 20)  /* no chunk is larger: bounds every read buffer */
#define CHUNK_TRAILER_MAX_BYTES (1u << 20)

enum chunk_type { CHUNK_USER = 0, CHUNK_TRACKING_DELTA = 1, CHUNK_TRACKING_SNAPSHOT = 2 };

/* A header's fields in host order. */
struct chunk {
    uint8_t type, bloom_bytes;
    uint16_t entries;
    uint32_t records;
    int64_t timestamp_ms;
    uint32_t epoch, trailer_crc; /* trailer_crc is 0 without a trailer */
    uint64_t chunk_id;
    uint32_t crc, data_bytes, trailer_bytes;
};

/* Size of the whole chunk on disk. */
static inline uint64_t chunk_bytes(const struct chunk *c)
{
    return (uint64_t)CHUNK_HEADER_BYTES + c->bloom_bytes + c->data_bytes + c->trailer_bytes;
}

/* Write the 48 bytes, with the header check for `seed`. */
void chunk_header_write(const struct chunk *c, uint32_t seed, uint8_t out[CHUNK_HEADER_BYTES]);

/* Read and verify a stored header.  ERR_TRUNCATED: fewer than 48 bytes.
 * ERR_CORRUPT: wrong magic, type, check, counts (no entry, fewer records than
 * entries) or a size beyond its limit. */
err chunk_header_read(const uint8_t *data, uint64_t size, uint32_t seed, struct chunk *out);

/* Verify the CRC of the entries of a chunk that lies whole in memory (`data`
 * points at its header).  ERR_TRUNCATED or ERR_CORRUPT. */
err chunk_verify(const uint8_t *data, uint64_t size, const struct chunk *c);

/* Turn a stored header into the one that goes over the wire: zero both checks and the bloom size. */
void chunk_header_to_wire(const uint8_t stored[CHUNK_HEADER_BYTES], uint8_t out[CHUNK_HEADER_BYTES]);

/* One entry, in place: a simple message or a sub-batch.  Layout:
 *   simple     0:1 | len:31, data
 *   sub-batch  1:1 | compression:3 | unused:4, records u16, uncompressed u32, len u32, body */
struct chunk_entry {
    const uint8_t *body;
    uint32_t body_bytes, records, uncompressed_bytes;
    uint8_t is_sub_batch, compression;
};

/* Step over one entry at *at, which moves.  ERR_END at the end, ERR_TRUNCATED, ERR_CORRUPT. */
err chunk_entry_next(const uint8_t **at, const uint8_t *end, struct chunk_entry *out);

#endif
