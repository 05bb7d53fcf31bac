/* SPDX-License-Identifier: Apache-2.0
 *
 * Every system call of an append fails once, in every way it can; and deduplication.
 */
#include <errno.h>
#include <sys/mman.h>

#include "../log/handle.h"
#include "log_help.h"

/* ---- a table that fails at the Nth call ---- */

enum manner { FAIL_ENOSPC, FAIL_EIO, FAIL_EINTR, FAIL_SHORT, FAIL_MANNERS };
static struct { int64_t left; enum manner manner; bool failed; } plan;
static struct sys faulty;

static bool fails_now(void)
{
    if (plan.left < 0 || plan.left-- > 0) return false;
    plan.failed = true;
    errno = plan.manner == FAIL_ENOSPC ? ENOSPC : plan.manner == FAIL_EIO ? EIO : EINTR;
    return true;
}

static int faulty_open(const char *p, int flags, mode_t m) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.open(p, flags, m); }
static ssize_t faulty_pread(int fd, void *d, size_t n, off_t at)
{
    if (fails_now()) return plan.manner != FAIL_SHORT ? -1 : sys_real.pread(fd, d, (n + 1) / 2, at);
    return sys_real.pread(fd, d, n, at);
}
static ssize_t faulty_pwrite(int fd, const void *d, size_t n, off_t at)
{
    if (fails_now()) return plan.manner != FAIL_SHORT ? -1 : sys_real.pwrite(fd, d, (n + 1) / 2, at);
    return sys_real.pwrite(fd, d, n, at);
}
static ssize_t faulty_pwritev(int fd, const struct iovec *v, int n, off_t at)
{
    if (!fails_now()) return sys_real.pwritev(fd, v, n, at);
    if (plan.manner != FAIL_SHORT) {
        /* What a full disk leaves: a part of it. */
        int kept = errno;
        sys_real.pwrite(fd, v[0].iov_base, v[0].iov_len / 2, at);
        errno = kept;
        return -1;
    }
    return n > 1 ? sys_real.pwritev(fd, v, n - 1, at) : sys_real.pwrite(fd, v[0].iov_base, (v[0].iov_len + 1) / 2, at);
}
static int faulty_ftruncate(int fd, off_t n) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.ftruncate(fd, n); }
static int faulty_fstat(int fd, struct stat *st) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.fstat(fd, st); }
static int faulty_rename(const char *a, const char *b) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.rename(a, b); }
static int faulty_unlink(const char *p) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.unlink(p); }
static int faulty_fdatasync(int fd) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.fdatasync(fd); }
static int faulty_entropy(void *d, size_t n) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.entropy(d, n); }
static int faulty_fsync(int fd) { return fails_now() && plan.manner != FAIL_SHORT ? -1 : sys_real.fsync(fd); }

static void fail_at(int64_t call, enum manner manner)
{
    faulty = sys_real;
    faulty.open = faulty_open;
    faulty.pread = faulty_pread;
    faulty.pwrite = faulty_pwrite;
    faulty.pwritev = faulty_pwritev;
    faulty.ftruncate = faulty_ftruncate;
    faulty.fstat = faulty_fstat;
    faulty.rename = faulty_rename;
    faulty.unlink = faulty_unlink;
    faulty.fdatasync = faulty_fdatasync;
    faulty.fsync = faulty_fsync;
    faulty.entropy = faulty_entropy;
    plan.left = call;
    plan.manner = manner;
    plan.failed = false;
    sys = &faulty;
}

/* ---- one failing call ---- */

static void check_offset(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    char want[32];
    int n = snprintf(want, sizeof want, "m%" PRIu64, offset);
    (void)w;
    EXPECT(bytes >= (uint32_t)n && memcmp(want, body, (size_t)n) == 0);
}

