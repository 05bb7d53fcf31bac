/* SPDX-License-Identifier: Apache-2.0
 *
 * file: whole reads and writes through the table of system calls.
 *
 * A call that a signal interrupted before it did anything is made again here, so that no caller has to know about
 * EINTR.  Not close: on Linux the descriptor is gone even when it says EINTR, and the number may already be another's.
 */
#include "file.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "calls.h"
#include "check.h"
#include "crc32.h"

#define AGAIN_WHILE_INTERRUPTED(call) \
    ({ __typeof__(call) result_; do result_ = (call); while (result_ < 0 && errno == EINTR); result_; })

/* The same for a call that may wait for the disk. */
#define NOTED(kind, path, made) \
    ({ struct call *noted_ = call_begin(kind, path); \
       __typeof__(made) answer_ = AGAIN_WHILE_INTERRUPTED(made); \
       call_end(noted_); \
       answer_; })

/* Of a call that says no more than whether it went well. */
static err answer(int result, const char *path, uint64_t position, struct fault *f)
{
    return result < 0 ? fault_from_errno(f, path, position, 0, 0) : OK;
}

struct file_path file_path_name(const char *directory, const char *name)
{
    struct file_path p;
    int n = snprintf(p.text, sizeof p.text, "%s/%s", directory, name);
    CHECK(n > 0 && (size_t)n < sizeof p.text);
    return p;
}

struct file_path file_path_numbered(const char *directory, uint64_t first_offset, const char *suffix)
{
    struct file_path p;
    int n = snprintf(p.text, sizeof p.text, "%s/%0*" PRIu64 "%s", directory, FILE_NAME_DIGITS, first_offset, suffix);
    CHECK(n > 0 && (size_t)n < sizeof p.text);
    return p;
}

