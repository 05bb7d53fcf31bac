/* SPDX-License-Identifier: Apache-2.0
 *
 * control: make, map and read the shared page, and publish its two records.
 *
 * Both records use one scheme.  The writer fills the slot that `sequence` does not name, then raises `sequence`.  A
 * slot is written again only after the sequence has gone past it; its words are stored with release and loaded with
 * acquire, so a reader that saw a word of a later writer also sees a later sequence, and starts anew.
 */
#include "control.h"

#include "../base/bytes.h"
#include "../base/check.h"
#include "../base/crc32.h"
#include "segment.h"

static const char control_name[] = "control";
const struct file_page_kind control_kind = {CONTROL_MAGIC, CONTROL_VERSION, CONTROL_HEAD_CHECK_AT};

#define WORDS_CHECKED_MAX (1 + 2 * CONTROL_FAILED_MAX) /* the longest record: the failed ranges and their count */

/* ---- the records ---- */

static void record_load(const _Atomic uint64_t *sequence, const _Atomic uint64_t *slots, unsigned words, uint64_t *out)
{
    uint64_t before, after = atomic_load_explicit(sequence, memory_order_acquire);
    do {
        before = after;
        const _Atomic uint64_t *slot = slots + (before & 1) * words;
        for (unsigned i = 0; i < words; i++) out[i] = atomic_load_explicit(&slot[i], memory_order_acquire);
        after = atomic_load_explicit(sequence, memory_order_acquire);
    } while (after != before);
}

static void record_store(_Atomic uint64_t *sequence, _Atomic uint64_t *slots, unsigned words, const uint64_t *in)
{
    uint64_t next = atomic_load_explicit(sequence, memory_order_relaxed) + 1;
    _Atomic uint64_t *slot = slots + (next & 1) * words;
    for (unsigned i = 0; i < words; i++) atomic_store_explicit(&slot[i], in[i], memory_order_release);
    atomic_store_explicit(sequence, next, memory_order_release);
}

_Static_assert(sizeof(struct commit) == COMMIT_WORDS * sizeof(uint64_t), "a commit record is its words");

void control_committed(const struct control *c, struct commit *out)
{
    uint64_t words[COMMIT_WORDS];
    record_load(&c->sequence, &c->slots[0][0], COMMIT_WORDS, words);
    memcpy(out, words, sizeof *out);
}

/* The check of words that a start uses, as big-endian bytes.  A word of zeros is never right. */
static uint64_t words_check(const uint64_t *words, unsigned count)
{
    uint8_t bytes[8 * WORDS_CHECKED_MAX];
    for (unsigned i = 0; i < count; i++) bytes_store64(bytes + 8 * i, words[i]);
    return (uint64_t)crc32_update(0, bytes, 8 * count) | UINT64_C(1) << 32;
}

/* The check of the commit slot that sequence number `words[COMMIT_WORDS]` names.  With the number in it, a damaged
 * sequence does not lead to the other slot, which has a whole but old record. */
static uint64_t commit_check(const uint64_t words[COMMIT_WORDS + 1]) { return words_check(words, COMMIT_WORDS + 1); }

void control_commit(struct control *c, const struct commit *record)
{
    uint64_t words[COMMIT_WORDS + 1];
    memcpy(words, record, sizeof *record);
    uint64_t next = atomic_load_explicit(&c->sequence, memory_order_relaxed) + 1;
    words[COMMIT_WORDS] = next;
    atomic_store_explicit(&c->commit_checks[next & 1], commit_check(words), memory_order_relaxed);
    record_store(&c->sequence, &c->slots[0][0], COMMIT_WORDS, words);
    DEBUG_CHECK((control_check(c), true));
}

static uint64_t durable_check(const uint64_t words[DURABLE_WORDS]) { return words_check(words, DURABLE_WORDS - 1); }

void control_durable(const struct control *c, struct durable *out)
{
    uint64_t words[DURABLE_WORDS];
    record_load(&c->durable_sequence, &c->durable_slots[0][0], DURABLE_WORDS, words);
    *out = (struct durable){words[0], words[1], words[2]};
}

