/* SPDX-License-Identifier: Apache-2.0
 *
 * offsets: the file of stored offsets.
 *
 *   header   "VMQO" u32 | version u32 | generation u64 | CRC-32 u32 of these 16 bytes | places u32 | CRC-32 u32 of the 24
 *            bytes before it | zeros
 *   record   CRC-32 u32 of all that follows | kind u8 = 1 | size u8 | 0 u16 | written i64, ms | offset u64 |
 *            reference | zeros
 */
#include "offsets.h"

#include <stdlib.h>

#include "../base/bytes.h"
#include "../base/calls.h"
#include "../base/crc32.h"
#include "../base/file.h"
#include "../base/grow.h"

#define KIND_OFFSET 1u
#define REFERENCE_AT 24u
#define SCAN_RECORDS 32u /* at a time: 16 KiB of stack */
#define NOWHERE OFFSETS_REFERENCES_MAX
#define PLACES_AT OFFSETS_HEADER_BYTES /* behind the header of every version; 0, without a check, in older files */
#define PLACES_BYTES 8u

struct offsets {
    int fd;
    bool known;              /* what follows is what the file says */
    uint64_t generation;
    uint32_t count, damaged; /* places in the file, and how many of them hold nothing sound */
    uint32_t *hash;          /* of each place's reference; 0: the place is free */
    int64_t *written_ms;     /* of each place, as this handle last read it: the record may be newer */
    size_t hash_capacity, written_capacity;
    char path[];
};

/* ---- bytes ---- */

static bool all_zero(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (data[i]) return false;
    return true;
}

static uint32_t record_check(const uint8_t data[OFFSETS_RECORD_BYTES])
{
    return crc32_update(0, data + 4, OFFSETS_RECORD_BYTES - 4);
}

err offsets_record_read(const uint8_t data[OFFSETS_RECORD_BYTES], struct offsets_record *out)
{
    if (all_zero(data, OFFSETS_RECORD_BYTES)) return ERR_EMPTY;
    if (bytes_load32(data) != record_check(data) || data[4] != KIND_OFFSET) return ERR_CORRUPT;
    out->bytes = data[5];
    out->written_ms = (int64_t)bytes_load64(data + 8);
    out->offset = bytes_load64(data + 16);
    memcpy(out->reference, data + REFERENCE_AT, sizeof out->reference);
    return OK;
}

void offsets_record_write(const struct offsets_record *r, uint8_t out[OFFSETS_RECORD_BYTES])
{
    memset(out, 0, OFFSETS_RECORD_BYTES);
    out[4] = KIND_OFFSET;
    out[5] = r->bytes;
    bytes_store64(out + 8, (uint64_t)r->written_ms);
    bytes_store64(out + 16, r->offset);
    memcpy(out + REFERENCE_AT, r->reference, r->bytes);
    bytes_store32(out, record_check(out));
}

err offsets_header_read(const char *path, const uint8_t data[OFFSETS_HEADER_BYTES], uint64_t *generation,
                        struct fault *f)
{
    const uint32_t bytes = OFFSETS_HEADER_BYTES;
    err e = file_header_check(path, data, bytes, bytes, OFFSETS_MAGIC, OFFSETS_VERSION_OLDEST, NULL);
    if (e) e = file_header_check(path, data, bytes, bytes, OFFSETS_MAGIC, OFFSETS_VERSION, f);
    if (!e) *generation = bytes_load64(data + 8);
    return e;
}

static uint32_t reference_hash(const char *reference, uint32_t bytes)
{
    return crc32_update(0, reference, bytes) | 1u; /* 0 means free */
}

static uint64_t record_position(uint32_t place) { return (uint64_t)(place + 1) * OFFSETS_RECORD_BYTES; }

/* ---- the file ---- */

err offsets_open(const char *directory, struct offsets **out, struct fault *f)
{
    size_t size = strlen(directory);
    if (size >= FILE_DIRECTORY_BYTES_MAX) return fault_set(f, ERR_LIMIT, 0, directory, 0, FILE_DIRECTORY_BYTES_MAX - 1, size);
    struct file_path path = file_path_name(directory, "offsets");
    struct offsets *o = calloc(1, sizeof *o + strlen(path.text) + 1);
    if (!o) return fault_set(f, ERR_NO_MEMORY, 0, directory, 0, sizeof *o, 0);
    o->fd = -1;
    memcpy(o->path, path.text, strlen(path.text) + 1);
    *out = o;
    return OK;
}

void offsets_close(struct offsets *o)
{
    if (!o) return;
    file_close(&o->fd);
    free(o->hash);
    free(o->written_ms);
    free(o);
}

uint32_t offsets_damaged(const struct offsets *o) { return o->damaged; }

/* `places`: the least number of records in the file, so that a cut file is recognized. */
static err header_store(struct offsets *o, uint64_t generation, uint32_t places, struct fault *f)
{
    uint8_t header[OFFSETS_RECORD_BYTES] = {0};
    bytes_store64(header + 8, generation);
    file_header_seal(header, OFFSETS_HEADER_BYTES, OFFSETS_MAGIC, OFFSETS_VERSION);
    bytes_store32(header + PLACES_AT, places);
    bytes_store32(header + PLACES_AT + 4, crc32_update(0, header, PLACES_AT + 4));
    err e = file_write(o->fd, o->path, header, sizeof header, 0, f);
    if (!e) o->generation = generation;
    return e;
}