/* Append with failure at call `call`; true when the plan was reached. */
static bool append_failing(int64_t call, enum manner manner, bool rolls)
{
    struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = 4096});
    struct batch b;
    struct log_appended a;
    struct fault f = {0};
    struct commit before, after;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 10, rolls ? 388 : 50, NULL)); /* the segment is full only with the next chunk */
    EXPECT_OK(help_add_tracked(&b, "p", 1, "m10"));
    EXPECT_OK(help_append(l, &b, NULL));
    control_committed(log_control(l), &before);
    log_rest(l); /* so that opening is among the calls */

    for (uint64_t i = 2; i < 5; i++) {
        char text[16];
        snprintf(text, sizeof text, "m%" PRIu64, 9 + i);
        EXPECT_OK(help_add_tracked(&b, "p", i, text));
    }
    EXPECT_OK(batch_seal(&b, NULL));
    fail_at(call, manner);
    err e = log_append(l, &b, &a, &f);
    bool reached = plan.failed;
    sys = &sys_real;
    control_committed(log_control(l), &after);
    if (e) {
        uint64_t sequence;
        EXPECT(manner != FAIL_SHORT && manner != FAIL_EINTR); /* those are gone on with */
        EXPECT_ERR(manner == FAIL_ENOSPC ? ERR_DISK_FULL : ERR_IO, e);
        EXPECT_ERR(e, f.code);
        EXPECT(f.where[0] != 0);
        EXPECT_EQ(before.next_offset, after.next_offset);
        EXPECT_OK(log_publisher_sequence(l, "p", 1, &sequence, NULL));
        EXPECT_EQ(1, sequence);
        EXPECT_OK(log_append(l, &b, &a, &f)); /* the same batch, again */
    }
    EXPECT_EQ(11, a.first_offset);
    EXPECT_EQ(14, a.next_offset);
    batch_clear(&b);
    EXPECT_OK(help_fill(l, &b, 5, 50, NULL));
    struct help_walk w = {.message = check_offset};
    help_walk_log(&w, l);
    EXPECT_EQ(19, w.messages);
    EXPECT_EQ(0, w.damaged);
    batch_free(&b);
    log_close(l);
    return reached;
}

TEST(whichever_call_of_an_append_fails_all_or_nothing_is_committed)
{
    for (int rolls = 0; rolls < 2; rolls++) {
        for (int manner = 0; manner < FAIL_MANNERS; manner++) {
            int64_t call = 0;
            while (append_failing(call, (enum manner)manner, rolls)) call++;
            EXPECT(call >= (rolls ? 12 : 4));
        }
    }
}

static size_t index_read(const char *path, uint8_t *out, size_t most)
{
    struct file_path file = file_path_numbered(path, 0, INDEX_SUFFIX);
    size_t got = 0;
    EXPECT_OK(file_read_head(file.text, out, most, &got, NULL));
    return got;
}

TEST(a_failed_call_of_rebuilding_a_lost_index_leaves_no_incomplete_index)
{
    for (int64_t call = 0, more = 1; more; call++) {
        static uint8_t before[4096], after[4096];
        const char *path = help_path();
        struct log *l = help_log(path, &(struct log_options){0});
        struct batch b;
        struct log_appended a;
        batch_init(&b, NULL);
        for (int i = 0; i < 5; i++) EXPECT_OK(help_fill(l, &b, 2, 50, NULL));
        size_t size = index_read(path, before, sizeof before);
        log_rest(l); /* the next append opens the files */
        struct file_path file = file_path_numbered(path, 0, INDEX_SUFFIX);
        EXPECT_EQ(0, unlink(file.text));
        EXPECT_OK(help_add_tracked(&b, "p", 1, "m10"));
        EXPECT_OK(batch_seal(&b, NULL));
        fail_at(call, FAIL_ENOSPC);
        err e = log_append(l, &b, &a, NULL);
        more = plan.failed;
        sys = &sys_real;
        if (e) EXPECT_OK(log_append(l, &b, &a, NULL));
        EXPECT_EQ(size + INDEX_RECORD_BYTES, index_read(path, after, sizeof after));
        EXPECT_EQ(0, memcmp(before, after, size));
        batch_free(&b);
        log_close(l);
    }
}

TEST(whichever_call_of_creating_fails_nothing_is_left_and_it_can_be_made_again)
{
    for (int durability = 0; durability < 2; durability++) {
        struct log_options options = {.durability = (uint32_t)durability};
        for (int64_t call = 0;; call++) {
            const char *path = help_path();
            struct fault f;
            fail_at(call, FAIL_ENOSPC);
            err e = log_create(path, &options, &f);
            bool reached = plan.failed;
            sys = &sys_real;
            if (!reached) {
                EXPECT_OK(e);
                EXPECT(call > 8);
                break;
            }
            if (e) {
                EXPECT_ERR(ERR_DISK_FULL, e);
                EXPECT_OK(log_create(path, &options, &f));
            }
        }
    }
}