void control_durable_set(struct control *c, const struct durable *record)
{
    uint64_t words[DURABLE_WORDS] = {record->segment, record->position, record->offset, 0};
    words[DURABLE_WORDS - 1] = durable_check(words);
    record_store(&c->durable_sequence, &c->durable_slots[0][0], DURABLE_WORDS, words);
}

void control_remote_set(struct control *c, uint64_t offset)
{
    atomic_store_explicit(&c->remote_offset, offset, memory_order_release);
    atomic_store_explicit(&c->remote_check, words_check(&offset, 1), memory_order_relaxed);
}

static uint64_t confirmed_check(const uint64_t words[CONFIRMED_WORDS]) { return words_check(words, COMMIT_WORDS); }

void control_confirmed_record(const struct control *c, struct commit *out)
{
    uint64_t words[CONFIRMED_WORDS];
    record_load(&c->confirmed_sequence, &c->confirmed_slots[0][0], CONFIRMED_WORDS, words);
    memcpy(out, words, sizeof *out);
}

void control_confirmed(const struct control *c, struct commit *out)
{
    if (!control_readers_wait(c)) {
        control_committed(c, out);
        return;
    }
    control_confirmed_record(c, out);
    /* Retention may have deleted messages that the object store never had: the log begins behind them. */
    uint64_t first = atomic_load_explicit(&c->first_offset, memory_order_acquire);
    if (out->segment < first)
        *out = (struct commit){.segment = first, .batch_position = SEGMENT_HEADER_BYTES, .position = SEGMENT_HEADER_BYTES,
                               .next_offset = first, .last_chunk = UINT64_MAX, .timestamp_ms = out->timestamp_ms};
}

void control_confirm(struct control *c, const struct commit *record)
{
    struct commit had;
    control_confirmed_record(c, &had);
    bool says_more = record->next_offset > had.next_offset ||
                     (record->next_offset == had.next_offset &&
                      (record->segment > had.segment ||
                       (record->segment == had.segment && record->position > had.position)));
    if (!says_more) return;
    uint64_t words[CONFIRMED_WORDS];
    memcpy(words, record, sizeof *record);
    words[COMMIT_WORDS] = confirmed_check(words);
    record_store(&c->confirmed_sequence, &c->confirmed_slots[0][0], CONFIRMED_WORDS, words);
    /* The thread that confirms looks for waiting readers next (word_bits). */
    atomic_thread_fence(memory_order_seq_cst);
}

/* ---- failed ranges ---- */

static uint64_t failed_check(const struct control *c)
{
    uint64_t words[1 + 2 * CONTROL_FAILED_MAX];
    words[0] = atomic_load_explicit(&c->failed_count, memory_order_relaxed);
    for (unsigned i = 0; i < 2 * CONTROL_FAILED_MAX; i++)
        words[1 + i] = atomic_load_explicit(&c->failed[i / 2][i % 2], memory_order_relaxed);
    return words_check(words, 1 + 2 * CONTROL_FAILED_MAX);
}

void control_failed_add(struct control *c, uint64_t first, uint64_t next)
{
    uint64_t count = atomic_load_explicit(&c->failed_count, memory_order_relaxed);
    if (count >= CONTROL_FAILED_MAX) return;
    atomic_store_explicit(&c->failed[count][0], first, memory_order_relaxed);
    atomic_store_explicit(&c->failed[count][1], next, memory_order_relaxed);
    atomic_store_explicit(&c->failed_count, count + 1, memory_order_release);
    atomic_store_explicit(&c->failed_check, failed_check(c), memory_order_relaxed);
}

bool control_failed_covers(const struct control *c, uint64_t first, uint64_t next)
{
    uint64_t count = atomic_load_explicit(&c->failed_count, memory_order_acquire);
    if (count > CONTROL_FAILED_MAX) count = CONTROL_FAILED_MAX;
    for (uint64_t i = 0; i < count; i++)
        if (first < atomic_load_explicit(&c->failed[i][1], memory_order_relaxed) &&
            next > atomic_load_explicit(&c->failed[i][0], memory_order_relaxed)) return true;
    /* The table is full: what failed after that has no entry, so nothing later is trusted. */
    return count == CONTROL_FAILED_MAX &&
           next > atomic_load_explicit(&c->failed[CONTROL_FAILED_MAX - 1][0], memory_order_relaxed);
}

