/* SPDX-License-Identifier: Apache-2.0
 *
 * dump: any file of a log as lines of text.
 *
 * A segment is walked like a reader would, with every CRC compared; what is damaged is told and stepped over.  Bytes
 * past what is committed are shown too, because nobody dumps a file whose story they know.
 */
#include "upkeep.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "cold.h"
#include "offsets.h"
#include "segment.h"

#define LINE_BYTES_MAX 1024
#define ENTRY_HEX_BYTES 24u /* of an entry's body: enough to know it again */

struct dump {
    const char *path;
    const struct dump_options *options;
    int (*line)(void *context, const char *text);
    void *context;
    struct fault *f;
    bool stopped, damaged;
    uint64_t damaged_at; /* the first damaged byte */
};

__attribute__((format(printf, 2, 3))) static void say(struct dump *d, const char *format, ...)
{
    char text[LINE_BYTES_MAX];
    va_list args;
    if (d->stopped) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    d->stopped = d->line(d->context, text) != 0;
}

static void note_damage(struct dump *d, uint64_t at)
{
    if (!d->damaged) d->damaged_at = at;
    d->damaged = true;
}

/* Of what is not as it should be, from byte `at` on. */
#define say_damaged(d, at, ...) (note_damage(d, at), say(d, __VA_ARGS__))

/* Of `bytes` bytes from `from` on whose CRC differs from the stored one by `difference`: where one flipped bit explains that. */
static void say_range_damaged(struct dump *d, const char *what, const struct chunk *c, uint64_t from, uint64_t bytes,
                              uint64_t difference)
{
    uint64_t at;
    if (crc32_is_one_bit((uint32_t)difference, bytes, &at))
        say_damaged(d, from + at, "  DAMAGED %s of chunk %" PRIu64 ": one bit of byte %" PRIu64, what, c->chunk_id, from + at);
    else
        say_damaged(d, from, "  DAMAGED %s of chunk %" PRIu64 ": bytes %" PRIu64 " to %" PRIu64 " differ from their CRC", what,
                    c->chunk_id, from, from + bytes - 1);
}

static bool enough(const struct dump *d, uint64_t count)
{
    return d->stopped || (d->options->limit && count >= d->options->limit);
}

/* A reference is a peer's text: what is not plain ASCII is shown as hex. */
static const char *printable(const char *text, uint32_t bytes, char out[4 * TRACKING_REFERENCE_BYTES_MAX + 1])
{
    size_t at = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c < 0x7F && c != '\\') out[at++] = (char)c;
        else at += (size_t)sprintf(out + at, "\\x%02x", c);
    }
    out[at] = 0;
    return out;
}

/* ---- segments ---- */

static void dump_entries(struct dump *d, const struct scan *s, uint64_t position, const struct chunk *c)
{
    uint8_t *data = malloc(c->data_bytes ? c->data_bytes : 1);
    if (!data) {
        say(d, "  no memory for %" PRIu32 " bytes of entries", c->data_bytes);
        return;
    }
    uint64_t at_byte = position + CHUNK_HEADER_BYTES + c->bloom_bytes;
    if (file_read_exact(s->fd, d->path, data, c->data_bytes, at_byte, d->f) == OK) {
        const uint8_t *at = data, *end = data + c->data_bytes;
        struct chunk_entry e;
        uint64_t offset = c->chunk_id;
        err result;
        while ((result = chunk_entry_next(&at, end, &e)) == OK && !d->stopped) {
            char hex[2 * ENTRY_HEX_BYTES + 1] = "";
            for (uint32_t i = 0; i < e.body_bytes && i < ENTRY_HEX_BYTES; i++) sprintf(hex + 2 * i, "%02x", e.body[i]);
            if (e.is_sub_batch)
                say(d, "  offset %" PRIu64 ": sub-batch of %" PRIu32 ", compression %u, %" PRIu32 " bytes: %s", offset,
                    e.records, e.compression, e.body_bytes, hex);
            else say(d, "  offset %" PRIu64 ": %" PRIu32 " bytes: %s", offset, e.body_bytes, hex);
            offset += e.records;
        }
        if (!d->stopped && result != ERR_END) say(d, "  offset %" PRIu64 ": %s", offset, error_text(result));
    }
    free(data);
}

