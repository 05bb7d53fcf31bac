/* SPDX-License-Identifier: Apache-2.0 */
#include "../ledger/ledger.h"

#include "ledger_help.h"

TEST(a_ledger_is_made_once_and_opened_by_all)
{
    const char *d = help_directory();
    struct ledger *l = NULL;
    EXPECT_ERR(ERR_NOT_FOUND, ledger_open(d, &l, NULL));
    EXPECT_OK(ledger_create(d, 42, true, NULL));
    EXPECT_ERR(ERR_EXISTS, ledger_create(d, 0, false, NULL));
    struct ledger *a = help_open(d), *b = help_open(d);
    EXPECT_EQ(42, help_base(a));
    EXPECT_EQ(42, help_next(b));
    EXPECT_EQ(42, atomic_load(&ledger_control(a)->departed));
    EXPECT_EQ(0, atomic_load(&ledger_control(a)->home));
    atomic_store(&ledger_control(a)->home, 7);
    EXPECT_EQ(7, atomic_load(&ledger_control(b)->home));
    ledger_check(a);
    EXPECT_EQ(1, help_list(d).others);
    ledger_close(a);
    ledger_close(b);
    ledger_close(NULL);
}

#define OTHER_VERSION UINT64_MAX /* in the place of a position */

TEST(a_page_that_is_not_ours_is_refused)
{
    static const struct { size_t position; uint64_t value; uint64_t size; } cases[] = {
        {0, 1, 4096}, {4, 3, 4096}, {OTHER_VERSION, 3, 4096}, {0, LEDGER_MAGIC | (uint64_t)LEDGER_VERSION << 32, 4095},
        {0, LEDGER_MAGIC | (uint64_t)LEDGER_VERSION << 32, 0},
        {offsetof(struct ledger_control, next), UINT64_C(1) << 40, 4096}, /* wider than the table may be */
        {offsetof(struct ledger_control, base), UINT64_MAX, 4096},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *d = help_directory();
        struct ledger *l = NULL;
        EXPECT_OK(ledger_create(d, 0, false, NULL));
        struct file_path path = file_path_name(d, "ledger");
        int fd = open(path.text, O_RDWR);
        bool is_newer = cases[i].position == OTHER_VERSION;
        if (is_newer) {
            uint32_t version = (uint32_t)cases[i].value, check = file_page_check(LEDGER_MAGIC, version);
            EXPECT_EQ(4, pwrite(fd, &version, 4, 4));
            EXPECT_EQ(4, pwrite(fd, &check, 4, LEDGER_HEAD_CHECK_AT));
        } else EXPECT(pwrite(fd, &cases[i].value, cases[i].position == 4 ? 4 : 8, (off_t)cases[i].position) > 0);
        EXPECT_EQ(0, ftruncate(fd, (off_t)cases[i].size));
        close(fd);
        struct fault f;
        EXPECT_ERR(is_newer ? ERR_VERSION : ERR_CORRUPT, ledger_open(d, &l, &f));
        EXPECT(l == NULL);
    }
}

TEST(reserved_entries_are_zero_and_belong_to_all_handles)
{
    const char *d = help_directory();
    struct ledger *home = help_ledger(d, BLOCK - 3), *other = help_open(d);
    struct fault f = {.code = ERR_IO};
    REQUIRE(ledger_entry(other, BLOCK - 3, &f) != NULL); /* its file is made with the ledger */
    EXPECT_EQ(LEDGER_NONE, help_state(other, BLOCK - 3));
    EXPECT(ledger_entry(other, BLOCK, &f) == NULL); /* not made yet, and no error */
    EXPECT_OK(f.code);
    help_hand_out(home, BLOCK + 5, LEDGER_IN_FLIGHT); /* over a block's end */
    for (uint64_t at = BLOCK - 3; at < BLOCK + 5; at++) {
        struct ledger_entry *entry = ledger_entry(other, at, &f);
        REQUIRE(entry != NULL);
        EXPECT_EQ(at + 1, entry->place);
        EXPECT_EQ(LEDGER_IN_FLIGHT, help_state(other, at));
    }
    help_put(other, BLOCK, (struct ledger_word){.state = LEDGER_SETTLED});
    EXPECT_EQ(LEDGER_SETTLED, help_state(home, BLOCK));
    EXPECT_ERR(ERR_LIMIT, ledger_reserve(home, help_next(home) + BLOCK + 1, NULL));
    EXPECT_OK(ledger_reserve(home, help_next(home) + BLOCK, NULL));
    EXPECT_OK(ledger_reserve(home, 1, NULL)); /* nothing to do */
    ledger_check(home);
    ledger_close(home);
    ledger_close(other);
}

