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
#define LOOKED (LOG_NEXT + 1)

static uint64_t most_of(uint64_t a, uint64_t b) { return a > b ? a : b; }
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
    atomic_store(&ledger_control(l)->looked, ledger_offset_pack(LOOKED));
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

struct files { _Alignas(struct ledger_control) uint8_t page[LEDGER_CONTROL_BYTES]; uint8_t blocks[2][LEDGER_BLOCK_BYTES]; };

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
    EXPECT_EQ(0, ledger_offset_unpack(word_load(&ledger_control(l)->purge)));
    EXPECT_EQ(LEDGER_NOBODY, ledger_home_unpack(word_load(&ledger_control(l)->home)).worker);
    ledger_close(l);
    return again;
}

/* Delivered to purged, and refused. */
static bool is_counter(size_t at)
{
    return (at >= offsetof(struct ledger_control, delivered) && at < offsetof(struct ledger_control, looked)) ||
           at / 8 == offsetof(struct ledger_control, refused) / 8;
}

/* All that a broker acts on is as it would be without damage; of a counter any value below its limit is possible. */
static void page_check(const char *d)
{
    struct ledger *l = help_open(d);
    struct ledger_control *c = ledger_control(l);
    uint64_t waiting = 0, looked = ledger_offset_unpack(word_load(&c->looked));
    for (uint64_t at = BASE; at < NEXT; at++) waiting += !is_settled(at);
    EXPECT_EQ(BASE, word_load(&c->base));
    EXPECT_EQ(NEXT, word_load(&c->next));
    EXPECT_EQ(NEXT - waiting, word_load(&c->departed));
    EXPECT(looked == 0 || looked == LOOKED);
    EXPECT_EQ(0, word_load(&c->workers) | word_load(&c->room_wanted) | word_load(&c->consumers) | word_load(&c->in_flight));
    EXPECT_EQ(0, word_load(&c->failing) | word_load(&c->failing_offset) | word_load(&c->failing_deliveries));
    EXPECT_EQ(0, word_load(&c->away));
    for (size_t at = offsetof(struct ledger_control, delivered); at < sizeof *c; at += 8)
        if (is_counter(at)) EXPECT(*(uint64_t *)((uint8_t *)c + at) < LEDGER_COUNT_MAX);
    ledger_close(l);
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
            int bit = (int)test_random_below(8);
            flip(path.text, at, bit);
            struct ledger_damage damage = recovered(d, is_same_boot);
            EXPECT(!damage.anew && damage.entries == 0 && damage.blocks == 0);
            EXPECT_EQ(0, delivered_again(d));
            page_check(d);
            bool is_named = at < 8 || (at >= LEDGER_HEAD_CHECK_AT && at < LEDGER_HEAD_CHECK_AT + 4) ||
                            (at >= offsetof(struct ledger_control, base) && at < offsetof(struct ledger_control, departed)) ||
                            (at >= offsetof(struct ledger_control, purge) &&
                             at < offsetof(struct ledger_control, base_copies) + 48) ||
                            at / 8 == offsetof(struct ledger_control, looked) / 8 || (is_counter(at) && at % 8 * 8 + (size_t)bit >= 53);
            EXPECT_EQ(is_named, damage.page);
            files_write(d, &files);
        }
    }
}

/* Flip a bit of byte `at` of a block, recover, and check which message is delivered again. */
static void entry_flip(const char *d, const struct files *files, int block, size_t at, bool is_same_boot)
{
    uint64_t hit = (uint64_t)block * BLOCK + at / LEDGER_ENTRY_BYTES;
    int bit = (int)test_random_below(8);
    bool is_mark = at % LEDGER_ENTRY_BYTES == 7 && bit == 7;
    struct file_path path;
    file_of(&path, d, block + 1);
    flip(path.text, at, bit);
    struct ledger_damage damage = recovered(d, is_same_boot);
    bool counts = hit >= BASE && hit < NEXT && !is_mark;
    EXPECT_EQ(counts, damage.entries);
    if (counts) EXPECT_EQ(hit, damage.offset);
    EXPECT_EQ(counts && is_settled(hit), delivered_again(d));
    files_write(d, files);
}