/* Goes over all records, reading many at once. */
struct scan {
    const struct offsets *of;
    uint32_t place, begin, end;      /* of the record; of the records that were read */
    err state;                       /* of the record: OK, ERR_EMPTY, ERR_CORRUPT */
    err failed;                      /* why there are no more; OK: those were all */
    struct offsets_record record;
    uint8_t data[SCAN_RECORDS * OFFSETS_RECORD_BYTES];
};

static void scan_begin(struct scan *at, const struct offsets *of, uint32_t place)
{
    at->of = of;
    at->place = place - 1;
    at->begin = at->end = place;
    at->failed = OK;
}

static bool scan_next(struct scan *at, struct fault *f)
{
    at->place++;
    if (at->place == at->end && at->place < OFFSETS_REFERENCES_MAX) {
        size_t got;
        at->begin = at->place;
        at->failed = file_read(at->of->fd, at->of->path, at->data, sizeof at->data, record_position(at->place), &got, f);
        at->end = at->place + (uint32_t)(got / OFFSETS_RECORD_BYTES);
        if (at->end > OFFSETS_REFERENCES_MAX) at->end = OFFSETS_REFERENCES_MAX;
    }
    if (at->failed || at->place == at->end) return false;
    at->state = offsets_record_read(at->data + (at->place - at->begin) * OFFSETS_RECORD_BYTES, &at->record);
    return true;
}

/* Make room in memory for one more place. */
static err place_add(struct offsets *o, struct fault *f)
{
    err e = grow(&o->hash, &o->hash_capacity, o->count + 1u, sizeof *o->hash, "stored offsets", f);
    if (!e) e = grow(&o->written_ms, &o->written_capacity, o->count + 1u, sizeof *o->written_ms, "stored offsets", f);
    if (!e) o->hash[o->count++] = 0;
    return e;
}

/* Store the places from `count` on in memory. */
static err look_further(struct offsets *o, struct fault *f)
{
    struct scan at;
    err e = OK;
    for (scan_begin(&at, o, o->count); !e && scan_next(&at, f);) {
        e = place_add(o, f);
        if (e) break;
        if (at.state == OK) o->hash[at.place] = reference_hash(at.record.reference, at.record.bytes);
        o->written_ms[at.place] = at.state == OK ? at.record.written_ms : 0;
        o->damaged += at.state == ERR_CORRUPT;
    }
    if (!e) e = at.failed;
    o->known = !e;
    return e;
}

/* With the lock held: know what the file holds now. */
static err look(struct offsets *o, struct fault *f)
{
    uint8_t header[OFFSETS_HEADER_BYTES + PLACES_BYTES] = {0};
    uint64_t generation;
    size_t got;
    err e = file_read(o->fd, o->path, header, sizeof header, 0, &got, f);
    if (e) return e;
    e = offsets_header_read(o->path, header, &generation, f);
    if (e == ERR_VERSION) return e;
    if (!e && o->known && generation == o->generation) {
        uint64_t size;
        e = file_size(o->fd, o->path, &size, f);
        return e || size < record_position(o->count + 1) ? e : look_further(o, f);
    }
    o->known = false;
    if (e) { /* new, or its header is damaged: a number that nobody remembers */
        e = file_random(&generation, sizeof generation, f);
        if (!e) e = header_store(o, generation, 0, f);
        if (e) return e;
    }
    bool knows_places = bytes_load32(header + PLACES_AT + 4) == crc32_update(0, header, PLACES_AT + 4);
    uint32_t places = knows_places ? bytes_load32(header + PLACES_AT) : 0;
    o->generation = generation;
    o->count = o->damaged = 0;
    e = look_further(o, f);
    if (!e && places > o->count && places <= OFFSETS_REFERENCES_MAX) o->damaged += places - o->count;
    return e;
}

static err lock(struct offsets *o, bool create, struct fault *f)
{
    err e = OK;
    if (o->fd < 0) {
        o->known = false;
        e = file_open(o->path, O_RDWR | (create ? O_CREAT : 0), &o->fd, f);
    }
    if (e) return e;
    struct call *noted = call_begin(CALL_LOCK, o->path);
    int locked;
    do locked = sys->flock(o->fd, LOCK_EX);
    while (locked < 0 && errno == EINTR);
    call_end(noted);
    if (locked < 0) return fault_from_errno(f, o->path, 0, 0, 0);
    e = look(o, f);
    if (e) sys->flock(o->fd, LOCK_UN);
    return e;
}

static err unlock(struct offsets *o, err e)
{
    sys->flock(o->fd, LOCK_UN); /* fails for no descriptor of ours */
    if (e && e != ERR_NOT_FOUND) o->known = false;
    return e;
}

/* ---- records ---- */

