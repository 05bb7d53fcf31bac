# SPDX-License-Identifier: Apache-2.0
"""The C core as Cython sees it: declarations only, no C of its own."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "base/error.h" nogil:
    ctypedef enum err:
        OK, ERR_IO, ERR_DISK_FULL, ERR_NO_MEMORY, ERR_CORRUPT, ERR_TRUNCATED, ERR_LIMIT, ERR_INVALID, ERR_NOT_FOUND
        ERR_NOT_CACHED, ERR_END, ERR_FULL, ERR_BUSY

    struct fault:
        err code
        int sys_errno
        uint64_t position, needed, had

    const char *error_name(err code)
    size_t fault_format(const fault *f, char *out, size_t size)
    err fault_set(fault *f, err code, int sys_errno, const char *where, uint64_t position, uint64_t needed, uint64_t had)

cdef extern from "base/bytes.h" nogil:
    uint16_t bytes_load16(const uint8_t *p)
    uint32_t bytes_load32(const uint8_t *p)
    uint64_t bytes_load64(const uint8_t *p)
    void bytes_store16(uint8_t *p, uint16_t v)
    void bytes_store32(uint8_t *p, uint32_t v)
    void bytes_store64(uint8_t *p, uint64_t v)

    struct writer_bytes:
        uint8_t *at
        uint8_t *end
        bint failed

    writer_bytes bytes_writer(void *p, size_t size)

cdef extern from "shm/doorbell.h" nogil:
    enum:
        DOORBELL_WORKERS_MAX, DOORBELL_SLOTS_MAX, DOORBELL_REQUEST_SEATS, DOORBELL_REQUEST_ACCESS
        DOORBELL_REQUEST_WORK, DOORBELL_REQUEST_MAIL, DOORBELL_REQUEST_GROUPS

    struct doorbell_board:
        uint32_t magic

    void doorbell_board_init(doorbell_board *b, uint32_t worker_count, uint32_t epoch)
    void doorbell_sit(doorbell_board *b, uint32_t worker, uint32_t pid)
    bint doorbell_mark(doorbell_board *b, uint32_t worker, uint32_t slot, int fd)
    void doorbell_connections_set(doorbell_board *b, uint32_t worker, uint32_t count)
    uint32_t doorbell_connections(doorbell_board *b)
    void doorbell_heard_set(doorbell_board *b, uint32_t worker, int64_t at_ms)
    bint doorbell_others_heard(doorbell_board *b, uint32_t worker, int64_t at_ms)
    void doorbell_restart(doorbell_board *b, uint32_t slot)
    uint32_t doorbell_restarts(doorbell_board *b, uint32_t slot)
    void doorbell_request(doorbell_board *b, uint32_t worker, uint32_t bits, int fd)
    uint32_t doorbell_epoch(doorbell_board *b, uint32_t worker)
    uint32_t doorbell_requests_take(doorbell_board *b, uint32_t worker)
    bint doorbell_sleep(doorbell_board *b, uint32_t worker)
    void doorbell_wake(doorbell_board *b, uint32_t worker)
    uint32_t doorbell_take(doorbell_board *b, uint32_t worker, uint32_t *slots, uint32_t most)

cdef extern from "shm/word.h" nogil:
    ctypedef struct shared_word "_Atomic uint64_t":
        pass  # through the functions below only

    uint64_t word_load(const shared_word *w)
    void word_store(shared_word *w, uint64_t value)
    void word_add(shared_word *w, uint64_t count)
    bint word_swap(shared_word *w, uint64_t from_, uint64_t to)
    void word_raise(shared_word *w, uint64_t to)
    uint64_t word_take(shared_word *w)
    uint64_t word_bits(const shared_word *mask)
    void word_bit_set(shared_word *mask, uint32_t bit)
    void word_bit_clear(shared_word *mask, uint32_t bit)

cdef extern from "shm/ring.h" nogil:
    struct ring:
        uint64_t tail, head  # through the functions below only

    size_t ring_bytes(uint32_t cell_bytes, uint32_t cells)
    err ring_init(ring *r, uint32_t cell_bytes, uint32_t cells, fault *f)
    err ring_push(ring *r, const void *cell)
    err ring_pop(ring *r, void *cell)

cdef extern from "shm/groups.h" nogil:
    enum:
        GROUPS_ROWS, GROUPS_NAME_BYTES_MAX, GROUPS_LABEL_BYTES_MAX

    enum groups_state_t "groups_state":
        GROUPS_WAITING, GROUPS_ACTIVE, GROUPS_DEACTIVATING

    struct groups_row:
        uint64_t incarnation, number, member
        uint32_t slot, worker, epoch, state
        int32_t partition
        uint8_t name_bytes, label_bytes
        char *name
        char *label

    struct groups:
        uint32_t repair_wanted
        groups_row *rows

    err groups_init(groups *g, fault *f)
    err groups_lock(groups *g, fault *f)
    void groups_unlock(groups *g)
    groups_state_t groups_state(const groups *g, uint32_t row)
    err groups_add(groups *g, const groups_row *member, uint32_t *row, fault *f)
    void groups_remove(groups *g, uint32_t row)
    void groups_set_state(groups *g, uint32_t row, groups_state_t state)
    uint32_t groups_of(const groups *g, uint64_t incarnation, const char *name, uint32_t name_bytes, uint32_t *rows)
    uint32_t groups_all(const groups *g, uint32_t *rows)
    uint32_t groups_dead(const groups *g, doorbell_board *b, uint32_t *rows)

cdef extern from "ledger/words.h" nogil:
    enum ledger_state:
        LEDGER_READY, LEDGER_IN_FLIGHT, LEDGER_SETTLED, LEDGER_DEAD, LEDGER_DELAYED

    enum:
        LEDGER_ATTEMPTS_MAX, LEDGER_NOBODY

    struct ledger_word:
        ledger_state state
        uint32_t priority, attempts, worker, life, index, strikes

    struct ledger_entry:
        shared_word word
        uint64_t place

    struct ledger_home:
        uint32_t worker, epoch, generation

    ledger_word ledger_unpack(uint64_t word)
    ledger_state ledger_state_of(uint64_t word)
    uint32_t ledger_life(uint32_t epoch)
    bint ledger_is_held_by(uint64_t word, uint32_t worker, uint32_t life)
    void ledger_put(ledger_entry *entry, ledger_word w)
    bint ledger_swap(ledger_entry *entry, uint64_t word, ledger_word w)
    void ledger_set_state(ledger_entry *entry, ledger_state state)
    bint ledger_swap_state(ledger_entry *entry, uint64_t word, ledger_state state)
    uint64_t ledger_offset_pack(uint64_t offset)
    uint64_t ledger_offset_unpack(uint64_t word)
    ledger_home ledger_home_unpack(uint64_t word)
    bint ledger_home_sits(ledger_home h, uint32_t epoch)
    bint ledger_home_claim(shared_word *home, uint64_t *seen, uint32_t worker, uint32_t epoch)
    void ledger_home_leave(shared_word *home, uint32_t worker)

cdef extern from "ledger/ledger.h" nogil:
    enum:
        LEDGER_MAGIC, LEDGER_VERSION, LEDGER_BLOCK_ENTRIES

    struct ledger_control:
        uint32_t magic, version
        shared_word home, base, next, departed, purge, workers, room_wanted, consumers, in_flight
        shared_word delivered, redelivered, acked, expired, dropped, dead_lettered, purged, looked, refused
        shared_word failing, failing_offset, failing_deliveries, away

    struct ledger:
        ledger_control *control

    struct ledger_each:
        uint64_t offset
        ledger_entry *entry

    ctypedef bint boolean "bool"  # where its address is taken

    struct ledger_damage:
        bint anew, page
        uint64_t entries, offset, blocks, block

    void ledger_store_next(ledger_control *c, uint64_t next)
    void ledger_order_purge(ledger_control *c, uint64_t offset)
    err ledger_create(const char *directory, uint64_t base, bint sync, fault *f)
    err ledger_version_check(const char *directory, fault *f)
    err ledger_open(const char *directory, ledger **out, fault *f)
    void ledger_close(ledger *l)
    err ledger_recover(const char *directory, uint64_t first, uint64_t next, bint is_same_boot,
                       ledger_damage *damage, fault *f)
    ledger_damage ledger_verify(ledger *l)
    err ledger_sync(const char *directory, fault *f)
    err ledger_reserve(ledger *l, uint64_t end, fault *f)
    ledger_entry *ledger_entry_of "ledger_entry" (ledger *l, uint64_t offset, fault *f)
    uint64_t ledger_find(ledger *l, uint64_t from_, uint64_t to, ledger_state state, uint32_t priorities)
    ledger_each ledger_each_of(ledger *l, uint64_t from_, uint64_t to, ledger_state state)
    bint ledger_each_next(ledger_each *at)
    uint64_t ledger_count(ledger *l, uint64_t from_, uint64_t to, ledger_state state)
    uint64_t ledger_settle(ledger *l, uint64_t floor, uint32_t blocks_most)
    void ledger_skip(ledger *l, uint64_t offset)
    void ledger_trim(ledger *l)
    err ledger_print(const char *path, uint64_t limit, int (*line)(void *context, const char *text) noexcept with gil,
                     void *context, fault *f)

cdef extern from "log/chunk.h" nogil:
    enum:
        CHUNK_HEADER_BYTES, CHUNK_DATA_MAX_BYTES

    struct chunk:
        uint8_t type, bloom_bytes
        uint16_t entries
        uint32_t records
        int64_t timestamp_ms
        uint64_t chunk_id
        uint32_t crc, data_bytes, trailer_bytes

    struct chunk_entry:
        const uint8_t *body
        uint32_t body_bytes, records, uncompressed_bytes
        uint8_t is_sub_batch, compression

    uint64_t chunk_bytes(const chunk *c)
    err chunk_entry_next(const uint8_t **at, const uint8_t *end, chunk_entry *out)
    void chunk_header_to_wire(const uint8_t *stored, uint8_t *out)

    enum:
        FILTER_VALUES_MAX

    struct filter_t "filter":
        bint match_unfiltered
        uint32_t count

    void filter_init(filter_t *f, bint match_unfiltered)
    err filter_add(filter_t *f, const uint8_t *value, uint32_t size)
    bint filter_matches(const filter_t *f, const uint8_t *data, const chunk *c)

cdef extern from "log/control.h" nogil:
    enum:
        DURABILITY_OS, DURABILITY_DISK, DURABILITY_REMOTE

    struct commit:
        uint64_t segment, batch_position, position, next_offset, last_chunk, chunks
        int64_t timestamp_ms

    struct control:
        uint32_t durability, epoch
        uint64_t segment_bytes_max
        shared_word retention_age_ms_max, readers, holders, first_offset, remote_offset

    bint control_is_deleted(const control *c)
    void control_committed(const control *c, commit *out)
    void control_remote_set(control *c, uint64_t offset)
    bint control_readers_wait(const control *c)
    void control_confirmed(const control *c, commit *out)
    uint64_t control_confirmed_offset(const control *c)
    uint64_t control_failed_within(const control *c, uint64_t first, uint64_t next)
    void control_confirm(control *c, const commit *record)
    void control_generation_set(uint64_t generation)
    err control_old_confirm(const char *directory, const commit *record, fault *f)

cdef extern from "message/amqp.h" nogil:
    enum amqp_body:
        AMQP_BODY_DATA, AMQP_BODY_VALUE

    struct amqp_message:
        amqp_body body_kind
        const uint8_t *body
        const uint8_t *application_properties
        const uint8_t *message_annotations
        uint32_t body_size, application_properties_size, message_annotations_size

    err amqp_parse(const uint8_t *data, uint32_t size, amqp_message *out)

    enum amqp_kind:
        AMQP_NULL, AMQP_BOOL, AMQP_UINT, AMQP_INT, AMQP_FLOAT, AMQP_DOUBLE, AMQP_TIMESTAMP, AMQP_UUID, AMQP_STRING
        AMQP_SYMBOL, AMQP_BINARY, AMQP_OTHER

    enum amqp_field:
        AMQP_CONTENT_TYPE, AMQP_GROUP_ID

    struct amqp_value:
        amqp_kind kind
        uint32_t bytes
        const uint8_t *data
        bint truth
        uint64_t natural
        int64_t integer
        double real

    struct amqp_pair:
        const uint8_t *key
        uint32_t key_bytes
        amqp_value value

    struct amqp_pairs:
        uint32_t left

    void amqp_pairs_begin(amqp_pairs *it, const uint8_t *data, uint32_t size)
    bint amqp_pairs_next(amqp_pairs *it, amqp_pair *out)
    bint amqp_property(const amqp_message *m, amqp_field field, amqp_value *out)
    bint amqp_message_id(const amqp_message *m, amqp_value *out)
    bint amqp_header_priority(const amqp_message *m, uint8_t *out)
    size_t amqp_value_text(const amqp_value *v, char *out, size_t size)

cdef extern from "message/amqp_write.h" nogil:
    const char *AMQP_JSON
    uint32_t AMQP_JSON_BYTES

    struct amqp_properties:
        const uint8_t *id
        const uint8_t *key
        const amqp_value *id_value
        const char *content_type
        uint32_t id_bytes, key_bytes, content_type_bytes

    struct amqp_map:
        uint32_t count

    enum:
        AMQP_ANNOTATION_OVERHEAD_BYTES, AMQP_TEXT_MAX_BYTES

    uint64_t amqp_size_max(uint32_t pairs, uint64_t payload_bytes)
    void amqp_write_annotation(writer_bytes *w, const char *key, uint32_t key_bytes, const uint8_t *value,
                               uint32_t value_bytes)
    void amqp_write_header(writer_bytes *w, uint8_t priority)
    void amqp_write_properties(writer_bytes *w, const amqp_properties *p)
    void amqp_map_begin(writer_bytes *w, amqp_map *m)
    void amqp_map_add(writer_bytes *w, amqp_map *m, const uint8_t *key, uint32_t key_bytes, const uint8_t *value,
                      uint32_t value_bytes)
    void amqp_map_add_value(writer_bytes *w, amqp_map *m, const uint8_t *key, uint32_t key_bytes,
                            const amqp_value *value)
    void amqp_map_end(writer_bytes *w, amqp_map *m)
    void amqp_write_data(writer_bytes *w, const uint8_t *body, uint32_t size)
    void amqp_write_value(writer_bytes *w, const uint8_t *encoded, uint32_t size)
    void amqp_write_null(writer_bytes *w)

cdef extern from "message/msgpack.h" nogil:
    enum:
        MSGPACK_DEPTH_MAX

    uint64_t MSGPACK_JSON_SIZE_MAX(uint64_t size)
    bint msgpack_is_type(const uint8_t *type, uint32_t size)
    err msgpack_check(const uint8_t *data, uint64_t size, uint32_t depth_max)
    bint msgpack_is_json(const uint8_t *data, uint64_t size)
    err msgpack_json_write(writer_bytes *w, const uint8_t *data, uint64_t size)

cdef extern from "message/text.h" nogil:
    uint64_t JSON_STRING_SIZE_MAX(uint64_t size)
    uint64_t JSON_BASE64_SIZE(uint64_t size)
    err json_check(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position)
    err json_check_escapes(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position, boolean *has_escapes)
    bint json_has_lone_surrogate(const uint8_t *data, uint64_t size)
    err json_string_write(writer_bytes *w, const uint8_t *text, uint64_t size)
    err json_base64_write(writer_bytes *w, const uint8_t *data, uint64_t size)

    bint utf8_is_valid(const uint8_t *p, size_t n)
    bint utf8_step(const uint8_t **at, const uint8_t *end)

cdef extern from "log/batch.h" nogil:
    struct batch:
        uint32_t size
        uint64_t records

    err batch_init(batch *b, fault *f)
    void batch_free(batch *b)
    void batch_clear(batch *b)
    void batch_limit(batch *b, uint64_t size)
    void batch_filter_size(batch *b, uint32_t size)
    void batch_chunk_messages(batch *b, uint32_t first, uint32_t most)
    uint32_t batch_chunk_messages_next(const batch *b)
    err batch_add(batch *b, const uint8_t *entry, uint32_t size, uint32_t records)
    err batch_reference_add(batch *b, const char *text, uint32_t size, uint32_t *index)
    err batch_add_tracked(batch *b, const uint8_t *entry, uint32_t size, uint32_t records,
                          uint32_t reference, uint64_t publishing_id)
    void batch_part_kinds(batch *b, bint is_sub_batch)
    void batch_filter(batch *b, const uint8_t *value, uint32_t size)
    err batch_seal(batch *b, fault *f)
    bint batch_dropped(const batch *b, uint32_t reference, uint32_t *at, uint32_t *number)

cdef extern from "log/log.h" nogil:
    struct log_options:
        uint64_t segment_bytes_max, segment_chunks_max, retention_bytes_max, retention_age_ms_max
        uint64_t local_bytes_max, local_age_ms_max
        uint32_t durability, filter_bytes, chunk_messages_max
        boolean read_unconfirmed

    struct log "log":
        pass

    struct log_appended:
        uint64_t first_offset, next_offset, segment, position
        uint32_t duplicates
        bint rolled

    struct log_stats_t "log_stats":
        uint64_t first_offset, next_offset, confirmed_offset, last_chunk, segment_count, bytes

    err log_create(const char *directory, const log_options *options, fault *f)
    err log_open(const char *directory, log **out, fault *f)
    void log_close(log *l)
    void log_rest(log *l)
    control *log_control(log *l)
    err log_set_limits(log *l, const log_options *options, fault *f)
    uint32_t log_filter_bytes(const log *l)
    uint32_t log_chunk_messages(const log *l)
    void log_lock_patience(int64_t ms)
    err log_append(log *l, batch *b, log_appended *out, fault *f)
    err log_publisher_sequence(log *l, const char *reference, uint32_t size, uint64_t *out, fault *f)
    err log_publisher_last(log *l, const char *reference, uint32_t size, uint64_t *out, uint64_t *chunk, fault *f)
    err log_publisher_declare(log *l, doorbell_board *board, uint32_t seat, const char *reference, uint32_t size,
                              boolean *evicted, fault *f)
    err log_publisher_release(log *l, uint32_t seat, const char *reference, uint32_t size, fault *f)
    bint log_tracking_rebuilt(log *l)
    err log_sync(log *l, uint64_t *durable_offset, fault *f)
    err log_sync_rest(const char *directory, fault *f)
    bint log_closed_is_unsynced(const log *l)
    bint log_sync_failed(const log *l, uint64_t first_offset, uint64_t next_offset)
    uint64_t log_durable_offset(const log *l)
    void log_mark_deleted(log *l)
    err log_remove(const char *directory, fault *f)
    err log_stats(log *l, log_stats_t *out, fault *f)

cdef extern from "log/tracking.h" nogil:
    enum:
        PUBLISHER_NAMES_MAX "TRACKING_REFERENCES_MAX"

cdef extern from "log/offsets.h" nogil:
    enum:
        OFFSETS_REFERENCES_MAX, OFFSETS_REFERENCE_BYTES_MAX

    struct offsets:
        pass

    struct offsets_record:
        int64_t written_ms
        uint64_t offset
        uint8_t bytes
        char *reference

    err offsets_open(const char *directory, offsets **out, fault *f)
    void offsets_close(offsets *o)
    err offsets_store(offsets *o, const char *reference, uint32_t size, uint64_t offset, boolean *evicted, fault *f)
    err offsets_get(offsets *o, const char *reference, uint32_t size, uint64_t *offset, fault *f)
    err offsets_each(offsets *o, void (*each)(void *context, const offsets_record *r) noexcept with gil, void *context,
                     fault *f)
    uint32_t offsets_damaged(const offsets *o)

cdef extern from "log/reader.h" nogil:
    enum reader_from:
        READER_FIRST, READER_OFFSET, READER_TIMESTAMP

    struct reader:
        log *log
        int fd
        uint64_t segment, position, next_offset
        bint cold

    err reader_open(reader *r, log *l, reader_from from_, int64_t value, fault *f)
    err reader_settle(reader *r, bint nowait, fault *f)
    void reader_close(reader *r)
    bint reader_in_segment(const reader *r, uint64_t size)
    bint reader_enters(reader *r)
    bint reader_has_more(const reader *r)
    err reader_fetch(reader *r, uint8_t *data, uint64_t size, bint nowait, uint64_t *got, fault *f)
    err reader_fetch_rest(reader *r, uint64_t begin, uint8_t *data, uint64_t size, bint nowait, uint64_t *got, fault *f)
    err reader_chunk(const reader *r, const uint8_t *data, uint64_t size, bint verify, chunk *out, fault *f)
    err reader_header(const reader *r, const uint8_t *data, uint64_t size, chunk *out, fault *f)
    err reader_skip(reader *r, const filter_t *filter, uint32_t most, bint nowait, uint32_t *skipped, fault *f)
    void reader_advance(reader *r, const chunk *c)
    err reader_skip_damaged(reader *r, fault *f)

cdef extern from "log/upkeep.h" nogil:
    enum:
        RECOVERY_CUTS_MAX
    struct recovery_cut:
        uint64_t position, bytes
        char *path
        char *kept
    struct recovery_skip:
        uint64_t position, bytes, first_offset, next_offset
        char *path
    struct recovery_report:
        bint ran
        char *unfit
        uint64_t chunks_checked, bytes_checked
        uint32_t cut_count
        uint64_t cut_bytes
        uint32_t given_back
        uint32_t skip_count
        recovery_cut cuts[1]  # RECOVERY_CUTS_MAX
        recovery_skip skips[1]  # RECOVERY_CUTS_MAX
        uint64_t first_offset, next_offset

    struct recovery_once:
        pass
    void recovery_once_init(recovery_once *once)
    void recovery_once_believe(recovery_once *once, uint64_t generation)
    void recovery_once_settle(recovery_once *once)
    err recovery_ahead(const char *directory, const recovery_once *once, uint64_t *bytes, fault *f)
    err recovery_run(const char *directory, const log_options *options, recovery_once *once, recovery_report *out,
                     fault *f)

    err version_check(const char *directory, fault *f)

    struct retention_report:
        uint64_t segments_dropped, bytes_dropped, first_offset, local_segments, local_bytes

    err retention_run(log *l, retention_report *out, fault *f)
    err retention_roll_aged(log *l, int64_t age_ms, boolean *rolled, fault *f)
    err retention_drop_before(log *l, uint64_t offset, retention_report *out, fault *f)
    boolean retention_age(const char *directory, uint64_t first, int64_t *ms)
    err retention_older(log *l, uint64_t from_, int64_t age_ms, uint64_t *end, fault *f)

    struct dump_options:
        bint entries
        uint64_t limit

    err dump_file(const char *path, const dump_options *options,
                  int (*line)(void *context, const char *text) noexcept with gil, void *context, fault *f)
