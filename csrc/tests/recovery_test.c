/* SPDX-License-Identifier: Apache-2.0
 *
 * Damage: any flipped bit in a closed or active segment is told with file and position, and
 * costs the chunk that it lies in, before and after recovery.
 */
#include "../log/upkeep.h"

#include "../log/handle.h"
#include "log_help.h"

static struct log *l;
static char path[512];
static struct log_options options = {.segment_bytes_max = 4096};

struct place { uint64_t segment, position, bytes, first, next; };
static struct place places[200];
static unsigned place_count;

/* Twelve chunks of five messages in several segments; notes where each lies. */
static void make_log(void)
{
    struct batch b;
    snprintf(path, sizeof path, "%s", help_path());
    l = help_log(path, &options);
    batch_init(&b, NULL);
    place_count = 0;
    for (int i = 0; i < 12; i++) {
        struct log_appended a;
        struct commit c;
        EXPECT_OK(help_add_tracked(&b, "p", (uint64_t)i, "tracked"));
        EXPECT_OK(help_fill(l, &b, 4, 200, &a));
        control_committed(l->control, &c);
        places[place_count++] = (struct place){a.segment, c.batch_position, a.position - c.batch_position, a.first_offset, a.next_offset};
    }
    batch_free(&b);
}

static void flip(uint64_t segment, const char *suffix, uint64_t position, unsigned bit)
{
    uint8_t byte;
    struct file_path file = file_path_numbered(path, segment, suffix);
    int fd = open(file.text, O_RDWR);
    EXPECT_EQ(1, pread(fd, &byte, 1, (off_t)position));
    byte ^= (uint8_t)(1u << bit);
    EXPECT_EQ(1, pwrite(fd, &byte, 1, (off_t)position));
    close(fd);
}

/* The walk misses exactly the messages of chunk `lost` (UINT32_MAX: none). */
static void expect_lost(unsigned lost)
{
    struct help_walk w = {0};
    help_walk_log(&w, l);
    if (lost == UINT32_MAX) {
        EXPECT_EQ(60, w.messages);
        EXPECT_EQ(0, w.damaged);
        return;
    }
    EXPECT_EQ(55, w.messages);
    EXPECT_EQ(1, w.damaged);
    struct reader r;
    uint64_t got;
    static uint8_t buffer[65536];
    REQUIRE_OK(reader_open(&r, l, READER_OFFSET, (int64_t)places[lost].first + 2, NULL));
    /* An attach within the damaged chunk gives it, so that its reader hears of the loss. */
    EXPECT_EQ(places[lost].segment, r.segment);
    EXPECT_EQ(places[lost].position, r.position);
    struct fault f = {0};
    struct chunk c;
    char name[64];
    EXPECT_OK(reader_fetch(&r, buffer, sizeof buffer, false, &got, &f));
    EXPECT_ERR(ERR_CORRUPT, reader_chunk(&r, buffer, got, true, &c, &f));
    EXPECT_EQ(places[lost].position, f.position);
    snprintf(name, sizeof name, "%020" PRIu64 ".segment", places[lost].segment);
    EXPECT(strstr(f.where, name) != NULL);
    EXPECT_OK(reader_skip_damaged(&r, &f));
    EXPECT_EQ(1, r.skipped_chunks);
    EXPECT_EQ(places[lost].next, r.next_offset);
    reader_close(&r);
}

/* A byte of a chunk that a reader looks at: its header or an entry, not its trailer. */
#define TRAILER_BYTES 11u

static uint64_t somewhere(const struct place *p)
{
    return p->position + test_random_below(p->bytes - TRAILER_BYTES);
}

TEST(a_flipped_bit_costs_its_chunk_and_is_told_with_its_place)
{
    make_log();
    for (int round = 0; round < 400; round++) {
        unsigned which = (unsigned)test_random_below(place_count), bit = (unsigned)test_random_below(8);
        uint64_t at = round % 2 ? places[which].position + test_random_below(CHUNK_HEADER_BYTES) : somewhere(&places[which]);
        flip(places[which].segment, SEGMENT_SUFFIX, at, bit);
        expect_lost(which);
        flip(places[which].segment, SEGMENT_SUFFIX, at, bit);
    }
    expect_lost(UINT32_MAX);
    log_close(l);
}

