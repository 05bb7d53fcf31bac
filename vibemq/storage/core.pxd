# SPDX-License-Identifier: Apache-2.0
"""The only place where the C core is declared to Cython."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "base/error.h" nogil:
    ctypedef enum err:
        OK
        ERR_IO
        ERR_DISK_FULL
        ERR_NO_MEMORY
        ERR_CORRUPT
        ERR_TRUNCATED
        ERR_LIMIT
        ERR_INVALID
        ERR_NOT_FOUND
        ERR_EXISTS
        ERR_DELETED
        ERR_STALE
        ERR_NOT_CACHED
        ERR_END
        ERR_FULL
        ERR_EMPTY
        ERR_LOCK

    struct fault:
        err code
        int sys_errno
        uint64_t position

    const char *error_name(err code)
    size_t fault_format(const fault *f, char *out, size_t size)


cdef extern from "base/bytes.h" nogil:
    uint16_t bytes_load16(const uint8_t *p)
    uint32_t bytes_load32(const uint8_t *p)
    uint64_t bytes_load64(const uint8_t *p)
    void bytes_store16(uint8_t *p, uint16_t v)
    void bytes_store32(uint8_t *p, uint32_t v)
    void bytes_store64(uint8_t *p, uint64_t v)


cdef extern from "base/crc32.h" nogil:
    uint32_t crc32_update(uint32_t crc, const void *data, size_t size)
    const char *crc32_kernel()


cdef extern from "shm/doorbell.h" nogil:
    enum:
        DOORBELL_WORKERS_MAX
        DOORBELL_SLOTS_MAX
        DOORBELL_REQUEST_SHUTDOWN
        DOORBELL_REQUEST_RELOAD
        DOORBELL_REQUEST_WORK

    struct doorbell_board:
        uint32_t magic

    void doorbell_board_init(doorbell_board *b, uint32_t worker_count)
    void doorbell_sit(doorbell_board *b, uint32_t worker, uint32_t pid)
    bint doorbell_mark(doorbell_board *b, uint32_t worker, uint32_t slot, int fd)
    void doorbell_request(doorbell_board *b, uint32_t worker, uint32_t bits, int fd, bint force)
    uint32_t doorbell_requests_take(doorbell_board *b, uint32_t worker)
    bint doorbell_sleep(doorbell_board *b, uint32_t worker)
    void doorbell_wake(doorbell_board *b, uint32_t worker)
    uint32_t doorbell_take(doorbell_board *b, uint32_t worker, uint32_t *slots, uint32_t most)


cdef extern from "log/chunk.h" nogil:
    enum:
        CHUNK_HEADER_BYTES

    struct chunk:
        uint8_t type, bloom_bytes
        uint16_t entries
        uint32_t records
        int64_t timestamp_ms
        uint64_t chunk_id
        uint32_t crc, data_bytes, trailer_bytes

    uint64_t chunk_bytes(const chunk *c)
    void chunk_header_to_wire(const uint8_t *stored, uint8_t *out)


cdef extern from "log/control.h" nogil:
    enum:
        DURABILITY_OS
        DURABILITY_DISK

    struct commit:
        uint64_t segment, batch_position, position, next_offset, last_chunk, chunks
        int64_t timestamp_ms

    struct control:
        uint32_t durability
        uint64_t segment_bytes_max

    void control_committed(const control *c, commit *out)


cdef extern from "log/batch.h" nogil:
    struct batch:
        uint32_t size, chunk_count
        uint64_t records

    err batch_init(batch *b, fault *f)
    void batch_free(batch *b)
    void batch_clear(batch *b)
    void batch_limit(batch *b, uint64_t size)
    err batch_add(batch *b, const uint8_t *entry, uint32_t size, uint32_t records)
    err batch_reference_intern(batch *b, const char *text, uint32_t size, uint32_t *index)
    err batch_add_tracked(batch *b, const uint8_t *entry, uint32_t size, uint32_t records,
                          uint32_t reference, uint64_t publishing_id)
    err batch_seal(batch *b, fault *f)


cdef extern from "log/log.h" nogil:
    struct log_options:
        uint64_t segment_bytes_max, segment_chunks_max, retention_bytes_max, retention_age_ms_max
        uint32_t durability

    struct log "log":
        pass

    struct log_appended:
        uint64_t first_offset, next_offset, segment, position
        uint32_t duplicates
        bint rolled
        uint64_t closed_segment

    struct log_stats_t "log_stats":
        uint64_t first_offset, next_offset, last_chunk, segment_count, bytes

    err log_create(const char *directory, const log_options *options, fault *f)
    err log_open(const char *directory, log **out, fault *f)
    void log_close(log *l)
    control *log_control(log *l)
    err log_append(log *l, batch *b, log_appended *out, fault *f)
    err log_publisher_sequence(log *l, const char *reference, uint32_t size, uint64_t *out, fault *f)
    err log_sync(log *l, uint64_t *durable_offset, fault *f)
    bint log_sync_failed(const log *l, uint64_t first_offset, uint64_t next_offset)
    uint64_t log_durable_offset(const log *l)
    void log_mark_deleted(log *l)
    err log_remove(const char *directory, fault *f)
    err log_stats(log *l, log_stats_t *out, fault *f)


cdef extern from "log/reader.h" nogil:
    enum reader_from:
        READER_FIRST
        READER_LAST
        READER_NEXT
        READER_OFFSET
        READER_TIMESTAMP

    struct reader:
        log *log
        int fd
        uint64_t segment, position, next_offset, skipped_chunks

    err reader_open(reader *r, log *l, reader_from from_, int64_t value, fault *f)
    void reader_close(reader *r)
    bint reader_has_more(const reader *r)
    err reader_fetch(reader *r, uint8_t *data, uint64_t size, bint nowait, uint64_t *got, fault *f)
    err reader_chunk(const reader *r, const uint8_t *data, uint64_t size, bint verify, chunk *out, fault *f)
    void reader_advance(reader *r, const chunk *c)
    err reader_skip_damaged(reader *r, fault *f)


cdef extern from "log/recovery.h" nogil:
    struct recovery_report:
        bint ran
        uint64_t chunks_checked, bytes_checked
        bint cut
        uint64_t cut_segment, cut_position, cut_bytes
        char *cut_path

    err recovery_run(const char *directory, const log_options *options, recovery_report *out, fault *f)


cdef extern from "log/retention.h" nogil:
    struct retention_report:
        uint64_t segments_dropped, bytes_dropped, first_offset

    err retention_run(log *l, retention_report *out, fault *f)
    err retention_roll_aged(log *l, int64_t age_ms, bint *rolled, fault *f)


cdef extern from "log/dump.h" nogil:
    struct dump_options:
        bint entries
        uint64_t limit

    err dump_file(const char *path, const dump_options *options,
                  int (*line)(void *context, const char *text) noexcept with gil, void *context, fault *f)


# Masks of workers in the control block, as plain functions: C11 atomics have no Cython spelling.
cdef extern from *:
    """
    #include <stdatomic.h>
    #include "log/control.h"
    static inline void masks_add(_Atomic uint64_t *mask, unsigned worker) { atomic_fetch_or(mask, UINT64_C(1) << worker); }
    static inline void masks_drop(_Atomic uint64_t *mask, unsigned worker) { atomic_fetch_and(mask, ~(UINT64_C(1) << worker)); }
    static inline void control_readers_add(struct control *c, unsigned w) { masks_add(&c->readers, w); }
    static inline void control_readers_drop(struct control *c, unsigned w) { masks_drop(&c->readers, w); }
    static inline void control_holders_add(struct control *c, unsigned w) { masks_add(&c->holders, w); }
    static inline void control_holders_drop(struct control *c, unsigned w) { masks_drop(&c->holders, w); }
    static inline uint64_t control_readers(struct control *c) { return atomic_load(&c->readers); }
    static inline uint64_t control_holders(struct control *c) { return atomic_load(&c->holders); }
    static inline int control_is_deleted(struct control *c) { return atomic_load(&c->state) == CONTROL_DELETED; }
    """
    void control_readers_add(control *c, unsigned w) nogil
    void control_readers_drop(control *c, unsigned w) nogil
    void control_holders_add(control *c, unsigned w) nogil
    void control_holders_drop(control *c, unsigned w) nogil
    uint64_t control_readers(control *c) nogil
    uint64_t control_holders(control *c) nogil
    bint control_is_deleted(control *c) nogil