TEST(an_almost_empty_queue_costs_two_pages)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, 3, LEDGER_READY);
    EXPECT(help_list(d).disk_bytes <= 2 * 4096);
    ledger_close(l);
}

TEST(what_a_dead_home_wrote_behind_next_is_zeroed)
{
    const char *d = help_directory();
    struct ledger *dead = help_ledger(d, 0);
    help_hand_out(dead, 300, LEDGER_IN_FLIGHT);
    EXPECT_OK(ledger_reserve(dead, 300 + BLOCK, NULL));
    for (uint64_t at = 300; at < 300 + BLOCK; at++) help_settle(dead, at, at + 1);
    struct ledger *l = help_open(d);
    EXPECT_EQ(300, ledger_find(l, 0, 300, LEDGER_SETTLED, 0));
    help_hand_out(l, 2 * BLOCK, LEDGER_READY); /* expects zeros */
    ledger_check(l);

    /* The first one lives after all, and comes home again: it must not trust what it knew. */
    EXPECT_OK(ledger_reserve(l, 2 * BLOCK + 100, NULL));
    help_settle(l, 2 * BLOCK, 2 * BLOCK + 100);
    ledger_trim(dead);
    help_hand_out(dead, 2 * BLOCK + 100, LEDGER_READY);
    ledger_close(dead);
    ledger_close(l);
}

/* ---- looking ---- */

static int never_open(const char *path, int flags, mode_t mode)
{
    (void)path, (void)flags, (void)mode;
    errno = EMFILE;
    return -1;
}

TEST(find_tells_the_first_of_a_state_and_priority)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 10);
    uint64_t end = 3 * BLOCK + 50;
    help_hand_out(l, end, LEDGER_READY); /* priority: offset & 3 */
    EXPECT_EQ(10, ledger_find(l, 0, end, LEDGER_READY, 0));
    EXPECT_EQ(11, ledger_find(l, 0, end, LEDGER_READY, 1u << 3));
    EXPECT_EQ(12, ledger_find(l, 12, end, LEDGER_READY, 1u << 3 | 1u << 0));
    EXPECT_EQ(end, ledger_find(l, 0, end, LEDGER_IN_FLIGHT, 0));
    EXPECT_EQ(end + 7, ledger_find(l, 0, end + 7, LEDGER_NONE, 0)); /* what is behind next has no entry */
    help_put(l, 2 * BLOCK + 1, (struct ledger_word){.state = LEDGER_IN_FLIGHT, .priority = 2});
    EXPECT_EQ(2 * BLOCK + 1, ledger_find(l, 0, end, LEDGER_IN_FLIGHT, 0));
    EXPECT_EQ(end, ledger_find(l, 0, end, LEDGER_IN_FLIGHT, 1u << 1));
    EXPECT_EQ(2 * BLOCK + 1, ledger_find(l, 0, 2 * BLOCK + 1, LEDGER_IN_FLIGHT, 0)); /* `to` itself is not in it */
    EXPECT_EQ(end - 10 - 1, ledger_count(l, 0, end + 5, LEDGER_READY));
    EXPECT_EQ(1, ledger_count(l, 0, UINT64_MAX, LEDGER_IN_FLIGHT));
    ledger_close(l);
}

