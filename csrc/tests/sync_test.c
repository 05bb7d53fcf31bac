/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>

#include "../log/handle.h"
#include "log_help.h"

static struct sys fake;
static _Atomic int syncs, fail_next;
static int counting_sync(int fd)
{
    (void)fd;
    atomic_fetch_add(&syncs, 1);
    if (atomic_load(&fail_next) && atomic_fetch_sub(&fail_next, 1) == 1) {
        errno = EIO;
        return -1;
    }
    return 0;
}

static struct log *make(const struct log_options *options)
{
    fake = sys_real;
    fake.fdatasync = counting_sync;
    sys = &fake;
    atomic_store(&fail_next, 0);
    return help_log(help_path(), options);
}

TEST(a_sync_covers_what_was_committed_and_is_not_done_twice)
{
    struct log *l = make(&(struct log_options){0});
    struct batch b;
    uint64_t durable;
    batch_init(&b, NULL);
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_EQ(0, durable);
    EXPECT_OK(help_fill(l, &b, 10, 50, NULL));
    EXPECT_EQ(0, log_durable_offset(l));
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_EQ(10, durable);
    EXPECT_EQ(10, log_durable_offset(l));
    int before = atomic_load(&syncs);
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_EQ(before, atomic_load(&syncs));
    EXPECT_OK(help_fill(l, &b, 1, 50, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_EQ(before + 1, atomic_load(&syncs)); /* one file, one call */
    EXPECT_EQ(11, durable);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(closed_segments_are_covered_first)
{
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096});
    struct batch b;
    uint64_t durable;
    batch_init(&b, NULL);
    for (int i = 0; i < 20; i++) EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_EQ(200, durable);
    struct durable d;
    struct commit c;
    control_durable(l->control, &d);
    control_committed(l->control, &c);
    EXPECT_EQ(c.segment, d.segment);
    EXPECT_EQ(c.position, d.position);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(a_failed_sync_closes_the_segment_and_is_never_tried_again_there)
{
    struct log *l = make(&(struct log_options){.durability = DURABILITY_DISK});
    struct batch b;
    uint64_t durable;
    struct log_appended lost, next;
    struct fault f = {0};
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 10, 50, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_OK(help_fill(l, &b, 5, 50, &lost));
    atomic_store(&fail_next, 1);
    EXPECT_ERR(ERR_IO, log_sync(l, &durable, &f));
    EXPECT_EQ(EIO, f.sys_errno);
    EXPECT_EQ(10, durable);
    EXPECT(log_sync_failed(l, lost.first_offset, lost.next_offset));
    EXPECT(!log_sync_failed(l, 0, 10));
    int before = atomic_load(&syncs);
    EXPECT_ERR(ERR_IO, log_sync(l, &durable, &f)); /* the device would say yes now */
    EXPECT_EQ(before, atomic_load(&syncs));
    EXPECT_EQ(10, durable);

    EXPECT_OK(help_fill(l, &b, 3, 50, &next));
    EXPECT(next.rolled);
    EXPECT_EQ(15, next.segment);
    EXPECT_OK(log_sync(l, &durable, &f));
    EXPECT_EQ(18, durable);
    EXPECT(!log_sync_failed(l, next.first_offset, next.next_offset));
    EXPECT(log_sync_failed(l, lost.first_offset, lost.next_offset)); /* for good */
    struct help_walk w = {0};
    help_walk_log(&w, l); /* readers skip it */
    EXPECT_EQ(13, w.messages);
    EXPECT_EQ(18, w.next);
    struct segment_header h;
    EXPECT_OK(segment_header_load(l->directory, 15, &h, NULL));
    EXPECT(h.suspect_position > SEGMENT_HEADER_BYTES);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(a_segment_torn_after_its_failed_sync_does_not_cost_the_next)
{
    struct log *l = make(&(struct log_options){.durability = DURABILITY_DISK});
    struct batch b;
    uint64_t durable;
    struct recovery_report report;
    struct log_appended a;
    char path[600], file[700];
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 10, 50, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_OK(help_fill(l, &b, 5, 50, &a));
    atomic_store(&fail_next, 1);
    EXPECT_ERR(ERR_IO, log_sync(l, &durable, NULL));
    EXPECT_OK(help_fill(l, &b, 3, 50, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    sys = &sys_real;
    snprintf(path, sizeof path, "%s", l->directory);
    log_close(l);
    for (int control = 0; control < 2; control++) {
        /* Power fails: the unsynced chunk was torn, the control block old or lost. */
        snprintf(file, sizeof file, "%s/%020d.segment", path, 0);
        int fd = open(file, O_RDWR);
        EXPECT_EQ(10, pwrite(fd, "torn here.", 10, (off_t)a.position - 100));
        close(fd);
        snprintf(file, sizeof file, "%s/control", path);
        unlink(file);
        EXPECT_OK(recovery_run(path, &(struct log_options){.durability = DURABILITY_DISK}, NULL, &report, NULL));
        REQUIRE_OK(log_open(path, &l, NULL));
        struct help_walk w = {0};
        help_walk_log(&w, l);
        EXPECT_EQ(13, w.messages); /* 10 promised, 5 refused, 3 promised */
        EXPECT_EQ(0, w.damaged);
        EXPECT_EQ(18, w.next);
        log_close(l);
    }
    batch_free(&b);
}

/* ---- many threads, one fdatasync ---- */

static int slow_sync(int fd)
{
    (void)fd;
    atomic_fetch_add(&syncs, 1);
    usleep(2000);
    return 0;
}

static void *sync_thread(void *argument)
{
    struct log *l = argument;
    uint64_t durable;
    struct fault f;
    for (int i = 0; i < 30; i++) {
        struct commit c;
        control_committed(log_control(l), &c);
        EXPECT_OK(log_sync(l, &durable, &f));
        EXPECT(durable >= c.next_offset);
    }
    return NULL;
}

TEST(one_sync_serves_all_that_waited_and_appends_go_on)
{
    struct log *l = make(&(struct log_options){.segment_bytes_max = 100000});
    struct batch b;
    pthread_t threads[4];
    fake.fdatasync = slow_sync;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 1, 50, NULL));
    atomic_store(&syncs, 0);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, sync_thread, l);
    for (int i = 0; i < 300; i++) {
        EXPECT_OK(help_fill(l, &b, 5, 50, NULL));
        usleep(100);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    EXPECT(atomic_load(&syncs) < 4 * 30);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}
