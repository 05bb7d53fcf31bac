/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/murmur3.h"

#include "test.h"

TEST(the_hash_is_the_one_that_the_clients_of_others_use)
{
    static const struct {
        const char *key;
        uint32_t hash;
    } known[] = {
        /* by mmh3 5.3 with seed 104729; every number of bytes behind the last block of four */
        {"", 3329588566u}, {"a", 1086686554u}, {"ab", 398604456u}, {"abc", 3409700625u}, {"abcd", 3421720556u},
        {"hello", 1321743225u}, {"gr\xc3\xbcn", 1033909270u},
        {"The quick brown fox jumps over the lazy dog", 2309154022u},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t size = (uint32_t)strlen(known[i].key);
        EXPECT_EQ(known[i].hash, murmur3_32(known[i].key, size, MURMUR3_ROUTING_SEED));
        EXPECT_EQ(known[i].hash % 3, murmur3_partition(known[i].key, size, 3));
    }
}