static void dump_trailer(struct dump *d, const struct scan *s, uint64_t position, const struct chunk *c)
{
    uint8_t *trailer;
    char name[4 * TRACKING_REFERENCE_BYTES_MAX + 1];
    if (scan_trailer(s, position, c, &trailer, d->f)) {
        uint64_t from = position + chunk_bytes(c) - c->trailer_bytes;
        say_range_damaged(d, "trailer", c, from, c->trailer_bytes, d->f->needed ^ d->f->had);
        return;
    }
    if (!trailer) return;
    const uint8_t *at = trailer, *end = trailer + c->trailer_bytes;
    struct tracking_element e;
    while (tracking_element_next(&at, end, &e) == OK)
        say(d, "  publisher \"%.600s\" up to id %" PRIu64, printable(e.reference, e.bytes, name), e.value);
    free(trailer);
}

static void dump_filter(struct dump *d, const struct scan *s, uint64_t position, const struct chunk *c)
{
    uint8_t head[CHUNK_HEAD_BYTES_MAX];
    uint32_t bytes = CHUNK_HEADER_BYTES + c->bloom_bytes;
    if (c->bloom_bytes == 0 || file_read_exact(s->fd, d->path, head, bytes, position, d->f)) return;
    if (!filter_is_whole(head, c)) say_damaged(d, position + CHUNK_HEADER_BYTES, "  DAMAGED filter of chunk %" PRIu64 ", from byte %" PRIu64
                                              " on: the chunk goes to every consumer", c->chunk_id, position + CHUNK_HEADER_BYTES);
}

static void dump_chunk(struct dump *d, const struct scan *s, uint64_t position, const struct chunk *c)
{
    say(d, "%" PRIu64 ": chunk %" PRIu64 ", %u entries, %" PRIu32 " records, %" PRId64 " ms, epoch %" PRIu32
        ", crc %08" PRIx32 ", filter %u, data %" PRIu32 ", trailer %" PRIu32, position, c->chunk_id, c->entries, c->records,
        c->timestamp_ms, c->epoch, c->crc, c->bloom_bytes, c->data_bytes, c->trailer_bytes);
    dump_filter(d, s, position, c);
    if (scan_entries(s, position, c, d->f))
        say_range_damaged(d, "entries", c, position + CHUNK_HEADER_BYTES + c->bloom_bytes, c->data_bytes, d->f->needed ^ d->f->had);
    if (d->options->entries) dump_entries(d, s, position, c);
    dump_trailer(d, s, position, c);
}

/* The directory and the number from the path; false for a file with another name. */
static bool split_path(const char *path, char directory[FILE_DIRECTORY_BYTES_MAX], uint64_t *segment, const char *suffix)
{
    const char *slash = strrchr(path, '/');
    size_t size = slash ? (size_t)(slash - path) : 0;
    if (size >= FILE_DIRECTORY_BYTES_MAX || !file_name_parse(slash ? slash + 1 : path, suffix, segment)) return false;
    if (slash) memcpy(directory, path, size);
    else memcpy(directory, ".", size = 1);
    if (slash == path) memcpy(directory, "/", size = 1);
    directory[size] = 0;
    return true;
}

