/* SPDX-License-Identifier: Apache-2.0
 *
 * check: the end of a process that found itself wrong.
 *
 * The line is put together by hand and goes out with one write: the heap and the
 * locks of stdio may be what is broken.  abort() leaves a core to look at.
 */
#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 512 /* longer expressions are cut: the place is what matters */

static size_t append(char *line, size_t at, const char *text)
{
    size_t size = strlen(text), room = LINE_MAX_BYTES - at;
    if (size > room) size = room;
    memcpy(line + at, text, size);
    return at + size;
}

_Noreturn void check_failed(const char *expression, const char *file, int line_number)
{
    char line[LINE_MAX_BYTES + 1], digits[12];
    size_t at = 0, digit = sizeof digits - 1;
    unsigned number = line_number > 0 ? (unsigned)line_number : 0;

    digits[digit] = 0;
    do {
        digits[--digit] = (char)('0' + number % 10);
        number /= 10;
    } while (number);

    at = append(line, at, "vibemq: check failed at ");
    at = append(line, at, file);
    at = append(line, at, ":");
    at = append(line, at, digits + digit);
    at = append(line, at, ": ");
    at = append(line, at, expression);
    line[at++] = '\n';
    if (write(STDERR_FILENO, line, at) < 0) {
        /* Nobody is listening; there is nothing left to tell them. */
    }
    abort();
}
