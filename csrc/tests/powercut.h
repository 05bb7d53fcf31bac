/* SPDX-License-Identifier: Apache-2.0
 *
 * powercut: a disk that forgets.
 *
 * Here's how it works:
 *   1. A table of system calls passes everything on to the real files, and beside them
 *      keeps what a disk would hold: for each file the bytes that were synced and the
 *      writes since, for the directory the names that were synced and the changes since.
 *   2. At the chosen system call the power is cut: a directory is made that holds what was
 *      synced, and of everything later any random part: each write whole, lost, or torn at
 *      sectors of 512 bytes; each new name, rename and removal there or not.
 *   3. The run goes on as if nothing had happened, but promises after the cut do not count.
 *
 * One directory at a time, one thread.  Mapped files (control, tracking) come back as the test
 * says: any version that it has photographed, or not at all.
 */
#ifndef VIBEMQ_TESTS_POWERCUT_H
#define VIBEMQ_TESTS_POWERCUT_H

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../base/check.h"
#include "../base/sys.h"
#include "test.h"

#define CUT_FILES_MAX 512
#define CUT_CHANGES_MAX 4096
#define CUT_SECTOR_BYTES 512

struct cut_write { struct cut_write *next; uint64_t position; size_t size; bool truncates; uint8_t data[]; };
struct cut_file { ino_t inode; uint8_t *synced; size_t synced_bytes; struct cut_write *writes, **writes_end; };
struct cut_name { char name[64]; int file; };
struct cut_change { enum { CUT_LINK, CUT_UNLINK, CUT_RENAME } kind; char name[64], target[64]; int file; };

static struct cut_disk {
    char directory[512];
    struct cut_file files[CUT_FILES_MAX];
    int file_count;
    struct cut_name now[CUT_FILES_MAX], synced[CUT_FILES_MAX];
    int now_count, synced_count;
    struct cut_change changes[CUT_CHANGES_MAX];
    int change_count;
    int64_t calls_left;    /* before the cut; negative: never */
    bool cut;
    char result[512];      /* the directory that the cut left */
    uint8_t photos[8][4096];
    unsigned photo_count;
} cut_disk;

static uint8_t cut_boot = 1; /* raised to make everything written before stale */

static const char *cut_base(const char *path)
{
    size_t n = strlen(cut_disk.directory);
    if (strncmp(path, cut_disk.directory, n) != 0 || path[n] != '/') return NULL;
    return path + n + 1;
}

static struct cut_name *cut_find(struct cut_name *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i].name, name) == 0) return &names[i];
    return NULL;
}

static void cut_set(struct cut_name *names, int *count, const char *name, int file)
{
    struct cut_name *n = cut_find(names, *count, name);
    if (!n) {
        CHECK(*count < CUT_FILES_MAX);
        n = &names[(*count)++];
        snprintf(n->name, sizeof n->name, "%s", name);
    }
    n->file = file;
}

static void cut_unset(struct cut_name *names, int *count, const char *name)
{
    struct cut_name *n = cut_find(names, *count, name);
    if (n) *n = names[--*count];
}

static void cut_change(int kind, const char *name, const char *target, int file)
{
    CHECK(cut_disk.change_count < CUT_CHANGES_MAX);
    struct cut_change *c = &cut_disk.changes[cut_disk.change_count++];
    c->kind = kind;
    c->file = file;
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->target, sizeof c->target, "%s", target);
}

static void cut_note(struct cut_file *file, uint64_t position, const void *data, size_t size, bool truncates)
{
    struct cut_write *w = malloc(sizeof *w + size);
    *w = (struct cut_write){.position = position, .size = size, .truncates = truncates};
    if (size) memcpy(w->data, data, size);
    *file->writes_end = w;
    file->writes_end = &w->next;
}

static void cut_grow(uint8_t **bytes, size_t *have, size_t want)
{
    if (want <= *have) return;
    *bytes = realloc(*bytes, want);
    memset(*bytes + *have, 0, want - *have);
    *have = want;
}

/* Apply one write; `part`: 0 lost, 1 whole, 2 torn at sectors. */
static void cut_apply(uint8_t **bytes, size_t *have, const struct cut_write *w, int part)
{
    if (part == 0) return;
    if (w->truncates) {
        cut_grow(bytes, have, w->position);
        *have = w->position;
        return;
    }
    for (size_t at = 0; at < w->size;) {
        size_t to_sector_end = CUT_SECTOR_BYTES - (w->position + at) % CUT_SECTOR_BYTES;
        size_t n = w->size - at < to_sector_end ? w->size - at : to_sector_end;
        if (part == 1 || test_random() & 1) {
            cut_grow(bytes, have, w->position + at + n);
            memcpy(*bytes + w->position + at, w->data + at, n);
        }
        at += n;
    }
}