uint64_t control_failed_within(const struct control *c, uint64_t first, uint64_t next)
{
    uint64_t count = atomic_load_explicit(&c->failed_count, memory_order_acquire), found = 0;
    for (uint64_t i = 0; i < count && i < CONTROL_FAILED_MAX; i++) {
        uint64_t begin = atomic_load_explicit(&c->failed[i][0], memory_order_relaxed);
        uint64_t end = atomic_load_explicit(&c->failed[i][1], memory_order_relaxed);
        if (begin < first) begin = first;
        if (end > next) end = next;
        if (begin < end) found += end - begin;
    }
    return found;
}

bool control_failed_from(const struct control *c, uint64_t offset, uint64_t *first)
{
    uint64_t count = atomic_load_explicit(&c->failed_count, memory_order_acquire);
    *first = UINT64_MAX;
    for (uint64_t i = 0; i < count && i < CONTROL_FAILED_MAX; i++) {
        uint64_t begin = atomic_load_explicit(&c->failed[i][0], memory_order_relaxed);
        if (atomic_load_explicit(&c->failed[i][1], memory_order_relaxed) <= offset) continue;
        if (begin < offset) begin = offset;
        if (begin < *first) *first = begin;
    }
    return *first != UINT64_MAX;
}

/* ---- make and map ---- */

void control_limits_set(struct control *c, const struct log_options *limits)
{
    atomic_store_explicit(&c->segment_bytes_max, limits->segment_bytes_max, memory_order_relaxed);
    atomic_store_explicit(&c->retention_bytes_max, limits->retention_bytes_max, memory_order_relaxed);
    atomic_store_explicit(&c->retention_age_ms_max, limits->retention_age_ms_max, memory_order_relaxed);
    atomic_store_explicit(&c->local_bytes_max, limits->local_bytes_max, memory_order_relaxed);
    atomic_store_explicit(&c->local_age_ms_max, limits->local_age_ms_max, memory_order_relaxed);
    atomic_store_explicit(&c->filter_bytes, limits->filter_bytes, memory_order_relaxed);
    atomic_store_explicit(&c->chunk_messages_max, limits->chunk_messages_max, memory_order_relaxed);
    bool waits = c->durability != DURABILITY_OS && !limits->read_unconfirmed;
    atomic_store_explicit(&c->readers_wait, waits, memory_order_release);
}

static uint64_t fixed_check(const struct control *c)
{
    const uint64_t words[] = {c->durability, c->epoch, c->segment_chunks_max};
    return words_check(words, sizeof words / sizeof words[0]);
}

/* Set before the first thread and the first fork. */
static uint64_t generation_now;

void control_generation_set(uint64_t generation) { generation_now = generation; }

/* All but what makes it one of this boot. */
static void control_fill(struct control *c, const struct control_init *init, uint64_t inode)
{
    c->magic = CONTROL_MAGIC;
    c->version = CONTROL_VERSION;
    c->head_check = file_page_check(CONTROL_MAGIC, CONTROL_VERSION);
    c->inode = inode;
    atomic_init(&c->generation, generation_now);
    atomic_init(&c->state, CONTROL_LIVE);
    c->durability = init->options.durability;
    c->segment_chunks_max = init->options.segment_chunks_max;
    c->epoch = init->epoch;
    c->fixed_check = fixed_check(c);
    atomic_init(&c->failed_check, failed_check(c));
    control_limits_set(c, &init->options);
    atomic_init(&c->first_offset, init->first_offset);
    atomic_init(&c->turned_segment, init->turned_segment);
    control_remote_set(c, 0);
    control_durable_set(c, &init->durable);
    control_commit(c, &init->commit);
    control_confirm(c, &init->confirmed);
}

