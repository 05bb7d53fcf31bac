/* SPDX-License-Identifier: Apache-2.0
 *
 * error: the one list of what can go wrong in the C core.
 *
 * A function that can fail returns an `err` (0 is success) and fills the
 * caller's `fault` with where it happened, what was needed and what there was,
 * so that a message can be built without the function knowing who reads it.
 */
#ifndef VIBEMQ_BASE_ERROR_H
#define VIBEMQ_BASE_ERROR_H

#include <stddef.h>
#include <stdint.h>

/* name, sentence for people */
#define ERROR_LIST(X)                                                          \
    X(OK, "success")                                                           \
    X(ERR_IO, "the operating system refused an operation")                     \
    X(ERR_DISK_FULL, "no space left on the device")                            \
    X(ERR_NO_MEMORY, "out of memory")                                          \
    X(ERR_CORRUPT, "stored bytes do not match their checksum or format")       \
    X(ERR_TRUNCATED, "input ends before the value does")                       \
    X(ERR_LIMIT, "a value is beyond a named limit")                            \
    X(ERR_INVALID, "an argument or field has a value that is not allowed")     \
    X(ERR_NOT_FOUND, "no such file, stream or offset")                         \
    X(ERR_EXISTS, "it exists already")                                         \
    X(ERR_DELETED, "the stream was deleted")                                   \
    X(ERR_STALE, "written before the last boot: recovery must run first")      \
    X(ERR_NOT_CACHED, "not in the page cache; a blocking read is needed")      \
    X(ERR_END, "nothing more is committed")                                    \
    X(ERR_FULL, "the ring or table is full")                                   \
    X(ERR_EMPTY, "the ring or table is empty")                                 \
    X(ERR_LOCK, "the lock cannot be used")                                    \
    X(ERR_BUSY, "another process or thread is in a slow file system call on it")  \
    X(ERR_VERSION, "written in a format that this vibemq does not know: start the newer vibemq, or restore the files")

#define ERROR_ENUM(name, text) name,
typedef enum err { ERROR_LIST(ERROR_ENUM) ERROR_COUNT } err;
#undef ERROR_ENUM

#define FAULT_WHERE_MAX_BYTES 320 /* PATH_MAX is larger; the tail of the path is kept */

/* What a failed call knows about its failure.  Any field may be 0. */
struct fault {
    err code;
    int sys_errno;                     /* errno at the failing system call, else 0 */
    uint64_t position;                 /* byte in the file or input */
    uint64_t needed, had;              /* a limit and a value, or bytes wanted and got */
    char where[FAULT_WHERE_MAX_BYTES]; /* file path or the name of the step */
};

/* The sentence for a code; never NULL. */
const char *error_text(err code);

/* The code's identifier, e.g. "ERR_IO"; never NULL. */
const char *error_name(err code);

/* Fill `f` (which may be NULL) and return `code`, so callers can write
 * `return fault_set(f, ERR_CORRUPT, 0, path, position, needed, had);` */
err fault_set(struct fault *f, err code, int sys_errno, const char *where, uint64_t position,
              uint64_t needed, uint64_t had);

/* As fault_set, from the current errno: ENOSPC and EDQUOT become ERR_DISK_FULL,
 * ENOENT ERR_NOT_FOUND, EEXIST ERR_EXISTS, ENOMEM ERR_NO_MEMORY, else ERR_IO. */
err fault_from_errno(struct fault *f, const char *where, uint64_t position, uint64_t needed, uint64_t had);

/* One line for a log: "ERR_CORRUPT: <sentence>: <where> at byte N: needed X, had Y (errno text)"; of
 * ERR_VERSION, where `needed` is the version known and `had` the one found: "version Y, known is version X".
 * Always NUL-terminated; returns the length written. */
size_t fault_format(const struct fault *f, char *out, size_t size);

#endif
