/* SPDX-License-Identifier: Apache-2.0
 *
 * Any 32 bytes are an index record that writes back as the same bytes, or corrupt; the same for a header.
 */
#include "../log/segment.h"

#include <string.h>

#include "fuzz.h"

#define SEED 0x5EEDu /* as in seeds.c */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct index_record r;
    uint8_t again[INDEX_RECORD_BYTES];
    err e = index_record_read(data, size, SEED, &r);
    CHECK((size < INDEX_RECORD_BYTES) == (e == ERR_TRUNCATED));
    if (e == OK) {
        index_record_write(&r, SEED, again);
        CHECK(memcmp(again, data, sizeof again) == 0);
    }
    uint64_t first;
    uint32_t seed;
    CHECK((size < INDEX_HEADER_BYTES) == (index_header_read("index", data, size, &first, &seed, NULL) == ERR_TRUNCATED));
    return 0;
}