/* From now on the page is this boot's: whoever is killed before has left one that recovery makes anew. */
static err control_begin(struct control *c, const char *path, struct fault *f)
{
    uint8_t boot_id[sizeof c->boot_id];
    if (mutex_init(&c->mutex) < 0 || mutex_init(&c->durable_mutex) < 0)
        return fault_set(f, ERR_LOCK, 0, path, 0, 0, 0);
    if (sys->boot_id(boot_id) < 0) return fault_from_errno(f, "boot id", 0, 0, 0);
    atomic_thread_fence(memory_order_release); /* who copies a live directory may map it now */
    memcpy(c->boot_id, boot_id, sizeof boot_id);
    return OK;
}

err control_renew(const char *directory, const struct control_init *init, struct fault *f)
{
    struct file_path path = file_path_name(directory, control_name);
    _Alignas(struct control) uint8_t filled[CONTROL_BYTES] = {0};
    struct stat st;
    void *page;
    int fd;
    err e = file_open(path.text, O_RDWR | O_NOFOLLOW, &fd, f);
    if (e == ERR_NOT_FOUND) return control_create(directory, init, false, f);
    if (e) return e;
    e = file_stat(fd, path.text, &st, f);
    if (e || st.st_size != CONTROL_BYTES) {
        file_close(&fd);
        return e ? e : control_create(directory, init, false, f);
    }
    control_fill((struct control *)filled, init, (uint64_t)st.st_ino);
    e = file_write(fd, path.text, filled, sizeof filled, 0, f); /* on a full disk no store finds a hole */
    if (!e) e = file_map(fd, path.text, CONTROL_BYTES, true, &page, f);
    if (!e) {
        e = control_begin(page, path.text, f);
        sys->munmap(page, CONTROL_BYTES);
    }
    file_close(&fd);
    return e;
}

err control_create(const char *directory, const struct control_init *init, bool sync, struct fault *f)
{
    struct file_path path = file_path_name(directory, control_name);
    struct file_path temporary = file_path_name(directory, "control.tmp");

    /* Written, not only stretched: a full disk is an error here, not a signal at the first store. */
    static const uint8_t zeros[CONTROL_BYTES];
    int fd;
    struct stat st;
    void *page;
    err e = file_create(temporary.text, zeros, sizeof zeros, &fd, f);
    if (!e) e = file_stat(fd, temporary.text, &st, f);
    if (!e) e = file_map(fd, temporary.text, CONTROL_BYTES, true, &page, f);
    if (!e) {
        control_fill(page, init, (uint64_t)st.st_ino);
        e = control_begin(page, temporary.text, f);
        sys->munmap(page, CONTROL_BYTES);
    }
    return file_put(e, &fd, temporary.text, path.text, sync, f);
}

static bool control_of_this_boot(const struct control *c, uint64_t inode)
{
    uint8_t boot_id[16];
    if (sys->boot_id(boot_id) < 0) return false;
    return memcmp(boot_id, c->boot_id, sizeof boot_id) == 0 && c->inode == inode;
}

err control_map(const char *directory, bool write, struct control **out, struct fault *f)
{
    struct stat st;
    void *page;
    uint64_t inode;
    struct file_path path = file_path_name(directory, control_name);
    err e = file_page_map(path.text, &control_kind, CONTROL_BYTES, write, ERR_STALE, &page, &inode, f);
    /* Missing is stale (recovery makes a new one), unless the directory is missing too. */
    if (e == ERR_NOT_FOUND) {
        e = file_stat_of(directory, &st, f);
        return e ? e : fault_set(f, ERR_STALE, 0, path.text, 0, 0, 0);
    }
    if (e) return e;

    struct control *c = page;
    if (!control_of_this_boot(c, inode)) e = fault_set(f, ERR_STALE, 0, path.text, 0, CONTROL_VERSION, c->version);
    else if (control_is_deleted(c)) e = fault_set(f, ERR_DELETED, 0, path.text, 0, 0, 0);
    if (e) control_unmap(c);
    else *out = c;
    return e;
}

void control_unmap(struct control *c)
{
    if (c) sys->munmap(c, CONTROL_BYTES);
}

