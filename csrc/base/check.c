/* SPDX-License-Identifier: Apache-2.0
 *
 * check: the end of a process that found itself wrong.
 *
 * The line is made on the stack and goes out with one write: the heap and the locks of
 * stdio may be what is broken.  abort() leaves a core to look at.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void check_failed(const char *expression, const char *file, int line)
{
    char text[512];
    /* Long names are cut: the place is what matters. */
    int size = snprintf(text, sizeof text, "vibemq: check failed at %.200s:%d: %.200s\n", file, line, expression);
    if (size < 0 || write(STDERR_FILENO, text, (size_t)size) < 0) {
        /* Nobody is listening; there is nothing left to tell them. */
    }
    abort();
}
