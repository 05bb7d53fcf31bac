/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes are a snapshot that gives a table whose invariants hold, or an error; any bytes
 * are a trailer that is applied whole or not at all.
 *
 * The snapshot is tried as it is and with its checksum put right.
 */
#include "../log/tracking.h"

#include <stdlib.h>
#include <string.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tracking *t;
    uint64_t segment;
    if (!t) CHECK(tracking_new(&t, NULL) == OK);
    if (size < 4 || size > TRACKING_SNAPSHOT_BYTES_MAX + 16) return 0;
    uint8_t *copy = malloc(size);
    CHECK(copy != NULL);
    memcpy(copy, data, size);
    for (int right = 0; right < 2; right++) {
        tracking_clear(t);
        if (right) bytes_store32(copy + size - 4, crc32_update(0, copy, size - 4));
        err e = tracking_snapshot_decode("tracking", copy, size, &segment, t, NULL);
        CHECK(e == OK || e == ERR_CORRUPT || e == ERR_TRUNCATED || e == ERR_VERSION);
        tracking_check(t);
    }
    free(copy);

    tracking_clear(t);
    err e = tracking_apply(t, data, (uint32_t)size, 7);
    CHECK(e == OK || (e == ERR_CORRUPT && t->table->count == 0));
    tracking_check(t);
    return 0;
}
