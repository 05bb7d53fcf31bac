/* SPDX-License-Identifier: Apache-2.0
 *
 * quarantine: what recovery takes out of a log, kept beside it for people.
 *
 *   <20 digits>.segment.<position>.<number>.quarantine   the bytes of a segment from that position on
 *   <20 digits>.<segment or index>.<number>.quarantine   a whole file
 *
 * The number is the epoch that the recovery ended, so it rises.  The log never reads these files; anybody may remove
 * them at any time, they go with the log, and with age where the log's messages go with age.
 *
 * The order makes a power cut harmless: a copy is complete and durable, name and all, before the original is
 * cut; a whole file is renamed, which is one stroke.  Done again, it ends the same.
 */
#ifndef VIBEMQ_LOG_QUARANTINE_H
#define VIBEMQ_LOG_QUARANTINE_H

#include "../base/file.h"

/* What earlier recoveries of a log put there is removed, oldest first, while it is more than this: about two segments. */
#define QUARANTINE_EARLIER_BYTES_MAX (UINT64_C(1) << 30)

/* Copy a segment's bytes from `position` up to `size`; the file stays as it is.  `*kept` is the copy's path.  What cannot be
 * read is zeros there.  ERR_DISK_FULL, ERR_IO: nothing may be cut. */
err quarantine_tail(const char *directory, uint64_t segment, uint64_t position, uint64_t size, uint32_t number,
                    struct file_path *kept, struct fault *f);

/* Rename a whole file.  ERR_NOT_FOUND when there is none. */
err quarantine_file(const char *directory, uint64_t segment, const char *suffix, uint32_t number, struct file_path *kept,
                    struct fault *f);

/* After a recovery that began with epoch `first`: keep all it put there, and of earlier ones at most the limit. */
err quarantine_trim(const char *directory, uint32_t first, struct fault *f);

/* Remove what was last written before `oldest_ms` since 1970. */
err quarantine_expire(const char *directory, int64_t oldest_ms, struct fault *f);

#endif