TEST(without_an_index_a_damaged_header_still_costs_one_chunk)
{
    make_log();
    for (unsigned i = 0; i < place_count; i++) {
        struct file_path file = file_path_numbered(path, places[i].segment, INDEX_SUFFIX);
        unlink(file.text);
    }
    expect_lost(UINT32_MAX);
    for (unsigned which = 0; which < place_count; which++) {
        struct help_walk w = {0};
        flip(places[which].segment, SEGMENT_SUFFIX, places[which].position + 36, 3); /* its size */
        help_walk_log(&w, l);
        EXPECT_EQ(55, w.messages);
        EXPECT_EQ(1, w.damaged);
        flip(places[which].segment, SEGMENT_SUFFIX, places[which].position + 36, 3);
    }
    log_close(l);
}

TEST(a_damaged_segment_header_costs_nothing_while_its_index_has_one)
{
    make_log();
    for (unsigned at = 0; at < SEGMENT_HEADER_BYTES; at++) {
        flip(places[0].segment, SEGMENT_SUFFIX, at, at % 8);
        expect_lost(UINT32_MAX);
        flip(places[0].segment, SEGMENT_SUFFIX, at, at % 8);
    }
    log_close(l);
}

TEST(damaged_index_records_cost_nothing)
{
    make_log();
    for (int i = 0; i < 200; i++) {
        const struct place *p = &places[test_random_below(place_count)];
        struct stat st;
        struct file_path file = file_path_numbered(path, p->segment, INDEX_SUFFIX);
        EXPECT_EQ(0, stat(file.text, &st));
        flip(p->segment, INDEX_SUFFIX, test_random_below((uint64_t)st.st_size), (unsigned)test_random_below(8));
    }
    expect_lost(UINT32_MAX);
    for (unsigned i = 0; i < place_count; i++) {
        struct reader r;
        REQUIRE_OK(reader_open(&r, l, READER_OFFSET, (int64_t)places[i].first + 3, NULL));
        EXPECT_EQ(places[i].position, r.position);
        reader_close(&r);
    }
    log_close(l);
}

/* Sizes of all files that the report says are kept. */
static uint64_t cut_bytes_kept(const struct recovery_report *report)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < report->cut_count && i < RECOVERY_CUTS_MAX; i++) {
        struct stat st;
        EXPECT_EQ(0, stat(report->cuts[i].kept, &st));
        EXPECT_EQ(report->cuts[i].bytes, st.st_size);
        sum += (uint64_t)st.st_size;
    }
    return sum;
}

static void expect_same(const void *bytes, size_t size, const char *file)
{
    char had[4096];
    int fd = open(file, O_RDONLY);
    EXPECT_EQ(size, read(fd, had, sizeof had));
    EXPECT(memcmp(bytes, had, size) == 0);
    close(fd);
}

static err recover_with(struct recovery_once *once, struct recovery_report *report)
{
    struct fault f = {0};
    char control[600];
    log_close(l);
    l = NULL;
    snprintf(control, sizeof control, "%s/control", path);
    int fd = open(control, O_RDWR);
    EXPECT_EQ(16, pwrite(fd, "another boot....", 16, 8)); /* boot_id follows magic and version */
    close(fd);
    EXPECT_ERR(ERR_STALE, log_open(path, &l, &f));
    err e = recovery_run(path, &options, once, report, &f);
    if (e) help_fault(&f);
    return e ? e : log_open(path, &l, &f);
}

static err recover(struct recovery_report *report) { return recover_with(NULL, report); }

static struct sys counting;
static int syncs_of_all, syncs_of_files;

static int counting_syncfs(int fd)
{
    (void)fd;
    syncs_of_all++;
    return 0;
}

static int counting_fdatasync(int fd)
{
    (void)fd;
    syncs_of_files++;
    return 0;
}

static int failing_syncfs(int fd)
{
    counting_syncfs(fd);
    errno = EIO;
    return -1;
}

