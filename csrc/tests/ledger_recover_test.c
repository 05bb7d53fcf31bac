/* SPDX-License-Identifier: Apache-2.0
 *
 * What ledger_recover makes of the files that a power cut may leave.
 */
#include "../ledger/ledger.h"

#include "ledger_help.h"

/* Lay out a queue: block 0 to 2 full, 3 begun; everything in flight, but block 1 settled. */
static const char *queue_made(bool synced)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, 3 * BLOCK + 10, LEDGER_IN_FLIGHT);
    help_settle(l, BLOCK, 2 * BLOCK);
    ledger_settle(l, UINT64_MAX, 4);
    EXPECT_EQ(3, help_list(d).blocks);
    if (synced) EXPECT_OK(ledger_sync(d, NULL));
    ledger_close(l);
    return d;
}

static void damage(const char *directory, const char *name, uint64_t position, const void *bytes, size_t size,
                   int64_t cut)
{
    struct file_path path = file_path_name(directory, name);
    int fd = open(path.text, O_RDWR);
    EXPECT(fd >= 0);
    if (size) EXPECT_EQ(size, pwrite(fd, bytes, size, (off_t)position));
    if (cut >= 0) EXPECT_EQ(0, ftruncate(fd, cut));
    close(fd);
}

static struct ledger *recovered(const char *directory, uint64_t first, uint64_t next, bool anew)
{
    bool was = !anew;
    EXPECT_OK(help_recover(directory, first, next, &was, NULL));
    EXPECT_EQ(anew, was);
    struct ledger *l = help_open(directory);
    ledger_check(l);
    EXPECT(help_base(l) >= first && help_next(l) <= next);
    uint64_t ready = ledger_count(l, first, next, LEDGER_READY);
    EXPECT_EQ(help_next(l) - ready, atomic_load(&ledger_control(l)->departed));
    EXPECT_EQ(0, ledger_count(l, first, next, LEDGER_IN_FLIGHT));
    return l;
}

TEST(what_was_not_settled_is_ready_and_keeps_its_history)
{
    static const struct ledger_word words[] = {
        {.state = LEDGER_NONE, .attempts = 3},
        {.state = LEDGER_READY, .priority = 2, .attempts = 4, .index = 5, .strikes = 2},
        {.state = LEDGER_IN_FLIGHT, .priority = 3, .attempts = 9, .worker = 63, .life = 77, .index = 8, .strikes = 1},
        {.state = LEDGER_SETTLED, .attempts = 1}, {.state = LEDGER_DEAD, .attempts = 1000, .worker = 1},
        {.state = LEDGER_DELAYED, .attempts = 2, .strikes = 2}, {.state = 7, .attempts = 1},
    };
    static const struct ledger_word want[] = {
        {.state = LEDGER_READY}, {.state = LEDGER_READY, .priority = 2, .attempts = 4, .index = 5, .strikes = 2},
        {.state = LEDGER_READY, .priority = 3, .attempts = 9, .index = 8, .strikes = 1},
        {.state = LEDGER_SETTLED, .attempts = 1}, {.state = LEDGER_READY, .attempts = 1000},
        {.state = LEDGER_READY, .attempts = 2, .strikes = 2}, {.state = LEDGER_READY},
    };
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    struct ledger_control *c = ledger_control(l);
    help_hand_out(l, 7, LEDGER_IN_FLIGHT);
    for (uint64_t i = 0; i < 7; i++) help_put(l, i, words[i]);
    atomic_store(&c->home, UINT64_C(2) << 32);
    atomic_store(&c->workers, 3);
    atomic_store(&c->room_wanted, 1);
    atomic_store(&c->consumers, 4);
    atomic_store(&c->in_flight, 7);
    atomic_store(&c->acked, 12345);
    ledger_close(l);

    l = recovered(d, 0, 100, false);
    c = ledger_control(l);
    for (uint64_t i = 0; i < 7; i++) {
        struct ledger_entry *entry = ledger_entry(l, i, NULL);
        REQUIRE(entry != NULL);
        EXPECT_EQ(ledger_pack(want[i]), atomic_load(&entry->word) & LEDGER_CONTENT_MASK);
        EXPECT(ledger_is_known(atomic_load(&entry->word), entry->place));
        EXPECT_EQ(i == 0 || i == 6 ? 0 : i + 1, entry->place);
    }
    EXPECT_EQ(0, atomic_load(&c->home) | atomic_load(&c->workers) | atomic_load(&c->room_wanted));
    EXPECT_EQ(0, atomic_load(&c->consumers) | atomic_load(&c->in_flight));
    EXPECT_EQ(12345, atomic_load(&c->acked));
    EXPECT_EQ(1, atomic_load(&c->departed)); /* one of seven is settled, six wait */
    ledger_close(l);
}