TEST(a_flipped_bit_of_an_entry_brings_one_message_again)
{
    static struct files files;
    const char *d = queue_made();
    files_read(d, &files);
    const char *damage = getenv("VIBEMQ_DAMAGE");
    if (damage && strcmp(damage, "all") == 0) { /* each byte of a block, and of the beginning of another */
        for (size_t at = 0; at < LEDGER_BLOCK_BYTES; at++) entry_flip(d, &files, 0, at, at / LEDGER_ENTRY_BYTES % 2);
        for (size_t at = 0; at < 64 * LEDGER_ENTRY_BYTES; at++) entry_flip(d, &files, 1, at, at / LEDGER_ENTRY_BYTES % 2);
        return;
    }
    for (size_t i = 0; i < 6 * LEDGER_ENTRY_BYTES; i++) {
        static const uint64_t firsts[] = {BASE - 2, 5000, BLOCK - 6, BLOCK};
        for (int where = 0; where < 4; where++)
            entry_flip(d, &files, where == 3, (size_t)(firsts[where] % BLOCK) * LEDGER_ENTRY_BYTES + i, i % 2);
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

#define FAR (5 * BLOCK + 40u)

/* Block 1 is settled and removed, every other one has messages in flight, but a settled one at its beginning. */
static const char *far_queue_made(void)
{
    const char *d = help_directory();
    struct ledger *l = help_ledger(d, BASE);
    help_hand_out(l, FAR, LEDGER_IN_FLIGHT);
    help_settle(l, BLOCK, 2 * BLOCK);
    for (uint64_t block = 2; block < 6; block++) help_settle(l, block * BLOCK, block * BLOCK + 1);
    ledger_settle(l, UINT64_MAX, 8);
    EXPECT_EQ(5, help_list(d).blocks);
    EXPECT_EQ(1, help_list(d).noted);
    ledger_close(l);
    EXPECT_OK(ledger_sync(d, NULL));
    return d;
}

static void expect_all_but_block_1(struct ledger *l, uint64_t missing)
{
    for (uint64_t at = BASE; at < FAR; at++) {
        bool settled = at / BLOCK == 1 || (at / BLOCK > 1 && at % BLOCK == 0 && at / BLOCK != missing);
        if ((help_state(l, at) == LEDGER_SETTLED) != settled) EXPECT_EQ(at, 0);
    }
}

TEST(messages_of_a_missing_block_come_again_and_those_of_a_removed_one_do_not)
{
    for (uint64_t missing = 0; missing < 6; missing++) {
        for (int is_same_boot = 0; is_same_boot < 2; is_same_boot++) {
            struct file_path path;
            const char *d = far_queue_made();
            help_block_path(&path, d, missing);
            EXPECT_EQ(missing == 1 ? -1 : 0, unlink(path.text));
            struct ledger_damage damage;
            EXPECT_OK(ledger_recover(d, 0, FAR + 9, is_same_boot, &damage, NULL));
            uint64_t from = most_of(BASE, missing * BLOCK), end = missing == 5 ? FAR : (missing + 1) * BLOCK;
            bool is_anew = missing != 1;
            EXPECT_EQ(is_anew, damage.blocks);
            if (is_anew) EXPECT_EQ(missing * BLOCK, damage.block);
            EXPECT_EQ(is_anew ? end - from : 0, damage.entries);
            if (is_anew) EXPECT_EQ(from, damage.offset);
            struct ledger *l = help_open(d);
            ledger_check(l);
            EXPECT_EQ(FAR, help_next(l));
            expect_all_but_block_1(l, missing);
            EXPECT_EQ(0, ledger_verify(l).entries);
            ledger_close(l);
        }
    }
}

TEST(a_block_that_is_missing_while_others_look_is_not_taken_for_settled_and_its_home_makes_it_anew)
{
    for (uint64_t missing = 2; missing < 6; missing++) {
        struct file_path path;
        const char *d = far_queue_made();
        help_block_path(&path, d, missing);
        EXPECT_EQ(0, unlink(path.text));
        struct ledger *l = help_open(d);
        struct fault f = {0};
        EXPECT(ledger_entry(l, missing * BLOCK, &f) == NULL);
        if (missing < 5) EXPECT_ERR(ERR_CORRUPT, f.code);
        else EXPECT_EQ(OK, f.code); /* somebody may be making it */
        struct ledger *home = help_open(d);
        struct ledger_damage damage = ledger_verify(home);
        EXPECT_EQ(1, damage.blocks);
        EXPECT_EQ(missing * BLOCK, damage.block);
        EXPECT_EQ(missing == 5 ? FAR - 5 * BLOCK : BLOCK, damage.entries);
        expect_all_but_block_1(home, missing);
        EXPECT_EQ(LEDGER_READY, help_state(l, missing * BLOCK));
        EXPECT_EQ(0, ledger_verify(home).entries);
        ledger_check(home);
        ledger_close(home);
        ledger_close(l);
    }
}

TEST(a_home_removes_the_files_that_a_killed_one_left_below_base)
{
    struct file_path path;
    const char *d = far_queue_made();
    struct ledger *l = help_open(d);
    ledger_store_base(ledger_control(l), 3 * BLOCK); /* killed before it removed them */
    ledger_close(l);
    l = help_open(d);
    EXPECT_EQ(0, ledger_verify(l).entries);
    EXPECT_EQ(3, help_list(d).blocks);
    EXPECT_EQ(0, help_list(d).noted);
    EXPECT_OK(ledger_note_settled(d, 6, NULL)); /* of other offsets: it does not speak for a new block */
    help_hand_out(l, 7 * BLOCK, LEDGER_READY);
    EXPECT_EQ(0, help_list(d).noted);
    ledger_close(l);
    help_block_path(&path, d, 6);
    EXPECT_EQ(0, unlink(path.text));
    struct ledger_damage damage;
    EXPECT_OK(ledger_recover(d, 0, 7 * BLOCK, true, &damage, NULL));
    EXPECT_EQ(BLOCK, damage.entries);
}

/* Version 1 had no copies, no checks, no notes of settled blocks, and the offset itself in `purge` and `looked`. */
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
        EXPECT_EQ(777, ledger_offset_unpack(word_load(&ledger_control(l)->purge)));
        EXPECT_EQ(LEDGER_SETTLED, help_state(l, 102));
        EXPECT(word_load(&ledger_entry(l, 102, NULL)->word) & LEDGER_CHECKED);
        word_store(&ledger_control(l)->purge, 0);
        ledger_close(l);
        EXPECT_EQ(0, delivered_again(d));
    }
}

TEST(a_block_that_version_1_removed_stays_settled)
{
    for (int is_same_boot = 0; is_same_boot < 2; is_same_boot++) {
        const char *d = far_queue_made();
        struct file_path path = file_path_numbered(d, BLOCK, LEDGER_SETTLED_SUFFIX), page = file_path_name(d, "ledger");
        EXPECT_EQ(0, unlink(path.text));
        int fd = open(page.text, O_RDWR);
        uint32_t version = LEDGER_VERSION_UNCHECKED, check = 0;
        EXPECT_EQ(4, pwrite(fd, &version, 4, 4));
        EXPECT_EQ(4, pwrite(fd, &check, 4, LEDGER_HEAD_CHECK_AT));
        close(fd);
        struct ledger_damage damage;
        EXPECT_OK(ledger_recover(d, 0, FAR, is_same_boot, &damage, NULL));
        EXPECT(!damage.anew && damage.blocks == 0 && damage.entries == 0);
        struct ledger *l = help_open(d);
        expect_all_but_block_1(l, 0);
        ledger_close(l);
        EXPECT_OK(ledger_recover(d, 0, FAR, is_same_boot, &damage, NULL)); /* and from then on it is noted */
        EXPECT_EQ(0, damage.blocks);
    }
}
