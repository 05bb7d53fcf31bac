/* SPDX-License-Identifier: Apache-2.0
 *
 * sys: the one table of system calls that touch the world, with what their callers need.
 * Everything below csrc/log and csrc/shm goes through `sys->`, so a test can make any call
 * fail at the Nth time, return short, or record what was really synced.
 */
#ifndef VIBEMQ_BASE_SYS_H
#define VIBEMQ_BASE_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

struct sys {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*pread)(int fd, void *data, size_t size, off_t position);
    ssize_t (*pread_nowait)(int fd, void *data, size_t size, off_t position); /* preadv2 with RWF_NOWAIT */
    ssize_t (*pwrite)(int fd, const void *data, size_t size, off_t position);
    ssize_t (*pwritev)(int fd, const struct iovec *iov, int count, off_t position);
    int (*fdatasync)(int fd);
    int (*fsync)(int fd);
    int (*syncfs)(int fd);
    int (*ftruncate)(int fd, off_t size);
    int (*fadvise)(int fd, off_t position, off_t size, int advice); /* posix_fadvise: no errno */
    int (*fallocate)(int fd, int mode, off_t position, off_t size);
    int (*fstat)(int fd, struct stat *out);
    int (*flock)(int fd, int operation);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rename)(const char *source, const char *target);
    int (*unlink)(const char *path);
    int (*rmdir)(const char *path);
    void *(*mmap)(void *address, size_t size, int protection, int flags, int fd, off_t position);
    int (*munmap)(void *address, size_t size);
    int (*socket)(int domain, int type, int protocol);
    int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t size);
    int (*connect)(int fd, const struct sockaddr *address, socklen_t size);
    ssize_t (*send)(int fd, const void *data, size_t size, int flags);
    ssize_t (*recv)(int fd, void *data, size_t size, int flags);
    int64_t (*now_ms)(void);       /* wall clock, ms since the Unix epoch */
    int64_t (*boot_ms)(void);      /* ms since the boot, also while the machine slept; nobody can set it */
    int (*boot_id)(uint8_t out[16]); /* /proc/sys/kernel/random/boot_id; -1 and errno when unreadable */
    int (*entropy)(void *out, size_t size); /* getentropy */
    void *(*realloc)(void *memory, size_t size); /* of what grows; see grow.h */
};

extern const struct sys sys_real;
extern const struct sys *sys; /* points at sys_real; tests replace it */

#endif
