/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/tracking.h"

#include "../base/crc32.h"
#include "../base/file.h"
#include "../log/handle.h"
#include "../log/segment.h"
#include "log_help.h"

/* Return an empty table in the same memory for every test. */
static struct tracking *table(void)
{
    static struct tracking *t;
    if (!t) EXPECT_OK(tracking_new(&t, NULL));
    tracking_clear(t);
    return t;
}

static err raise_number(struct tracking *t, uint64_t number)
{
    char name[16];
    return tracking_raise(t, name, (uint32_t)snprintf(name, sizeof name, "r%" PRIu64, number), number, number);
}

static err find_number(struct tracking *t, uint64_t number)
{
    char name[16];
    uint64_t sequence;
    err e = tracking_find(t, name, (uint32_t)snprintf(name, sizeof name, "r%" PRIu64, number), &sequence);
    if (!e) EXPECT_EQ(number, sequence);
    return e;
}

static struct doorbell_board *board(uint32_t epoch)
{
    static struct doorbell_board b;
    memset(&b, 0, sizeof b);
    doorbell_board_init(&b, 4, epoch);
    for (uint32_t seat = 0; seat < 4; seat++) doorbell_sit(&b, seat, 1);
    return &b;
}

TEST(a_sequence_is_raised_and_never_lowered)
{
    struct tracking *t = table();
    uint64_t sequence = 99;
    EXPECT_ERR(ERR_NOT_FOUND, tracking_find(t, "p", 1, &sequence));
    EXPECT_OK(tracking_raise(t, "p", 1, 0, 0));
    EXPECT_OK(tracking_find(t, "p", 1, &sequence));
    EXPECT_EQ(0, sequence);
    EXPECT_OK(tracking_raise(t, "p", 1, 7, 10));
    EXPECT_OK(tracking_raise(t, "p", 1, 3, 5));
    EXPECT_OK(tracking_find(t, "p", 1, &sequence));
    EXPECT_EQ(7, sequence);
    EXPECT_ERR(ERR_NOT_FOUND, tracking_find(t, "pp", 2, &sequence));
    EXPECT_ERR(ERR_NOT_FOUND, tracking_find(t, "q", 1, &sequence));
    tracking_check(t);
}

TEST(the_reference_of_the_oldest_chunk_is_evicted_beyond_10000)
{
    struct tracking *t = table();
    uint64_t sequence;
    for (uint64_t i = 0; i < TRACKING_REFERENCES_MAX + 500; i++) {
        EXPECT_OK(raise_number(t, i));
        EXPECT_OK(tracking_raise(t, "kept", 4, i, i));
        if (i % 1000 == 0) tracking_check(t);
    }
    tracking_check(t);
    EXPECT_OK(tracking_find(t, "kept", 4, &sequence));
    EXPECT_OK(find_number(t, TRACKING_REFERENCES_MAX + 499));
    EXPECT_OK(find_number(t, 501));
    EXPECT_ERR(ERR_NOT_FOUND, find_number(t, 500));
    EXPECT_OK(tracking_raise(t, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES, 1, 0)); /* has its own slot */
    EXPECT_OK(find_number(t, 501));
    EXPECT_EQ(TRACKING_SLOTS, t->table->used);
    EXPECT_OK(raise_number(t, 20000));
    EXPECT_ERR(ERR_NOT_FOUND, find_number(t, 501));
    EXPECT_OK(tracking_find(t, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES, &sequence));
    tracking_check(t);
}