/* The sequence may be of another instant than the slots: the later whole slot counts. */
static void old_durable(const struct control *c, struct control_old *out)
{
    for (int i = 0; i < 2; i++) {
        uint64_t words[DURABLE_WORDS];
        for (unsigned w = 0; w < DURABLE_WORDS; w++) words[w] = atomic_load(&c->durable_slots[i][w]);
        if (words[DURABLE_WORDS - 1] != durable_check(words)) continue;
        if (out->has_durable && words[2] < out->durable.offset) continue;
        out->durable = (struct durable){words[0], words[1], words[2]};
        out->has_durable = true;
    }
}

static void old_confirmed(const struct control *c, struct control_old *out)
{
    for (int i = 0; i < 2; i++) {
        uint64_t words[CONFIRMED_WORDS];
        struct commit found;
        for (unsigned w = 0; w < CONFIRMED_WORDS; w++) words[w] = atomic_load(&c->confirmed_slots[i][w]);
        if (words[COMMIT_WORDS] != confirmed_check(words)) continue;
        memcpy(&found, words, sizeof found);
        if (out->has_confirmed && found.next_offset < out->confirmed.next_offset) continue;
        out->confirmed = found;
        out->has_confirmed = true;
    }
}

err control_old_read(const char *directory, struct control_old *out, struct fault *f)
{
    *out = (struct control_old){0};
    struct file_path path = file_path_name(directory, control_name);
    _Alignas(struct control) uint8_t page[CONTROL_BYTES];
    size_t got;
    err e = file_read_head(path.text, page, sizeof page, &got, f);
    if (!e) e = file_page_version(path.text, page, got, &control_kind, f);
    out->is_there = e != ERR_NOT_FOUND;
    if (e || got < sizeof page) return e == ERR_NOT_FOUND ? OK : e;

    const struct control *c = (const struct control *)page;
    if (c->magic != CONTROL_MAGIC) return OK;
    if (control_is_deleted(c)) return fault_set(f, ERR_DELETED, 0, path.text, 0, 0, 0);
    old_durable(c, out);
    old_confirmed(c, out);
    bool is_checked = c->fixed_check != 0;
    if (!is_checked || c->fixed_check == fixed_check(c)) out->epoch = c->epoch;
    if (is_checked && atomic_load(&c->failed_check) != failed_check(c)) return OK;
    uint64_t count = atomic_load(&c->failed_count);
    out->failed_count = count < CONTROL_FAILED_MAX ? (uint32_t)count : CONTROL_FAILED_MAX;
    for (uint32_t i = 0; i < out->failed_count; i++) {
        out->failed[i][0] = atomic_load(&c->failed[i][0]);
        out->failed[i][1] = atomic_load(&c->failed[i][1]);
    }
    return OK;
}

bool control_is_whole(const struct control *c)
{
    uint64_t words[COMMIT_WORDS + 1];
    if (!c->fixed_check) return true;
    words[COMMIT_WORDS] = atomic_load(&c->sequence);
    unsigned slot = words[COMMIT_WORDS] & 1;
    for (unsigned i = 0; i < COMMIT_WORDS; i++) words[i] = atomic_load(&c->slots[slot][i]);
    if (atomic_load(&c->commit_checks[slot]) != commit_check(words)) return false;
    /* A flipped bit may lower the sequence to the number before.  It names a whole record, but the other slot is newer. */
    words[COMMIT_WORDS]++;
    for (unsigned i = 0; i < COMMIT_WORDS; i++) words[i] = atomic_load(&c->slots[!slot][i]);
    if (atomic_load(&c->commit_checks[!slot]) == commit_check(words)) return false;
    slot = atomic_load(&c->durable_sequence) & 1;
    for (unsigned i = 0; i < DURABLE_WORDS; i++) words[i] = atomic_load(&c->durable_slots[slot][i]);
    uint64_t confirmed[CONFIRMED_WORDS];
    uint64_t sequence = atomic_load(&c->confirmed_sequence);
    for (unsigned i = 0; i < CONFIRMED_WORDS; i++) confirmed[i] = atomic_load(&c->confirmed_slots[sequence & 1][i]);
    /* Sequence 0: a page of an older version has no confirmed record. */
    if (sequence != 0 && confirmed[COMMIT_WORDS] != confirmed_check(confirmed)) return false;
    return words[DURABLE_WORDS - 1] == durable_check(words) && c->fixed_check == fixed_check(c) &&
           atomic_load(&c->failed_check) == failed_check(c);
}

