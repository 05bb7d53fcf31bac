/* SPDX-License-Identifier: Apache-2.0
 *
 * A start in the same boot believes a control page only where the start vouches for it, and only as far as the files fit.
 */
#include "../ledger/ledger.h"
#include "../log/handle.h"
#include "../log/upkeep.h"

#include "log_help.h"

enum { MESSAGES = 40 };

static struct log *l;
static struct log_options options = {.segment_bytes_max = 4096};
static char path[512];

static void append(unsigned batches)
{
    struct batch b;
    batch_init(&b, NULL);
    for (unsigned i = 0; i < batches; i++) {
        struct commit c;
        control_committed(log_control(l), &c);
        EXPECT_OK(help_add_tracked(&b, "p", c.next_offset, "tracked"));
        EXPECT_OK(help_fill(l, &b, 4, 200, NULL));
    }
    batch_free(&b);
}

/* Eight chunks of five messages in several segments. */
static void make_log(void)
{
    snprintf(path, sizeof path, "%s", help_path());
    l = help_log(path, &options);
    append(MESSAGES / 5);
}

static struct recovery_report run(struct recovery_once *once)
{
    struct recovery_report report;
    struct fault f = {0};
    if (!EXPECT_OK(recovery_run(path, &options, once, &report, &f))) help_fault(&f);
    return report;
}

/* The bytes of a file, and the same put back into the same inode, as `rsync --inplace` does. */
struct bytes { uint8_t data[16384]; size_t size; };

static struct bytes file_get(const char *name)
{
    struct bytes found;
    struct file_path file = file_path_name(path, name);
    int fd = open(file.text, O_RDONLY);
    ssize_t got = read(fd, found.data, sizeof found.data);
    close(fd);
    EXPECT(got > 0);
    found.size = (size_t)got;
    return found;
}

static void file_put_back(const char *name, const struct bytes *old)
{
    struct file_path file = file_path_name(path, name);
    int fd = open(file.text, O_WRONLY);
    EXPECT_EQ((ssize_t)old->size, pwrite(fd, old->data, old->size, 0));
    EXPECT_EQ(0, ftruncate(fd, (off_t)old->size));
    close(fd);
}

static void read_back(uint64_t messages)
{
    struct help_walk w = {0};
    REQUIRE_OK(log_open(path, &l, NULL));
    help_walk_log(&w, l);
    EXPECT_EQ(messages, w.messages);
    EXPECT_EQ(0, w.damaged);
    append(1);
    struct help_walk more = {0};
    help_walk_log(&more, l);
    EXPECT_EQ(messages + 5, more.messages);
    log_close(l);
}

TEST(only_a_page_of_the_generation_that_is_vouched_for_is_believed)
{
    static const struct { uint64_t of_page, vouched; bool ran; } cases[] = {
        {7, 7, false}, {7, 8, true}, {7, 0, true}, {0, 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct recovery_once once;
        control_generation_set(cases[i].of_page);
        make_log();
        log_close(l);
        recovery_once_init(&once);
        recovery_once_believe(&once, cases[i].vouched);
        control_generation_set(9);
        struct recovery_report report = run(&once);
        EXPECT_EQ(cases[i].ran, report.ran);
        EXPECT_EQ('\0', report.unfit[0]); /* nothing is damaged */
        EXPECT_EQ(0, report.first_offset);
        EXPECT_EQ(MESSAGES, report.next_offset);
        recovery_once_init(&once);
        recovery_once_believe(&once, 9); /* the page is of this start now, whichever way was taken */
        report = run(&once);
        EXPECT(!report.ran);
        EXPECT_EQ(MESSAGES, report.next_offset);
        read_back(MESSAGES);
    }
    control_generation_set(0);
}

/* As pages of the cache that were lost, while the file kept its size. */
TEST(a_hole_in_what_no_sync_covers_is_found_and_what_is_behind_it_is_not_lost_silently)
{
    for (int synced = 0; synced < 2; synced++) {
        struct commit c;
        uint64_t durable;
        static const uint8_t zeros[300];
        make_log();
        if (synced) EXPECT_OK(log_sync(l, &durable, NULL));
        control_committed(log_control(l), &c);
        log_close(l);
        struct file_path file = file_path_numbered(path, c.segment, SEGMENT_SUFFIX);
        int fd = open(file.text, O_WRONLY);
        EXPECT_EQ((ssize_t)sizeof zeros, pwrite(fd, zeros, sizeof zeros, (off_t)(c.position - sizeof zeros)));
        close(fd);
        struct recovery_report report = run(NULL);
        EXPECT_EQ(!synced, report.ran); /* what a sync covers is not read again */
        if (synced) continue;
        EXPECT(strstr(report.unfit, ".segment") != NULL);
        EXPECT_EQ(1, report.cut_count);
        EXPECT(report.next_offset < MESSAGES);
        read_back(report.next_offset);
    }
}

TEST(a_page_of_an_earlier_instant_than_the_segments_loses_none_of_their_messages)
{
    for (unsigned more = 1; more <= 12; more++) { /* in the same segment, or over rolls */
        make_log();
        struct bytes old = file_get("control");
        append(more);
        log_close(l);
        file_put_back("control", &old);
        struct recovery_report report = run(NULL);
        EXPECT(report.ran);
        EXPECT_EQ(MESSAGES + 5 * more, report.next_offset);
        read_back(MESSAGES + 5 * more);
    }
}

TEST(a_table_of_a_later_instant_than_the_log_does_not_take_new_messages_for_duplicates)
{
    uint64_t id;
    make_log();
    struct commit c;
    control_committed(log_control(l), &c);
    struct bytes control = file_get("control");
    struct file_path file = file_path_numbered("", c.segment, SEGMENT_SUFFIX);
    struct bytes segment = file_get(file.text + 1);
    append(1);
    control_committed(log_control(l), &c);
    log_close(l);
    file_put_back("control", &control);
    file_put_back(file.text + 1, &segment);
    struct recovery_report report = run(NULL);
    EXPECT(report.ran && strstr(report.unfit, "tracking") != NULL);
    REQUIRE_OK(log_open(path, &l, NULL));
    EXPECT_OK(log_lock(l, NULL));
    EXPECT_OK(log_tracking_find(l, "p", 1, &id, NULL));
    log_unlock(l);
    EXPECT_EQ(MESSAGES - 5, id);
    log_close(l);
}

TEST(a_ledger_of_a_later_instant_than_the_log_does_not_settle_messages_to_come)
{
    struct ledger *ledger;
    struct ledger_damage damage;
    snprintf(path, sizeof path, "%s", help_path());
    mkdir(path, 0750);
    EXPECT_OK(ledger_create(path, 0, false, NULL));
    REQUIRE_OK(ledger_open(path, &ledger, NULL));
    EXPECT_OK(ledger_reserve(ledger, 100, NULL));
    for (uint64_t i = 0; i < 100; i++) {
        struct ledger_entry *entry = ledger_entry(ledger, i, NULL);
        REQUIRE(entry != NULL);
        ledger_put(entry, (struct ledger_word){.state = LEDGER_SETTLED});
    }
    ledger_store_next(ledger_control(ledger), 100);
    ledger_settle(ledger, 60, 1);
    ledger_close(ledger);
    EXPECT_OK(ledger_recover(path, 0, 50, true, &damage, NULL));
    REQUIRE_OK(ledger_open(path, &ledger, NULL));
    EXPECT_EQ(50, word_load(&ledger_control(ledger)->next));
    EXPECT_EQ(50, word_load(&ledger_control(ledger)->base));
    ledger_close(ledger);
}
