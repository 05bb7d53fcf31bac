/* SPDX-License-Identifier: Apache-2.0
 *
 * amqp: the parts of an AMQP 1.0 bare message that readers need, found in place.
 *
 * Source: OASIS AMQP 1.0, part 1 section 1.2 (encodings) and part 3 section 3.2
 * (sections of a message).  Nothing is copied; depth and sizes are bounded.
 */
#ifndef VIBEMQ_MESSAGE_AMQP_H
#define VIBEMQ_MESSAGE_AMQP_H

#include <stdint.h>

#include "../base/error.h"

enum amqp_body { AMQP_BODY_NONE, AMQP_BODY_DATA, AMQP_BODY_VALUE, AMQP_BODY_SEQUENCE };

/* Where the sections lie; a pointer is NULL when the section is absent.  The
 * section spans exclude the descriptor and include the section's own list or
 * map encoding.  For DATA the body span is the binary's content. */
struct amqp_message {
    enum amqp_body body_kind;
    uint32_t data_count; /* data sections seen; `body` is the first */
    const uint8_t *body, *header, *properties, *application_properties, *message_annotations;
    uint32_t body_size, header_size, properties_size, application_properties_size, message_annotations_size;
};

/* Find the sections.  ERR_CORRUPT when `data` is not an AMQP 1.0 message from its
 * first byte to its last (then it is an opaque body), ERR_TRUNCATED when it ends
 * inside a section. */
err amqp_parse(const uint8_t *data, uint32_t size, struct amqp_message *out);

#endif
