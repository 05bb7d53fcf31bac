/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32_kernels: the table behind crc32_update, so that tests and the benchmark
 * can run every kernel this processor has and not only the one it would choose.
 */
#ifndef VIBEMQ_BASE_CRC32_KERNELS_H
#define VIBEMQ_BASE_CRC32_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crc32_kernel {
    const char *name;
    uint32_t (*update)(uint32_t crc, const void *data, size_t size);
    bool (*usable)(void); /* does this processor have the instructions? */
};

/* The kernels compiled in, the quickest first, the portable one last. */
const struct crc32_kernel *crc32_kernels(size_t *count);

#endif
