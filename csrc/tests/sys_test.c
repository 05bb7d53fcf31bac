/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "test.h"

static void path_in_scratch(char path[300], const char *name) { snprintf(path, 300, "%s/%s", test_scratch(), name); }

TEST(the_table_is_full_and_points_at_the_real_calls)
{
    EXPECT(sys == &sys_real);
    const void *const *entry = (const void *const *)(const void *)&sys_real;
    for (size_t i = 0; i < sizeof sys_real / sizeof *entry; i++) EXPECT(entry[i] != NULL);
}

TEST(a_file_is_written_read_cut_renamed_and_removed)
{
    char path[300], other[300], data[16];
    path_in_scratch(path, "a");
    path_in_scratch(other, "b");
    struct stat st;
    struct iovec parts[2] = {{(char[]){"hello "}, 6}, {(char[]){"world"}, 5}};
    int fd = sys->open(path, O_RDWR | O_CREAT, 0600);
    REQUIRE(fd >= 0);
    EXPECT(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    EXPECT_EQ(11, sys->pwritev(fd, parts, 2, 0));
    EXPECT_EQ(1, sys->pwrite(fd, "!", 1, 11));
    EXPECT_EQ(12, sys->pread(fd, data, sizeof data, 0));
    EXPECT_MEM_EQ("hello world!", data, 12);
    EXPECT_EQ(0, sys->fdatasync(fd));
    EXPECT_EQ(0, sys->fsync(fd));
    EXPECT_EQ(0, sys->ftruncate(fd, 5));
    EXPECT_EQ(0, sys->fstat(fd, &st));
    EXPECT_EQ(5, st.st_size);
    char *map = sys->mmap(NULL, 5, PROT_READ, MAP_SHARED, fd, 0);
    if (EXPECT(map != MAP_FAILED)) {
        EXPECT_MEM_EQ("hello", map, 5);
        EXPECT_EQ(0, sys->munmap(map, 5));
    }
    EXPECT_EQ(0, sys->close(fd));
    EXPECT_EQ(-1, sys->close(fd));
    EXPECT_EQ(EBADF, errno);
    EXPECT_EQ(0, sys->rename(path, other));
    EXPECT_EQ(-1, sys->open(path, O_RDONLY, 0));
    EXPECT_EQ(ENOENT, errno);
    EXPECT_EQ(0, sys->unlink(other));
}

TEST(a_read_that_may_not_wait_gives_cached_bytes)
{
    char path[300], data[4];
    path_in_scratch(path, "cached");
    int fd = sys->open(path, O_RDWR | O_CREAT, 0600);
    REQUIRE(fd >= 0);
    EXPECT_EQ(4, sys->pwrite(fd, "abcd", 4, 0));
    EXPECT_EQ(4, sys->pread_nowait(fd, data, 4, 0));
    EXPECT_MEM_EQ("abcd", data, 4);
    EXPECT_EQ(0, sys->pread_nowait(fd, data, 4, 4));
    sys->close(fd);
    EXPECT_EQ(-1, sys->pread_nowait(fd, data, 4, 0));
    EXPECT_EQ(EBADF, errno);
}

TEST(a_file_system_without_nowait_is_read_all_the_same)
{
    char data[16];
    int fd = sys->open("/proc/self/comm", O_RDONLY, 0);
    REQUIRE(fd >= 0);
    EXPECT(sys->pread_nowait(fd, data, sizeof data, 0) > 0);
    sys->close(fd);
}

TEST(directories_come_and_go)
{
    char path[300];
    path_in_scratch(path, "d");
    EXPECT_EQ(0, sys->mkdir(path, 0700));
    EXPECT_EQ(-1, sys->mkdir(path, 0700));
    EXPECT_EQ(EEXIST, errno);
    EXPECT_EQ(0, sys->rmdir(path));
}

TEST(the_clock_is_the_wall_clock_in_milliseconds)
{
    int64_t now = sys->now_ms(), seconds = (int64_t)time(NULL);
    EXPECT(now / 1000 - seconds >= -2 && now / 1000 - seconds <= 2);
}

TEST(the_boot_id_is_the_same_at_every_reading)
{
    static const uint8_t zero[16];
    uint8_t first[16] = {0}, second[16] = {0};
    REQUIRE_EQ(0, sys->boot_id(first));
    REQUIRE_EQ(0, sys->boot_id(second));
    EXPECT_MEM_EQ(first, second, 16);
    EXPECT(memcmp(first, zero, 16) != 0);
}
