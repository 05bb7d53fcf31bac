/* SPDX-License-Identifier: Apache-2.0
 *
 * Each byte of a page and of a block with a flipped bit, at a start in the same boot and in another.  Unsettled messages
 * are still delivered, only the damaged entry's settled message is delivered again, and the damage is reported.
 */
#include "../ledger/ledger.h"

#include "ledger_help.h"

#define BASE 100u
#define NEXT (BLOCK + 40u)
#define LOG_NEXT (BLOCK + 1000u)

static bool is_settled(uint64_t offset) { return offset < BASE || (offset < NEXT && offset % 3 == 0); }

/* A queue with every state in two blocks, as killed processes leave it. */
static const char *queue_made(void)
{
    static const enum ledger_state states[] = {LEDGER_SETTLED, LEDGER_IN_FLIGHT, LEDGER_READY};
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, BASE);
    help_hand_out(l, NEXT, LEDGER_READY);
    for (uint64_t at = BASE; at < NEXT; at++) {
        enum ledger_state state = at % 3 == 1 && at % 5 == 0 ? LEDGER_DEAD : states[at % 3];
        help_put(l, at, (struct ledger_word){.state = state, .attempts = 2, .worker = 1, .life = 7, .index = at % 4});
    }
    atomic_store(&ledger_control(l)->home, ledger_home_pack((struct ledger_home){1, 7, 5}));
    atomic_store(&ledger_control(l)->consumers, 2);
    ledger_close(l);
    EXPECT_OK(ledger_sync(d, NULL));
    return d;
}

static void file_of(struct file_path *p, const char *d, int which)
{
    if (which == 0) *p = file_path_name(d, "ledger");
    else help_block_path(p, d, (uint64_t)which - 1);
}

static void flip(const char *path, size_t at, int bit)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    EXPECT_EQ(1, pread(fd, &byte, 1, (off_t)at));
    byte ^= (uint8_t)(1 << bit);
    EXPECT_EQ(1, pwrite(fd, &byte, 1, (off_t)at));
    close(fd);
}

struct files { uint8_t page[LEDGER_CONTROL_BYTES], blocks[2][LEDGER_BLOCK_BYTES]; };

static void files_read(const char *d, struct files *files)
{
    for (int which = 0; which < 3; which++) {
        struct file_path path;
        file_of(&path, d, which);
        size_t size = which ? LEDGER_BLOCK_BYTES : LEDGER_CONTROL_BYTES;
        int fd = open(path.text, O_RDONLY);
        EXPECT_EQ((ssize_t)size, pread(fd, which ? files->blocks[which - 1] : files->page, size, 0));
        close(fd);
    }
}

/* Only the files and ranges that a recovery reads and changes; the blocks are sparse. */
static void files_write(const char *d, const struct files *files)
{
    for (int which = 0; which < 3; which++) {
        struct file_path path;
        file_of(&path, d, which);
        const uint8_t *from = which ? files->blocks[which - 1] : files->page;
        size_t size = which == 0 ? LEDGER_CONTROL_BYTES : which == 1 ? LEDGER_BLOCK_BYTES : 4096;
        int fd = open(path.text, O_RDWR | O_CREAT, 0600);
        EXPECT_EQ((ssize_t)size, pwrite(fd, from, size, 0));
        if (which == 2) EXPECT_EQ(0, ftruncate(fd, LEDGER_BLOCK_BYTES));
        close(fd);
    }
}

/* Count the settled messages that are delivered again; all unsettled ones must be. */
static uint64_t delivered_again(const char *d)
{
    struct ledger *l = help_open(d);
    uint64_t again = 0, next = help_next(l);
    ledger_check(l);
    for (uint64_t at = 0; at < LOG_NEXT; at++) {
        bool waits = at >= next || help_state(l, at) != LEDGER_SETTLED;
        EXPECT(waits || is_settled(at));
        again += waits && is_settled(at);
    }
    EXPECT(word_load(&ledger_control(l)->departed) <= next);
    EXPECT_EQ(0, ledger_purge_unpack(word_load(&ledger_control(l)->purge)));
    EXPECT_EQ(LEDGER_NOBODY, ledger_home_unpack(word_load(&ledger_control(l)->home)).worker);
    ledger_close(l);
    return again;
}

static struct ledger_damage recovered(const char *d, bool is_same_boot)
{
    struct ledger_damage damage;
    struct fault f = {0};
    EXPECT_OK(ledger_recover(d, 0, LOG_NEXT, is_same_boot, &damage, &f));
    return damage;
}

TEST(an_undamaged_ledger_is_not_changed)
{
    for (int is_same_boot = 0; is_same_boot < 2; is_same_boot++) {
        const char *d = queue_made();
        struct ledger_damage damage = recovered(d, is_same_boot);
        EXPECT(!damage.anew && !damage.page && damage.entries == 0);
        EXPECT_EQ(0, delivered_again(d));
        struct ledger *l = help_open(d);
        EXPECT_EQ(is_same_boot ? LEDGER_IN_FLIGHT : LEDGER_READY, help_state(l, 103)); /* the next home asks its worker */
        EXPECT_EQ(is_same_boot ? 5 : 0, ledger_home_unpack(word_load(&ledger_control(l)->home)).generation);
        uint64_t waiting = 0;
        for (uint64_t at = BASE; at < NEXT; at++) waiting += !is_settled(at);
        EXPECT_EQ(NEXT - waiting, word_load(&ledger_control(l)->departed));
        ledger_close(l);
    }
}

