/* SPDX-License-Identifier: Apache-2.0
 *
 * quarantine: what recovery takes out of a log, kept beside it for people: copied or renamed, and removed when it is
 * too much or too old.
 *
 *   <20 digits>.segment.<position>.<number>.quarantine   the bytes of a segment from that position on
 *   <20 digits>.<segment or index>.<number>.quarantine   a whole file
 *
 * The number is the epoch that the recovery ended, so it rises.  The log never reads these files; anybody may remove
 * them at any time, they go with the log, and with age where the log's messages go with age.
 *
 * The order makes a power cut harmless: a copy is complete and durable, name and all, before the original is
 * cut; a whole file is renamed, which is one stroke.  Done again, it ends the same.
 */
#include "handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_BYTES 65536u /* on the stack */
#define SECTOR_BYTES 4096u /* a read that fails is tried again in pieces of this size */
#define QUARANTINE_SUFFIX ".quarantine"

/* ---- names ---- */

/* "....<number>.quarantine" */
static bool name_parse(const char *name, uint32_t *number)
{
    size_t size = strlen(name), suffix = sizeof QUARANTINE_SUFFIX - 1;
    if (size <= suffix || strcmp(name + size - suffix, QUARANTINE_SUFFIX) != 0) return false;
    size_t at = size - suffix;
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9') at--;
    if (at == 0 || name[at - 1] != '.' || at == size - suffix) return false;
    uint64_t value = strtoull(name + at, NULL, 10);
    if (value > UINT32_MAX) return false;
    *number = (uint32_t)value;
    return true;
}

#define SIZE_NONE UINT64_MAX /* of no file */

/* A name with this number or, where another file of that place has it, one of the next.  Of a copy, a file of the same
 * size is what a recovery left that the power cut ended: it is written again.  A whole file (SIZE_NONE) leaves its place
 * with the rename, so one that has the name is always another. */
static err free_name(const char *directory, uint64_t segment, const char *what, uint32_t number, uint64_t copy_size,
                     struct file_path *out, struct fault *f)
{
    for (uint64_t n = number;; n++) {
        char suffix[FILE_NAME_BYTES_MAX];
        struct stat st;
        snprintf(suffix, sizeof suffix, "%s.%" PRIu64 QUARANTINE_SUFFIX, what, n);
        *out = file_path_numbered(directory, segment, suffix);
        err e = file_stat_of(out->text, &st, f);
        if (e == ERR_NOT_FOUND || (!e && (uint64_t)st.st_size == copy_size)) return OK;
        if (e) return e;
    }
}

/* ---- taking in ---- */

static err copy_piece(int from, const char *source, uint8_t *data, size_t size, uint64_t position)
{
    size_t got;
    err e = file_read(from, source, data, size, position, &got, NULL);
    if (!e && got < size) memset(data + got, 0, size - got); /* it has become shorter: not ours to ask why */
    if (e != ERR_IO) return e;
    for (size_t at = 0; at < size; at += SECTOR_BYTES) {
        size_t piece = size - at < SECTOR_BYTES ? size - at : SECTOR_BYTES;
        e = file_read(from, source, data + at, piece, position + at, &got, NULL);
        if (e) memset(data + at, 0, piece);
        else if (got < piece) memset(data + at + got, 0, piece - got);
    }
    return OK;
}

static err copy(int from, const char *source, uint64_t position, uint64_t size, int to, const char *target, struct fault *f)
{
    uint8_t data[COPY_BYTES];
    err e = OK;
    for (uint64_t at = position; at < size && !e;) {
        size_t piece = size - at < COPY_BYTES ? (size_t)(size - at) : COPY_BYTES;
        e = copy_piece(from, source, data, piece, at);
        if (e) fault_set(f, e, 0, source, at, piece, 0);
        else e = file_write(to, target, data, piece, at - position, f);
        at += piece;
    }
    return e;
}

err quarantine_tail(const char *directory, uint64_t segment, uint64_t position, uint64_t size, uint32_t number,
                    struct file_path *kept, struct fault *f)
{
    CHECK(position < size);
    char what[FILE_NAME_BYTES_MAX / 2]; /* ".segment." and a number */
    int from, to = -1;
    snprintf(what, sizeof what, SEGMENT_SUFFIX ".%" PRIu64, position);
    err e = free_name(directory, segment, what, number, size - position, kept, f);
    if (e) return e;
    struct file_path source = file_path_numbered(directory, segment, SEGMENT_SUFFIX);
    struct file_path temporary = file_path_name(directory, "quarantine.tmp"); /* half made, recovery sweeps it */
    e = file_open(source.text, O_RDONLY, &from, f);
    if (e) return e;
    e = file_open(temporary.text, O_RDWR | O_CREAT | O_TRUNC, &to, f);
    if (!e) e = copy(from, source.text, position, size, to, temporary.text, f);
    e = file_put(e, &to, temporary.text, kept->text, true, f);
    file_close(&from);
    return e ? e : file_sync_directory(directory, f);
}

err quarantine_file(const char *directory, uint64_t segment, const char *suffix, uint32_t number, struct file_path *kept,
                    struct fault *f)
{
    struct stat st;
    struct file_path source = file_path_numbered(directory, segment, suffix);
    err e = file_stat_of(source.text, &st, f);
    if (!e) e = free_name(directory, segment, suffix, number, SIZE_NONE, kept, f);
    if (!e) e = file_rename(source.text, kept->text, f);
    return e ? e : file_sync_directory(directory, f);
}

/* ---- letting go ---- */

struct look {
    uint32_t below;     /* numbers that count */
    uint64_t bytes;     /* of them all */
    int64_t oldest_ms;  /* remove what is older; INT64_MIN: nothing */
    uint32_t lowest;    /* number seen, and whose it is */
    char name[256];
};

static err look_at(void *context, const char *directory, const char *name, struct fault *f)
{
    struct look *look = context;
    uint32_t number;
    struct stat st;
    if (!name_parse(name, &number) || number >= look->below) return OK;
    if (strlen(name) >= FILE_NAME_BYTES_MAX - 1) return OK; /* no name of ours */
    struct file_path path = file_path_name(directory, name);
    if (file_stat_of(path.text, &st, NULL)) return OK; /* it is gone, or an operator keeps it from us */
    if ((int64_t)st.st_mtime * 1000 < look->oldest_ms) return file_unlink(path.text, f);
    look->bytes += (uint64_t)st.st_size;
    if (!look->name[0] || number < look->lowest) {
        look->lowest = number;
        snprintf(look->name, sizeof look->name, "%s", name);
    }
    return OK;
}

err quarantine_trim(const char *directory, uint32_t first, struct fault *f)
{
    for (;;) {
        struct look look = {.below = first, .oldest_ms = INT64_MIN};
        err e = file_each(directory, look_at, &look, f);
        if (e || look.bytes <= QUARANTINE_EARLIER_BYTES_MAX) return e;
        struct file_path path = file_path_name(directory, look.name);
        e = file_unlink(path.text, f);
        if (e) return e;
    }
}

err quarantine_expire(const char *directory, int64_t oldest_ms, struct fault *f)
{
    return file_each(directory, look_at, &(struct look){.below = UINT32_MAX, .oldest_ms = oldest_ms}, f);
}
