/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz: what every target begins with.  A target states in one sentence what must
 * hold for any input; CHECK ends the run when it does not.
 */
#ifndef VIBEMQ_FUZZ_FUZZ_H
#define VIBEMQ_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "../base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Is the span inside the input?  An absent span is NULL and empty. */
static inline int fuzz_inside(const uint8_t *data, size_t size, const uint8_t *span, size_t span_size)
{
    if (!span) return span_size == 0;
    return span >= data && span <= data + size && span_size <= (size_t)(data + size - span);
}

#endif