TEST(a_pinned_reference_is_never_evicted_and_a_name_too_many_is_refused)
{
    struct tracking *t = table();
    struct doorbell_board *b = board(100);
    uint64_t sequence;
    bool evicted;
    char name[16];
    EXPECT_OK(raise_number(t, 1));
    EXPECT_OK(tracking_pin(t, b, 0, "r1", 2, &evicted, NULL));
    for (uint64_t i = 2; i < TRACKING_REFERENCES_MAX + 100; i++) EXPECT_OK(raise_number(t, i));
    EXPECT_OK(find_number(t, 1));
    for (uint32_t i = 1; i < TRACKING_REFERENCES_MAX; i++) {
        uint32_t bytes = (uint32_t)snprintf(name, sizeof name, "d%u", i);
        EXPECT_OK(tracking_pin(t, b, i % 4, name, bytes, &evicted, NULL));
        EXPECT(evicted);
    }
    tracking_check(t);
    struct fault f = {0};
    EXPECT_ERR(ERR_LIMIT, tracking_pin(t, b, 1, "one more", 8, &evicted, &f));
    EXPECT_ERR(ERR_EMPTY, tracking_find(t, "d1", 2, &sequence));
    EXPECT_OK(tracking_reserve(t, 0, NULL)); /* also for appends of transactions */
    EXPECT_ERR(ERR_LIMIT, tracking_reserve(t, 1, &f)); /* a publisher that is no longer declared */
    EXPECT_OK(tracking_raise(t, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES, 1, 0));
    EXPECT_ERR(ERR_LIMIT, tracking_reserve(t, 1, &f));
    EXPECT_OK(tracking_pin(t, b, 2, "d1", 2, &evicted, NULL)); /* on two workers */
    tracking_unpin(t, 1, "d1", 2);
    EXPECT_ERR(ERR_LIMIT, tracking_pin(t, b, 1, "one more", 8, &evicted, &f));
    tracking_unpin(t, 2, "d1", 2);
    EXPECT_OK(tracking_pin(t, b, 1, "one more", 8, &evicted, &f));
    EXPECT(!evicted);
    tracking_check(t);
}

TEST(the_pins_of_a_killed_worker_and_of_an_earlier_run_are_void)
{
    struct tracking *t = table();
    struct doorbell_board *b = board(100);
    bool evicted;
    char name[16];
    for (uint32_t i = 0; i < TRACKING_REFERENCES_MAX; i++) {
        uint32_t bytes = (uint32_t)snprintf(name, sizeof name, "d%u", i);
        EXPECT_OK(tracking_pin(t, b, i % 2, name, bytes, &evicted, NULL));
        if (i % 4 < 2) EXPECT_OK(tracking_raise(t, name, bytes, i, i));
    }
    EXPECT_ERR(ERR_LIMIT, tracking_pin(t, b, 1, "one more", 8, &evicted, NULL));
    doorbell_sit(b, 0, 2);
    EXPECT_OK(tracking_pin(t, b, 1, "one more", 8, &evicted, NULL));
    EXPECT(!evicted); /* the reference declared there, which never published, was removed */
    tracking_check(t);
    EXPECT_EQ(TRACKING_REFERENCES_MAX * 3 / 4 + 1, t->table->used);
    b = board(200);
    EXPECT_OK(tracking_pin(t, b, 3, "another", 7, &evicted, NULL));
    EXPECT_EQ(TRACKING_REFERENCES_MAX / 2 + 1, t->table->used);
    tracking_check(t);
}