/* Two logs after another boot, the second of which is cut; `once` is what both share. */
static void recover_two(int (*syncfs)(int fd), struct recovery_once *once)
{
    struct recovery_report report;
    counting = sys_real;
    counting.syncfs = syncfs;
    counting.fdatasync = counting_fdatasync;
    syncs_of_all = syncs_of_files = 0;
    sys = &counting;
    for (int cut = 0; cut < 2; cut++) {
        sys = &sys_real;
        make_log();
        const struct place *last = &places[place_count - 1];
        if (cut) flip(last->segment, SEGMENT_SUFFIX, last->position + last->bytes - 1, 0);
        sys = &counting;
        int before = syncs_of_files;
        REQUIRE_OK(recover_with(once, &report));
        EXPECT(report.ran);
        EXPECT_EQ(cut, report.cut_count);
        EXPECT_EQ(cut || !once || once->state != RECOVERY_SYNCED, syncs_of_files > before);
        log_close(l);
        l = NULL;
    }
    sys = &sys_real;
}

TEST(logs_that_share_a_sync_leave_only_what_they_cut_to_sync)
{
    struct recovery_once once;
    recovery_once_init(&once);
    recover_two(counting_syncfs, &once);
    EXPECT_EQ(1, syncs_of_all);
}

TEST(where_the_shared_sync_fails_each_log_syncs_its_own)
{
    struct recovery_once once;
    recovery_once_init(&once);
    recover_two(failing_syncfs, &once);
    EXPECT_EQ(1, syncs_of_all);
    EXPECT_EQ(RECOVERY_EACH_SYNCS, once.state);
    recover_two(counting_syncfs, NULL);
    EXPECT_EQ(0, syncs_of_all);
}

TEST(a_log_of_another_boot_keeps_its_control_page_whose_inode_it_names)
{
    struct recovery_report report;
    struct stat before, after;
    char control[600];
    make_log();
    snprintf(control, sizeof control, "%s/control", path);
    EXPECT_EQ(0, stat(control, &before));
    REQUIRE_OK(recover(&report));
    EXPECT(report.ran && report.cut_count == 0);
    EXPECT_EQ(0, stat(control, &after));
    EXPECT_EQ(before.st_ino, after.st_ino);
    expect_lost(UINT32_MAX);
    log_close(l);
    EXPECT_EQ(0, truncate(control, 100)); /* a page that is not whole is made anew */
    EXPECT_OK(recovery_run(path, &options, NULL, &report, NULL));
    EXPECT_EQ(0, stat(control, &after));
    EXPECT_EQ(CONTROL_BYTES, after.st_size);
    EXPECT(report.ran);
    REQUIRE_OK(log_open(path, &l, NULL));
    expect_lost(UINT32_MAX);
    log_close(l);
}

TEST(damage_in_what_was_durable_is_kept_by_recovery_and_costs_one_chunk)
{
    for (int round = 0; round < 60; round++) {
        struct recovery_report report;
        uint64_t durable;
        make_log();
        EXPECT_OK(log_sync(l, &durable, NULL));
        EXPECT_EQ(60, durable);
        unsigned which = (unsigned)test_random_below(place_count);
        uint64_t at = round % 2 ? places[which].position + test_random_below(CHUNK_HEADER_BYTES) : somewhere(&places[which]);
        flip(places[which].segment, SEGMENT_SUFFIX, at, (unsigned)test_random_below(8));
        if (round % 3 == 0) { /* the newest index was not written back */
            struct file_path file = file_path_numbered(path, places[place_count - 1].segment, INDEX_SUFFIX);
            unlink(file.text);
        }
        REQUIRE_OK(recover(&report));
        EXPECT(report.ran && report.cut_count == 0);
        struct help_walk w = {0};
        help_walk_log(&w, l);
        EXPECT_EQ(55, w.messages);
        struct log_stats stats;
        EXPECT_OK(log_stats(l, &stats, NULL));
        EXPECT_EQ(60, stats.next_offset);
        log_close(l);
    }
}

/* One sector of a chunk was not written. */
static void tear(const struct place *p)
{
    static const uint8_t zeros[512];
    struct file_path file = file_path_numbered(path, p->segment, SEGMENT_SUFFIX);
    uint64_t at = (p->position / sizeof zeros + 1) * sizeof zeros, end = p->position + p->bytes;
    EXPECT(at < end);
    size_t size = end - at < sizeof zeros ? (size_t)(end - at) : sizeof zeros;
    int fd = open(file.text, O_RDWR);
    EXPECT_EQ(size, pwrite(fd, zeros, size, (off_t)at));
    close(fd);
}