static err dump_segment(struct dump *d, int fd, uint64_t size, const uint8_t *head, size_t head_bytes)
{
    char directory[FILE_DIRECTORY_BYTES_MAX] = "";
    struct segment_header h = {0};
    struct scan s = {.fd = fd, .limit = size, .directory = directory};
    bool named = split_path(d->path, directory, &s.segment, SEGMENT_SUFFIX);
    err known = segment_header_read(d->path, head, head_bytes, &h, d->f);
    if (known == ERR_VERSION) return known;
    if (known == OK) {
        s.seed = h.seed;
        if (!named) s.segment = h.first_offset;
        say(d, "segment: first offset %" PRIu64 ", created %" PRId64 " ms, seed %08" PRIx32 ", %" PRIu64 " bytes",
            h.first_offset, h.created_ms, h.seed, size);
        if (h.boot) say(d, "begun %" PRIu32 " s after boot %08" PRIx32, h.boot_s, h.boot);
        if (h.turned_segment) say(d, "times went back at segment %" PRIu64, h.turned_segment - 1);
        say(d, "durable when begun: segment %" PRIu64 " up to byte %" PRIu64 "%s", h.durable_segment, h.durable_position,
            h.suspect_position ? "; the segment before was closed by a failed sync" : "");
    } else {
        say_damaged(d, 0, "DAMAGED segment header: bytes 0 to %u", SEGMENT_HEADER_BYTES - 1);
        if (!named || index_seed(directory, s.segment, &s.seed, d->f)) return fault_set(d->f, ERR_CORRUPT, 0, d->path, 0, 0, 0);
    }
    uint64_t position = SEGMENT_HEADER_BYTES, id = s.segment;
    for (uint64_t count = 0; !enough(d, count); count++) {
        struct chunk c;
        err e = scan_header(&s, position, &c, d->f);
        if (e == ERR_END) break;
        if (e && e != ERR_CORRUPT) return e;
        if (e == OK) {
            dump_chunk(d, &s, position, &c);
            position += chunk_bytes(&c);
            id = c.chunk_id + c.records;
            continue;
        }
        uint64_t from = position;
        int flipped;
        bool one_bit = scan_header_one_bit(&s, position, id, &c, &flipped) && flipped >= 0;
        e = scan_past(&s, UINT64_MAX, &position, &id, d->f);
        if (e) return e;
        if (one_bit)
            say_damaged(d, from + (uint64_t)flipped, "%" PRIu64 ": DAMAGED header of chunk %" PRIu64 ": one bit of byte %" PRIu64
                        ", %" PRIu64 " bytes stepped over", from, c.chunk_id, from + (uint64_t)flipped, position - from);
        else say_damaged(d, from, "%" PRIu64 ": DAMAGED, %" PRIu64 " bytes stepped over", from, position - from);
    }
    return OK;
}

/* ---- the other files ---- */

static err dump_index(struct dump *d, int fd, uint64_t size, const uint8_t *head, size_t head_bytes)
{
    uint64_t first;
    uint32_t seed;
    err known = index_header_read(d->path, head, head_bytes, &first, &seed, d->f);
    if (known == ERR_VERSION) return known;
    if (known) {
        say(d, "DAMAGED index header");
        return fault_set(d->f, ERR_CORRUPT, 0, d->path, 0, INDEX_HEADER_BYTES, head_bytes);
    }
    say(d, "index: segment %" PRIu64 ", seed %08" PRIx32 ", %" PRIu64 " records", first, seed,
        (size - INDEX_HEADER_BYTES) / INDEX_RECORD_BYTES);
    for (uint64_t i = 0; INDEX_HEADER_BYTES + (i + 1) * INDEX_RECORD_BYTES <= size && !enough(d, i); i++) {
        uint8_t data[INDEX_RECORD_BYTES];
        struct index_record r;
        err e = file_read_exact(fd, d->path, data, sizeof data, INDEX_HEADER_BYTES + i * INDEX_RECORD_BYTES, d->f);
        if (e) return e;
        if (index_record_read(data, sizeof data, seed, &r) == OK)
            say(d, "%" PRIu64 ": chunk %" PRIu64 ", %" PRId64 " ms, byte %" PRIu32 ", %" PRIu32 " bytes, %" PRIu32 " records",
                i, r.chunk_id, r.timestamp_ms, r.position, r.chunk_bytes, r.records);
        else say_damaged(d, INDEX_HEADER_BYTES + i * INDEX_RECORD_BYTES, "%" PRIu64 ": DAMAGED", i);
    }
    return OK;
}

