/* SPDX-License-Identifier: Apache-2.0
 *
 * sys: the real system calls behind the table.
 *
 * Whoever calls one that a signal may interrupt makes it again (base/file.c), so the table has them as they are.
 */
#include "sys.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static int real_open(const char *path, int flags, mode_t mode) { return open(path, flags | O_CLOEXEC, mode); }

static ssize_t real_pread_nowait(int fd, void *data, size_t size, off_t position)
{
    struct iovec part = {.iov_base = data, .iov_len = size};
    ssize_t n = preadv2(fd, &part, 1, position, RWF_NOWAIT);
    /* A file system or a sandbox that does not know the flag: a read that may wait
     * is better than none.  EAGAIN (not cached) is the caller's answer. */
    return n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS) ? pread(fd, data, size, position) : n;
}

/* The C library's fstat may be an inline function, which has no one address. */
static int real_fstat(int fd, struct stat *out) { return fstat(fd, out); }

/* The C library's takes a union of pointers, which is another type than ours. */
static int real_connect(int fd, const struct sockaddr *address, socklen_t size) { return connect(fd, address, size); }

static int64_t real_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t real_boot_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Before Linux 5.8 it answers as if all had been written when something was not: then it is of no use. */
static int real_syncfs(int fd)
{
    struct utsname kernel;
    int version = 0, level = 0;
    if (uname(&kernel) < 0 || sscanf(kernel.release, "%d.%d", &version, &level) != 2 || version * 100 + level < 508) {
        errno = ENOSYS;
        return -1;
    }
    return syncfs(fd);
}

/* The kernel writes a UUID: pairs of hexadecimal digits, with dashes between groups. */
static int read_boot_id(uint8_t out[16])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file) return -1;
    uint8_t id[16];
    int count = 0;
    while (count < 16 && fscanf(file, "%2hhx%*[-]", &id[count]) == 1) count++;
    fclose(file);
    if (count < 16) {
        errno = EIO;
        return -1;
    }
    memcpy(out, id, sizeof id);
    return 0;
}

/* Each log that is opened asks for it: it is read once, as no process outlives its boot. */
static int real_boot_id(uint8_t out[16])
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t known[16];
    static bool is_known;
    pthread_mutex_lock(&mutex);
    is_known = is_known || read_boot_id(known) == 0;
    memcpy(out, known, sizeof known);
    int result = is_known ? 0 : -1;
    pthread_mutex_unlock(&mutex);
    return result;
}

const struct sys sys_real = {
    .open = real_open,
    .close = close,
    .pread = pread,
    .pread_nowait = real_pread_nowait,
    .pwrite = pwrite,
    .pwritev = pwritev,
    .fdatasync = fdatasync,
    .fsync = fsync,
    .syncfs = real_syncfs,
    .ftruncate = ftruncate,
    .fadvise = posix_fadvise,
    .fallocate = fallocate,
    .fstat = real_fstat,
    .flock = flock,
    .mkdir = mkdir,
    .rename = rename,
    .unlink = unlink,
    .rmdir = rmdir,
    .mmap = mmap,
    .munmap = munmap,
    .socket = socket,
    .setsockopt = setsockopt,
    .connect = real_connect,
    .send = send,
    .recv = recv,
    .now_ms = real_now_ms,
    .boot_ms = real_boot_ms,
    .boot_id = real_boot_id,
    .entropy = getentropy,
    .realloc = realloc,
};

const struct sys *sys = &sys_real;