TEST(with_disk_damage_past_the_durable_end_cuts_the_log_there)
{
    options.durability = DURABILITY_DISK;
    for (unsigned which = 0; which < 12; which++) {
        struct recovery_report report;
        make_log();
        unsigned damage = (unsigned)test_random_below(3);
        uint64_t last = places[which].position + places[which].bytes - 1; /* of the trailer */
        if (damage == 0) tear(&places[which]);
        else flip(places[which].segment, SEGMENT_SUFFIX, last, 0);
        if (damage == 1) flip(places[which].segment, SEGMENT_SUFFIX, last - 1, 3);
        if (damage == 2) flip(places[which].segment, SEGMENT_SUFFIX, places[which].position + 9, 3);
        REQUIRE_OK(recover(&report));
        const struct recovery_cut *cut = &report.cuts[0];
        EXPECT(report.cut_count > 0 && report.skip_count == 0);
        EXPECT_EQ(places[which].segment, cut->segment);
        EXPECT_EQ(places[which].position, cut->position);
        EXPECT(cut->bytes >= places[which].bytes && report.cut_bytes >= cut->bytes);
        EXPECT(strstr(cut->path, ".segment") != NULL);
        EXPECT_EQ(cut_bytes_kept(&report), report.cut_bytes);
        struct help_walk w = {0};
        help_walk_log(&w, l);
        EXPECT_EQ(places[which].first, w.messages);
        EXPECT_EQ(0, w.damaged);
        struct batch b;
        batch_init(&b, NULL);
        EXPECT_OK(help_fill(l, &b, 3, 50, NULL));
        batch_free(&b);
        log_close(l);
    }
    options.durability = DURABILITY_OS;
}

static void expect_skip(const struct recovery_report *report, const struct place *from, const struct place *to)
{
    char name[64];
    EXPECT_EQ(1, report->skip_count);
    EXPECT_EQ(0, report->cut_count);
    EXPECT_EQ(from->segment, report->skips[0].segment);
    EXPECT_EQ(from->position, report->skips[0].position);
    EXPECT_EQ(from->first, report->skips[0].first_offset);
    EXPECT_EQ(to->next, report->skips[0].next_offset);
    snprintf(name, sizeof name, "%020" PRIu64 ".segment", from->segment);
    EXPECT(strstr(report->skips[0].path, name) != NULL);
}

static void expect_next(uint64_t offset, uint64_t id)
{
    struct log_stats stats;
    uint64_t last;
    EXPECT_OK(log_stats(l, &stats, NULL));
    EXPECT_EQ(offset, stats.next_offset);
    EXPECT_OK(log_publisher_sequence(l, "p", 1, &last, NULL));
    EXPECT_EQ(id, last);
}

/* The control page on the disk may be older than the last sync.  A chunk that one bit has damaged was whole once, so what
 * lies behind it stays, and its offsets are not given out again. */
TEST(with_disk_a_chunk_with_one_flipped_bit_costs_itself_past_the_known_durable_end)
{
    options.durability = DURABILITY_DISK;
    for (unsigned round = 0; round < 300; round++) {
        struct recovery_report report;
        make_log();
        const struct place *hit = &places[test_random_below(place_count)];
        uint64_t at = round % 2 ? test_random_below(CHUNK_HEADER_BYTES) : test_random_below(hit->bytes);
        flip(hit->segment, SEGMENT_SUFFIX, hit->position + at, (unsigned)test_random_below(8));
        if (round % 3 == 0) { /* indexes are not synced */
            struct file_path file = file_path_numbered(path, hit->segment, INDEX_SUFFIX);
            unlink(file.text);
        }
        unsigned lost = at < hit->bytes - TRAILER_BYTES ? 5 : 0; /* the ids alone, where the trailer is damaged */
        REQUIRE_OK(recover(&report));
        expect_skip(&report, hit, hit);
        struct help_walk w = {0};
        help_walk_log(&w, l);
        EXPECT_EQ(60 - lost, w.messages);
        struct log_stats stats;
        EXPECT_OK(log_stats(l, &stats, NULL));
        EXPECT_EQ(60, stats.next_offset);
        struct batch b;
        batch_init(&b, NULL);
        EXPECT_OK(help_fill(l, &b, 3, 50, NULL));
        batch_free(&b);
        EXPECT_OK(log_sync(l, &stats.next_offset, NULL));
        EXPECT_OK(recover(&report)); /* the boot after that */
        EXPECT_EQ(0, report.cut_count);
        w = (struct help_walk){0};
        help_walk_log(&w, l);
        EXPECT_EQ(63 - lost, w.messages);
        log_close(l);
    }
    options.durability = DURABILITY_OS;
}