TEST(going_over_a_state_meets_each_of_its_entries_once_whatever_becomes_of_them)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 10);
    uint64_t end = 3 * BLOCK + 50, found = 0, last = 0;
    help_hand_out(l, end, LEDGER_READY);
    help_settle(l, BLOCK, 2 * BLOCK); /* a block in the middle */
    ledger_settle(l, UINT64_MAX, 8);
    for (uint64_t at = 10; at < end; at += 1000)
        if (help_state(l, at) == LEDGER_READY) help_put(l, at, (struct ledger_word){.state = LEDGER_DELAYED, .attempts = 5});
    uint64_t delayed = ledger_count(l, 0, end, LEDGER_DELAYED), ready = ledger_count(l, 0, end, LEDGER_READY);
    EXPECT(delayed > 30);
    for (struct ledger_each at = ledger_each_of(l, 0, end, LEDGER_DELAYED); ledger_each_next(&at); found++) {
        EXPECT(at.offset > last && at.offset % 1000 == 10 && at.entry == ledger_entry(l, at.offset, NULL));
        EXPECT_EQ(5, ledger_unpack(word_load(&at.entry->word)).attempts);
        ledger_set_state(at.entry, at.offset % 2000 == 10 ? LEDGER_READY : LEDGER_SETTLED);
        last = at.offset;
    }
    EXPECT_EQ(delayed, found);
    EXPECT_EQ(0, ledger_count(l, 0, end, LEDGER_DELAYED));
    EXPECT(ledger_count(l, 0, end, LEDGER_READY) > ready);
    struct ledger_each none = ledger_each_of(l, 0, end, LEDGER_DEAD);
    EXPECT(!ledger_each_next(&none) && !ledger_each_next(&none));
    ledger_close(l);
}

TEST(going_over_a_state_leaves_out_what_cannot_be_mapped)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, BLOCK - 2);
    help_hand_out(l, BLOCK + 2, LEDGER_READY);
    ledger_close(l);
    l = help_open(d);
    EXPECT(ledger_entry(l, BLOCK, NULL) != NULL); /* the second block is mapped, the first is not */
    struct ledger_each at = ledger_each_of(l, 0, UINT64_MAX, LEDGER_READY);
    help_fail_at(0, EMFILE);
    help_faulty.open = never_open;
    EXPECT(ledger_each_next(&at));
    EXPECT_EQ(BLOCK, at.offset);
    sys = &sys_real;
    ledger_close(l);
}

TEST(a_block_that_cannot_be_mapped_is_not_taken_for_settled)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, 2 * BLOCK, LEDGER_READY);
    ledger_close(l);
    l = help_open(d);
    struct fault f;
    for (int64_t call = 0; call < 3; call++) { /* open, fstat, mmap */
        help_fail_at(call, call == 0 ? EMFILE : ENOMEM);
        EXPECT(ledger_entry(l, BLOCK, &f) == NULL);
        EXPECT(f.code != OK);
        help_fail_at(call, EMFILE);
        EXPECT_EQ(BLOCK + 4, ledger_find(l, BLOCK + 4, 2 * BLOCK, LEDGER_READY, 0));
        help_fail_at(call, EMFILE);
        EXPECT_EQ(0, ledger_settle(l, UINT64_MAX, 0));
        sys = &sys_real;
    }
    EXPECT_EQ(LEDGER_READY, help_state(l, BLOCK));
    ledger_close(l);
}

/* ---- settling ---- */