TEST(whichever_call_of_a_recovery_fails_it_can_be_run_again)
{
    for (int64_t call = 0, more = 1; more; call++) {
        const char *path = help_path();
        struct log_options options = {.segment_bytes_max = 4096};
        struct log *l = help_log(path, &options);
        struct batch b;
        struct recovery_report report;
        struct fault f;
        char control[600];
        batch_init(&b, NULL);
        for (int i = 0; i < 10; i++) EXPECT_OK(help_fill(l, &b, 5, 300, NULL));
        log_close(l);
        snprintf(control, sizeof control, "%s/control", path);
        EXPECT_EQ(0, unlink(control));
        EXPECT_ERR(ERR_STALE, log_open(path, &l, &f));
        fail_at(call, FAIL_ENOSPC);
        err e = recovery_run(path, &options, NULL, &report, &f);
        more = plan.failed;
        sys = &sys_real;
        if (e) EXPECT_OK(recovery_run(path, &options, NULL, &report, &f));
        REQUIRE_OK(log_open(path, &l, &f));
        struct help_walk w = {.message = check_offset};
        help_walk_log(&w, l);
        EXPECT_EQ(50, w.messages);
        batch_free(&b);
        log_close(l);
    }
}

/* ---- deduplication ---- */

static uint64_t sequence_of(struct log *l, const char *reference)
{
    uint64_t sequence = 0;
    err e = log_publisher_sequence(l, reference, (uint32_t)strlen(reference), &sequence, NULL);
    return e ? UINT64_MAX : sequence;
}

TEST(an_id_not_above_the_highest_is_dropped_also_within_one_batch)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    struct batch b;
    struct log_appended a;
    batch_init(&b, NULL);
    EXPECT_EQ(UINT64_MAX, sequence_of(l, "p"));
    static const struct { uint64_t id; bool stays; } ids[] = {{0, true}, {0, false}, {5, true}, {3, false}, {5, false}, {9, true}};
    for (size_t i = 0; i < 6; i++) help_add_tracked(&b, "p", ids[i].id, "x");
    help_add(&b, "without a reference");
    help_add_tracked(&b, "q", 3, "another's");
    EXPECT_OK(help_append(l, &b, &a));
    EXPECT_EQ(5, a.next_offset);
    EXPECT_EQ(3, a.duplicates);
    EXPECT_EQ(9, sequence_of(l, "p"));
    EXPECT_EQ(3, sequence_of(l, "q"));

    help_add_tracked(&b, "p", 8, "x");
    help_add_tracked(&b, "p", 9, "x");
    EXPECT_OK(help_append(l, &b, &a));
    EXPECT_EQ(5, a.first_offset);
    EXPECT_EQ(5, a.next_offset); /* nothing was left to commit */
    EXPECT_EQ(2, a.duplicates);
    struct commit c;
    control_committed(log_control(l), &c);
    EXPECT_EQ(1, c.chunks);
    batch_free(&b);
    log_close(l);
}

TEST(a_sub_batch_is_one_id)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    struct batch b;
    struct log_appended a;
    uint32_t reference;
    const uint8_t entry[] = {0x80, 0, 10, 0, 0, 0, 4, 0, 0, 0, 4, 'b', 'o', 'd', 'y'};
    batch_init(&b, NULL);
    for (int round = 0; round < 2; round++) {
        batch_reference_add(&b, "p", 1, &reference);
        EXPECT_OK(batch_add_tracked(&b, entry, sizeof entry, 10, reference, 4));
        EXPECT_OK(help_append(l, &b, &a));
        EXPECT_EQ(10, a.next_offset);
        EXPECT_EQ(round ? 10 : 0, a.duplicates);
    }
    batch_free(&b);
    log_close(l);
}

TEST(publishing_ids_outlive_rolls_reopening_and_recovery)
{
    const char *path = help_path();
    struct log_options options = {.segment_bytes_max = 4096};
    struct log *l = help_log(path, &options);
    struct batch b;
    batch_init(&b, NULL);
    help_add_tracked(&b, "early", 77, "in the first segment only");
    EXPECT_OK(help_append(l, &b, NULL));
    for (uint64_t i = 0; i < 40; i++) {
        EXPECT_OK(help_fill(l, &b, 5, 200, NULL));
        help_add_tracked(&b, "late", i, "x");
        EXPECT_OK(help_append(l, &b, NULL));
    }
    log_close(l);
    for (int lost = 0; lost < 3; lost++) {
        char file[600];
        struct recovery_report report;
        REQUIRE_OK(log_open(path, &l, NULL));
        EXPECT_EQ(77, sequence_of(l, "early"));
        EXPECT_EQ(39, sequence_of(l, "late"));
        log_close(l);
        snprintf(file, sizeof file, "%s/%s", path, lost == 1 ? "tracking" : "control");
        EXPECT_EQ(0, unlink(file));
        EXPECT_OK(recovery_run(path, &options, NULL, &report, NULL));
        EXPECT(report.ran && report.cut_count == 0);
    }
    batch_free(&b);
}