TEST(a_ledger_is_brought_within_its_log)
{
    static const struct { uint64_t first, next, base_want, next_want; unsigned blocks_want; } cases[] = {
        {0, 1u << 20, 0, 3 * BLOCK + 10, 3},
        {0, 3 * BLOCK, 0, 3 * BLOCK, 3},             /* the log was cut where a block begins; its file is made anew */
        {0, 2 * BLOCK + 1, 0, 2 * BLOCK + 1, 2},
        {0, BLOCK + 5, 0, BLOCK, 2},                 /* within a block that is no more */
        {0, 0, 0, 0, 1},
        {7, 1u << 20, 7, 3 * BLOCK + 10, 3},         /* retention took the beginning */
        {2 * BLOCK, 1u << 20, 2 * BLOCK, 3 * BLOCK + 10, 2},
        {3 * BLOCK + 5, 3 * BLOCK + 8, 3 * BLOCK + 5, 3 * BLOCK + 8, 1},
        {900000, 1u << 20, 900000, 900000, 1},       /* or all of it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *d = queue_made(true);
        struct ledger *l = recovered(d, cases[i].first, cases[i].next, false);
        EXPECT_EQ(cases[i].base_want, help_base(l));
        EXPECT_EQ(cases[i].next_want, help_next(l));
        EXPECT_EQ(cases[i].blocks_want, help_list(d).blocks);
        EXPECT_EQ(1, help_list(d).others);
        help_hand_out(l, help_next(l) + BLOCK, LEDGER_READY); /* expects zeros where messages were cut */
        ledger_check(l);
        ledger_close(l);

        l = recovered(d, cases[i].first, cases[i].next + 2 * BLOCK, false); /* and once more */
        EXPECT_EQ(cases[i].base_want, help_base(l));
        EXPECT_EQ(cases[i].next_want + BLOCK, help_next(l));
        ledger_close(l);
    }
}

TEST(a_cut_leaves_nothing_settled_on_disk_for_messages_to_come)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, 0);
    help_hand_out(l, 100, LEDGER_IN_FLIGHT);
    help_settle(l, 50, 100);
    ledger_close(l);
    ledger_close(recovered(d, 0, 60, false));
    l = help_open(d); /* the next home dies, and power goes, before anything but next is written back */
    ledger_store_next(ledger_control(l), 90);
    ledger_close(l);
    l = recovered(d, 0, 90, false);
    for (uint64_t at = 0; at < 90; at++)
        EXPECT_EQ(at >= 50 && at < 60 ? LEDGER_SETTLED : LEDGER_READY, help_state(l, at));
    ledger_close(l);
}

TEST(a_purge_does_not_reach_messages_that_come_after_a_cut)
{
    const char *d = queue_made(true);
    struct ledger *l = help_open(d);
    ledger_order_purge(ledger_control(l), 5 * BLOCK);
    ledger_close(l);
    l = recovered(d, 0, 4 * BLOCK, false);
    EXPECT_EQ(4 * BLOCK, ledger_offset_unpack(atomic_load(&ledger_control(l)->purge)));
    ledger_close(l);
}

TEST(a_missing_block_was_settled_only_if_that_was_noted)
{
    struct file_path path;
    const char *d = queue_made(true); /* block 1 is missing because it was settled */
    struct ledger *l = recovered(d, 0, 1u << 20, false);
    EXPECT_EQ(LEDGER_SETTLED, help_state(l, BLOCK + 1));
    EXPECT_EQ(LEDGER_READY, help_state(l, 3 * BLOCK));
    ledger_close(l);

    d = queue_made(false); /* the same, and its note is lost */
    path = file_path_numbered(d, BLOCK, LEDGER_SETTLED_SUFFIX);
    EXPECT_EQ(0, unlink(path.text));
    l = recovered(d, 0, 1u << 20, false);
    EXPECT_EQ(BLOCK, help_next(l));
    EXPECT_EQ(BLOCK, ledger_count(l, 0, BLOCK, LEDGER_READY));
    EXPECT_EQ(2, help_list(d).blocks); /* and that of the next message */
    ledger_close(l);

    d = queue_made(true); /* one made after the last sync is lost with its name */
    l = help_open(d);
    help_hand_out(l, 5 * BLOCK + 10, LEDGER_IN_FLIGHT);
    help_settle(l, 3 * BLOCK + 10, 5 * BLOCK);
    ledger_close(l);
    help_block_path(&path, d, 4);
    EXPECT_EQ(0, unlink(path.text));
    l = recovered(d, 0, 1u << 20, false);
    EXPECT_EQ(4 * BLOCK, help_next(l));
    EXPECT_EQ(LEDGER_SETTLED, help_state(l, 3 * BLOCK + 10));
    EXPECT_EQ(4 * BLOCK, atomic_load(&ledger_control(l)->synced));
    ledger_close(l);
}