static void dump_table(struct dump *d, struct tracking *t)
{
    char name[4 * TRACKING_REFERENCE_BYTES_MAX + 1];
    const struct tracking_slot *s;
    uint32_t at = 0;
    for (uint64_t count = 0; !enough(d, count) && (s = tracking_next(t, &at)) != NULL; count++) {
        if (s->chunk == TRACKING_NEVER) say(d, "publisher \"%.600s\", declared and never published", printable(s->text, s->bytes, name));
        else say(d, "publisher \"%.600s\" up to id %" PRIu64 ", last seen in chunk %" PRIu64,
                 printable(s->text, s->bytes, name), s->sequence, s->chunk);
    }
}

/* Load the bytes of a mapped table into an empty one. */
static err table_load(struct dump *d, const uint8_t *data, uint64_t size, struct tracking *t)
{
    struct tracking_table *table;
    memcpy(t->table, data, TRACKING_HEADER_BYTES);
    if (t->table->version != TRACKING_VERSION || t->table->capacity > TRACKING_SLOTS || size < tracking_bytes(t->table->capacity)) return ERR_CORRUPT;
    table = realloc(t->table, tracking_bytes(t->table->capacity));
    if (!table) return fault_set(d->f, ERR_NO_MEMORY, 0, d->path, 0, size, 0);
    t->table = table;
    memcpy(t->table, data, tracking_bytes(t->table->capacity));
    return tracking_is_whole(t) ? OK : ERR_CORRUPT;
}

static err dump_tracking(struct dump *d, int fd, uint64_t size, bool snapshot)
{
    uint64_t size_max = snapshot ? TRACKING_SNAPSHOT_BYTES_MAX : tracking_bytes(TRACKING_SLOTS);
    uint64_t size_min = snapshot ? 0 : TRACKING_HEADER_BYTES;
    if (size > size_max || size < size_min) {
        say(d, "DAMAGED: %" PRIu64 " bytes, should be %" PRIu64 " to %" PRIu64, size, size_min, size_max);
        return fault_set(d->f, ERR_CORRUPT, 0, d->path, 0, size_max, size);
    }
    struct tracking *t;
    err e = tracking_new(&t, d->f);
    if (e) return e;
    uint8_t *data = malloc(size + 1);
    e = data ? file_read_exact(fd, d->path, data, size, 0, d->f) : fault_set(d->f, ERR_NO_MEMORY, 0, d->path, 0, size, 0);
    uint64_t segment = 0;
    if (!e && snapshot) {
        e = tracking_snapshot_decode(d->path, data, size, &segment, t, d->f);
        if (e && e != ERR_VERSION) say(d, "DAMAGED snapshot");
        else if (!e) say(d, "tracking snapshot: as segment %" PRIu64 " began", segment);
    } else if (!e) {
        e = table_load(d, data, size, t);
        say(d, e == ERR_CORRUPT ? "tracking table, DAMAGED or of version 1" : "tracking table");
    }
    if (!e) dump_table(d, t);
    else if (e == ERR_CORRUPT || e == ERR_TRUNCATED) e = fault_set(d->f, ERR_CORRUPT, 0, d->path, 0, 0, size);
    free(data);
    tracking_free(t);
    return e;
}