/* Its offsets had been confirmed, so they are not given out again, although the next append was torn by the power cut. */
TEST(with_disk_a_chunk_with_one_flipped_bit_keeps_its_offsets_before_a_torn_chunk)
{
    options.durability = DURABILITY_DISK;
    for (unsigned round = 0; round < 100; round++) {
        struct recovery_report report;
        make_log();
        const struct place *hit = &places[place_count - 2], *torn = &places[place_count - 1];
        REQUIRE(hit->segment == torn->segment);
        uint64_t bytes = hit->bytes - TRAILER_BYTES;
        flip(hit->segment, SEGMENT_SUFFIX, hit->position + test_random_below(bytes), (unsigned)test_random_below(8));
        for (unsigned bit = 0; bit < 8; bit++) flip(torn->segment, SEGMENT_SUFFIX, torn->position + 60 + bit, bit);
        REQUIRE_OK(recover(&report));
        EXPECT_EQ(1, report.skip_count);
        EXPECT_EQ(hit->position, report.skips[0].position);
        EXPECT_EQ(hit->first, report.skips[0].first_offset);
        EXPECT_EQ(hit->next, report.skips[0].next_offset);
        EXPECT_EQ(1, report.cut_count);
        EXPECT_EQ(torn->position, report.cuts[0].position);
        struct log_stats stats;
        EXPECT_OK(log_stats(l, &stats, NULL));
        EXPECT_EQ(hit->next, stats.next_offset);
        log_close(l);
    }
    options.durability = DURABILITY_OS;
}

/* This log was never synced. */
TEST(with_os_a_damaged_chunk_costs_itself_if_the_next_one_fits)
{
    for (unsigned round = 0; round < 300; round++) {
        struct recovery_report report;
        make_log();
        unsigned which = (unsigned)test_random_below(place_count - 1), count = round % 5 ? 1 : 2;
        if (which + count >= place_count) count = 1;
        for (unsigned i = which; i < which + count; i++) {
            uint64_t at = round % 2 ? test_random_below(CHUNK_HEADER_BYTES) : somewhere(&places[i]) - places[i].position;
            flip(places[i].segment, SEGMENT_SUFFIX, places[i].position + at, (unsigned)test_random_below(8));
        }
        REQUIRE_OK(recover(&report));
        if (count == 1 || places[which].segment == places[which + 1].segment)
            expect_skip(&report, &places[which], &places[which + count - 1]);
        struct help_walk w = {0};
        help_walk_log(&w, l);
        EXPECT_EQ(60 - 5 * count, w.messages);
        expect_next(60, 11);
        EXPECT_OK(recover(&report)); /* the boot after that knows it to be durable */
        EXPECT_EQ(0, report.cut_count);
        w = (struct help_walk){0};
        help_walk_log(&w, l);
        EXPECT_EQ(60 - 5 * count, w.messages);
        log_close(l);
    }
}

TEST(with_os_damage_without_a_later_fitting_chunk_is_cut_off)
{
    struct recovery_report report;
    const struct place *last = &places[11], *before = &places[10];
    make_log();
    flip(last->segment, SEGMENT_SUFFIX, last->position + 60, 1); /* the newest */
    REQUIRE_OK(recover(&report));
    EXPECT_EQ(1, report.cut_count);
    EXPECT_EQ(0, report.skip_count);
    expect_next(55, 10);
    log_close(l);
    /* Without an index the end of a chunk with a damaged header is unknown: later bytes may never have been committed. */
    make_log();
    flip(before->segment, SEGMENT_SUFFIX, before->position + 36, 3);
    struct file_path file = file_path_numbered(path, before->segment, INDEX_SUFFIX);
    unlink(file.text);
    REQUIRE_OK(recover(&report));
    EXPECT_EQ(1, report.cut_count);
    EXPECT_EQ(cut_bytes_kept(&report), report.cut_bytes);
    expect_next(50, 9);
    log_close(l);
}

