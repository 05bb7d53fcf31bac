/* SPDX-License-Identifier: Apache-2.0
 *
 * grow: the one place where arrays get larger.
 */
#include "grow.h"

#include <stdint.h>
#include <string.h>

#include "sys.h"

#define FIRST_BYTES 256u /* of an array that holds nothing yet */

err grow(void *array, size_t *capacity, size_t needed, size_t item_bytes, const char *what, struct fault *f)
{
    if (needed <= *capacity) return OK;
    size_t wanted = *capacity <= SIZE_MAX / 2 ? *capacity * 2 : SIZE_MAX;
    if (wanted < FIRST_BYTES / item_bytes) wanted = FIRST_BYTES / item_bytes;
    if (wanted < needed) wanted = needed;
    void *held, *grown = NULL; /* copied, because the pointer at `array` is of another type */
    memcpy(&held, array, sizeof held);
    if (wanted <= SIZE_MAX / item_bytes) grown = sys->realloc(held, wanted * item_bytes);
    if (!grown) {
        size_t bytes = needed <= SIZE_MAX / item_bytes ? needed * item_bytes : SIZE_MAX;
        return fault_set(f, ERR_NO_MEMORY, 0, what, 0, bytes, *capacity * item_bytes);
    }
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return OK;
}
