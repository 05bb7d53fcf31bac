/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever bytes a stub, a file of blocks, an index and the blocks hold, a log recovers beside them, and readers that may
 * not wait end: at what is not here, at the log's end, or with an error, and never by going round in a circle.
 *
 * The first byte says which headers are put right (1: the stub's, 2: the blocks'), the second how much of what follows
 * them is the index (in 1/256); the rest are chunks.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/bytes.h"
#include "../log/cold.h"
#include "../log/handle.h"
#include "../log/reader.h"
#include "../log/upkeep.h"
#include "fuzz.h"

#define INPUT_MAX_BYTES 16384
#define FIXED_BYTES (2 + STUB_BYTES + COLD_HEADER_BYTES + 1)

static char directory[64];

static void put(const char *suffix, const uint8_t *data, size_t size, off_t position)
{
    struct file_path path = file_path_numbered(directory, 0, suffix);
    int fd = open(path.text, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && pwrite(fd, data, size, position) == (ssize_t)size);
    close(fd);
}

static int ignore(void *context, const char *line)
{
    (void)context, (void)line;
    return 0;
}

static void read_all(struct log *l, enum reader_from from, int64_t value)
{
    static uint8_t buffer[1 << 16];
    struct reader r;
    struct fault f;
    uint64_t got;
    if (reader_open(&r, l, from, value, &f)) return;
    for (uint32_t steps = 0;; steps++) {
        struct chunk c;
        CHECK(steps < INPUT_MAX_BYTES);
        err e = reader_fetch(&r, buffer, sizeof buffer, true, &got, &f);
        if (!e) e = reader_chunk(&r, buffer, got, true, &c, &f);
        uint64_t segment = r.segment, position = r.position;
        if (e == ERR_CORRUPT) e = reader_skip_damaged(&r, &f);
        else if (!e) reader_advance(&r, &c);
        if (e) break;
        CHECK(r.segment == segment && r.position > position);
    }
    reader_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t stub[STUB_BYTES], header[COLD_HEADER_BYTES], index[INDEX_HEADER_BYTES];
    if (size < FIXED_BYTES || size > INPUT_MAX_BYTES) return 0;
    if (!directory[0]) {
        snprintf(directory, sizeof directory, "/dev/shm/vibemq-fuzz-XXXXXX");
        CHECK(mkdtemp(directory) != NULL);
    }
    mkdir(directory, 0700);
    memcpy(stub, data + 2, sizeof stub);
    memcpy(header, data + 2 + STUB_BYTES, sizeof header);
    if (data[0] & 1) {
        bytes_store64(stub + 8, 0);
        file_header_seal(stub, sizeof stub, STUB_MAGIC, STUB_VERSION);
    }
    if (data[0] & 2) cold_header_encode(0, bytes_load64(stub + 24), header);
    const uint8_t *rest = data + FIXED_BYTES;
    size_t left = size - FIXED_BYTES, index_bytes = left * data[1] / 256;
    index_header_write(0, bytes_load32(stub + 48), index);
    put(STUB_SUFFIX, stub, sizeof stub, 0);
    put(INDEX_SUFFIX, index, sizeof index, 0);
    put(INDEX_SUFFIX, rest, index_bytes, sizeof index);

    struct recovery_report report;
    struct fault f;
    struct log *l;
    struct log_stats stats;
    err e = recovery_run(directory, &(struct log_options){0}, NULL, &report, &f);
    CHECK(e == OK || e == ERR_VERSION);
    if (e == OK) {
        put(COLD_SUFFIX, header, sizeof header, 0);
        put(COLD_SUFFIX, data + FIXED_BYTES - 1, 1, COLD_HEADER_BYTES);
        put(COLD_SUFFIX, rest + index_bytes, left - index_bytes, COLD_PAGE_BYTES + SEGMENT_HEADER_BYTES);
        CHECK(log_open(directory, &l, &f) == OK && log_stats(l, &stats, &f) == OK);
        read_all(l, READER_FIRST, 0);
        read_all(l, READER_LAST, 0);
        read_all(l, READER_OFFSET, 3);
        read_all(l, READER_TIMESTAMP, 1700000000000);
        struct retention_report dropped;
        CHECK(retention_run(l, &dropped, &f) == OK);
        log_close(l);
    }
    static const char *const suffixes[] = {STUB_SUFFIX, COLD_SUFFIX, INDEX_SUFFIX};
    for (int i = 0; i < 3; i++) {
        struct file_path path = file_path_numbered(directory, 0, suffixes[i]);
        dump_file(path.text, &(struct dump_options){.entries = true}, ignore, NULL, &f);
    }
    CHECK(log_remove(directory, &f) == OK);
    return 0;
}
