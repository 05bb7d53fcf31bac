/* SPDX-License-Identifier: Apache-2.0
 *
 * amqp_write: an AMQP 1.0 message, written section by section into the caller's buffer.
 *
 * Each function writes one whole part or none of it: where the room does not suffice the writer
 * has `failed` and the buffer ends with the part before.  Sections are to be written in the order
 * of the standard: header, message annotations, properties, application properties, body.  What is valid UTF-8 is
 * written as a string, anything else as binary, so what a peer sends can always be stored.
 *
 * The OVERHEAD constants are the most that a part takes beside the caller's own bytes; what
 * a message needs at most is their sum, known before anything is written.
 */
#ifndef VIBEMQ_MESSAGE_AMQP_WRITE_H
#define VIBEMQ_MESSAGE_AMQP_WRITE_H

#include "amqp.h"

#define AMQP_HEADER_BYTES 9               /* descriptor 3, list 3, durable 1, priority 2 */
#define AMQP_ANNOTATION_OVERHEAD_BYTES 22 /* descriptor 3, map 9, key 5, value 5 */
#define AMQP_PROPERTIES_OVERHEAD_BYTES 68 /* descriptor 3, list 9, id 17, nulls 7, AMQP_JSON 18 (others: 5), time 9, key 5 */
#define AMQP_MAP_OVERHEAD_BYTES 12        /* descriptor 3, map 9 */
#define AMQP_PAIR_OVERHEAD_BYTES 22       /* key 5, value 17 */
#define AMQP_DATA_OVERHEAD_BYTES 8        /* descriptor 3, binary 5 */
#define AMQP_NULL_BYTES 4                 /* descriptor 3, null 1 */

#define AMQP_JSON "application/json"
#define AMQP_JSON_BYTES (sizeof AMQP_JSON - 1)

/* Room that is enough for one of each section, with `pairs` application properties; `payload_bytes` is the
 * sum of id, keys, values and body, and of a content type that is not AMQP_JSON.  In 64 bits, so it cannot overflow for any counts that a frame can hold. */
static inline uint64_t amqp_size_max(uint32_t pairs, uint64_t payload_bytes)
{
    return AMQP_HEADER_BYTES + AMQP_PROPERTIES_OVERHEAD_BYTES + AMQP_MAP_OVERHEAD_BYTES + AMQP_DATA_OVERHEAD_BYTES +
           (uint64_t)pairs * AMQP_PAIR_OVERHEAD_BYTES + payload_bytes;
}

/* durable = true and the priority. */
void amqp_write_header(struct writer_bytes *w, uint8_t priority);

/* Message annotations with this one: bytes that are for whoever knows the key, which is ASCII, and for nobody else. */
void amqp_write_annotation(struct writer_bytes *w, const char *key, uint32_t key_bytes, const uint8_t *value,
                           uint32_t value_bytes);

/* What is NULL is not in the message.  The content type is ASCII; the key is the group-id, by which messages
 * belong together; the creation time is in milliseconds since 1970. */
struct amqp_properties {
    const uint8_t *id, *key;
    const struct amqp_value *id_value; /* an id that is a number or a UUID; `id` is NULL then */
    const char *content_type;
    const int64_t *creation_time_ms;
    uint32_t id_bytes, key_bytes, content_type_bytes;
};

void amqp_write_properties(struct writer_bytes *w, const struct amqp_properties *p);

/* A map being written.  Invariant: size_at is NULL if the writer had failed at the beginning, else
 * it points at the map's size in the buffer; count is of keys and values together. */
struct amqp_map {
    uint8_t *size_at;
    uint32_t count;
};

/* The application properties.  Between begin and end nothing else may be written. */
void amqp_map_begin(struct writer_bytes *w, struct amqp_map *m);
void amqp_map_add(struct writer_bytes *w, struct amqp_map *m, const uint8_t *key, uint32_t key_bytes,
                  const uint8_t *value, uint32_t value_bytes);
/* A value with its type; text as everywhere here, OTHER as it is encoded. */
void amqp_map_add_value(struct writer_bytes *w, struct amqp_map *m, const uint8_t *key, uint32_t key_bytes,
                        const struct amqp_value *value);
void amqp_map_end(struct writer_bytes *w, struct amqp_map *m);

/* The body: bytes, or no body at all (the standard wants one, so it is an amqp-value of null). */
void amqp_write_data(struct writer_bytes *w, const uint8_t *body, uint32_t bytes);
void amqp_write_null(struct writer_bytes *w);
/* A value as another message's amqp-value section holds it, with its encoding (struct amqp_message). */
void amqp_write_value(struct writer_bytes *w, const uint8_t *encoded, uint32_t bytes);

#endif