TEST(a_malformed_trailer_changes_nothing)
{
    static const uint8_t good[] = {0, 1, 'p', 0, 0, 0, 0, 0, 0, 0, 9, 1, 1, 'o', 0, 0, 0, 0, 0, 0, 0, 1};
    for (uint32_t bytes = 0; bytes <= sizeof good; bytes++) {
        struct tracking *t = table();
        uint64_t sequence;
        bool whole = bytes == 0 || bytes == 11 || bytes == sizeof good;
        EXPECT_ERR(whole ? OK : ERR_CORRUPT, tracking_apply(t, good, bytes, 5));
        EXPECT_EQ(whole && bytes > 0, tracking_find(t, "p", 1, &sequence) == OK);
        EXPECT_ERR(ERR_NOT_FOUND, tracking_find(t, "o", 1, &sequence)); /* a stored offset is not a publisher */
    }
    static const uint8_t nameless[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_ERR(ERR_CORRUPT, tracking_apply(table(), nameless, sizeof nameless, 1));
}

TEST(a_snapshot_reads_back_and_every_flipped_bit_is_noticed)
{
    const char *directory = help_path();
    struct tracking *t = table(), *had;
    mkdir(directory, 0750);
    for (uint32_t i = 1; i <= TRACKING_REFERENCE_BYTES_MAX; i++) {
        char name[TRACKING_REFERENCE_BYTES_MAX];
        memset(name, (int)i, sizeof name);
        EXPECT_OK(tracking_raise(t, name, i, i * 1000, i));
    }
    bool evicted;
    EXPECT_OK(tracking_pin(t, board(1), 0, "silent", 6, &evicted, NULL)); /* is not in the snapshot */
    EXPECT_OK(tracking_snapshot_write(t, directory, 77, true, NULL));
    EXPECT_OK(tracking_new(&had, NULL));
    struct fault f;
    EXPECT_OK(tracking_snapshot_read(directory, 77, had, &f));
    tracking_unpin(t, 0, "silent", 6);
    EXPECT_EQ(t->table->used, had->table->used);
    EXPECT_MEM_EQ(t->table->slots, had->table->slots, 255 * sizeof(struct tracking_slot));
    EXPECT_ERR(ERR_NOT_FOUND, tracking_snapshot_read(directory, 78, had, &f));
    tracking_free(had);

    static uint8_t bytes[TRACKING_SNAPSHOT_BYTES_MAX];
    uint64_t segment;
    size_t size;
    int fd;
    struct file_path path = file_path_numbered(directory, 77, TRACKING_SUFFIX);
    EXPECT_OK(file_open(path.text, O_RDONLY, &fd, &f));
    EXPECT_OK(file_read(fd, path.text, bytes, sizeof bytes, 0, &size, &f));
    close(fd);
    for (size_t bit = 0; bit < 8 * size; bit += size > 1000 && bit > 400 ? 61 : 1) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        EXPECT_ERR(ERR_CORRUPT, tracking_snapshot_decode("tracking", bytes, size, &segment, table(), NULL));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < size; cut += 7) EXPECT(tracking_snapshot_decode("tracking", bytes, cut, &segment, table(), NULL) != OK);
}

static size_t snapshot_bytes(uint8_t *bytes, uint32_t version, uint32_t count)
{
    struct writer_bytes w = bytes_writer(bytes, 1u << 20);
    bytes_put32(&w, TRACKING_SNAPSHOT_MAGIC);
    bytes_put32(&w, version);
    bytes_put64(&w, 0);
    bytes_put32(&w, count);
    for (uint32_t i = 0; i < count; i++) {
        char name[16];
        uint8_t size = (uint8_t)snprintf(name, sizeof name, "r%u", i);
        bytes_put64(&w, i);
        bytes_put64(&w, i);
        bytes_put8(&w, size);
        bytes_put(&w, name, size);
    }
    bytes_put32(&w, crc32_update(0, bytes, (size_t)(w.at - bytes)));
    return (size_t)(w.at - bytes);
}

TEST(a_snapshot_of_version_1_is_read_with_its_limit_and_a_newer_one_is_not)
{
    static uint8_t bytes[1 << 20];
    uint64_t segment;
    struct tracking *t = table();
    EXPECT_OK(tracking_snapshot_decode("tracking", bytes, snapshot_bytes(bytes, 1, 255), &segment, t, NULL));
    EXPECT_EQ(255, t->table->used);
    EXPECT_ERR(ERR_CORRUPT, tracking_snapshot_decode("tracking", bytes, snapshot_bytes(bytes, 1, 256), &segment, table(), NULL));
    t = table();
    EXPECT_OK(tracking_snapshot_decode("tracking", bytes, snapshot_bytes(bytes, 2, TRACKING_SLOTS), &segment, t, NULL));
    EXPECT_EQ(TRACKING_REFERENCES_MAX, t->table->used);
    EXPECT_ERR(ERR_CORRUPT, tracking_snapshot_decode("tracking", bytes, snapshot_bytes(bytes, 2, TRACKING_SLOTS + 1), &segment, table(), NULL));
    EXPECT_ERR(ERR_VERSION, tracking_snapshot_decode("tracking", bytes, snapshot_bytes(bytes, 3, 1), &segment, table(), NULL));
}

