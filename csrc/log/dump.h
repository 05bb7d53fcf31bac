/* SPDX-License-Identifier: Apache-2.0
 *
 * dump: print any file of a log, for people (`vibemq log dump FILE`).
 */
#ifndef VIBEMQ_LOG_DUMP_H
#define VIBEMQ_LOG_DUMP_H

#include "log.h"

struct dump_options {
    bool entries;      /* also each entry: offset, kind, size, first bytes in hex */
    uint64_t limit;    /* chunks or records at most; 0: all */
};

/* Print a .segment, .index, .tracking, control or tracking file, told apart by its magic.  `line` gets
 * each line without a newline; a non-zero answer stops.  ERR_CORRUPT after the report of
 * damaged chunks (the walk goes on past them by the index). */
err dump_file(const char *path, const struct dump_options *options,
              int (*line)(void *context, const char *text), void *context, struct fault *f);

#endif