bool file_name_parse(const char *name, const char *suffix, uint64_t *first_offset)
{
    uint64_t value = 0;
    for (int i = 0; i < FILE_NAME_DIGITS; i++) {
        if (name[i] < '0' || name[i] > '9') return false;
        uint64_t digit = (uint64_t)(name[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    if (strcmp(name + FILE_NAME_DIGITS, suffix) != 0) return false;
    *first_offset = value;
    return true;
}

err file_open(const char *path, int flags, int *fd, struct fault *f)
{
    *fd = NOTED(CALL_OPEN, path, sys->open(path, flags | O_CLOEXEC, 0640));
    return answer(*fd, path, 0, f);
}

err file_open_numbered(struct file_path *p, const char *directory, uint64_t first_offset, const char *suffix, int flags,
                       int *fd, struct fault *f)
{
    *p = file_path_numbered(directory, first_offset, suffix);
    return file_open(p->text, flags | O_NOFOLLOW, fd, f);
}

void file_close(int *fd)
{
    if (*fd >= 0) sys->close(*fd); /* nothing is promised by a close: what must be durable was synced */
    *fd = -1;
}

err file_stat(int fd, const char *path, struct stat *st, struct fault *f)
{
    return answer(AGAIN_WHILE_INTERRUPTED(sys->fstat(fd, st)), path, 0, f);
}

err file_size(int fd, const char *path, uint64_t *size, struct fault *f)
{
    struct stat st;
    err e = file_stat(fd, path, &st, f);
    if (!e) *size = (uint64_t)st.st_size;
    return e;
}

err file_read(int fd, const char *path, void *data, size_t size, uint64_t position, size_t *got, struct fault *f)
{
    *got = 0;
    while (*got < size) {
        off_t at = (off_t)(position + *got);
        ssize_t n = NOTED(CALL_READ, path, sys->pread(fd, (uint8_t *)data + *got, size - *got, at));
        if (n < 0) return fault_from_errno(f, path, position + *got, size, *got);
        if (n == 0) break;
        *got += (size_t)n;
    }
    return OK;
}

err file_stat_of(const char *path, struct stat *st, struct fault *f)
{
    int fd;
    err e = file_open(path, O_RDONLY, &fd, f);
    if (e) return e;
    e = file_stat(fd, path, st, f);
    file_close(&fd);
    return e;
}

/* Of thousands of files at a start the kernel would fetch all that follows, too. */
err file_head(int fd, const char *path, void *data, size_t size, size_t *got, struct fault *f)
{
    sys->fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return file_read(fd, path, data, size, 0, got, f);
}

err file_read_head(const char *path, void *data, size_t size, size_t *got, struct fault *f)
{
    int fd;
    err e = file_open(path, O_RDONLY, &fd, f);
    if (e) return e;
    e = file_head(fd, path, data, size, got, f);
    file_close(&fd);
    return e;
}

err file_read_exact(int fd, const char *path, void *data, size_t size, uint64_t position, struct fault *f)
{
    size_t got;
    err e = file_read(fd, path, data, size, position, &got, f);
    if (e) return e;
    return got < size ? fault_set(f, ERR_TRUNCATED, 0, path, position, size, got) : OK;
}

err file_write(int fd, const char *path, const void *data, size_t size, uint64_t position, struct fault *f)
{
    const uint8_t *at = data;
    size_t done = 0;
    while (done < size) {
        ssize_t n = NOTED(CALL_WRITE, path, sys->pwrite(fd, at + done, size - done, (off_t)(position + done)));
        if (n < 0) return fault_from_errno(f, path, position + done, size, done);
        if (n == 0) return fault_set(f, ERR_IO, 0, path, position + done, size, done);
        done += (size_t)n;
    }
    return OK;
}

err file_writev(int fd, const char *path, struct iovec *parts, int count, uint64_t position, struct fault *f)
{
    while (count > 0) {
        ssize_t n = NOTED(CALL_WRITE, path, sys->pwritev(fd, parts, count, (off_t)position));
        if (n < 0) return fault_from_errno(f, path, position, parts->iov_len, 0);
        if (n == 0) return fault_set(f, ERR_IO, 0, path, position, parts->iov_len, 0);
        position += (uint64_t)n;

        /* Cut short: the next call begins within the part where this one ended. */
        size_t left = (size_t)n;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    return OK;
}

err file_create(const char *path, const void *data, size_t size, int *fd, struct fault *f)
{
    err e = file_open(path, O_RDWR | O_CREAT | O_TRUNC, fd, f);
    if (e) return e;
    e = file_write(*fd, path, data, size, 0, f);
    if (e) file_close(fd);
    return e;
}

err file_truncate(int fd, const char *path, uint64_t size, struct fault *f)
{
    return answer(NOTED(CALL_TRUNCATE, path, sys->ftruncate(fd, (off_t)size)), path, size, f);
}

err file_punch(int fd, const char *path, uint64_t position, uint64_t size, struct fault *f)
{
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return answer(NOTED(CALL_TRUNCATE, path, sys->fallocate(fd, mode, (off_t)position, (off_t)size)), path, position, f);
}

err file_datasync(int fd, const char *path, struct fault *f)
{
    return answer(NOTED(CALL_SYNC, path, sys->fdatasync(fd)), path, 0, f);
}

err file_sync(const char *path, struct fault *f)
{
    int fd;
    err e = file_open(path, O_RDONLY, &fd, f);
    if (e) return e;
    e = file_datasync(fd, path, f);
    file_close(&fd);
    return e;
}

static err sync_by(int (*call)(int), const char *directory, struct fault *f)
{
    int fd;
    err e = file_open(directory, O_RDONLY | O_DIRECTORY, &fd, f);
    if (e) return e;
    e = answer(NOTED(CALL_SYNC, directory, call(fd)), directory, 0, f);
    file_close(&fd);
    return e;
}

err file_sync_directory(const char *directory, struct fault *f) { return sync_by(sys->fsync, directory, f); }
err file_sync_system(const char *directory, struct fault *f) { return sync_by(sys->syncfs, directory, f); }

err file_unlink(const char *path, struct fault *f)
{
    int result = NOTED(CALL_REMOVE, path, sys->unlink(path));
    return result < 0 && errno == ENOENT ? OK : answer(result, path, 0, f);
}

err file_rename(const char *source, const char *target, struct fault *f)
{
    return answer(NOTED(CALL_RENAME, target, sys->rename(source, target)), target, 0, f);
}

err file_put(err e, int *fd, const char *temporary, const char *path, bool sync, struct fault *f)
{
    if (!e && sync) e = file_datasync(*fd, temporary, f);
    file_close(fd);
    if (!e) e = file_rename(temporary, path, f);
    if (e) file_unlink(temporary, NULL);
    return e;
}

err file_replace(const char *path, const void *data, size_t size, bool sync, struct fault *f)
{
    struct file_path temporary;
    int n = snprintf(temporary.text, sizeof temporary.text, "%s.tmp", path);
    CHECK(n > 0 && (size_t)n < sizeof temporary.text);

    int fd;
    err e = file_create(temporary.text, data, size, &fd, f);
    return file_put(e, &fd, temporary.text, path, sync, f);
}

err file_each(const char *directory, file_each_fn *each, void *context, struct fault *f)
{
    DIR *d = opendir(directory);
    if (!d) return fault_from_errno(f, directory, 0, 0, 0);
    err e = OK;
    while (!e) {
        errno = 0;
        const struct dirent *entry = readdir(d);
        if (!entry) {
            if (errno) e = fault_from_errno(f, directory, 0, 0, 0);
            break;
        }
        if (entry->d_name[0] != '.') e = each(context, directory, entry->d_name, f);
    }
    closedir(d);
    return e;
}

err file_numbers(const char *directory, const char *suffix, uint64_t **numbers, uint32_t *count, struct fault *f)
{
    struct dirent **entries;
    int found = scandir(directory, &entries, NULL, alphasort); /* 20 digits sort as their numbers do */
    *count = 0;
    if (found < 0) return fault_from_errno(f, directory, 0, 0, 0);
    *numbers = malloc(((size_t)found + 1) * sizeof **numbers);
    for (int i = 0; i < found; i++) {
        if (*numbers && file_name_parse(entries[i]->d_name, suffix, &(*numbers)[*count])) ++*count;
        free(entries[i]);
    }
    free(entries);
    return *numbers ? OK : fault_set(f, ERR_NO_MEMORY, 0, directory, 0, ((size_t)found + 1) * sizeof **numbers, 0);
}

err file_map(int fd, const char *path, size_t bytes, bool write, void **memory, struct fault *f)
{
    *memory = sys->mmap(NULL, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    return *memory == MAP_FAILED ? fault_from_errno(f, path, 0, bytes, 0) : OK;
}

void file_header_seal(uint8_t *header, uint32_t bytes, uint32_t magic, uint32_t version)
{
    bytes_store32(header, magic);
    bytes_store32(header + 4, version);
    bytes_store32(header + bytes - 4, crc32_update(0, header, bytes - 4));
}

err file_header_check(const char *path, const uint8_t *data, uint64_t size, uint32_t bytes, uint32_t magic,
                      uint32_t version, struct fault *f)
{
    if (size < bytes) return fault_set(f, ERR_TRUNCATED, 0, path, 0, bytes, size);
    if (bytes_load32(data) != magic || bytes_load32(data + bytes - 4) != crc32_update(0, data, bytes - 4))
        return fault_set(f, ERR_CORRUPT, 0, path, 0, bytes, size);
    uint32_t had = bytes_load32(data + 4);
    return had == version ? OK : fault_set(f, ERR_VERSION, 0, path, 4, version, had);
}

uint32_t file_page_check(uint32_t magic, uint32_t version)
{
    uint8_t words[8];
    bytes_store32(words, magic);
    bytes_store32(words + 4, version);
    uint32_t check = crc32_update(0, words, sizeof words);
    return check ? check : 1;
}

err file_page_version(const char *path, const void *head, size_t size, const struct file_page_kind *kind, struct fault *f)
{
    uint32_t words[2], check;
    if (size < kind->check_at + sizeof check) return OK;
    memcpy(words, head, sizeof words);
    memcpy(&check, (const uint8_t *)head + kind->check_at, sizeof check);
    if (words[0] != kind->magic || words[1] <= kind->version || check != file_page_check(words[0], words[1])) return OK;
    return fault_set(f, ERR_VERSION, 0, path, 4, kind->version, words[1]);
}

err file_page_map(const char *path, const struct file_page_kind *kind, size_t bytes, bool write, err unfit,
                  void **memory, uint64_t *inode, struct fault *f)
{
    int fd;
    struct stat st;
    uint32_t head[FILE_PAGE_HEAD_BYTES / 4] = {0};
    size_t got;
    err e = file_open(path, (write ? O_RDWR : O_RDONLY) | O_NOFOLLOW, &fd, f);
    if (e) return e;
    e = file_head(fd, path, head, sizeof head, &got, f);
    if (!e) e = file_page_version(path, head, got, kind, f);
    if (!e) e = file_stat(fd, path, &st, f);
    if (!e && (uint64_t)st.st_size != bytes) e = fault_set(f, unfit, 0, path, 0, bytes, (uint64_t)st.st_size);
    if (!e && head[0] != kind->magic) e = fault_set(f, unfit, 0, path, 0, kind->magic, head[0]);
    if (!e && head[1] != kind->version) e = fault_set(f, unfit, 0, path, 4, kind->version, head[1]);
    if (!e) e = file_map(fd, path, bytes, write, memory, f);
    file_close(&fd);
    if (!e && inode) *inode = (uint64_t)st.st_ino;
    return e;
}

err file_random(void *out, size_t size, struct fault *f)
{
    return answer(AGAIN_WHILE_INTERRUPTED(sys->entropy(out, size)), "random bytes", 0, f);
}