TEST(a_good_checksum_does_not_excuse_a_value_beyond_its_limit)
{
    uint8_t bytes[20 + 17 + 4] = {0};
    uint64_t segment;
    bytes_store32(bytes, TRACKING_SNAPSHOT_MAGIC);
    bytes_store32(bytes + 4, TRACKING_SNAPSHOT_VERSION);
    static const uint32_t counts[] = {1, 2, TRACKING_SLOTS + 1, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) { /* one with an empty name, and counts that the bytes do not hold */
        bytes_store32(bytes + 16, counts[i]);
        bytes_store32(bytes + sizeof bytes - 4, crc32_update(0, bytes, sizeof bytes - 4));
        EXPECT_ERR(ERR_CORRUPT, tracking_snapshot_decode("tracking", bytes, sizeof bytes, &segment, table(), NULL));
    }
}

/* ---- the file ---- */

TEST(a_mapped_table_grows_and_every_process_sees_the_references_of_others)
{
    const char *directory = help_path();
    struct tracking *one, *two;
    struct file_path path = file_path_name(directory, "tracking");
    struct stat st;
    mkdir(directory, 0750);
    EXPECT_OK(tracking_create(directory, false, NULL));
    EXPECT_OK(file_stat_of(path.text, &st, NULL));
    EXPECT(st.st_size < 4096); /* the size for a stream without named publishers */
    REQUIRE_OK(tracking_map(directory, &one, NULL));
    REQUIRE_OK(tracking_map(directory, &two, NULL));
    for (uint64_t i = 0; i < TRACKING_REFERENCES_MAX + 300; i++) {
        EXPECT_OK(raise_number(i % 3 ? one : two, i));
        EXPECT_OK(find_number(i % 3 ? two : one, i));
        EXPECT_OK(find_number(i % 3 ? one : two, i < 5000 ? 0 : i - 5000));
    }
    EXPECT_ERR(ERR_NOT_FOUND, find_number(one, 299));
    EXPECT_ERR(ERR_NOT_FOUND, find_number(two, 299));
    tracking_check(one);
    tracking_check(two);
    tracking_free(one);
    tracking_free(two);
    REQUIRE_OK(tracking_map(directory, &one, NULL));
    EXPECT(tracking_is_whole(one));
    EXPECT_OK(find_number(one, 300));
    tracking_free(one);
    EXPECT_EQ(0, truncate(path.text, 100000));
    EXPECT_ERR(ERR_STALE, tracking_map(directory, &one, NULL));
}

static ssize_t no_room(int fd, const void *data, size_t size, off_t position)
{
    (void)fd, (void)data, (void)size, (void)position;
    errno = ENOSPC;
    return -1;
}

TEST(a_table_that_finds_no_room_on_the_disk_refuses_the_next_name_and_keeps_the_others)
{
    const char *directory = help_path();
    struct tracking *t;
    bool evicted;
    struct fault f = {0};
    mkdir(directory, 0750);
    EXPECT_OK(tracking_create(directory, false, NULL));
    REQUIRE_OK(tracking_map(directory, &t, NULL));
    for (uint64_t i = 0; i < TRACKING_SLOTS_FIRST; i++) EXPECT_OK(raise_number(t, i));
    struct sys full = sys_real;
    full.pwrite = no_room;
    sys = &full;
    EXPECT_ERR(ERR_DISK_FULL, tracking_pin(t, board(1), 0, "new", 3, &evicted, &f));
    sys = &sys_real;
    EXPECT_OK(find_number(t, 0));
    tracking_check(t);
    EXPECT_OK(tracking_pin(t, board(1), 0, "new", 3, &evicted, &f));
    tracking_free(t);
}

/* A log with publishers "p0" to "p5" up to id 40, in two segments; its newest ids lie behind the snapshot. */
static const char *flipped_log(void)
{
    const char *path = help_path();
    struct log *l = help_log(path, &(struct log_options){.segment_bytes_max = 4096});
    struct batch b;
    bool evicted;
    batch_init(&b, NULL);
    for (uint64_t id = 1; id <= 40; id++) {
        for (int i = 0; i < 6; i++) {
            char name[16];
            snprintf(name, sizeof name, "p%d", i);
            EXPECT_OK(help_add_tracked(&b, name, id, "message"));
        }
        EXPECT_OK(help_append(l, &b, NULL));
    }
    EXPECT_OK(log_publisher_declare(l, board(7), 0, "silent", 6, &evicted, NULL));
    batch_free(&b);
    log_close(l);
    return path;
}

