/* SPDX-License-Identifier: Apache-2.0
 *
 * retention: drop whole old segments by size and age; never the active one.
 * Rules: the RabbitMQ Streams protocol.  With durability `disk` a segment that is
 * not durable yet is kept, so that recovery never looks for what it needs in vain.
 */
#ifndef VIBEMQ_LOG_RETENTION_H
#define VIBEMQ_LOG_RETENTION_H

#include "log.h"

struct retention_report { uint64_t segments_dropped, bytes_dropped, first_offset; };

/* Apply the control block's limits now.  Readers with an open segment keep it. */
err retention_run(struct log *l, struct retention_report *out, struct fault *f);

/* Drop closed segments all of whose offsets are below `offset`, whatever the limits say: a
 * queue's messages that are settled. */
err retention_drop_before(struct log *l, uint64_t offset, struct retention_report *out, struct fault *f);

/* Close the active segment if its oldest chunk is older than `age_ms`: age drops whole segments, so none may
 * cover more time than is tolerable.  Sets *rolled. */
err retention_roll_aged(struct log *l, int64_t age_ms, bool *rolled, struct fault *f);

#endif