/* The place of a reference, or NOWHERE, and what stands there. */
static err find(struct offsets *o, const char *reference, uint32_t bytes, uint32_t *place, struct offsets_record *found,
                struct fault *f)
{
    uint32_t hash = reference_hash(reference, bytes);
    *place = NOWHERE;
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->hash[i] != hash) continue;
        uint8_t data[OFFSETS_RECORD_BYTES];
        struct offsets_record r;
        err e = file_read_exact(o->fd, o->path, data, sizeof data, record_position(i), f);
        if (e && e != ERR_TRUNCATED) return e;
        if (e || offsets_record_read(data, &r)) { /* damaged under our feet */
            o->hash[i] = 0;
            o->damaged++;
            continue;
        }
        if (r.bytes != bytes || memcmp(r.reference, reference, bytes) != 0) continue;
        if (*place != NOWHERE && r.written_ms < found->written_ms) continue;
        *place = i;
        *found = r;
        o->written_ms[i] = r.written_ms;
    }
    return OK;
}

/* Find the place of the reference stored longest ago.  `written_ms` of a handle is never later than the record's, so the
 * lowest one that still matches its record is the lowest of all. */
static err find_oldest(struct offsets *o, uint32_t *place, struct fault *f)
{
    for (;;) {
        uint8_t data[OFFSETS_RECORD_BYTES];
        struct offsets_record r;
        uint32_t oldest = 0;
        for (uint32_t i = 1; i < o->count; i++)
            if (o->written_ms[i] < o->written_ms[oldest]) oldest = i;
        *place = oldest;
        err e = file_read_exact(o->fd, o->path, data, sizeof data, record_position(oldest), f);
        if (e) return e;
        if (offsets_record_read(data, &r) || r.written_ms <= o->written_ms[oldest]) return OK;
        o->written_ms[oldest] = r.written_ms;
    }
}

/* A place for a new reference: a free one, else the end, else the one stored longest ago. */
static err make_room(struct offsets *o, uint32_t *place, bool *evicted, struct fault *f)
{
    uint32_t i = 0;
    while (i < o->count && o->hash[i]) i++;
    if (i == OFFSETS_REFERENCES_MAX) {
        err e = find_oldest(o, &i, f);
        if (e) return e;
        *evicted = true;
    }
    *place = i;
    if (i == o->count) return place_add(o, f); /* no handle has a place there in memory */
    /* Before the record: a handle that remembers the place under another name looks again. */
    return header_store(o, o->generation + 1, o->count, f);
}

err offsets_store(struct offsets *o, const char *reference, uint32_t bytes, uint64_t offset, bool *evicted,
                  struct fault *f)
{
    *evicted = false;
    if (bytes > OFFSETS_REFERENCE_BYTES_MAX)
        return fault_set(f, ERR_LIMIT, 0, "offset reference", 0, OFFSETS_REFERENCE_BYTES_MAX, bytes);
    err e = lock(o, true, f);
    if (e) return e;
    struct offsets_record r;
    uint8_t data[OFFSETS_RECORD_BYTES];
    uint32_t place, had = o->count;
    int64_t now_ms = sys->now_ms();
    e = find(o, reference, bytes, &place, &r, f);
    if (!e && place != NOWHERE && r.written_ms > now_ms) now_ms = r.written_ms; /* the clock was set back */
    if (!e && place == NOWHERE) e = make_room(o, &place, evicted, f);
    if (!e) {
        r = (struct offsets_record){.written_ms = now_ms, .offset = offset, .bytes = (uint8_t)bytes};
        memcpy(r.reference, reference, bytes);
        offsets_record_write(&r, data);
        e = file_write(o->fd, o->path, data, sizeof data, record_position(place), f);
    }
    if (!e) {
        o->hash[place] = reference_hash(reference, bytes);
        o->written_ms[place] = now_ms;
        /* After the record: if the process is killed before, the offset is stored all the same, and no false warning follows.
         * Without this number only a cut of the file would stay unnoticed. */
        if (o->count > had) header_store(o, o->generation, o->count, NULL);
    }
    return unlock(o, e);
}

err offsets_get(struct offsets *o, const char *reference, uint32_t bytes, uint64_t *offset, struct fault *f)
{
    *offset = 0;
    if (bytes > OFFSETS_REFERENCE_BYTES_MAX)
        return fault_set(f, ERR_NOT_FOUND, 0, "offset reference", 0, OFFSETS_REFERENCE_BYTES_MAX, bytes);
    err e = lock(o, false, f);
    if (e) return e;
    struct offsets_record r;
    uint32_t place;
    e = find(o, reference, bytes, &place, &r, f);
    if (!e && place == NOWHERE) e = fault_set(f, ERR_NOT_FOUND, 0, "offset reference", 0, 0, 0);
    if (!e) *offset = r.offset;
    return unlock(o, e);
}

err offsets_each(struct offsets *o, void (*each)(void *context, const struct offsets_record *r), void *context,
                 struct fault *f)
{
    struct scan at;
    err e = lock(o, false, f);
    if (e) return e == ERR_NOT_FOUND ? OK : e;
    for (scan_begin(&at, o, 0); scan_next(&at, f);)
        if (at.state == OK) each(context, &at.record);
    return unlock(o, at.failed);
}