/* An append that was killed before it was committed, and a shorter one that was written over its beginning. */
TEST(with_os_an_uncommitted_chunk_behind_the_log_is_not_recovered)
{
    struct recovery_report report;
    uint8_t bytes[4096];
    make_log();
    const struct place *last = &places[place_count - 1];
    struct file_path file = file_path_numbered(path, last->segment, SEGMENT_SUFFIX);
    int fd = open(file.text, O_RDWR);
    uint64_t end = last->position + last->bytes;
    EXPECT_EQ(last->bytes, pread(fd, bytes, last->bytes, (off_t)last->position));
    struct chunk c;
    uint32_t seed;
    REQUIRE_OK(index_seed(path, last->segment, &seed, NULL));
    REQUIRE_OK(chunk_header_read(bytes, last->bytes, seed, &c));
    c.chunk_id = 80;
    chunk_header_write(&c, seed, bytes);
    EXPECT_EQ(last->bytes, pwrite(fd, bytes, last->bytes, (off_t)end + 70));
    close(fd);
    REQUIRE_OK(recover(&report));
    EXPECT_EQ(1, report.cut_count);
    expect_next(60, 11);
    log_close(l);
}

TEST(with_os_a_missing_or_unreadable_segment_costs_itself)
{
    for (int gone = 0; gone < 2; gone++)
        for (int of_the_first = 0; of_the_first < 2; of_the_first++) {
            struct recovery_report report;
            make_log();
            uint64_t segment = places[of_the_first ? 0 : 6].segment;
            unsigned lost = 0;
            for (unsigned i = 0; i < place_count; i++) lost += places[i].segment == segment;
            struct file_path file = file_path_numbered(path, segment, SEGMENT_SUFFIX);
            if (gone) unlink(file.text);
            else {
                flip(segment, SEGMENT_SUFFIX, 9, 1);
                flip(segment, INDEX_SUFFIX, 9, 1);
            }
            REQUIRE_OK(recover(&report));
            struct help_walk w = {0};
            help_walk_log(&w, l);
            EXPECT_EQ(60 - 5 * lost, w.messages);
            EXPECT_EQ(cut_bytes_kept(&report), report.cut_bytes);
            expect_next(60, 11);
            log_close(l);
        }
}

static void expect_all_again(void)
{
    struct recovery_report report;
    REQUIRE_OK(recovery_run(path, &options, NULL, &report, NULL));
    EXPECT_EQ(0, report.cut_count);
    REQUIRE_OK(log_open(path, &l, NULL));
    struct help_walk w = {0};
    help_walk_log(&w, l);
    EXPECT_EQ(60, w.messages);
    EXPECT_EQ(0, w.damaged);
    expect_next(60, 11);
    struct batch b;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 3, 50, NULL));
    batch_free(&b);
    expect_next(63, 11);
    log_close(l);
}

/* No process has the log open meanwhile; the boot is the same. */
TEST(a_flipped_bit_of_the_control_page_costs_nothing_in_the_same_boot)
{
    for (unsigned byte = 0; byte < sizeof(struct control); byte++) {
        char control[600];
        uint8_t had;
        make_log();
        uint64_t durable;
        if (byte % 2) EXPECT_OK(log_sync(l, &durable, NULL));
        log_close(l);
        snprintf(control, sizeof control, "%s/control", path);
        int fd = open(control, O_RDWR);
        EXPECT_EQ(1, pread(fd, &had, 1, byte));
        had ^= (uint8_t)(1u << test_random_below(8));
        EXPECT_EQ(1, pwrite(fd, &had, 1, byte));
        close(fd);
        int failures = atomic_load(&test_failures);
        expect_all_again();
        if (atomic_load(&test_failures) != failures) {
            printf("    byte %u\n", byte);
            break;
        }
    }
}

