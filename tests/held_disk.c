/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk that a test controls, for processes started with LD_PRELOAD.  Its folder is $VIBEMQ_SYNCS.
 *
 * fdatasync of a segment of the log waits while the file `held` exists, and fails with EIO while `failing` exists.  A call
 * that waits creates the file `waits` first.
 *
 * The file `stalled` has the name of a call, or `*`, a blank, and a part of a path.  While it exists, such a call that
 * changes a file with that part in its path waits.  It appends a line to the file `calls` first: process, thread, name of
 * the call, path.  The file `traced` has the same form; its calls append such a line and do not wait.  So has `slow`; its calls
 * append such a line and take SLOW_MS longer.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SLOW_MS 20

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int there(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* Is this call on `path` in the folder's file `name`?  Read by raw calls: the others are ours. */
static int concerns(const char *folder, const char *name, const char *call, const char *path)
{
    char file[4096], wanted[1024];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    long fd = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY, 0);
    if (fd < 0) return 0;
    long got = syscall(SYS_read, fd, wanted, sizeof wanted - 1);
    syscall(SYS_close, fd);
    wanted[got > 0 ? got : 0] = 0;
    char *part = strchr(wanted, ' ');
    if (!part) return 0;
    *part++ = 0;
    return (wanted[0] == '*' || strcmp(wanted, call) == 0) && strstr(path, part) != NULL;
}

static void note(const char *folder, const char *call, const char *path)
{
    char file[4096], line[8192];
    snprintf(file, sizeof file, "%s/calls", folder);
    long fd = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT, 0600);
    int size = snprintf(line, sizeof line, "%d %ld %s %s\n", getpid(), syscall(SYS_gettid), call, path);
    if (fd < 0) return;
    if (syscall(SYS_write, fd, line, size) < 0) perror("calls");
    syscall(SYS_close, fd);
}

static void meet(const char *call, const char *path)
{
    const char *folder = getenv("VIBEMQ_SYNCS");
    int before = errno;
    if (!folder) return;
    if (concerns(folder, "traced", call, path)) note(folder, call, path);
    if (concerns(folder, "slow", call, path)) {
        note(folder, call, path);
        usleep(SLOW_MS * 1000);
    }
    /* The kernel opens a file that is there without asking the disk, as long as it knows its name. */
    if (strcmp(call, "open") != 0 && concerns(folder, "stalled", call, path)) {
        note(folder, call, path);
        while (concerns(folder, "stalled", call, path)) usleep(1000);
    }
    errno = before;
}

static int path_of(int fd, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, path, size - 1);
    path[got > 0 ? got : 0] = 0;
    return got > 0;
}

static void meet_fd(const char *call, int fd)
{
    char path[4096];
    int before = errno;
    if (getenv("VIBEMQ_SYNCS") && path_of(fd, path, sizeof path)) meet(call, path);
    errno = before;
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    const char *folder = getenv("VIBEMQ_SYNCS");
    char file[4096];
    if (folder && path_of(fd, file, sizeof file) && strlen(file) > 8 && !strcmp(file + strlen(file) - 8, ".segment")) {
        char path[4096];
        snprintf(path, sizeof path, "%s/waits", folder);
        if (there(folder, "held")) close(open(path, O_CREAT | O_WRONLY, 0600));
        while (there(folder, "held")) usleep(1000);
        if (there(folder, "failing")) {
            errno = EIO;
            return -1;
        }
    }
    meet_fd("fdatasync", fd);
    return real(fd);
}

#define OF_FD(result, name, parameters, arguments) \
    result name parameters \
    { \
        REAL(name); \
        meet_fd(#name, fd); \
        return real arguments; \
    }
#define OF_PATH(result, name, parameters, arguments) \
    result name parameters \
    { \
        REAL(name); \
        meet(#name, path); \
        return real arguments; \
    }

OF_FD(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
OF_FD(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
OF_FD(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
OF_FD(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
OF_FD(int, fsync, (int fd), (fd))
OF_FD(int, syncfs, (int fd), (fd))
OF_FD(int, ftruncate, (int fd, off_t size), (fd, size))
OF_FD(int, ftruncate64, (int fd, off64_t size), (fd, size))
OF_FD(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
OF_FD(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
OF_PATH(int, unlink, (const char *path), (path))
OF_PATH(int, rename, (const char *source, const char *path), (source, path))
OF_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
OF_PATH(int, rmdir, (const char *path), (path))
OF_PATH(int, statfs, (const char *path, struct statfs *out), (path, out))
OF_PATH(int, statvfs, (const char *path, struct statvfs *out), (path, out))
OF_PATH(int, statvfs64, (const char *path, struct statvfs64 *out), (path, out))

/* Regular files only: standard error may be one of them. */
ssize_t write(int fd, const void *data, size_t size)
{
    struct stat found;
    REAL(write);
    if (getenv("VIBEMQ_SYNCS") && fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) meet_fd("write", fd);
    return real(fd, data, size);
}

#define OPENS(name, parameters, arguments) \
    int name parameters \
    { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        if (flags & O_CREAT) meet("create", path); \
        else meet("open", path); \
        return real arguments; \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENS(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
