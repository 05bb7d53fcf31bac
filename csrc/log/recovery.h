/* SPDX-License-Identifier: Apache-2.0
 *
 * recovery: make a log usable that was last written in another boot.
 *
 * After a power cut anything past the last sync may be missing, torn or present.
 * The segments are scanned from the last position known to be durable; the log is
 * cut at the first chunk whose header, CRC or offset is wrong, the index is
 * rewritten to match, tracking is rebuilt from the newest snapshot and the
 * trailers after it, and a new control block is made.  A damaged tail never stops
 * a stream from starting.  In the same boot there is nothing to do.
 */
#ifndef VIBEMQ_LOG_RECOVERY_H
#define VIBEMQ_LOG_RECOVERY_H

#include "log.h"

struct recovery_report {
    bool ran;                        /* false: same boot, nothing done */
    uint64_t chunks_checked, bytes_checked;
    bool cut;                        /* something was cut off */
    uint64_t cut_segment, cut_position, cut_bytes; /* where and how much (later segments included) */
    char cut_path[FAULT_WHERE_MAX_BYTES];
};

/* Only while no other process has the log open.  `options` are those of the new control block; where there is
 * nothing to recover, their limits are set (log_set_limits). */
err recovery_run(const char *directory, const struct log_options *options, struct recovery_report *out, struct fault *f);

#endif
