/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/calls.h"

#include <pthread.h>
#include <stdlib.h>

#include "../base/file.h"
#include "test.h"

static struct calls *seat_new(void)
{
    struct calls *seat = aligned_alloc(CALLS_LINE, sizeof *seat);
    memset(seat, 0, sizeof *seat);
    calls_sit(seat);
    return seat;
}

/* As if the call had begun so long ago. */
static void backdate(struct call *c, int64_t ms) { atomic_fetch_sub(&c->since_ms, ms); }

/* Whether `count` calls of so many milliseconds each, in one turn, show a disk that stalls. */
static bool stalled_by(int count, int64_t ms)
{
    calls_turn();
    for (int i = 0; i < count; i++) {
        struct call *c = call_begin(CALL_WRITE, "a");
        backdate(c, ms);
        call_end(c);
    }
    return calls_have_stalled(60000);
}

/* First of all tests: that a call has stalled is never forgotten. */
TEST(many_short_calls_of_one_turn_show_a_stalled_disk_and_many_quick_ones_do_not)
{
    struct calls *seat = seat_new();
    EXPECT(!stalled_by(9, 10));
    EXPECT(!stalled_by(9, 10)); /* of another turn */
    EXPECT(!stalled_by(500, 1));
    EXPECT(stalled_by(15, 10));
    calls_sit(NULL);
    free(seat);
}

TEST(a_running_call_is_seen_with_its_kind_and_path_and_not_when_it_has_ended)
{
    struct calls *seat = seat_new();
    struct call_seen seen[4];
    struct call *c = call_begin(CALL_WRITE, "/data/streams/1/00.segment");
    EXPECT_EQ(0, calls_running(seat, 1000, seen, 4));
    backdate(c, 5000);
    REQUIRE_EQ(1, calls_running(seat, 1000, seen, 4));
    EXPECT_EQ(0, seen[0].entry);
    EXPECT_EQ(CALL_WRITE, seen[0].kind);
    EXPECT(seen[0].ms >= 5000);
    EXPECT_STR_EQ("/data/streams/1/00.segment", seen[0].path);
    call_end(c);
    EXPECT(calls_have_stalled(60000));
    EXPECT_EQ(0, calls_running(seat, 1000, seen, 4));
    calls_sit(NULL);
    free(seat);
}

TEST(only_slow_calls_are_counted_and_the_slowest_is_returned_once)
{
    struct calls *seat = seat_new();
    struct call_seen seen;
    call_end(call_begin(CALL_OPEN, "quick"));
    EXPECT(!calls_take_ended(seat, &seen));
    for (int64_t ms = 100; ms <= 300; ms += 100) {
        struct call *c = call_begin(CALL_SYNC, ms == 200 ? "second" : "another");
        backdate(c, ms == 200 ? 900 : ms);
        errno = 7;
        call_end(c);
        EXPECT_EQ(7, errno);
    }
    EXPECT_EQ(0, seat->slow[CALL_OPEN]);
    EXPECT_EQ(3, seat->slow[CALL_SYNC]);
    EXPECT(seat->slow_ms[CALL_SYNC] >= 1300);
    EXPECT(calls_slowest_ms(seat) >= 900);
    REQUIRE(calls_take_ended(seat, &seen));
    EXPECT_STR_EQ("second", seen.path);
    EXPECT(!calls_take_ended(seat, &seen));
    calls_sit(NULL);
    free(seat);
}

static void *hold_a_call(void *out)
{
    *(struct call **)out = call_begin(CALL_READ, "by a helper");
    return NULL;
}

TEST(the_first_entry_belongs_to_the_thread_that_sat_down_and_full_entries_are_no_error)
{
    struct calls *seat = seat_new();
    struct call *held[CALLS_ENTRIES];
    for (uint32_t i = 0; i < CALLS_ENTRIES; i++) {
        pthread_t thread;
        REQUIRE_EQ(0, pthread_create(&thread, NULL, hold_a_call, &held[i]));
        pthread_join(thread, NULL);
        EXPECT(held[i] != &seat->running[0]);
    }
    EXPECT(held[CALLS_ENTRIES - 1] == NULL);
    call_end(NULL);
    struct call *ours = call_begin(CALL_OPEN, "by the loop");
    EXPECT(ours == &seat->running[0]);
    call_end(ours);
    for (uint32_t i = 0; i < CALLS_ENTRIES; i++) call_end(held[i]);
    calls_sit(NULL);
    free(seat);
}

TEST(a_new_process_on_the_seat_of_a_killed_one_has_no_running_calls)
{
    struct calls *seat = seat_new();
    struct call_seen seen;
    backdate(call_begin(CALL_WRITE, "killed here"), 5000);
    calls_sit(seat);
    EXPECT_EQ(0, calls_running(seat, 0, &seen, 1));
    call_end(call_begin(CALL_WRITE, "a file"));
    calls_sit(NULL);
    free(seat);
}

TEST(the_end_of_a_long_path_is_kept_and_an_unknown_one_is_empty)
{
    struct calls *seat = seat_new();
    char path[1000];
    struct call_seen seen;
    memset(path, 'a', sizeof path);
    memcpy(path + sizeof path - 5, "/end", 5);
    struct call *c = call_begin(CALL_RENAME, path);
    backdate(c, 10);
    REQUIRE_EQ(1, calls_running(seat, 0, &seen, 1));
    EXPECT_EQ(CALL_PATH_BYTES, strlen(seen.path));
    EXPECT_STR_EQ("/end", seen.path + CALL_PATH_BYTES - 4);
    call_end(c);
    c = call_begin(CALL_READ, NULL);
    backdate(c, 10);
    REQUIRE_EQ(1, calls_running(seat, 0, &seen, 1));
    EXPECT_STR_EQ("", seen.path);
    call_end(c);
    calls_sit(NULL);
    free(seat);
}

/* ---- by the file functions ---- */

static struct calls *watched;
static uint32_t seen_during;
static int open_and_look(const char *path, int flags, mode_t mode)
{
    struct call_seen seen;
    backdate(&watched->running[0], 100);
    seen_during = calls_running(watched, 50, &seen, 1);
    EXPECT_EQ(CALL_OPEN, seen.kind);
    EXPECT_STR_EQ(path, seen.path);
    return sys_real.open(path, flags, mode);
}

TEST(file_functions_note_their_calls)
{
    watched = seat_new();
    struct sys table = sys_real;
    table.open = open_and_look;
    sys = &table;
    int fd;
    EXPECT_OK(file_open("/dev/null", O_RDONLY, &fd, NULL));
    sys = &sys_real;
    file_close(&fd);
    EXPECT_EQ(1, seen_during);
    EXPECT_EQ(1, watched->slow[CALL_OPEN]);
    calls_sit(NULL);
    free(watched);
}
