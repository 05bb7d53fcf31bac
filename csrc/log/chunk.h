/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk: the unit that is written, checksummed, committed and delivered.
 *
 * On disk and on the wire a chunk begins with the same 48 bytes (all integers big-endian), except that two places that
 * are 0 on the wire hold checks on disk: the three reserved bytes one of the header, and the upper half of the epoch
 * one of the trailer, which the CRC over the entries does not cover and whose size clients compare:
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
 * header check = the upper 24 bits of CRC-32(segment seed as u32, header with the check zeroed).  The seed differs for
 * each segment, so bytes inside a message cannot pose as a chunk.  The filter has a check of its own: see below.
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

/* Read and verify a stored header.  ERR_TRUNCATED: fewer than 48 bytes.  ERR_CORRUPT: wrong magic, type, check, counts
 * (no entry, fewer records than entries) or a size beyond its limit. */
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

/* ---- filters: which filter values the messages of one chunk have, as a Bloom filter ----
 *
 * A publisher may give a message a value; a consumer may ask for the chunks that can hold certain values.
 * A chunk with at least one value carries between its header and its entries
 *
 *   bits (`bytes` of them)     bit 0, the most significant of the first byte: some message has no value
 *                              two of the other bits for each value
 *   check u32                  CRC-32 of the stored header and the bits
 *
 * The check binds the bits to this very chunk, and whoever read the header alone can compare it.  Bits
 * whose check is wrong are not believed: such a chunk goes to everybody.  So neither a torn write nor a
 * bad sector withholds a message, and nothing else has to be read to know that.
 *
 * Each chunk says its own size, so the size of a stream may change at any time. */

#define FILTER_BYTES_MIN 16u     /* the RabbitMQ Streams protocol */
#define FILTER_BYTES_DEFAULT 16u
#define FILTER_BYTES_MAX 255u
#define FILTER_CHECK_BYTES 4u
#define FILTER_VALUES_MAX 255u   /* one consumer's */

/* What a filter of that many bytes takes in a chunk.  The header's size is one byte: the largest lose up to
 * four bytes to the check.  0 for 0. */
static inline uint32_t filter_stored_bytes(uint32_t bytes)
{
    uint32_t most = FILTER_BYTES_MAX - FILTER_CHECK_BYTES;
    return bytes == 0 ? 0 : (bytes < most ? bytes : most) + FILTER_CHECK_BYTES;
}

/* ---- writing: `bits` is filter_stored_bytes long and begins as zeros ---- */

void filter_note(uint8_t *bits, uint32_t stored_bytes, const uint8_t *value, uint32_t size);
void filter_note_unfiltered(uint8_t *bits);
/* Compute the check; `chunk` points at the header, which is complete. */
void filter_seal(uint8_t *chunk, uint32_t stored_bytes);

/* ---- reading ---- */

/* What one consumer asks for. */
struct filter {
    bool match_unfiltered;
    uint32_t count;
    uint64_t hashes[FILTER_VALUES_MAX];
};

/* An empty filter that takes no message but, with `match_unfiltered`, those without a value. */
void filter_init(struct filter *f, bool match_unfiltered);
/* Take messages of this value too; an empty one means those without a value.  ERR_LIMIT over FILTER_VALUES_MAX. */
err filter_add(struct filter *f, const uint8_t *value, uint32_t size);

/* Is there a filter whose check is right?  `data` as below. */
bool filter_is_whole(const uint8_t *data, const struct chunk *c);

/* May the chunk hold a message that the filter takes?  Never false when it does.  `data` points at its stored
 * header, behind which its c->bloom_bytes lie; nothing else is looked at. */
bool filter_matches(const struct filter *f, const uint8_t *data, const struct chunk *c);

#endif
