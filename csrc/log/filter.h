/* SPDX-License-Identifier: Apache-2.0
 *
 * filter: which filter values the messages of one chunk have, as a Bloom filter.
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
 * Each chunk says its own size, so the size of a stream may change at any time.
 */
#ifndef VIBEMQ_LOG_FILTER_H
#define VIBEMQ_LOG_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/error.h"
#include "chunk.h"

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