err control_reset(struct control *c, const char *directory, struct fault *f)
{
    struct file_path path = file_path_name(directory, control_name);
    /* The stored lock shows only whether its holder was killed, and damage may look the same. */
    if (mutex_init(&c->mutex) < 0 || mutex_init(&c->durable_mutex) < 0)
        return fault_set(f, ERR_LOCK, 0, path.text, 0, 0, 0);
    atomic_store(&c->generation, generation_now);
    atomic_store(&c->repair_wanted, 1);
    atomic_store(&c->readers, 0);
    atomic_store(&c->holders, 0);
    /* A damaged one is ignored: the archiver sends the messages again and raises it. */
    uint64_t remote = atomic_load(&c->remote_offset);
    if (c->fixed_check && atomic_load(&c->remote_check) != words_check(&remote, 1)) control_remote_set(c, 0);
    return OK;
}

err control_old_confirm(const char *directory, const struct commit *record, struct fault *f)
{
    _Alignas(struct control) uint8_t page[CONTROL_BYTES];
    struct control *c = (struct control *)page;
    struct control_old old = {0};
    struct stat st;
    int fd;
    struct file_path path = file_path_name(directory, control_name);
    err e = file_open(path.text, O_RDWR | O_NOFOLLOW, &fd, f);
    if (e) return e == ERR_NOT_FOUND ? OK : e;
    if (sys->fstat(fd, &st) < 0) e = fault_from_errno(f, path.text, 0, 0, 0);
    if (!e && st.st_size == CONTROL_BYTES) {
        e = file_read_exact(fd, path.text, page, sizeof page, 0, f);
        bool is_old = !e && c->magic == CONTROL_MAGIC && c->version == CONTROL_VERSION && !control_is_deleted(c) &&
                      !control_of_this_boot(c, (uint64_t)st.st_ino);
        if (is_old) old_confirmed(c, &old);
        if (is_old && (!old.has_confirmed || old.confirmed.next_offset < record->next_offset)) {
            /* No other process has the page: both slots get this record. */
            uint64_t words[CONFIRMED_WORDS];
            memcpy(words, record, sizeof *record);
            words[COMMIT_WORDS] = confirmed_check(words);
            record_store(&c->confirmed_sequence, &c->confirmed_slots[0][0], CONFIRMED_WORDS, words);
            record_store(&c->confirmed_sequence, &c->confirmed_slots[0][0], CONFIRMED_WORDS, words);
            e = file_write(fd, path.text, page, sizeof page, 0, f);
            if (!e) e = file_datasync(fd, path.text, f);
        }
    }
    file_close(&fd);
    return e;
}

void control_check(const struct control *c)
{
    struct commit commit;
    struct durable durable;
    control_committed(c, &commit);
    CHECK(c->magic == CONTROL_MAGIC && c->version == CONTROL_VERSION && c->epoch > 0);
    CHECK(commit.position >= SEGMENT_HEADER_BYTES && commit.batch_position <= commit.position);
    CHECK(commit.next_offset >= commit.segment && commit.position <= UINT32_MAX);
    CHECK(commit.position > SEGMENT_HEADER_BYTES || commit.chunks == 0);
    /* Loaded after the commit record, durable may be ahead of it only if another committed since;
     * with the mutex held nobody does. */
    control_durable(c, &durable);
    CHECK(durable.offset <= commit.next_offset && durable.segment <= commit.segment);
    CHECK(durable.segment < commit.segment || durable.position <= commit.position);
    struct commit confirmed;
    control_confirmed_record(c, &confirmed);
    CHECK(confirmed.next_offset <= commit.next_offset && confirmed.segment <= commit.segment);
    CHECK(confirmed.segment < commit.segment || confirmed.position <= commit.position);
}