TEST(base_moves_over_what_is_settled_and_blocks_go_with_it)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 5);
    help_hand_out(l, 2 * BLOCK + 10, LEDGER_IN_FLIGHT);
    EXPECT_EQ(5, ledger_settle(l, UINT64_MAX, 8));
    help_settle(l, 6, 2 * BLOCK);
    EXPECT_EQ(5, ledger_settle(l, UINT64_MAX, 8));
    EXPECT_EQ(2, help_list(d).blocks); /* the one in the middle went; base's waits for its first */
    help_settle(l, 5, 6);
    EXPECT_EQ(2 * BLOCK, ledger_settle(l, UINT64_MAX, 8));
    EXPECT_EQ(2 * BLOCK, help_base(l));
    EXPECT_EQ(1, help_list(d).blocks);
    help_settle(l, 2 * BLOCK, 2 * BLOCK + 10);
    EXPECT_EQ(help_next(l), ledger_settle(l, UINT64_MAX, 0));
    EXPECT_EQ(1, help_list(d).blocks); /* it is not full yet */
    help_hand_out(l, 3 * BLOCK, LEDGER_IN_FLIGHT);
    help_settle(l, 2 * BLOCK + 10, 3 * BLOCK);
    EXPECT_EQ(3 * BLOCK, ledger_settle(l, UINT64_MAX, 0));
    EXPECT_EQ(0, help_list(d).blocks);
    ledger_check(l);
    ledger_close(l);
}

TEST(one_unsettled_message_holds_one_block_and_not_a_million_entries)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0), *other = help_open(d);
    for (uint64_t end = 1000; end <= 1000000; end += 1000) {
        help_hand_out(l, end, LEDGER_IN_FLIGHT);
        help_settle(other, end == 1000 ? 1 : end - 1000, end);
        EXPECT_EQ(0, ledger_settle(l, UINT64_MAX, 2));
        if (end % 50000 == 0) {
            ledger_trim(other);
            struct help_files files = help_list(d);
            EXPECT(files.blocks <= 3);
            EXPECT(files.disk_bytes <= 3 * LEDGER_BLOCK_BYTES + 2 * 4096);
        }
    }
    EXPECT_EQ(LEDGER_IN_FLIGHT, help_state(other, 0));
    EXPECT(ledger_entry(other, 500000, NULL) == NULL);
    EXPECT_EQ(1000000, ledger_find(l, 1, 1000000, LEDGER_IN_FLIGHT, 0));
    ledger_check(l);
    ledger_close(l);

    l = help_open(d); /* and a home that knows nothing */
    EXPECT_EQ(0, ledger_find(l, 0, 1000000, LEDGER_IN_FLIGHT, 0));
    EXPECT(help_list(d).noted >= 58);
    help_settle(other, 0, 1);
    EXPECT_EQ(1000000, ledger_settle(l, UINT64_MAX, 0));
    EXPECT_EQ(1, help_list(d).blocks);
    EXPECT_EQ(0, help_list(d).noted);
    ledger_check(l);
    ledger_close(l);
    ledger_close(other);
}

TEST(what_somebody_still_needs_stays_though_it_is_settled)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, 6 * BLOCK, LEDGER_IN_FLIGHT);
    help_settle(l, 0, 6 * BLOCK);
    EXPECT_EQ(0, ledger_settle(l, 0, 100));
    EXPECT_EQ(BLOCK + 7, ledger_settle(l, BLOCK + 7, 100));
    for (uint64_t offset = BLOCK + 7; offset < 6 * BLOCK; offset += BLOCK)
        EXPECT_EQ(LEDGER_SETTLED, help_state(l, offset));
    EXPECT_EQ(5, help_list(d).blocks);
    ledger_check(l);
    EXPECT_EQ(6 * BLOCK, ledger_settle(l, UINT64_MAX, 100));
    ledger_close(l);
}