static err dump_control(struct dump *d, int fd, uint64_t size)
{
    _Alignas(struct control) uint8_t page[CONTROL_BYTES];
    if (size != CONTROL_BYTES) return fault_set(d->f, ERR_CORRUPT, 0, d->path, 0, CONTROL_BYTES, size);
    err e = file_read_exact(fd, d->path, page, sizeof page, 0, d->f);
    if (e) return e;
    const struct control *c = (const struct control *)page;
    struct commit commit;
    struct durable durable;
    control_committed(c, &commit);
    control_durable(c, &durable);
    struct commit confirmed;
    control_confirmed_record(c, &confirmed);
    static const char *const durabilities[] = {"os", "disk", "remote"};
    say(d, "control: version %" PRIu32 ", state %" PRIu32 ", durability %s, epoch %" PRIu32, c->version,
        atomic_load(&c->state), c->durability <= DURABILITY_REMOTE ? durabilities[c->durability] : "unknown", c->epoch);
    say(d, "committed: segment %" PRIu64 ", bytes %" PRIu64 " to %" PRIu64 " are the newest batch, %" PRIu64 " chunks",
        commit.segment, commit.batch_position, commit.position, commit.chunks);
    say(d, "next offset %" PRIu64 ", last chunk %" PRId64 ", newest %" PRId64 " ms, first offset %" PRIu64,
        commit.next_offset, (int64_t)commit.last_chunk, commit.timestamp_ms, atomic_load(&c->first_offset));
    say(d, "durable: segment %" PRIu64 " up to byte %" PRIu64 ", offsets below %" PRIu64, durable.segment, durable.position,
        durable.offset);
    say(d, "confirmed: segment %" PRIu64 " up to byte %" PRIu64 ", offsets below %" PRIu64 "; readers end %s", confirmed.segment,
        confirmed.position, confirmed.next_offset, control_readers_wait(c) ? "there" : "at the commit record");
    say(d, "object store: offsets below %" PRIu64 "; kept here %" PRIu64 " bytes, %" PRIu64 " ms", atomic_load(&c->remote_offset),
        atomic_load(&c->local_bytes_max), atomic_load(&c->local_age_ms_max));
    say(d, "limits: segment %" PRIu64 " bytes, %" PRIu64 " chunks; retention %" PRIu64 " bytes, %" PRIu64 " ms; filters %"
        PRIu32 " bytes; chunks %" PRIu32 " messages", atomic_load(&c->segment_bytes_max), c->segment_chunks_max, atomic_load(&c->retention_bytes_max),
        atomic_load(&c->retention_age_ms_max), atomic_load(&c->filter_bytes),
        atomic_load(&c->chunk_messages_max));
    uint64_t failed = atomic_load(&c->failed_count);
    for (uint64_t i = 0; i < failed && i < CONTROL_FAILED_MAX; i++)
        say(d, "never made durable: offsets %" PRIu64 " to below %" PRIu64, atomic_load(&c->failed[i][0]),
            atomic_load(&c->failed[i][1]));
    return OK;
}

/* ---- stored offsets ---- */

static err dump_offsets(struct dump *d, int fd, uint64_t size, const uint8_t *head)
{
    uint64_t generation, count = 0;
    err e = offsets_header_read(d->path, head, &generation, d->f);
    if (e == ERR_VERSION) return e;
    if (e) say_damaged(d, 0, "stored offsets, DAMAGED header");
    else say(d, "stored offsets");
    for (uint64_t at = OFFSETS_RECORD_BYTES; at + OFFSETS_RECORD_BYTES <= size && !enough(d, count); at += OFFSETS_RECORD_BYTES) {
        uint8_t data[OFFSETS_RECORD_BYTES];
        char name[4 * TRACKING_REFERENCE_BYTES_MAX + 1];
        struct offsets_record r;
        e = file_read_exact(fd, d->path, data, sizeof data, at, d->f);
        if (e) return e;
        e = offsets_record_read(data, &r);
        if (e == ERR_EMPTY) continue;
        count++;
        if (e) say_damaged(d, at, "%" PRIu64 ": DAMAGED record", at);
        else say(d, "%" PRIu64 ": \"%.600s\" at offset %" PRIu64 ", %" PRId64 " ms", at, printable(r.reference, r.bytes, name),
                 r.offset, r.written_ms);
    }
    return OK;
}

/* ---- what lies in the object store ---- */

static err dump_stub(struct dump *d, const uint8_t *head, size_t got)
{
    struct stub s;
    err e = stub_decode(d->path, head, got, &s, d->f);
    if (e && e != ERR_VERSION) say_damaged(d, 0, "stub, DAMAGED");
    else if (!e)
        say(d, "stub: segment %" PRIu64 " up to offset %" PRIu64 ", %" PRIu64 " bytes, %" PRId64 " to %" PRId64 " ms, seed 0x%08" PRIx32
            ", epoch %" PRIu32 ", broker's epoch %" PRIu32 ": whole in the object store", s.first, s.next, s.bytes, s.oldest_ms,
            s.newest_ms, s.seed, s.epoch, s.broker_epoch);
    return e == ERR_VERSION ? e : OK;
}