TEST(with_any_byte_of_the_table_flipped_nothing_is_confirmed_that_was_not_stored_and_no_duplicate_is_stored)
{
    const char *path = flipped_log();
    struct file_path file = file_path_name(path, "tracking");
    uint64_t bytes = tracking_bytes(8), id = 40, seed = test_random();
    struct batch b;
    batch_init(&b, NULL);
    printf("    seed %" PRIu64 "\n", seed);
    for (uint64_t at = 0; at < bytes; at++) {
        struct log *l;
        struct log_appended a;
        struct recovery_report report;
        uint8_t byte;
        int fd = open(file.text, O_RDWR);
        EXPECT_EQ(1, pread(fd, &byte, 1, (off_t)at));
        byte ^= (uint8_t)(1u << test_random_from(&seed) % 8);
        EXPECT_EQ(1, pwrite(fd, &byte, 1, (off_t)at));
        close(fd);
        EXPECT_OK(recovery_run(path, &(struct log_options){.segment_bytes_max = 4096}, NULL, &report, NULL));
        REQUIRE_OK(log_open(path, &l, NULL));
        /* Each publisher's last message once more, and a new one. */
        for (int i = 0; i < 6; i++) {
            char name[16];
            snprintf(name, sizeof name, "p%d", i);
            EXPECT_OK(help_add_tracked(&b, name, id, "again"));
            EXPECT_OK(help_add_tracked(&b, name, id + 1, "new"));
        }
        EXPECT_OK(help_append(l, &b, &a));
        if (!EXPECT_EQ(6, a.next_offset - a.first_offset)) printf("    byte %" PRIu64 "\n", at);
        id++;
        tracking_check(l->tracking);
        log_close(l);
    }
    batch_free(&b);
}

TEST(a_slot_that_is_damaged_while_the_log_is_open_is_rebuilt_at_its_next_use_and_pins_stay)
{
    const char *path = flipped_log();
    struct log *l;
    struct batch b;
    struct log_appended a;
    bool evicted;
    batch_init(&b, NULL);
    REQUIRE_OK(log_open(path, &l, NULL));
    EXPECT_OK(log_publisher_declare(l, board(7), 0, "p3", 2, &evicted, NULL));
    EXPECT(!log_tracking_rebuilt(l));
    l->tracking->table->slots[3].sequence |= 512;
    EXPECT_OK(help_add_tracked(&b, "p3", 41, "new"));
    EXPECT_OK(help_append(l, &b, &a));
    EXPECT_EQ(1, a.next_offset - a.first_offset);
    EXPECT(log_tracking_rebuilt(l));
    EXPECT(!log_tracking_rebuilt(l));
    uint64_t pinned = 0;
    const struct tracking_slot *s;
    for (uint32_t at = 0; (s = tracking_next(l->tracking, &at)) != NULL;) pinned += s->pins != 0;
    EXPECT_EQ(2, pinned); /* and the one that never published */
    batch_free(&b);
    log_close(l);
}

TEST(a_process_killed_at_any_store_of_a_change_leaves_a_usable_table)
{
    const char *path = flipped_log();
    struct log *l;
    uint64_t sequence;
    REQUIRE_OK(log_open(path, &l, NULL));
    EXPECT_OK(log_publisher_sequence(l, "p1", 2, &sequence, NULL));
    struct tracking_slot *s = &l->tracking->table->slots[1];
    l->tracking->table->changing = 2;
    s->chunk--; /* half of a change: its check does not fit */
    atomic_store(&l->control->repair_wanted, 1);
    EXPECT_OK(log_publisher_sequence(l, "p1", 2, &sequence, NULL));
    EXPECT_EQ(40, sequence);
    EXPECT(!log_tracking_rebuilt(l));
    l->tracking->table->rebuilding = 1;
    memset(l->tracking->table->slots, 0, 3 * sizeof *s);
    atomic_store(&l->control->repair_wanted, 1);
    EXPECT_OK(log_publisher_sequence(l, "p1", 2, &sequence, NULL));
    EXPECT_EQ(40, sequence);
    EXPECT(log_tracking_rebuilt(l));
    tracking_check(l->tracking);
    log_close(l);
}