TEST(a_look_at_the_middle_is_bounded_and_comes_round)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, 12 * BLOCK, LEDGER_IN_FLIGHT);
    help_settle(l, 10 * BLOCK, 11 * BLOCK);
    for (int i = 0; i < 4; i++) {
        ledger_settle(l, UINT64_MAX, 2);
        EXPECT_EQ(12, help_list(d).blocks);
    }
    ledger_settle(l, UINT64_MAX, 2);
    EXPECT_EQ(11, help_list(d).blocks);
    help_settle(l, 3 * BLOCK, 4 * BLOCK);
    for (int i = 0; i < 6; i++) ledger_settle(l, UINT64_MAX, 2);
    EXPECT_EQ(10, help_list(d).blocks);
    ledger_close(l);
}

TEST(a_handle_lets_go_of_settled_blocks_when_told_to)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0), *other = help_open(d);
    help_hand_out(l, 3 * BLOCK + 1, LEDGER_IN_FLIGHT);
    for (uint64_t number = 0; number <= 3; number++) EXPECT_EQ(LEDGER_IN_FLIGHT, help_state(other, number * BLOCK));
    help_settle(l, BLOCK, 2 * BLOCK);
    ledger_settle(l, UINT64_MAX, 4);
    ledger_trim(other);
    EXPECT(other->blocks[0].entries && !other->blocks[1].entries);
    EXPECT(other->blocks[2].entries && other->blocks[3].entries);
    EXPECT(ledger_entry(other, BLOCK, NULL) == NULL);
    ledger_skip(l, 3 * BLOCK);
    ledger_trim(other);
    EXPECT(!other->blocks[0].entries && !other->blocks[2].entries && other->blocks[3].entries);
    EXPECT(ledger_entry(other, 0, NULL) == NULL);
    ledger_close(l);
    ledger_close(other);
}

TEST(skipping_settles_without_a_look)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    struct ledger_control *c = ledger_control(l);
    help_hand_out(l, 2 * BLOCK + 9, LEDGER_IN_FLIGHT);
    ledger_skip(l, 0);
    EXPECT_EQ(0, help_base(l));
    ledger_skip(l, BLOCK + 7); /* within */
    EXPECT_EQ(BLOCK + 7, help_base(l));
    EXPECT_EQ(2 * BLOCK + 9, help_next(l));
    EXPECT_EQ(2, help_list(d).blocks);
    ledger_check(l);
    EXPECT_OK(ledger_reserve(l, 3 * BLOCK + 9, NULL));
    ledger_skip(l, 100 * BLOCK + 11); /* far beyond next, over what was reserved */
    EXPECT_EQ(100 * BLOCK + 11, help_base(l));
    EXPECT_EQ(100 * BLOCK + 11, help_next(l));
    EXPECT_EQ(100 * BLOCK + 11, atomic_load(&c->departed));
    EXPECT_EQ(1, help_list(d).blocks); /* of the next message */
    ledger_check(l);
    help_hand_out(l, 101 * BLOCK + 1, LEDGER_READY);
    EXPECT_EQ(100 * BLOCK + 11, ledger_find(l, 0, UINT64_MAX, LEDGER_READY, 0));
    ledger_check(l);
    ledger_close(l);

    /* Killed between its two stores. */
    l = help_open(d);
    atomic_store(&ledger_control(l)->base, 200 * BLOCK);
    ledger_close(l);
    l = help_open(d);
    EXPECT_EQ(200 * BLOCK, help_next(l));
    ledger_close(l);
}

TEST(base_and_next_span_no_more_than_the_table_may)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    uint64_t end = (uint64_t)LEDGER_BLOCKS_MAX * BLOCK;
    help_hand_out(l, 1, LEDGER_IN_FLIGHT);
    atomic_store(&ledger_control(l)->next, end - 1); /* as if all in between had come and gone */
    EXPECT_OK(ledger_reserve(l, end, NULL));
    EXPECT_ERR(ERR_LIMIT, ledger_reserve(l, end + 1, NULL));
    EXPECT(ledger_entry(l, end, NULL) == NULL);
    EXPECT(ledger_entry(l, UINT64_MAX, NULL) == NULL);
    help_settle(l, 0, 1);
    atomic_store(&ledger_control(l)->next, BLOCK);
    ledger_skip(l, BLOCK);
    atomic_store(&ledger_control(l)->next, end);
    EXPECT_OK(ledger_reserve(l, end + 1, NULL));
    EXPECT(l->block_capacity <= 2 * LEDGER_BLOCKS_MAX);
    ledger_close(l);
}

