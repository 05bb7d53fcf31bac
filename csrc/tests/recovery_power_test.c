/* SPDX-License-Identifier: Apache-2.0
 *
 * Random work on a log, a power cut at a random system call, recovery (sometimes cut too),
 * and then: what log_sync promised is there, in order and whole; nothing torn is served, nor
 * withheld by a torn filter; the deduplication table says what the surviving messages say; appending goes on.
 */
#include "../log/upkeep.h"

#include <dirent.h>

#include "../log/handle.h"
#include "log_help.h"
#include "powercut.h"

#define ROUNDS 2000 /* each is one power cut, every fourth has a second one during recovery; VIBEMQ_POWER_ROUNDS=n: more */
#define REFERENCES 3

static const struct log_options options = {.segment_bytes_max = 4096, .retention_bytes_max = 30000,
                                           .durability = DURABILITY_DISK};

/* Message "<reference> <id> <filler>", where the filler is told by the id. */
static uint32_t make_text(char *out, unsigned reference, uint64_t id, uint32_t filler)
{
    int n = sprintf(out, "r%u %" PRIu64 " ", reference, id);
    for (uint32_t i = 0; i < filler; i++) out[n + (int)i] = (char)('a' + (id + i) % 26);
    return (uint32_t)n + filler;
}

#define IDS_MAX 20000

/* Long, so that trailers are torn as often as entries are. */
static const char *reference_name(unsigned reference)
{
    static char name[160];
    snprintf(name, sizeof name, "ref%u%0150u", reference, 0u);
    return name;
}

struct seen {
    uint64_t highest[REFERENCES], next;
    uint64_t promised;  /* below it no phantom may stand */
    uint64_t *phantom;  /* the offset of the one that was found */
    bool wrong, begun;
};

/* Each message's filter value is its reference. */
static bool filter_takes(const struct help_walk *w, unsigned reference)
{
    struct filter filter;
    filter_init(&filter, false);
    return filter_add(&filter, (const uint8_t *)&reference, sizeof reference) == OK && filter_matches(&filter, w->data, w->chunk);
}

static void check_message(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    struct seen *s = w->context;
    char text[64], want[2048];
    unsigned reference;
    uint64_t id;
    snprintf(text, sizeof text, "%.*s", (int)(bytes < 60 ? bytes : 60), (const char *)body);
    if (memcmp(body, "phantom", 7) == 0) {
        /* Refused, never committed, and yet whole at the log's very end: nobody can tell it
         * from one that was on its way.  Anywhere else it must not come back. */
        if (*s->phantom == UINT64_MAX && offset >= s->promised) *s->phantom = offset;
        if (*s->phantom != offset) s->wrong = true;
    } else if (sscanf(text, "r%u %" SCNu64, &reference, &id) != 2 || reference >= REFERENCES) s->wrong = true;
    else {
        uint32_t head = make_text(want, reference, id, 0);
        if (bytes < head || make_text(want, reference, id, bytes - head) != bytes || memcmp(want, body, bytes)) s->wrong = true;
        if (!filter_takes(w, reference)) s->wrong = true;
        /* Once and in order; where it begins is retention's affair. */
        if (s->highest[reference] ? id != s->highest[reference] + 1 : id == 0) s->wrong = true;
        s->highest[reference] = id;
    }
    if (s->begun && offset != s->next) s->wrong = true;
    s->begun = true;
    s->next = offset + 1;
}

/* What the test knows of a log: how many ids of each reference it has appended. */
struct world {
    struct log *log;
    struct batch batch;
    uint64_t ids[REFERENCES];
    uint64_t offsets[REFERENCES][IDS_MAX]; /* of each id */
    uint64_t promised, phantom;
};

static uint64_t log_next(struct log *l)
{
    struct commit c;
    control_committed(log_control(l), &c);
    return c.next_offset;
}

