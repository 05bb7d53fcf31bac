/* SPDX-License-Identifier: Apache-2.0
 *
 * grow: room for more items at the end of an array, at the price of one copy for each doubling.
 */
#ifndef VIBEMQ_BASE_GROW_H
#define VIBEMQ_BASE_GROW_H

#include <stddef.h>

#include "error.h"

/* Let an array hold `needed` items.  `array` is the address of the pointer to it (NULL to begin with; memory
 * that is given back with free) and `*capacity` how many items it holds now.  It at least doubles.  ERR_NO_MEMORY names
 * `what` with the bytes needed and had, and nothing has changed. */
err grow(void *array, size_t *capacity, size_t needed, size_t item_bytes, const char *what, struct fault *f);

#endif