/* ---- a full disk ---- */

TEST(whichever_call_of_a_reservation_fails_it_can_be_had_again)
{
    static const int numbers[] = {ENOSPC, EIO, EMFILE};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int64_t call = 0;; call++) {
            const char *d = help_directory();
            struct ledger *l = help_ledger(d, BLOCK - 2);
            help_fail_at(call, numbers[i]);
            struct fault f = {0};
            err e = ledger_reserve(l, BLOCK + 300, &f);
            bool failed = help_plan.failed;
            sys = &sys_real;
            EXPECT_ERR(!failed ? OK : numbers[i] == ENOSPC ? ERR_DISK_FULL : ERR_IO, e);
            EXPECT_EQ(BLOCK - 2, help_next(l));
            ledger_check(l);
            help_hand_out(l, BLOCK + 400, LEDGER_READY);
            EXPECT_EQ(402, ledger_count(l, 0, UINT64_MAX, LEDGER_READY));
            ledger_close(l);
            ledger_clear(d);
            if (!failed) break;
        }
}

TEST(whichever_call_of_making_or_syncing_fails_it_can_be_done_again)
{
    for (int64_t call = 0;; call++) {
        const char *d = help_directory();
        help_fail_at(call, ENOSPC);
        err e = ledger_create(d, 7, true, NULL);
        bool failed = help_plan.failed;
        sys = &sys_real;
        EXPECT_ERR(failed ? ERR_DISK_FULL : OK, e);
        if (e) ledger_clear(d);
        if (e) EXPECT_OK(ledger_create(d, 7, true, NULL));
        if (!failed) break;
    }
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, 2 * BLOCK, LEDGER_READY);
    for (int64_t call = 0;; call++) {
        help_fail_at(call, EIO);
        err e = ledger_sync(d, NULL);
        bool failed = help_plan.failed;
        sys = &sys_real;
        EXPECT_ERR(failed ? ERR_IO : OK, e);
        if (!failed) break;
    }
    EXPECT_EQ(2 * BLOCK, atomic_load(&ledger_control(l)->synced));
    ledger_close(l);
}

/* ---- for people ---- */

struct lines { char text[64][256]; unsigned count, most; };

static int keep_line(void *context, const char *text)
{
    struct lines *lines = context;
    if (lines->count < 64) snprintf(lines->text[lines->count++], sizeof lines->text[0], "%s", text);
    return lines->count >= lines->most;
}

TEST(what_was_in_flight_waits_again_when_nobody_lives)
{
    struct ledger *l = help_ledger(help_directory(), 10);
    struct ledger_control *c = ledger_control(l);
    atomic_store(&c->home, UINT64_C(3) << 48 | UINT64_C(7) << 24 | 5);
    atomic_store(&c->departed, 30);
    atomic_store(&c->in_flight, 8);
    atomic_store(&c->consumers, 2);
    atomic_store(&c->workers, 6);
    atomic_store(&c->room_wanted, 2);
    ledger_disown(c);
    EXPECT_EQ(22, atomic_load(&c->departed));
    EXPECT_EQ(5, atomic_load(&c->home)); /* its generation, which no later home may have again */
    EXPECT_EQ(0, atomic_load(&c->in_flight) + atomic_load(&c->consumers) + atomic_load(&c->workers) +
                     atomic_load(&c->room_wanted));

    atomic_store(&c->in_flight, 50); /* copies of a fan-out: not all of them a message of its own */
    ledger_disown(c);
    EXPECT_EQ(10, atomic_load(&c->departed));
    ledger_close(l);
}