static void append_some(struct world *w)
{
    uint64_t next = log_next(w->log);
    unsigned messages = 1 + (unsigned)test_random_below(test_random_below(8) ? 6 : 60);
    for (unsigned i = 0; i < messages; i++) {
        char text[2048];
        uint8_t entry[2060];
        uint32_t index;
        unsigned reference = test_random_below(30) ? (unsigned)test_random_below(REFERENCES - 1) : REFERENCES - 1; /* one is rare */
        /* Now and then one is sent again. */
        bool again = w->ids[reference] > 0 && test_random_below(8) == 0;
        uint64_t id = again ? w->ids[reference] : ++w->ids[reference];
        CHECK(id < IDS_MAX);
        if (!again) w->offsets[reference][id] = next++;
        uint32_t size = make_text(text, reference, id, (uint32_t)test_random_below(test_random_below(4) ? 40 : 1500));
        const char *name = reference_name(reference);
        REQUIRE_OK(help_reference(&w->batch, name, &index));
        REQUIRE_OK(batch_add_tracked(&w->batch, entry, help_entry(entry, text, size), 1, index, id));
        batch_filter(&w->batch, (const uint8_t *)&reference, sizeof reference);
    }
    EXPECT_OK(help_append(w->log, &w->batch, NULL));
}

/* An append whose index write fails leaves a whole chunk that was never committed, just
 * where a new segment is begun: what the cut may bring back is not to be believed. */
static void fail_and_roll(struct world *w)
{
    uint8_t entry[300];
    char text[256] = "phantom";
    bool rolled;
    EXPECT_OK(batch_add(&w->batch, entry, help_entry(entry, text, 7 + (uint32_t)test_random_below(200)), 1));
    batch_filter(&w->batch, (const uint8_t *)text, 7);
    EXPECT_OK(batch_seal(&w->batch, NULL));
    cut_sys.pwrite = cut_pwrite_fails;
    struct log_appended a;
    EXPECT_ERR(ERR_IO, log_append(w->log, &w->batch, &a, NULL));
    cut_sys.pwrite = cut_pwrite;
    batch_clear(&w->batch);
    EXPECT_OK(retention_roll_aged(w->log, -1, &rolled, NULL));
}

static void sync_some(struct world *w)
{
    uint64_t durable;
    EXPECT_OK(log_sync(w->log, &durable, NULL));
    /* A promise given after the cut is given by nobody. */
    if (!cut_disk.cut) w->promised = durable;
}

static void work(struct world *w, unsigned steps)
{
    for (unsigned i = 0; i < steps && !cut_disk.cut; i++) {
        switch (test_random_below(8)) {
        case 0: case 1: sync_some(w); break;
        case 2:
            if (test_random_below(6) == 0) fail_and_roll(w);
            break;
        case 3:
            if (test_random_below(4) == 0) {
                struct retention_report report;
                EXPECT_OK(retention_run(w->log, &report, NULL));
            }
            break;
        default: append_some(w);
        }
        if (test_random_below(3) == 0) cut_photograph(log_control(w->log));
    }
}

static void adopt_all(const char *directory)
{
    DIR *d = opendir(directory);
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.') cut_adopt(entry->d_name);
    closedir(d);
}

static err recover(const char *directory, struct recovery_report *report, struct fault *f)
{
    struct recovery_once once;
    recovery_once_init(&once);
    return recovery_run(directory, &options, test_random_below(2) ? &once : NULL, report, f);
}

