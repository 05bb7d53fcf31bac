/* SPDX-License-Identifier: Apache-2.0
 *
 * amqp: the parts of an AMQP 1.0 bare message that readers need, found in place, and the values inside
 * them, one at a time.
 *
 * Source: OASIS AMQP 1.0, part 1 section 1.2 (encodings) and part 3 section 3.2
 * (sections of a message).  Nothing is copied; depth and sizes are bounded.
 */
#ifndef VIBEMQ_MESSAGE_AMQP_H
#define VIBEMQ_MESSAGE_AMQP_H

#include "../base/bytes.h"
#include "../base/error.h"

enum amqp_body { AMQP_BODY_NONE, AMQP_BODY_DATA, AMQP_BODY_VALUE, AMQP_BODY_SEQUENCE };

/* Where the sections lie; a pointer is NULL when the section is absent.  The section spans exclude the descriptor and
 * include the section's own list or map encoding.  For DATA the body span is the binary's content. */
struct amqp_message {
    enum amqp_body body_kind;
    uint32_t data_count; /* data sections seen; `body` is the first */
    const uint8_t *body, *header, *properties, *application_properties, *message_annotations;
    uint32_t body_size, header_size, properties_size, application_properties_size, message_annotations_size;
};

/* Find the sections.  ERR_CORRUPT when `data` is not an AMQP 1.0 message from its first byte to its last (then it is an
 * opaque body), ERR_TRUNCATED when it ends inside a section. */
err amqp_parse(const uint8_t *data, uint32_t size, struct amqp_message *out);

/* ---- values ----
 *
 * For sections that amqp_parse has found, in which everything is well formed.  Nothing here relies on
 * that: over other bytes these functions stop early, and a span never leaves the section. */

enum amqp_kind {
    AMQP_NULL, AMQP_BOOL, AMQP_UINT, AMQP_INT, AMQP_FLOAT, AMQP_DOUBLE, AMQP_TIMESTAMP, AMQP_UUID, AMQP_STRING,
    AMQP_SYMBOL, AMQP_BINARY, AMQP_OTHER
};

/* Integers of every width are 64 bits wide here.  OTHER is what headers of other protocols have no word for: lists,
 * maps, arrays, described values, characters, decimals.  Invariant: `data` is the content of STRING, SYMBOL, BINARY and
 * UUID (16 bytes), for OTHER the whole value with its code, else NULL; the union holds what the kind says. */
struct amqp_value {
    enum amqp_kind kind;
    uint32_t bytes;
    const uint8_t *data;
    union {
        bool truth;       /* BOOL */
        uint64_t natural; /* UINT */
        int64_t integer;  /* INT; TIMESTAMP: milliseconds since 1970 */
        double real;      /* FLOAT, DOUBLE */
    };
};

/* The standard has strings only as keys of application properties; symbols and binary are read as well. */
struct amqp_pair {
    const uint8_t *key;
    uint32_t key_bytes;
    struct amqp_value value;
};

/* Invariant: `left` counts the pairs that have not been looked at. */
struct amqp_pairs {
    struct reader_bytes r;
    uint32_t left;
};

/* `data` is a map with its encoding, as struct amqp_message has it; absent (NULL, 0) it has no pairs. */
void amqp_pairs_begin(struct amqp_pairs *it, const uint8_t *data, uint32_t size);

/* The next pair, or false at the end.  Pairs whose key is no text are stepped over. */
bool amqp_pairs_next(struct amqp_pairs *it, struct amqp_pair *out);

/* Fields of the properties section, by their index in it. */
enum amqp_field {
    AMQP_MESSAGE_ID, AMQP_USER_ID, AMQP_TO, AMQP_SUBJECT, AMQP_REPLY_TO, AMQP_CORRELATION_ID, AMQP_CONTENT_TYPE,
    AMQP_CONTENT_ENCODING, AMQP_EXPIRY_TIME, AMQP_CREATION_TIME, AMQP_GROUP_ID, AMQP_GROUP_SEQUENCE,
    AMQP_REPLY_TO_GROUP_ID
};

/* A field of the properties; false when it is absent or null. */
bool amqp_property(const struct amqp_message *m, enum amqp_field field, struct amqp_value *out);
bool amqp_message_id(const struct amqp_message *m, struct amqp_value *out);

/* The priority in the header; false when it has none (the standard's default is then 4). */
bool amqp_header_priority(const struct amqp_message *m, uint8_t *out);

#define AMQP_TEXT_MAX_BYTES 36 /* of a value that is no text itself: a UUID; a number takes at most 24 */

/* A value as text for protocols whose headers are strings: numbers in decimal, booleans as words, UUIDs
 * in their canonical form, timestamps as milliseconds; strings, symbols and binary as they are, NULL
 * and OTHER as nothing.  Returns how many bytes the text has; if that is more than `size`, nothing
 * was written.  There is no NUL at its end. */
size_t amqp_value_text(const struct amqp_value *v, char *out, size_t size);

#endif
