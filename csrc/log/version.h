/* SPDX-License-Identifier: Apache-2.0
 *
 * version: is every file of a log in a format that we know?
 *
 * A file is of another version when its magic is right and, where its header has a check, that is right
 * too, and only the version is not ours.  Anything else with wrong bytes is damaged: recovery knows what to do.
 * Nothing is written here.
 */
#ifndef VIBEMQ_LOG_VERSION_H
#define VIBEMQ_LOG_VERSION_H

#include "../base/file.h"

/* All files of a log's directory, before anything is written there.  ERR_VERSION names such a
 * file, its version and ours.  ERR_NOT_FOUND (no such directory), ERR_IO, ERR_NO_MEMORY. */
err version_check(const char *directory, struct fault *f);

/* Headers of files that are not mapped have this in common: magic, version, what is their own, and a CRC-32 over all of
 * that in the last four of their `bytes`. */
void version_header_seal(uint8_t *header, uint32_t bytes, uint32_t magic, uint32_t version);
/* ERR_TRUNCATED, ERR_CORRUPT (magic or check), ERR_VERSION (both are right, and the version is not ours). */
err version_header_check(const char *path, const uint8_t *data, uint64_t size, uint32_t bytes, uint32_t magic,
                         uint32_t version, struct fault *f);

#endif