TEST(a_page_and_a_block_are_printed)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    struct file_path path;
    struct lines lines = {.most = 64};
    help_hand_out(l, 5, LEDGER_IN_FLIGHT);
    help_settle(l, 1, 4);
    atomic_store(&ledger_control(l)->home, UINT64_C(3) << 48 | UINT64_C(9) << 24 | 4);
    path = file_path_name(d, "ledger");
    EXPECT_OK(ledger_print(path.text, 0, keep_line, &lines, NULL));
    EXPECT_STR_EQ("home: worker 2, epoch 9, generation 4", lines.text[1]);
    EXPECT_STR_EQ("next: 5", lines.text[3]);

    help_block_path(&path, d, 0);
    lines.count = 0;
    EXPECT_OK(ledger_print(path.text, 0, keep_line, &lines, NULL));
    static const char *const want[] = {
        "block: offsets 0 to below 16384, 262144 bytes", "none: 16379", "in flight: 2", "settled: 3",
        "offset 0: in flight, priority 0, attempts 1, strikes 0, worker 0, life 0, index 0, chunk at 0, entry at 1",
        "offsets 1 to below 4: settled",
        "offset 4: in flight, priority 0, attempts 1, strikes 0, worker 0, life 0, index 0, chunk at 0, entry at 5",
        "offsets 5 to below 16384: none",
    };
    EXPECT_EQ(8, lines.count);
    for (unsigned i = 0; i < 8; i++) EXPECT_STR_EQ(want[i], lines.text[i]);
    lines.count = 0;
    EXPECT_OK(ledger_print(path.text, 2, keep_line, &lines, NULL));
    EXPECT_EQ(6, lines.count);
    lines.count = 0;
    lines.most = 1;
    EXPECT_OK(ledger_print(path.text, 0, keep_line, &lines, NULL));
    EXPECT_EQ(1, lines.count);

    lines.most = 64;
    EXPECT_EQ(0, truncate(path.text, 100));
    EXPECT_ERR(ERR_CORRUPT, ledger_print(path.text, 0, keep_line, &lines, NULL));
    EXPECT_ERR(ERR_INVALID, ledger_print("/tmp/control", 0, keep_line, &lines, NULL));
    EXPECT_OK(ledger_note_settled(d, 1, NULL));
    path = file_path_numbered(d, BLOCK, LEDGER_SETTLED_SUFFIX);
    lines.count = 0;
    EXPECT_OK(ledger_print(path.text, 0, keep_line, &lines, NULL));
    EXPECT_STR_EQ("offsets 16384 to below 32768: settled", lines.text[0]);
    path = file_path_name(d, "ledger");
    EXPECT_EQ(0, truncate(path.text, 0));
    EXPECT_ERR(ERR_CORRUPT, ledger_print(path.text, 0, keep_line, &lines, NULL));
    ledger_close(l);
}

static char help_first_synced[256]; /* the file of the first fdatasync; "": none */

static int help_note_fdatasync(int fd)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (!help_first_synced[0]) {
        ssize_t size = readlink(link, help_first_synced, sizeof help_first_synced - 1);
        help_first_synced[size < 0 ? 0 : size] = 0;
    }
    return sys_real.fdatasync(fd);
}

TEST(members_are_synced_before_what_is_settled)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, BLOCK, LEDGER_SETTLED);
    struct file_path members = file_path_name(d, "members");
    EXPECT_OK(file_replace(members.text, "records", 7, false, NULL));
    struct sys noting = sys_real;
    noting.fdatasync = help_note_fdatasync;
    sys = &noting;
    EXPECT_OK(ledger_sync(d, NULL));
    sys = &sys_real;
    size_t size = strlen(help_first_synced);
    EXPECT(size > 8 && strcmp(help_first_synced + size - 8, "/members") == 0);
    ledger_close(l);
}
