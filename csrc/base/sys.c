/* SPDX-License-Identifier: Apache-2.0
 *
 * sys: the real system calls behind the table.
 *
 * Calls that a signal may interrupt before they did anything are made again here,
 * so that no caller has to know about EINTR.  Not close: on Linux the descriptor
 * is gone even when it says EINTR, and the number may already be another's.
 */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define AGAIN_WHILE_INTERRUPTED(result, call)            \
    do {                                                 \
        (result) = (call);                               \
    } while ((result) < 0 && errno == EINTR)

static int real_open(const char *path, int flags, mode_t mode)
{
    int fd;
    AGAIN_WHILE_INTERRUPTED(fd, open(path, flags | O_CLOEXEC, mode));
    return fd;
}

static int real_close(int fd)
{
    if (close(fd) == 0 || errno == EINTR) return 0;
    return -1;
}

static ssize_t real_pread(int fd, void *data, size_t size, off_t position)
{
    ssize_t n;
    AGAIN_WHILE_INTERRUPTED(n, pread(fd, data, size, position));
    return n;
}

static ssize_t real_pread_nowait(int fd, void *data, size_t size, off_t position)
{
    struct iovec part = {.iov_base = data, .iov_len = size};
    ssize_t n;
    AGAIN_WHILE_INTERRUPTED(n, preadv2(fd, &part, 1, position, RWF_NOWAIT));
    /* A file system or a sandbox that does not know the flag: a read that may wait
     * is better than none.  EAGAIN (not cached) is the caller's answer. */
    if (n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) return real_pread(fd, data, size, position);
    return n;
}

static ssize_t real_pwrite(int fd, const void *data, size_t size, off_t position)
{
    ssize_t n;
    AGAIN_WHILE_INTERRUPTED(n, pwrite(fd, data, size, position));
    return n;
}

static ssize_t real_pwritev(int fd, const struct iovec *iov, int count, off_t position)
{
    ssize_t n;
    AGAIN_WHILE_INTERRUPTED(n, pwritev(fd, iov, count, position));
    return n;
}

static int real_fdatasync(int fd)
{
    int result;
    AGAIN_WHILE_INTERRUPTED(result, fdatasync(fd));
    return result;
}

static int real_fsync(int fd)
{
    int result;
    AGAIN_WHILE_INTERRUPTED(result, fsync(fd));
    return result;
}

static int real_fallocate(int fd, int mode, off_t position, off_t size)
{
    int result;
    AGAIN_WHILE_INTERRUPTED(result, fallocate(fd, mode, position, size));
    return result;
}

static int real_ftruncate(int fd, off_t size)
{
    int result;
    AGAIN_WHILE_INTERRUPTED(result, ftruncate(fd, size));
    return result;
}

/* The C library's fstat may be an inline function, which has no one address. */
static int real_fstat(int fd, struct stat *out) { return fstat(fd, out); }

static int real_flock(int fd, int operation)
{
    int result;
    AGAIN_WHILE_INTERRUPTED(result, flock(fd, operation));
    return result;
}

static int64_t real_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The kernel writes a UUID: 32 hexadecimal digits with dashes between groups. */
static int real_boot_id(uint8_t out[16])
{
    char text[64];
    int fd = real_open("/proc/sys/kernel/random/boot_id", O_RDONLY, 0);
    if (fd < 0) return -1;
    ssize_t size = real_pread(fd, text, sizeof text, 0);
    int read_errno = errno;
    real_close(fd);
    if (size < 0) {
        errno = read_errno;
        return -1;
    }

    unsigned digits = 0;
    uint8_t id[16] = {0};
    for (ssize_t i = 0; i < size && digits < 32; i++) {
        int value = hex_digit(text[i]);
        if (value < 0) continue;
        id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | value);
        digits++;
    }
    if (digits != 32) {
        errno = EIO;
        return -1;
    }
    for (int i = 0; i < 16; i++) out[i] = id[i];
    return 0;
}

const struct sys sys_real = {
    .open = real_open,
    .close = real_close,
    .pread = real_pread,
    .pread_nowait = real_pread_nowait,
    .pwrite = real_pwrite,
    .pwritev = real_pwritev,
    .fdatasync = real_fdatasync,
    .fsync = real_fsync,
    .fallocate = real_fallocate,
    .ftruncate = real_ftruncate,
    .fstat = real_fstat,
    .flock = real_flock,
    .mkdir = mkdir,
    .rename = rename,
    .unlink = unlink,
    .rmdir = rmdir,
    .mmap = mmap,
    .munmap = munmap,
    .now_ms = real_now_ms,
    .boot_id = real_boot_id,
};

const struct sys *sys = &sys_real;