TEST(a_flipped_bit_of_the_page_loses_nothing_and_settles_nothing)
{
    static struct files files;
    const char *d = queue_made();
    files_read(d, &files);
    for (size_t at = 0; at < sizeof(struct ledger_control); at++) {
        for (int is_same_boot = 0; is_same_boot < 2; is_same_boot++) {
            struct file_path path;
            file_of(&path, d, 0);
            flip(path.text, at, test_random_below(8));
            struct ledger_damage damage = recovered(d, is_same_boot);
            EXPECT(!damage.anew && damage.entries == 0);
            EXPECT_EQ(0, delivered_again(d));
            bool is_named = at < 8 || (at >= LEDGER_HEAD_CHECK_AT && at < LEDGER_HEAD_CHECK_AT + 4) ||
                            (at >= offsetof(struct ledger_control, base) && at < offsetof(struct ledger_control, departed)) ||
                            (at >= offsetof(struct ledger_control, purge) &&
                             at < offsetof(struct ledger_control, base_copies) + 48);
            EXPECT_EQ(is_named, damage.page);
            files_write(d, &files);
        }
    }
}

TEST(a_flipped_bit_of_an_entry_brings_one_message_again)
{
    static struct files files;
    const char *d = queue_made();
    files_read(d, &files);
    for (size_t i = 0; i < 6 * LEDGER_ENTRY_BYTES; i++) {
        for (int where = 0; where < 4; where++) {
            static const uint64_t firsts[] = {BASE - 2, 5000, BLOCK - 6, BLOCK};
            size_t at = (size_t)(firsts[where] % BLOCK) * LEDGER_ENTRY_BYTES + i;
            uint64_t hit = firsts[where] + i / LEDGER_ENTRY_BYTES;
            int bit = (int)test_random_below(8);
            bool is_mark = i % LEDGER_ENTRY_BYTES == 7 && bit == 7;
            struct file_path path;
            file_of(&path, d, where == 3 ? 2 : 1);
            flip(path.text, at, bit);
            struct ledger_damage damage = recovered(d, i % 2);
            bool counts = hit >= BASE && !is_mark;
            EXPECT_EQ(counts, damage.entries);
            if (counts) EXPECT_EQ(hit, damage.offset);
            EXPECT_EQ(counts && is_settled(hit), delivered_again(d));
            files_write(d, &files);
        }
    }
}

TEST(a_home_that_takes_over_finds_damaged_entries_too)
{
    const char *d = queue_made();
    struct ledger *l = help_open(d);
    EXPECT_EQ(0, ledger_verify(l).entries);
    ledger_entry(l, 150, NULL)->place ^= 1u << 20;
    atomic_fetch_xor(&ledger_entry(l, BLOCK + 7, NULL)->word, 1);
    struct ledger_damage damage = ledger_verify(l);
    EXPECT_EQ(2, damage.entries);
    EXPECT_EQ(150, damage.offset);
    EXPECT_EQ(LEDGER_READY, help_state(l, 150));
    EXPECT_EQ(0, ledger_entry(l, 150, NULL)->place);
    EXPECT_EQ(LEDGER_READY, help_state(l, BLOCK + 7));
    EXPECT_EQ(0, ledger_verify(l).entries);
    ledger_close(l);
}

/* Version 1 had no copies, no checks, and the offset itself in `purge`. */
TEST(a_page_of_version_1_is_converted_and_checked_from_then_on)
{
    for (int is_same_boot = 0; is_same_boot < 2; is_same_boot++) {
        static struct files files;
        const char *d = queue_made();
        files_read(d, &files);
        struct ledger_control *c = (struct ledger_control *)files.page;
        c->version = LEDGER_VERSION_UNCHECKED;
        c->head_check = 0;
        memset(files.page + offsetof(struct ledger_control, base_copies), 0, 6 * sizeof(uint64_t));
        atomic_store(&c->purge, 777);
        for (int block = 0; block < 2; block++)
            for (size_t i = 7; i < LEDGER_BLOCK_BYTES; i += LEDGER_ENTRY_BYTES) files.blocks[block][i] &= 3;
        files_write(d, &files);
        struct ledger *l = NULL;
        EXPECT_ERR(ERR_CORRUPT, ledger_open(d, &l, NULL)); /* only a start converts it */
        struct ledger_damage damage = recovered(d, is_same_boot);
        EXPECT(!damage.anew && !damage.page && damage.entries == 0);
        l = help_open(d);
        EXPECT_EQ(777, ledger_purge_unpack(word_load(&ledger_control(l)->purge)));
        EXPECT_EQ(LEDGER_SETTLED, help_state(l, 102));
        EXPECT(word_load(&ledger_entry(l, 102, NULL)->word) & LEDGER_CHECKED);
        word_store(&ledger_control(l)->purge, 0);
        ledger_close(l);
        EXPECT_EQ(0, delivered_again(d));
    }
}
