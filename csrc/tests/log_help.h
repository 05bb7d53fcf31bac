/* SPDX-License-Identifier: Apache-2.0
 *
 * log_help: what the tests of the log share: making logs, filling batches, reading back.
 */
#ifndef VIBEMQ_TESTS_LOG_HELP_H
#define VIBEMQ_TESTS_LOG_HELP_H

#include <sys/stat.h>
#include <fcntl.h>

#include "../base/bytes.h"
#include "../base/sys.h"
#include "../log/log.h"
#include "../log/reader.h"
#include "../log/upkeep.h"
#include "test.h"

/* A path under the scratch directory that nothing uses yet. */
TEST_UNUSED static const char *help_path(void)
{
    static int count;
    static char paths[8][512];
    char *path = paths[count % 8];
    snprintf(path, sizeof paths[0], "%s/log%d", test_scratch(), count++);
    return path;
}

/* A wall clock that tests set: `sys` is the real one but for it, until somebody sets `sys` again.  The time since boot is
 * the same, less what the wall clock is wrong by. */
static int64_t help_clock_ms, help_wrong_ms;
static struct sys help_sys;
TEST_UNUSED static int64_t help_now(void) { return help_clock_ms + help_wrong_ms; }
TEST_UNUSED static int64_t help_boot(void) { return help_clock_ms; }

TEST_UNUSED static void help_use_clock(void)
{
    help_sys = sys_real;
    help_sys.now_ms = help_now;
    help_sys.boot_ms = help_boot;
    help_wrong_ms = 0;
    sys = &help_sys;
}

TEST_UNUSED static void help_fault(const struct fault *f)
{
    char line[600];
    fault_format(f, line, sizeof line);
    printf("    %s\n", line);
}

TEST_UNUSED static struct log *help_log(const char *path, const struct log_options *options)
{
    struct log *l = NULL;
    struct fault f = {0};
    if (!EXPECT_OK(log_create(path, options, &f)) || !EXPECT_OK(log_open(path, &l, &f))) {
        help_fault(&f);
        exit(1);
    }
    return l;
}

/* One simple entry: length, then text. */
TEST_UNUSED static uint32_t help_entry(uint8_t *out, const void *text, uint32_t bytes)
{
    bytes_store32(out, bytes);
    memcpy(out + 4, text, bytes);
    return bytes + 4;
}

TEST_UNUSED static err help_add(struct batch *b, const char *text)
{
    uint8_t entry[1024];
    return batch_add(b, entry, help_entry(entry, text, (uint32_t)strlen(text)), 1);
}

/* The index of the first publisher of that reference, added if there is none. */
TEST_UNUSED static err help_reference(struct batch *b, const char *reference, uint32_t *index)
{
    uint32_t bytes = (uint32_t)strlen(reference);
    for (*index = 0; *index < b->reference_count; ++*index) {
        const struct batch_reference *r = &b->references[*index];
        if (r->bytes == bytes && memcmp(r->text, reference, bytes) == 0) return OK;
    }
    return batch_reference_add(b, reference, bytes, index);
}

TEST_UNUSED static err help_add_tracked(struct batch *b, const char *reference, uint64_t id, const char *text)
{
    uint8_t entry[1024];
    uint32_t index;
    err e = help_reference(b, reference, &index);
    return e ? e : batch_add_tracked(b, entry, help_entry(entry, text, (uint32_t)strlen(text)), 1, index, id);
}

/* Seal, append, clear. */
TEST_UNUSED static err help_append(struct log *l, struct batch *b, struct log_appended *out)
{
    struct log_appended mine;
    struct fault f = {0};
    err e = batch_seal(b, &f);
    if (!e) e = log_append(l, b, out ? out : &mine, &f);
    batch_clear(b);
    return e;
}

