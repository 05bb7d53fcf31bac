/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk that a test controls, for processes started with LD_PRELOAD: fdatasync of a segment of the log waits while the file
 * $VIBEMQ_SYNCS/held exists, and fails with EIO while $VIBEMQ_SYNCS/failing exists.  A call that waits creates the file
 * $VIBEMQ_SYNCS/waits first.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int there(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static int is_segment(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return size > 8 && strcmp(path + size - 8, ".segment") == 0;
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *folder = getenv("VIBEMQ_SYNCS");
    if (folder && is_segment(fd)) {
        char path[4096];
        snprintf(path, sizeof path, "%s/waits", folder);
        if (there(folder, "held")) close(open(path, O_CREAT | O_WRONLY, 0600));
        while (there(folder, "held")) usleep(1000);
        if (there(folder, "failing")) {
            errno = EIO;
            return -1;
        }
    }
    return real(fd);
}
