/* SPDX-License-Identifier: Apache-2.0
 *
 * For LD_PRELOAD: ends the process at the n-th call that changes a file, as kill -9 would; of a write the half is done
 * first, every other time.  kill_at_call(n) begins to count.
 *
 * And a disk that forgets: keep_synced(folder, disk) says that `disk`, a copy of `folder`, is what the disk holds.  Then
 * every sync of a file carries what it has by then over to there, with its name, and one of a directory what
 * it has lost.  Anything else is not there after a power cut.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long left = -1; /* -1: not counting */

static char folder[2048], disk[2048]; /* "": nobody asks what is synced */

void kill_at_call(long calls) { left = calls; }

void keep_synced(const char *of, const char *there)
{
    snprintf(folder, sizeof folder, "%s", of);
    snprintf(disk, sizeof disk, "%s", there);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int counts(int fd) { return left >= 0 && fd > 2; }

static void step(void)
{
    if (left-- == 0) _exit(137);
}

#define WRITES(name, offset)                                                              \
    ssize_t name(int fd, const void *data, size_t size, offset position)                  \
    {                                                                                     \
        if (!counts(fd)) return REAL(name)(fd, data, size, position);                     \
        step();                                                                           \
        if (left == 0) REAL(name)(fd, data, size / 2, position);                          \
        step();                                                                           \
        return REAL(name)(fd, data, size, position);                                      \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

#define WRITES_PARTS(name, offset)                                                        \
    ssize_t name(int fd, const struct iovec *parts, int count, offset position)           \
    {                                                                                     \
        if (!counts(fd)) return REAL(name)(fd, parts, count, position);                   \
        step();                                                                           \
        if (left == 0) REAL(pwrite64)(fd, parts[0].iov_base, parts[0].iov_len / 2, position); \
        step();                                                                           \
        return REAL(name)(fd, parts, count, position);                                    \
    }
WRITES_PARTS(pwritev, off_t)
WRITES_PARTS(pwritev64, off64_t)

static void must(int holds)
{
    if (!holds) abort();
}

static void carry_file(int fd, const char *to)
{
    static char data[65536];
    struct stat is;
    int out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    must(out >= 0 && fstat(fd, &is) == 0);
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    must(in >= 0);
    for (off_t at = 0; at < is.st_size;) {
        ssize_t n = pread(in, data, sizeof data, at);
        must(n > 0 && REAL(pwrite64)(out, data, (size_t)n, at) == n);
        at += n;
    }
    must(REAL(ftruncate)(out, is.st_size) == 0);
    close(in);
    close(out);
}

static void carry_names(const char *from, const char *to)
{
    DIR *names = opendir(to);
    must(names != NULL);
    for (struct dirent *one; (one = readdir(names));) {
        char here[4400], there[4400];
        snprintf(here, sizeof here, "%s/%s", from, one->d_name);
        snprintf(there, sizeof there, "%s/%s", to, one->d_name);
        if (access(here, F_OK) != 0) must(REAL(unlink)(there) == 0 || REAL(rmdir)(there) == 0);
    }
    closedir(names);
}

/* What a sync that has returned promises. */
static int synced(int fd, int result)
{
    char link[64], from[2048], to[4096];
    struct stat is;
    if (!*folder || result != 0 || left < 0) return result;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, from, sizeof from - 1);
    must(n > 0);
    from[n] = 0;
    size_t size = strlen(folder);
    if (strncmp(from, folder, size) != 0 || (from[size] != '/' && from[size] != 0)) return result;
    snprintf(to, sizeof to, "%s%s", disk, from + size);
    must(fstat(fd, &is) == 0);
    if (!S_ISDIR(is.st_mode)) carry_file(fd, to);
    else if (mkdir(to, 0700) != 0) carry_names(from, to);
    return result;
}

#define SYNCS(name)                                                                       \
    int name(int fd)                                                                      \
    {                                                                                     \
        if (counts(fd)) step();                                                           \
        return synced(fd, REAL(name)(fd));                                                \
    }
SYNCS(fdatasync)
SYNCS(fsync)

#define CHANGES(name, fd, declared, ...)                                                  \
    int name declared                                                                     \
    {                                                                                     \
        if (counts(fd)) step();                                                           \
        return REAL(name)(__VA_ARGS__);                                                   \
    }
CHANGES(ftruncate, fd, (int fd, off_t size), fd, size)
CHANGES(ftruncate64, fd, (int fd, off64_t size), fd, size)
CHANGES(rename, 3, (const char *from, const char *to), from, to)
CHANGES(unlink, 3, (const char *path), path)
CHANGES(rmdir, 3, (const char *path), path)