/* The log in `directory` after recovery: holds the promised, says the truth. */
static void check_log(const char *directory, struct world *w, struct recovery_report *report)
{
    struct fault f = {0};
    if (!EXPECT_OK(recover(directory, report, &f))) {
        help_fault(&f);
        return;
    }
    EXPECT(report->ran);
    for (uint32_t i = 0; i < report->cut_count && i < RECOVERY_CUTS_MAX; i++) {
        struct stat st;
        EXPECT_EQ(0, stat(report->cuts[i].kept, &st));
        EXPECT_EQ(report->cuts[i].bytes, st.st_size);
    }
    REQUIRE_OK(log_open(directory, &w->log, &f));
    struct seen s = {.promised = w->promised, .phantom = &w->phantom};
    struct help_walk walk = {.message = check_message, .context = &s};
    help_walk_log(&walk, w->log);
    EXPECT(!s.wrong);
    EXPECT_EQ(0, walk.damaged);
    struct log_stats stats;
    EXPECT_OK(log_stats(w->log, &stats, NULL));
    if (!s.begun) s.next = stats.next_offset; /* all that is left is an empty segment */
    EXPECT_EQ(s.next, stats.next_offset);
    EXPECT(s.next >= w->promised);
    EXPECT_EQ(s.next, log_durable_offset(w->log));
    for (unsigned i = 0; i < REFERENCES; i++) {
        const char *name = reference_name(i);
        uint64_t sequence, want = s.highest[i];
        while (want < w->ids[i] && w->offsets[i][want + 1] < s.next && w->offsets[i][want + 1] != w->phantom) want++;
        err e = log_publisher_sequence(w->log, name, (uint32_t)strlen(name), &sequence, NULL);
        EXPECT_EQ(want, sequence);
        EXPECT_ERR(want ? OK : ERR_NOT_FOUND, e);
        w->ids[i] = want;
    }
    w->promised = s.next; /* recovery has synced what it kept */
}

static void remove_directory(const char *path)
{
    nftw(path, test_scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static void one_round(const char *base, unsigned round)
{
    char paths[4][400];
    static struct world w;
    w = (struct world){.phantom = UINT64_MAX};
    struct recovery_report report;
    struct fault f = {0};
    for (int i = 0; i < 4; i++) snprintf(paths[i], sizeof paths[i], "%s/power%u-%d", base, round, i);

    cut_watch(paths[0], paths[1], -1);
    EXPECT_OK(batch_init(&w.batch, &f));
    batch_filter_size(&w.batch, 64); /* as large as entries: it is torn as often */
    REQUIRE_OK(log_create(paths[0], &options, &f));
    REQUIRE_OK(log_open(paths[0], &w.log, &f));
    cut_photograph(log_control(w.log));
    cut_disk.calls_left = (int64_t)test_random_below(400);
    work(&w, 120);
    if (!cut_disk.cut) cut_now();
    log_close(w.log);
    cut_boot++;

    const char *left = paths[1];
    if (round % 4 == 0) {
        /* The power fails again while recovery runs; its own cut is what is recovered from. */
        cut_watch(paths[1], paths[2], -1);
        adopt_all(paths[1]);
        cut_disk.calls_left = (int64_t)test_random_below(200);
        EXPECT_OK(recover(paths[1], &report, &f));
        if (cut_disk.cut) left = paths[2];
        cut_boot++;
    }
    cut_watch(left, paths[3], -1);
    check_log(left, &w, &report);
    if (w.log) {
        append_some(&w);
        log_close(w.log);
        cut_boot++;
        check_log(left, &w, &report);
        log_close(w.log);
    }
    sys = &sys_real;
    batch_free(&w.batch);
    for (int i = 0; i < 3; i++) remove_directory(paths[i]);
}

TEST(what_a_sync_promised_outlives_any_power_cut)
{
    char base[300] = "/dev/shm/vibemq-power-XXXXXX"; /* files that live in memory make more rounds */
    if (!mkdtemp(base)) snprintf(base, sizeof base, "%s", test_scratch());
    uint64_t state = test_random();
    const char *rounds = getenv("VIBEMQ_POWER_ROUNDS");
    unsigned round_count = rounds ? (unsigned)strtoul(rounds, NULL, 0) : ROUNDS;
    for (unsigned round = 0; round < round_count; round++) {
        uint64_t round_seed = test_random_from(&state);
        const char *only = getenv("VIBEMQ_POWER_ROUND"); /* to have one again */
        if (only && strtoul(only, NULL, 0) != round) continue;
        test_random_state = round_seed;
        int failures = atomic_load(&test_failures);
        one_round(base, round);
        if (atomic_load(&test_failures) != failures) {
            printf("    in round %u\n", round);
            break;
        }
    }
    sys = &sys_real;
    remove_directory(base);
}
