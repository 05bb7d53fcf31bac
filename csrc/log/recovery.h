/* SPDX-License-Identifier: Apache-2.0
 *
 * recovery: make a log usable that was last written in another boot.
 *
 * After a power cut anything past the last sync may be missing, torn or present.
 * The segments are scanned from the last position known to be durable; the log is
 * cut at the first chunk whose header, CRC or offset is wrong, what is cut goes to quarantine (quarantine.h), the index is
 * rewritten to match, tracking is rebuilt from the newest snapshot and the
 * trailers after it, and a new control block is made.  A damaged tail never stops
 * a stream from starting.  In the same boot there is nothing to do.
 *
 * Only what is understood is touched: one file of another version, and nothing is written at all (version.h).
 */
#ifndef VIBEMQ_LOG_RECOVERY_H
#define VIBEMQ_LOG_RECOVERY_H

#include "log.h"

/* What was taken out of the log, and where it is kept. */
struct recovery_cut {
    uint64_t segment, position, bytes; /* position 0: the whole file */
    char path[FAULT_WHERE_MAX_BYTES], kept[FAULT_WHERE_MAX_BYTES];
};
#define RECOVERY_CUTS_MAX 8u /* told one by one: a power cut rarely leaves more than a tail */

struct recovery_report {
    bool ran;                        /* false: same boot, nothing done */
    uint64_t chunks_checked, bytes_checked;
    uint32_t cut_count;              /* all of them, also those past the maximum */
    uint64_t cut_bytes;              /* of all of them */
    struct recovery_cut cuts[RECOVERY_CUTS_MAX];
};

/* Only while no other process has the log open.  `options` are those of the new control block; where there is
 * nothing to recover, their limits are set (log_set_limits).
 * ERR_VERSION: nothing was written.  After any other error it can be run again; what there was no room to keep is not cut. */
err recovery_run(const char *directory, const struct log_options *options, struct recovery_report *out, struct fault *f);

#endif