TEST(without_the_active_segments_index_the_log_is_whole_after_a_start_in_the_same_boot)
{
    for (int truncated = 0; truncated < 2; truncated++) {
        make_log();
        log_close(l);
        struct file_path file = file_path_numbered(path, places[place_count - 1].segment, INDEX_SUFFIX);
        EXPECT_EQ(0, truncated ? truncate(file.text, 40) : unlink(file.text));
        expect_all_again();
    }
}

TEST(in_the_same_boot_there_is_nothing_to_do)
{
    struct recovery_report report;
    make_log();
    EXPECT_OK(recovery_run(path, &options, NULL, &report, NULL));
    EXPECT(!report.ran);
    log_close(l);
    EXPECT_ERR(ERR_NOT_FOUND, recovery_run("/nowhere/at/all", &options, NULL, &report, NULL));
}

TEST(what_recovery_has_ahead_is_what_nobody_has_synced_and_the_headers_of_the_rest)
{
    uint64_t all, synced, none, durable;
    struct recovery_report report;
    make_log();
    EXPECT_OK(recovery_ahead(path, NULL, &none, NULL));
    memset(log_control(l)->boot_id, 0, sizeof log_control(l)->boot_id);
    EXPECT_OK(recovery_ahead(path, NULL, &all, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_EQ(60, durable);
    EXPECT_OK(recovery_ahead(path, NULL, &synced, NULL));
    uint64_t bytes = 0, last = 0;
    for (unsigned i = 0; i < 12; i++) {
        bytes += places[i].bytes;
        last += places[i].segment == places[11].segment;
    }
    EXPECT_EQ(bytes, none); /* in the same boot no header of what is synced is read */
    EXPECT(all >= bytes + 12 * 1024);
    EXPECT_EQ(last * 1024, synced / 1024 * 1024);
    EXPECT_OK(recovery_run(path, &options, NULL, &report, NULL));
    EXPECT(report.ran && report.bytes_checked == 0);
    EXPECT_OK(recovery_ahead(path, NULL, &none, NULL));
    EXPECT_EQ(0, none);
    log_close(l);
    EXPECT_ERR(ERR_NOT_FOUND, recovery_ahead("/nowhere/at/all", NULL, &none, NULL));
}

TEST(a_copied_directory_is_stale_and_recovers)
{
    char command[1400], copy[600];
    struct recovery_report report;
    make_log();
    snprintf(copy, sizeof copy, "%s-copy", path);
    snprintf(command, sizeof command, "cp -r '%s' '%s'", path, copy);
    EXPECT_EQ(0, system(command));
    log_close(l);
    EXPECT_ERR(ERR_STALE, log_open(copy, &l, NULL));
    EXPECT_OK(recovery_run(copy, &options, NULL, &report, NULL));
    EXPECT(report.ran && report.cut_count == 0);
    REQUIRE_OK(log_open(copy, &l, NULL));
    expect_lost(UINT32_MAX);
    log_close(l);
}

TEST(an_empty_directory_and_one_with_noise_become_an_empty_log)
{
    for (int noise = 0; noise < 2; noise++) {
        const char *directory = help_path();
        struct recovery_report report;
        struct log_stats stats;
        char bytes[1000];
        mkdir(directory, 0750);
        if (noise) {
            test_random_fill(bytes, sizeof bytes);
            struct file_path file = file_path_numbered(directory, 500, SEGMENT_SUFFIX);
            int fd = open(file.text, O_RDWR | O_CREAT, 0600);
            EXPECT_EQ(1000, write(fd, bytes, sizeof bytes));
            close(fd);
        }
        EXPECT_OK(recovery_run(directory, &options, NULL, &report, NULL));
        EXPECT_EQ(noise, report.cut_count);
        EXPECT_EQ(noise ? 1000 : 0, report.cut_bytes); /* each byte counted once */
        EXPECT_EQ(report.cut_bytes, cut_bytes_kept(&report));
        if (noise) expect_same(bytes, sizeof bytes, report.cuts[0].kept);
        REQUIRE_OK(log_open(directory, &l, NULL));
        EXPECT_OK(log_stats(l, &stats, NULL));
        EXPECT_EQ(noise ? 500 : 0, stats.next_offset); /* offsets before 500 were given out */
        struct batch b;
        batch_init(&b, NULL);
        EXPECT_OK(help_fill(l, &b, 3, 50, NULL));
        batch_free(&b);
        log_close(l);
    }
}
