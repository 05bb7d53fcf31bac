/* SPDX-License-Identifier: Apache-2.0
 *
 * murmur3: the 32-bit hash by which clients of the streams protocol choose the partition of a super stream, and no other
 * use.  It is an agreement between programs of several languages, so neither the function nor the seed may change.
 */
#ifndef VIBEMQ_BASE_MURMUR3_H
#define VIBEMQ_BASE_MURMUR3_H

#include <stdint.h>
#include <string.h>

#define MURMUR3_ROUTING_SEED 104729u /* what the clients have agreed on */

static inline uint32_t murmur3_rotate(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }

static inline uint32_t murmur3_mix(uint32_t block) { return murmur3_rotate(block * 0xCC9E2D51u, 15) * 0x1B873593u; }

static inline uint32_t murmur3_32(const void *data, uint32_t size, uint32_t seed)
{
    const uint8_t *at = (const uint8_t *)data;
    uint32_t hash = seed, left = size;
    for (; left >= 4; at += 4, left -= 4) {
        uint32_t block = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        hash = murmur3_rotate(hash ^ murmur3_mix(block), 13) * 5 + 0xE6546B64u;
    }
    if (left) {
        uint32_t block = 0;
        for (uint32_t i = 0; i < left; i++) block |= (uint32_t)at[i] << (8 * i);
        hash ^= murmur3_mix(block);
    }
    hash ^= size;
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
    return hash ^ hash >> 16;
}

/* Which of `partitions` streams, in the order in which the server lists them, a message with this key goes to. */
static inline uint32_t murmur3_partition(const void *key, uint32_t size, uint32_t partitions)
{
    return murmur3_32(key, size, MURMUR3_ROUTING_SEED) % partitions;
}

#endif
