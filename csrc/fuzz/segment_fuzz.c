/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever bytes a segment file and its index hold, recovery ends with a log that opens, reads
 * without damage what it kept of what was not promised, also with a filter, and takes an append.
 *
 * The first byte says how much of the input is the index (in 1/256) and the second how many good
 * chunks were durable: a durable place is always one where a chunk ends, or its check fails.
 * The headers of both files are right, or no input would come far.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "../log/upkeep.h"
#include "../log/handle.h"
#include "../log/reader.h"
#include "fuzz.h"

#define INPUT_MAX_BYTES 16384
#define SEED 0x5EEDu /* as in seeds.c */

static char directory[64];

static void put(const char *suffix, const uint8_t *header, size_t header_bytes, const uint8_t *data, size_t size)
{
    struct file_path path = file_path_numbered(directory, 0, suffix);
    int fd = open(path.text, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, header, header_bytes) == (ssize_t)header_bytes);
    CHECK(write(fd, data, size) == (ssize_t)size);
    close(fd);
}

/* The end of good chunk number `count`, or of the last one. */
static uint64_t durable_end(const uint8_t *data, size_t size, unsigned count)
{
    uint64_t end = 0, at = 0;
    while (count > 0 && at + CHUNK_HEADER_BYTES <= size) {
        struct chunk c;
        if (chunk_header_read(data + at, size - at, SEED, &c) == OK && chunk_verify(data + at, size - at, &c) == OK) {
            at += chunk_bytes(&c);
            end = at;
            count--;
        } else at++;
    }
    return SEGMENT_HEADER_BYTES + end;
}

static int ignore(void *context, const char *line)
{
    (void)context, (void)line;
    return 0;
}

static uint64_t read_all(struct log *l)
{
    static uint8_t buffer[1 << 20];
    struct reader r;
    struct fault f;
    uint64_t messages = 0, got, steps = 0;
    CHECK(reader_open(&r, l, READER_FIRST, 0, &f) == OK);
    for (;;) {
        struct chunk c;
        CHECK(steps++ < INPUT_MAX_BYTES);
        err e = reader_fetch(&r, buffer, sizeof buffer, false, &got, &f);
        if (e == ERR_END) break;
        if (!e) e = reader_chunk(&r, buffer, got, true, &c, &f);
        CHECK(e == OK || e == ERR_CORRUPT);
        uint64_t before = r.position;
        if (e) CHECK(reader_skip_damaged(&r, &f) == OK);
        else {
            reader_advance(&r, &c);
            messages += c.records;
        }
        CHECK(r.position > before);
    }
    reader_close(&r);
    return messages;
}

/* What a consumer with a filter passes over, it passes over for good. */
static void skip_all(struct log *l)
{
    static const uint8_t value[] = {'e', 'u'};
    struct filter filter;
    struct reader r;
    struct fault f;
    uint32_t skipped, steps = 0;
    filter_init(&filter, false);
    CHECK(filter_add(&filter, value, sizeof value) == OK && reader_open(&r, l, READER_FIRST, 0, &f) == OK);
    for (;;) {
        uint64_t before = r.position;
        uint8_t head[CHUNK_HEAD_BYTES_MAX];
        uint64_t got;
        struct chunk c;
        err e = reader_skip(&r, &filter, 2, false, &skipped, &f);
        CHECK(steps++ < INPUT_MAX_BYTES && skipped <= 2 && (skipped > 0) == (r.position > before));
        if (e == ERR_END) break;
        CHECK(e == OK || e == ERR_CORRUPT);
        if (e) CHECK(reader_skip_damaged(&r, &f) == OK);
        else if (skipped < 2) {
            CHECK(reader_fetch(&r, head, sizeof head, false, &got, &f) == OK && reader_header(&r, head, got, &c, &f) == OK);
            CHECK(filter_matches(&filter, head, &c));
            reader_advance(&r, &c);
        }
        CHECK(r.position > before);
    }
    reader_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > INPUT_MAX_BYTES) return 0;
    if (!directory[0]) {
        snprintf(directory, sizeof directory, "/dev/shm/vibemq-fuzz-XXXXXX");
        CHECK(mkdtemp(directory) != NULL);
    }
    mkdir(directory, 0700);
    size_t index_bytes = (size - 2) * data[0] / 256, segment_bytes = size - 2 - index_bytes;
    uint8_t header[SEGMENT_HEADER_BYTES], index_header[INDEX_HEADER_BYTES];
    struct segment_header h = {.seed = SEED, .durable_position = durable_end(data + 2, segment_bytes, data[1])};
    segment_header_write(&h, header);
    index_header_write(0, SEED, index_header);
    put(SEGMENT_SUFFIX, header, sizeof header, data + 2, segment_bytes);
    put(INDEX_SUFFIX, index_header, sizeof index_header, data + 2 + segment_bytes, index_bytes);

    struct recovery_report report;
    struct fault f;
    struct log *l;
    struct batch b;
    struct log_appended a;
    struct log_stats before, after;
    static const uint8_t entry[] = {0, 0, 0, 1, 'x'};
    CHECK(recovery_run(directory, &(struct log_options){0}, NULL, &report, &f) == OK && report.ran);
    CHECK(log_open(directory, &l, &f) == OK);
    CHECK(log_stats(l, &before, &f) == OK);
    uint64_t messages = read_all(l);
    skip_all(l);
    CHECK(batch_init(&b, &f) == OK && batch_add(&b, entry, sizeof entry, 1) == OK && batch_seal(&b, &f) == OK);
    if (before.next_offset < UINT64_MAX - 1) {
        CHECK(log_append(l, &b, &a, &f) == OK);
        CHECK(log_stats(l, &after, &f) == OK && after.next_offset == before.next_offset + 1);
        CHECK(read_all(l) == messages + 1);
    }
    batch_free(&b);
    struct file_path path = file_path_numbered(directory, 0, SEGMENT_SUFFIX);
    dump_file(path.text, &(struct dump_options){.entries = true}, ignore, NULL, &f);
    log_close(l);
    CHECK(log_remove(directory, &f) == OK);
    return 0;
}