static void cut_forget_writes(struct cut_file *file)
{
    while (file->writes) {
        struct cut_write *w = file->writes;
        file->writes = w->next;
        free(w);
    }
    file->writes_end = &file->writes;
}

static void cut_sync(struct cut_file *file)
{
    for (struct cut_write *w = file->writes; w; w = w->next) cut_apply(&file->synced, &file->synced_bytes, w, 1);
    cut_forget_writes(file);
}

static void cut_put(const char *name, const void *data, size_t size)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", cut_disk.result, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0640);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

/* The power fails now. */
static void cut_now(void)
{
    struct cut_name names[CUT_FILES_MAX];
    int count = cut_disk.synced_count;
    memcpy(names, cut_disk.synced, sizeof names);
    cut_disk.cut = true;
    CHECK(mkdir(cut_disk.result, 0750) == 0);

    /* Journals keep the order of names as a rule; some runs are kinder or harsher. */
    unsigned manner = test_random_below(3);
    bool unlinks_stop = false; /* one directory's removals are kept in order by every journal */
    int prefix = (int)test_random_below((uint64_t)cut_disk.change_count + 1);
    for (int i = 0; i < cut_disk.change_count; i++) {
        const struct cut_change *c = &cut_disk.changes[i];
        if (c->kind == CUT_UNLINK && unlinks_stop) continue;
        if (manner == 0 ? i >= prefix : manner == 1 && test_random() & 1) {
            unlinks_stop = unlinks_stop || c->kind == CUT_UNLINK;
            continue;
        }
        if (c->kind != CUT_LINK) cut_unset(names, &count, c->name);
        if (c->kind == CUT_LINK) cut_set(names, &count, c->name, c->file);
        if (c->kind == CUT_RENAME) cut_set(names, &count, c->target, c->file);
    }
    unsigned keep = test_random_below(4); /* of the writes: none, all, some, some */
    for (int i = 0; i < count; i++) {
        const struct cut_file *file = &cut_disk.files[names[i].file];
        if (strcmp(names[i].name, "control") == 0 || strcmp(names[i].name, "tracking") == 0) continue;
        size_t size = file->synced_bytes;
        uint8_t *bytes = malloc(size + 1);
        if (size) memcpy(bytes, file->synced, size);
        for (const struct cut_write *w = file->writes; w; w = w->next)
            cut_apply(&bytes, &size, w, keep < 2 ? (int)keep : (int)test_random_below(3));
        cut_put(names[i].name, bytes, size);
        free(bytes);
    }
    if (cut_disk.photo_count && test_random_below(5)) {
        unsigned newest = cut_disk.photo_count - 1;
        unsigned oldest = newest >= 8 ? newest - 7 : 0;
        unsigned which = test_random() & 1 ? newest : oldest + (unsigned)test_random_below(newest - oldest + 1);
        cut_put("control", cut_disk.photos[which % 8], 4096);
    }
}

static void cut_tick(void)
{
    if (cut_disk.cut || cut_disk.calls_left < 0) return;
    if (cut_disk.calls_left-- == 0) cut_now();
}

/* Remember the control page as the kernel might write it back about now. */
TEST_UNUSED static void cut_photograph(const void *page)
{
    memcpy(cut_disk.photos[cut_disk.photo_count++ % 8], page, 4096);
}

static struct cut_file *cut_of(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return NULL;
    for (int i = cut_disk.file_count; i-- > 0;)
        if (cut_disk.files[i].inode == st.st_ino) return &cut_disk.files[i];
    return NULL;
}

static int cut_add(int fd)
{
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && cut_disk.file_count < CUT_FILES_MAX);
    struct cut_file *old = cut_of(fd);
    if (old) old->inode = 0; /* the number is used again */
    struct cut_file *file = &cut_disk.files[cut_disk.file_count];
    *file = (struct cut_file){.inode = st.st_ino};
    file->writes_end = &file->writes;
    return cut_disk.file_count++;
}

/* ---- the table ---- */

static int cut_open(const char *path, int flags, mode_t mode)
{
    cut_tick();
    const char *name = cut_base(path);
    bool fresh = name && flags & O_CREAT && !cut_find(cut_disk.now, cut_disk.now_count, name);
    int fd = sys_real.open(path, flags, mode);
    if (fd < 0 || !name) return fd;
    if (fresh) {
        int file = cut_add(fd);
        cut_set(cut_disk.now, &cut_disk.now_count, name, file);
        cut_change(CUT_LINK, name, "", file);
    } else if (flags & O_TRUNC) {
        struct cut_file *file = cut_of(fd);
        if (file) cut_note(file, 0, NULL, 0, true);
    }
    return fd;
}

static ssize_t cut_pwrite(int fd, const void *data, size_t size, off_t position)
{
    cut_tick();
    ssize_t n = sys_real.pwrite(fd, data, size, position);
    struct cut_file *file = cut_of(fd);
    if (file && n > 0) cut_note(file, (uint64_t)position, data, (size_t)n, false);
    return n;
}