/* Append `count` messages "m<offset>" of at least `bytes` in one batch. */
TEST_UNUSED static err help_fill(struct log *l, struct batch *b, uint64_t count, uint32_t bytes, struct log_appended *out)
{
    struct commit c;
    control_committed(log_control(l), &c);
    for (uint64_t i = 0; i < count; i++) {
        char text[2048];
        uint8_t entry[2060];
        memset(text, '.', sizeof text);
        int n = snprintf(text, sizeof text, "m%" PRIu64, c.next_offset + i);
        text[n] = ' ';
        uint32_t size = bytes > (uint32_t)n ? bytes : (uint32_t)n;
        err e = batch_add(b, entry, help_entry(entry, text, size), 1);
        if (e) return e;
    }
    return help_append(l, b, out);
}

/* What a walk over the log found. */
struct help_walk {
    uint64_t chunks, messages, damaged, first, next; /* first and next offset seen */
    err last;
    struct fault fault; /* of the last damage */
    /* Called for each message when set. */
    void (*message)(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes);
    void *context;
    const struct chunk *chunk;
    const uint8_t *data; /* of that chunk, from its header on */
};

TEST_UNUSED static void help_walk_chunk(struct help_walk *w, const uint8_t *data, const struct chunk *c)
{
    const uint8_t *at = data + CHUNK_HEADER_BYTES + c->bloom_bytes, *end = at + c->data_bytes;
    struct chunk_entry entry;
    uint64_t offset = c->chunk_id;
    while (chunk_entry_next(&at, end, &entry) == OK) {
        w->chunk = c;
        w->data = data;
        if (w->message) w->message(w, offset, entry.body, entry.body_bytes);
        offset += entry.records;
        w->messages += entry.records;
    }
    EXPECT_EQ(c->chunk_id + c->records, offset);
    if (w->chunks == 0) w->first = c->chunk_id;
    EXPECT(w->chunks == 0 || c->chunk_id >= w->next);
    w->next = offset;
    w->chunks++;
}

/* Read to the end from where the reader stands, checking every CRC and stepping over damage. */
TEST_UNUSED static void help_walk_on(struct help_walk *w, struct reader *r)
{
    uint64_t size = 1 << 16, got;
    uint8_t *buffer = malloc(size);
    for (;;) {
        w->last = reader_fetch(r, buffer, size, false, &got, &w->fault);
        if (w->last == ERR_CORRUPT) { /* the file ends too early */
            w->damaged++;
            w->last = reader_skip_damaged(r, &w->fault);
            if (w->last) break;
            continue;
        }
        if (w->last) break;
        uint64_t at = 0;
        while (at < got) {
            struct chunk c;
            err e = reader_chunk(r, buffer + at, got - at, true, &c, &w->fault);
            if (e == ERR_CORRUPT) {
                w->damaged++;
                if (!EXPECT_OK(reader_skip_damaged(r, NULL))) goto out;
                break;
            }
            if (e == ERR_TRUNCATED) {
                if (at == 0 && got == size) {
                    size = chunk_bytes(&c);
                    buffer = realloc(buffer, size);
                }
                break;
            }
            help_walk_chunk(w, buffer + at, &c);
            reader_advance(r, &c);
            at += chunk_bytes(&c);
        }
    }
out:
    free(buffer);
}

TEST_UNUSED static void help_walk_log(struct help_walk *w, struct log *l)
{
    struct reader r;
    struct fault f = {0};
    w->last = reader_open(&r, l, READER_FIRST, 0, &f);
    if (!EXPECT_OK(w->last)) {
        help_fault(&f);
        return;
    }
    help_walk_on(w, &r);
    EXPECT_ERR(ERR_END, w->last);
    reader_close(&r);
}

/* For help_walk.message: are they what help_fill wrote? */
TEST_UNUSED static void help_message_is_ours(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    char text[32];
    int n = snprintf(text, sizeof text, "m%" PRIu64 " ", offset);
    (void)w;
    EXPECT(bytes >= (uint32_t)n && memcmp(body, text, (size_t)n) == 0);
}

/* The whole log is [first, next), each message as help_fill wrote it. */
TEST_UNUSED static void help_read_all(struct log *l, uint64_t first, uint64_t next)
{
    struct help_walk w = {.message = help_message_is_ours};
    help_walk_log(&w, l);
    EXPECT_EQ(first, w.first);
    EXPECT_EQ(next, w.next);
    EXPECT_EQ(next - first, w.messages);
    EXPECT_EQ(0, w.damaged);
}

#endif
