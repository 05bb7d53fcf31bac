/* SPDX-License-Identifier: Apache-2.0
 *
 * file: whole reads and writes at a position, names of files by their first offset, and
 * replacing a small file at one stroke.
 *
 * Everything goes through the table of system calls.  A call that was cut short or
 * interrupted is gone on with here, so nobody else loops over bytes.
 */
#ifndef VIBEMQ_BASE_FILE_H
#define VIBEMQ_BASE_FILE_H

#include <stdbool.h>

#include "error.h"
#include "sys.h"

#define FILE_DIRECTORY_BYTES_MAX 3072u /* leaves room below PATH_MAX for the longest name in it */
#define FILE_NAME_BYTES_MAX 80         /* of what comes behind a directory, the slash and the NUL included */
#define FILE_NAME_DIGITS 20            /* of a first offset: all of u64, so names sort as numbers */

struct file_path { char text[FILE_DIRECTORY_BYTES_MAX + FILE_NAME_BYTES_MAX]; };

/* "<directory>/<name>".  Who opens a directory measures its name. */
struct file_path file_path_name(const char *directory, const char *name);
/* "<directory>/<20 digits><suffix>", suffix ".segment", for instance. */
struct file_path file_path_numbered(const char *directory, uint64_t first_offset, const char *suffix);
/* Is `name` 20 digits and then `suffix`?  Gives the number. */
bool file_name_parse(const char *name, const char *suffix, uint64_t *first_offset);

err file_open(const char *path, int flags, int *fd, struct fault *f); /* O_CLOEXEC is added */
/* Open "<directory>/<20 digits><suffix>"; `p` is its path.  No link: who reads a log reads what lies in its directory. */
err file_open_numbered(struct file_path *p, const char *directory, uint64_t first_offset, const char *suffix, int flags,
                       int *fd, struct fault *f);
/* Make (or begin anew) a file that begins with these bytes; open for reading and writing. */
err file_create(const char *path, const void *data, size_t size, int *fd, struct fault *f);
void file_close(int *fd);                                             /* sets it to -1 */
err file_stat(int fd, const char *path, struct stat *st, struct fault *f);
err file_size(int fd, const char *path, uint64_t *size, struct fault *f);
/* Each opens a file, asks of it, reads up to `size` bytes of its beginning or syncs it, and closes it. */
err file_stat_of(const char *path, struct stat *st, struct fault *f);
err file_read_head(const char *path, void *data, size_t size, size_t *got, struct fault *f);
err file_sync(const char *path, struct fault *f);

/* Up to `size` bytes; fewer only at the end of the file. */
err file_read(int fd, const char *path, void *data, size_t size, uint64_t position, size_t *got, struct fault *f);
/* The same at the beginning of a file, of which the kernel is told to fetch no more. */
err file_head(int fd, const char *path, void *data, size_t size, size_t *got, struct fault *f);
/* Exactly `size` bytes; ERR_TRUNCATED when the file ends before. */
err file_read_exact(int fd, const char *path, void *data, size_t size, uint64_t position, struct fault *f);
err file_write(int fd, const char *path, const void *data, size_t size, uint64_t position, struct fault *f);
/* Write all parts one behind the other.  `parts` is used up. */
err file_writev(int fd, const char *path, struct iovec *parts, int count, uint64_t position, struct fault *f);
err file_truncate(int fd, const char *path, uint64_t size, struct fault *f);
/* Give back the room of these bytes, which are 0 from now on.  ERR_IO also where a file system cannot do that. */
err file_punch(int fd, const char *path, uint64_t position, uint64_t size, struct fault *f);

err file_datasync(int fd, const char *path, struct fault *f);
/* fsync of a directory: what was created, renamed or removed in it is durable. */
err file_sync_directory(const char *directory, struct fault *f);
/* All that lies in the file system of a directory is durable. */
err file_sync_system(const char *directory, struct fault *f);
/* That it is not there is no error. */
err file_unlink(const char *path, struct fault *f);
err file_rename(const char *source, const char *target, struct fault *f);

/* The end of making a file under a temporary name, `e` telling how that went: sync it when asked, close it and rename
 * it; after an error it is removed. */
err file_put(err e, int *fd, const char *temporary, const char *path, bool sync, struct fault *f);
/* Write `data` as "<path>.tmp", sync it when asked, and rename it to `path`. */
err file_replace(const char *path, const void *data, size_t size, bool sync, struct fault *f);

/* Call `each` with every name in a directory but those that begin with a dot, which no file of ours has, until one
 * call does not answer OK. */
typedef err file_each_fn(void *context, const char *directory, const char *name, struct fault *f);
err file_each(const char *directory, file_each_fn *each, void *context, struct fault *f);
/* The numbers of all files "<20 digits><suffix>" of a directory, rising; `*numbers` is to be freed. */
err file_numbers(const char *directory, const char *suffix, uint64_t **numbers, uint32_t *count, struct fault *f);

/* Map all `bytes` of an open file, shared, for reading and, with `write`, writing. */
err file_map(int fd, const char *path, size_t bytes, bool write, void **memory, struct fault *f);
/* Headers of files that are not mapped have this in common: magic, version, what is their own, and a CRC-32 over all of
 * that in the last four of their `bytes`. */
void file_header_seal(uint8_t *header, uint32_t bytes, uint32_t magic, uint32_t version);
/* ERR_TRUNCATED, ERR_CORRUPT (magic or check), ERR_VERSION (both are right, and the version is not ours). */
err file_header_check(const char *path, const uint8_t *data, uint64_t size, uint32_t bytes, uint32_t magic,
                      uint32_t version, struct fault *f);

/* Files that are made to be mapped begin with two words in the machine's own order: magic and version.  A check of both
 * lies at `check_at`, where every version keeps it.  It is 0 in files of older brokers, which had version 1 only. */
struct file_page_kind { uint32_t magic, version, check_at; };
#define FILE_PAGE_HEAD_BYTES 128u /* magic, version and check of every kind lie within */

/* The check of the two words.  It is never 0. */
uint32_t file_page_check(uint32_t magic, uint32_t version);
/* ERR_VERSION: `head` has that magic, a newer version, and a right check.  The size of the file does not matter: a newer
 * version may have a larger one.  OK also for damaged files and older versions. */
err file_page_version(const char *path, const void *head, size_t size, const struct file_page_kind *kind, struct fault *f);
/* Open and map such a file, but no symbolic link.  ERR_VERSION; `unfit` when its magic, version or size is damaged; `*inode` may be
 * NULL. */
err file_page_map(const char *path, const struct file_page_kind *kind, size_t bytes, bool write, err unfit,
                  void **memory, uint64_t *inode, struct fault *f);

/* Bytes that nobody can guess (for a seed). */
err file_random(void *out, size_t size, struct fault *f);

#endif