TEST_UNUSED static ssize_t cut_pwrite_fails(int fd, const void *data, size_t size, off_t position)
{
    (void)fd, (void)data, (void)size, (void)position;
    cut_tick();
    errno = EIO;
    return -1;
}

static ssize_t cut_pwritev(int fd, const struct iovec *iov, int count, off_t position)
{
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t n = cut_pwrite(fd, iov[i].iov_base, iov[i].iov_len, position + total);
        CHECK(n == (ssize_t)iov[i].iov_len);
        total += n;
    }
    return total;
}

static int cut_ftruncate(int fd, off_t size)
{
    cut_tick();
    struct cut_file *file = cut_of(fd);
    if (file) cut_note(file, (uint64_t)size, NULL, 0, true);
    return sys_real.ftruncate(fd, size);
}

static int cut_fdatasync(int fd)
{
    cut_tick();
    struct cut_file *file = cut_of(fd);
    if (file) cut_sync(file);
    return 0;
}

static int cut_fsync(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return -1;
    if (!S_ISDIR(st.st_mode)) return cut_fdatasync(fd);
    cut_tick();
    memcpy(cut_disk.synced, cut_disk.now, sizeof cut_disk.synced);
    cut_disk.synced_count = cut_disk.now_count;
    cut_disk.change_count = 0;
    return 0;
}

static int cut_syncfs(int fd)
{
    cut_tick();
    (void)fd; /* there is one directory */
    for (int i = 0; i < cut_disk.file_count; i++) cut_sync(&cut_disk.files[i]);
    memcpy(cut_disk.synced, cut_disk.now, sizeof cut_disk.synced);
    cut_disk.synced_count = cut_disk.now_count;
    cut_disk.change_count = 0;
    return 0;
}

static int cut_rename(const char *source, const char *target)
{
    cut_tick();
    int result = sys_real.rename(source, target);
    const char *from = cut_base(source), *to = cut_base(target);
    struct cut_name *n = from ? cut_find(cut_disk.now, cut_disk.now_count, from) : NULL;
    if (result == 0 && n && to) {
        int file = n->file;
        cut_unset(cut_disk.now, &cut_disk.now_count, from);
        cut_set(cut_disk.now, &cut_disk.now_count, to, file);
        cut_change(CUT_RENAME, from, to, file);
    }
    return result;
}

static int cut_unlink(const char *path)
{
    cut_tick();
    const char *name = cut_base(path);
    int result = sys_real.unlink(path);
    if (result == 0 && name && cut_find(cut_disk.now, cut_disk.now_count, name)) {
        cut_unset(cut_disk.now, &cut_disk.now_count, name);
        cut_change(CUT_UNLINK, name, "", 0);
    }
    return result;
}

static int cut_boot_id(uint8_t out[16])
{
    memset(out, cut_boot, 16);
    return 0;
}

static struct sys cut_sys;

/* Forget everything and watch `directory`, where every file that exists is synced. */
TEST_UNUSED static void cut_watch(const char *directory, const char *result, int64_t calls)
{
    for (int i = 0; i < cut_disk.file_count; i++) {
        cut_forget_writes(&cut_disk.files[i]);
        free(cut_disk.files[i].synced);
    }
    memset(&cut_disk, 0, sizeof cut_disk);
    snprintf(cut_disk.directory, sizeof cut_disk.directory, "%s", directory);
    snprintf(cut_disk.result, sizeof cut_disk.result, "%s", result);
    cut_disk.calls_left = calls;
    cut_sys = sys_real;
    cut_sys.open = cut_open;
    cut_sys.pwrite = cut_pwrite;
    cut_sys.pwritev = cut_pwritev;
    cut_sys.ftruncate = cut_ftruncate;
    cut_sys.fdatasync = cut_fdatasync;
    cut_sys.fsync = cut_fsync;
    cut_sys.syncfs = cut_syncfs;
    cut_sys.rename = cut_rename;
    cut_sys.unlink = cut_unlink;
    cut_sys.boot_id = cut_boot_id;
    sys = &cut_sys;
}

/* Take in a file that exists already. */
TEST_UNUSED static void cut_adopt(const char *name)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", cut_disk.directory, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    int file = cut_add(fd);
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    struct cut_file *f = &cut_disk.files[file];
    cut_grow(&f->synced, &f->synced_bytes, (size_t)st.st_size);
    CHECK(pread(fd, f->synced, f->synced_bytes, 0) == (ssize_t)f->synced_bytes);
    close(fd);
    if (strcmp(name, "control") == 0 && f->synced_bytes == 4096) cut_photograph(f->synced);
    cut_set(cut_disk.now, &cut_disk.now_count, name, file);
    cut_set(cut_disk.synced, &cut_disk.synced_count, name, file);
}

#endif