TEST(a_block_that_is_short_or_holds_noise_is_delivered_again)
{
    const char *d = queue_made(true);
    struct file_path path;
    help_block_path(&path, d, 0);
    EXPECT_EQ(0, truncate(path.text, 1000));
    help_block_path(&path, d, 2);
    EXPECT_EQ(0, truncate(path.text, 1 << 20));
    help_block_path(&path, d, 3);
    EXPECT_EQ(0, truncate(path.text, 0));
    struct ledger *l = recovered(d, 0, 1u << 20, false);
    EXPECT_EQ(2 * BLOCK + 10, ledger_count(l, 0, UINT64_MAX, LEDGER_READY));
    help_hand_out(l, 4 * BLOCK, LEDGER_READY);
    ledger_close(l);

    uint8_t noise[4096];
    for (int round = 0; round < 20; round++) {
        test_random_fill(noise, sizeof noise);
        char name[64];
        snprintf(name, sizeof name, "%020u.ledger", 0);
        damage(d, name, test_random_below(LEDGER_BLOCK_BYTES), noise, sizeof noise, -1);
        l = recovered(d, 0, 1u << 20, false);
        ledger_close(l);
    }
}

TEST(a_page_that_cannot_be_trusted_is_made_anew)
{
    static const uint64_t wide = UINT64_C(1) << 40;
    for (int how = 0; how < 3; how++) {
        const char *d = queue_made(true);
        struct file_path path = file_path_name(d, "ledger");
        if (how == 0) EXPECT_EQ(0, unlink(path.text));
        if (how == 1) damage(d, "ledger", 0, NULL, 0, 100);
        for (int copy = 0; how == 2 && copy < 3; copy++) {
            size_t copies = offsetof(struct ledger_control, next_copies);
            damage(d, "ledger", copy ? copies + 8 * (size_t)(copy - 1) : offsetof(struct ledger_control, next), &wide, 8, -1);
        }
        struct ledger *l = recovered(d, 17, UINT64_C(1) << 41, true);
        EXPECT_EQ(17, help_base(l));
        EXPECT_EQ(17, help_next(l));
        EXPECT_EQ(1, help_list(d).blocks); /* of the next message */
        help_hand_out(l, 100, LEDGER_READY);
        ledger_close(l);
    }
    bool anew;
    EXPECT_ERR(ERR_NOT_FOUND, help_recover("/nowhere/at/all", 0, 1, &anew, NULL));
    EXPECT_ERR(ERR_INVALID, help_recover(help_directory(), 2, 1, &anew, NULL));
}

TEST(base_of_a_later_instant_than_next_is_believed)
{
    const char *d = queue_made(true);
    uint64_t base = 4 * BLOCK + 1;
    uint64_t copies[] = {base, base};
    damage(d, "ledger", offsetof(struct ledger_control, base), &base, 8, -1);
    damage(d, "ledger", offsetof(struct ledger_control, base_copies), copies, sizeof copies, -1);
    struct ledger *l = recovered(d, 0, 1u << 20, false);
    EXPECT_EQ(base, help_base(l));
    EXPECT_EQ(base, help_next(l));
    ledger_close(l);
}

TEST(whichever_call_of_a_recovery_fails_it_can_be_run_again)
{
    uint64_t want = 0;
    for (int64_t call = 0;; call++) {
        const char *d = queue_made(true);
        bool anew;
        help_fail_at(call, call % 2 ? EIO : ENOSPC);
        err e = help_recover(d, 3, 3 * BLOCK + 4, &anew, NULL);
        bool failed = help_plan.failed;
        sys = &sys_real;
        /* On a full disk only the file of the next message's block may be missing. */
        if (e || !failed || call % 2) EXPECT_ERR(!failed ? OK : call % 2 ? ERR_IO : ERR_DISK_FULL, e);
        struct ledger *l = recovered(d, 3, 3 * BLOCK + 4, false);
        EXPECT_EQ(3 * BLOCK + 4, help_next(l));
        uint64_t ready = ledger_count(l, 0, UINT64_MAX, LEDGER_READY);
        if (call == 0) want = ready;
        EXPECT_EQ(want, ready);
        EXPECT_EQ(3, help_list(d).blocks);
        EXPECT_EQ(1, help_list(d).others);
        ledger_close(l);
        ledger_clear(d);
        if (!failed) break;
    }
    EXPECT_EQ(2 * BLOCK + 4 - 3, want);
}
