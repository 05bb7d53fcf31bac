/* SPDX-License-Identifier: Apache-2.0
 *
 * error: texts for the list of errors, and the filling and printing of a fault.
 */
#include "error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ERROR_TEXT(name, text) text,
#define ERROR_NAME(name, text) #name,
static const char *const error_texts[] = {ERROR_LIST(ERROR_TEXT)};
static const char *const error_names[] = {ERROR_LIST(ERROR_NAME)};
#undef ERROR_TEXT
#undef ERROR_NAME

/* A code may come from another process's memory: it is looked at before it is used. */
static int error_known(err code) { return (unsigned)code < (unsigned)ERROR_COUNT; }

const char *error_text(err code) { return error_known(code) ? error_texts[code] : "an unknown error"; }
const char *error_name(err code) { return error_known(code) ? error_names[code] : "ERR_UNKNOWN"; }

err fault_set(struct fault *f, err code, int sys_errno, const char *where, uint64_t position, uint64_t needed,
              uint64_t had)
{
    if (!f) return code;
    f->code = code;
    f->sys_errno = sys_errno;
    f->position = position;
    f->needed = needed;
    f->had = had;
    if (!where) where = "";

    /* The file's name is at the end of a path, so the tail is what is kept.  `where`
     * may be f->where itself, when a caller hands a fault on under another code. */
    size_t size = strlen(where);
    if (size >= FAULT_WHERE_MAX_BYTES) {
        where += size - (FAULT_WHERE_MAX_BYTES - 1);
        size = FAULT_WHERE_MAX_BYTES - 1;
    }
    memmove(f->where, where, size);
    f->where[size] = 0;
    return code;
}

err fault_from_errno(struct fault *f, const char *where, uint64_t position, uint64_t needed, uint64_t had)
{
    static const struct { int sys_errno; err code; } table[] = {
        {ENOSPC, ERR_DISK_FULL}, {EDQUOT, ERR_DISK_FULL}, {ENOENT, ERR_NOT_FOUND},
        {EEXIST, ERR_EXISTS},    {ENOMEM, ERR_NO_MEMORY},
    };
    int sys_errno = errno;
    err code = ERR_IO;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].sys_errno == sys_errno) code = table[i].code;
    return fault_set(f, code, sys_errno, where, position, needed, had);
}

/* The system's own words for an errno. */
static const char *reason_of(int sys_errno, char *text, size_t size)
{
#ifdef __GLIBC__
    return strerror_r(sys_errno, text, size); /* may answer with a constant string of its own */
#else
    return strerror_r(sys_errno, text, size) == 0 ? text : "an unknown error"; /* POSIX's form, which musl has */
#endif
}

size_t fault_format(const struct fault *f, char *out, size_t size)
{
    char numbers[128] = "", reason[160] = "";
    if (size == 0) return 0;

    if (f->code == ERR_VERSION)
        snprintf(numbers, sizeof numbers, ": version %" PRIu64 ", known is version %" PRIu64, f->had, f->needed);
    else if (f->needed || f->had)
        snprintf(numbers, sizeof numbers, ": needed %" PRIu64 ", had %" PRIu64, f->needed, f->had);
    if (f->sys_errno) {
        char text[128];
        snprintf(reason, sizeof reason, " (%s)", reason_of(f->sys_errno, text, sizeof text));
    }
    int written = snprintf(out, size, "%s: %s: %s at byte %" PRIu64 "%s%s", error_name(f->code), error_text(f->code),
                           f->where[0] ? f->where : "(nowhere)", f->position, numbers, reason);
    if (written < 0) {
        out[0] = 0;
        return 0;
    }
    return (size_t)written < size ? (size_t)written : size - 1;
}
