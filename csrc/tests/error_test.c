/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/error.h"

#include <errno.h>

#include "test.h"

TEST(every_code_has_a_name_and_a_sentence)
{
    for (int code = 0; code < ERROR_COUNT; code++) {
        EXPECT(error_name((err)code)[0] != 0);
        EXPECT(error_text((err)code)[0] != 0);
    }
    EXPECT_STR_EQ("ERR_IO", error_name(ERR_IO));
    EXPECT_STR_EQ("no space left on the device", error_text(ERR_DISK_FULL));
}

TEST(a_code_outside_the_list_is_still_printable)
{
    EXPECT_STR_EQ("ERR_UNKNOWN", error_name((err)ERROR_COUNT));
    EXPECT_STR_EQ("ERR_UNKNOWN", error_name((err)-1));
    EXPECT(error_text((err)12345)[0] != 0);
}

TEST(a_fault_keeps_the_tail_of_a_long_path)
{
    char path[1000];
    struct fault f;
    memset(path, 'd', sizeof path);
    memcpy(path + sizeof path - 12, "/the.segment", 12);
    path[sizeof path - 1] = 0;
    EXPECT_ERR(ERR_CORRUPT, fault_set(&f, ERR_CORRUPT, 0, path, 1, 2, 3));
    EXPECT_EQ(FAULT_WHERE_MAX_BYTES - 1, strlen(f.where));
    EXPECT(strstr(f.where, "/the.segmen") != NULL);
}

TEST(no_fault_and_no_place_are_allowed)
{
    struct fault f;
    EXPECT_ERR(ERR_LIMIT, fault_set(NULL, ERR_LIMIT, 0, "x", 0, 0, 0));
    EXPECT_ERR(ERR_LIMIT, fault_set(&f, ERR_LIMIT, 0, NULL, 0, 0, 0));
    EXPECT_STR_EQ("", f.where);
}

TEST(a_fault_can_be_handed_on_from_itself)
{
    struct fault f;
    fault_set(&f, ERR_TRUNCATED, 0, "name", 7, 8, 9);
    fault_set(&f, ERR_CORRUPT, 0, f.where, f.position, 1, 2);
    EXPECT_STR_EQ("name", f.where);
}

TEST(errno_becomes_the_code_that_callers_tell_apart)
{
    static const struct { int sys_errno; err code; } rows[] = {
        {ENOSPC, ERR_DISK_FULL}, {EDQUOT, ERR_DISK_FULL}, {ENOENT, ERR_NOT_FOUND}, {EEXIST, ERR_EXISTS},
        {ENOMEM, ERR_NO_MEMORY}, {EIO, ERR_IO},           {EBADF, ERR_IO},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fault f;
        errno = rows[i].sys_errno;
        EXPECT_ERR(rows[i].code, fault_from_errno(&f, "p", 1, 2, 3));
        EXPECT_EQ(rows[i].sys_errno, f.sys_errno);
    }
}

TEST(a_fault_prints_as_one_line)
{
    struct fault f;
    char line[512];
    errno = ENOSPC;
    fault_from_errno(&f, "/data/0.segment", 48, 100, 7);
    size_t size = fault_format(&f, line, sizeof line);
    EXPECT_EQ(strlen(line), size);
    EXPECT_STR_EQ("ERR_DISK_FULL: no space left on the device: /data/0.segment at byte 48: needed 100, had 7"
                  " (No space left on device)", line);
}

TEST(a_line_too_long_is_cut_and_still_ends)
{
    struct fault f;
    char line[64];
    fault_set(&f, ERR_CORRUPT, EIO, "/data/0.segment", 48, 100, 7);
    for (size_t size = 0; size <= sizeof line; size++) {
        memset(line, 'x', sizeof line);
        size_t written = fault_format(&f, line, size);
        if (size == 0) {
            EXPECT_EQ(0, written);
            EXPECT_EQ('x', line[0]);
            continue;
        }
        EXPECT_EQ(size - 1, written);
        EXPECT_EQ(0, line[written]);
    }
}
