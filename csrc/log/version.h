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

#include <stdint.h>

#include "../base/error.h"

/* All files of a log's directory, before anything is written there.  ERR_VERSION names such a
 * file, its version and ours.  ERR_NOT_FOUND (no such directory), ERR_IO, ERR_NO_MEMORY. */
err version_check(const char *directory, struct fault *f);

/* Headers of files that are not mapped have this in common: magic, version, what is their own, and a CRC-32 over all of
 * that in the last four of their `bytes`. */
void version_header_seal(uint8_t *header, uint32_t bytes, uint32_t magic, uint32_t version);
/* ERR_TRUNCATED, ERR_CORRUPT (magic or check), ERR_VERSION (both are right, and the version is not ours). */
err version_header_check(const uint8_t *data, uint64_t size, uint32_t bytes, uint32_t magic, uint32_t version);
/* The fault of a file that begins with `head`, whose version is not the one known: ERR_VERSION. */
err version_fault(const char *path, uint32_t known, const uint8_t *head, struct fault *f);

/* One mapped file (machine's own order, no check), of whatever size.  ERR_VERSION, ERR_IO. */
err version_check_mapped(int fd, const char *path, uint32_t magic, uint32_t known, struct fault *f);

#endif