static err dump_cold(struct dump *d, int fd, const uint8_t *head, size_t got)
{
    uint64_t segment = bytes_load64(head + 8), bytes = bytes_load64(head + 16), count = 0;
    uint8_t marks[COLD_BLOCKS_MAX] = {0};
    err e = cold_header_decode(d->path, head, got, segment, bytes, d->f);
    if (e == ERR_VERSION) return e;
    if (e || bytes > UINT32_MAX) {
        say_damaged(d, 0, "blocks of a cold segment, DAMAGED header");
        return OK;
    }
    e = file_read(fd, d->path, marks, sizeof marks, COLD_HEADER_BYTES, &got, d->f);
    for (uint32_t i = 0; i < cold_blocks(bytes) && !e; i++) count += marks[i] != 0;
    if (!e) say(d, "blocks of cold segment %" PRIu64 ": %" PRIu64 " of %" PRIu32 " are here, of %" PRIu64 " bytes", segment, count,
                cold_blocks(bytes), bytes);
    for (uint32_t i = 0; i < cold_blocks(bytes) && !e && !enough(d, i); i++)
        if (marks[i]) say(d, "block %" PRIu32 ": %" PRIu64 " bytes from %" PRIu64 " on", i, cold_block_bytes(bytes, i),
                          (uint64_t)i * COLD_BLOCK_BYTES);
    return e;
}

/* ---- telling them apart ---- */

static err dump_open(struct dump *d, int fd, uint64_t size)
{
    uint8_t head[SEGMENT_HEADER_BYTES] = {0};
    size_t got;
    uint64_t number;
    char directory[FILE_DIRECTORY_BYTES_MAX];
    err e = file_read(fd, d->path, head, sizeof head, 0, &got, d->f);
    if (e) return e;
    uint32_t native;
    memcpy(&native, head, sizeof native); /* mapped files are written in the machine's own order */
    uint32_t magic = bytes_load32(head);
    if (magic == INDEX_MAGIC) return dump_index(d, fd, size, head, got);
    if (magic == TRACKING_SNAPSHOT_MAGIC) return dump_tracking(d, fd, size, true);
    if (magic == OFFSETS_MAGIC) return dump_offsets(d, fd, size, head);
    if (magic == STUB_MAGIC) return dump_stub(d, head, got);
    if (magic == COLD_MAGIC) return dump_cold(d, fd, head, got);
    if (native == TRACKING_MAGIC || native == CONTROL_MAGIC) {
        bool table = native == TRACKING_MAGIC;
        e = file_page_version(d->path, head, got, table ? &tracking_kind : &control_kind, d->f);
        return e ? e : table ? dump_tracking(d, fd, size, false) : dump_control(d, fd, size);
    }
    /* A segment whose header is damaged is known by its name. */
    if (magic == SEGMENT_MAGIC || split_path(d->path, directory, &number, SEGMENT_SUFFIX))
        return dump_segment(d, fd, size, head, got);
    return fault_set(d->f, ERR_INVALID, 0, d->path, 0, SEGMENT_MAGIC, magic);
}

err dump_file(const char *path, const struct dump_options *options, int (*line)(void *context, const char *text),
              void *context, struct fault *f)
{
    struct fault unused;
    struct dump d = {.path = path, .options = options, .line = line, .context = context, .f = f ? f : &unused};
    int fd;
    uint64_t size;
    err e = file_open(path, O_RDONLY, &fd, d.f);
    if (e) return e;
    e = file_size(fd, path, &size, d.f);
    if (!e) e = dump_open(&d, fd, size);
    file_close(&fd);
    if (!e && d.damaged) return fault_set(d.f, ERR_CORRUPT, 0, path, d.damaged_at, 0, 0);
    return e;
}