static int open_without_descriptors(const char *p, int flags, mode_t m)
{
    if (!fails_now()) return sys_real.open(p, flags, m);
    errno = EMFILE;
    return -1;
}

TEST(a_recovery_that_could_not_open_a_file_has_forgotten_no_id)
{
    for (int64_t call = 0, more = 1; more; call++) {
        const char *path = help_path();
        struct log_options options = {.segment_bytes_max = 4096};
        struct log *l = help_log(path, &options);
        struct batch b;
        struct recovery_report report;
        struct fault f;
        batch_init(&b, NULL);
        for (uint64_t i = 1; i <= 6; i++) {
            EXPECT_OK(help_add_tracked(&b, "p", i, "tracked"));
            EXPECT_OK(help_fill(l, &b, 4, 300, NULL));
        }
        batch_free(&b);
        log_close(l);
        EXPECT_EQ(0, unlink(file_path_name(path, "control").text));
        fail_at(call, FAIL_EIO);
        faulty = sys_real;
        faulty.open = open_without_descriptors;
        err e = recovery_run(path, &options, NULL, &report, &f);
        more = plan.failed;
        sys = &sys_real;
        if (e) EXPECT_OK(recovery_run(path, &options, NULL, &report, &f));
        REQUIRE_OK(log_open(path, &l, &f));
        EXPECT_EQ(6, sequence_of(l, "p"));
        log_close(l);
    }
}

TEST(of_10300_references_the_300_oldest_are_evicted)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    struct batch b;
    char name[16];
    batch_init(&b, NULL);
    for (unsigned i = 0; i < 10300; i++) {
        snprintf(name, sizeof name, "publisher%u", i);
        help_add_tracked(&b, name, i, "x");
        EXPECT_OK(help_append(l, &b, NULL));
    }
    tracking_check(l->tracking);
    for (unsigned i = 0; i < 10300; i++) {
        snprintf(name, sizeof name, "publisher%u", i);
        EXPECT_EQ(i < 300 ? UINT64_MAX : i, sequence_of(l, name));
    }
    /* Many in one batch. */
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "other%u", i);
        help_add_tracked(&b, name, i, "x");
    }
    EXPECT_OK(help_append(l, &b, NULL));
    tracking_check(l->tracking);
    batch_free(&b);
    log_close(l);
}

/* A table that has only "p" up to 5. */
static void tracking_clear_for_test(struct tracking *t)
{
    struct tracking_table *table = t->table;
    memset(table->slots, 0, table->capacity * sizeof table->slots[0]);
    table->changing = 1;
    tracking_inherit(t);
    EXPECT_OK(tracking_raise(t, "p", 1, 5, 0));
}

TEST(whoever_inherits_the_lock_notes_the_ids_of_the_last_batch)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    struct batch b;
    batch_init(&b, NULL);
    help_add_tracked(&b, "p", 5, "x");
    EXPECT_OK(help_append(l, &b, NULL));
    help_add_tracked(&b, "p", 6, "x");
    help_add_tracked(&b, "q", 1, "x");
    EXPECT_OK(help_append(l, &b, NULL));
    /* As if the owner had died right after the commit. */
    tracking_clear_for_test(l->tracking);
    EXPECT_EQ(5, sequence_of(l, "p"));
    atomic_store(&l->control->repair_wanted, 1);
    EXPECT_EQ(6, sequence_of(l, "p"));
    EXPECT_EQ(1, sequence_of(l, "q"));
    EXPECT_EQ(0, atomic_load(&l->control->repair_wanted));
    batch_free(&b);
    log_close(l);
}

TEST(a_deleted_log_refuses_appends_and_opens)
{
    const char *path = help_path();
    struct log *l = help_log(path, &(struct log_options){0}), *other;
    struct batch b;
    struct recovery_report report;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 1, 10, NULL));
    log_mark_deleted(l);
    EXPECT_ERR(ERR_DELETED, help_fill(l, &b, 1, 10, NULL));
    EXPECT_ERR(ERR_DELETED, log_open(path, &other, NULL));
    EXPECT_ERR(ERR_DELETED, recovery_run(path, &(struct log_options){0}, NULL, &report, NULL));
    EXPECT_OK(log_remove(path, NULL));
    EXPECT_ERR(ERR_NOT_FOUND, log_open(path, &other, NULL));
    EXPECT_OK(log_create(path, &(struct log_options){0}, NULL));
    batch_free(&b);
    log_close(l);
}
