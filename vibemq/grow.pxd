# SPDX-License-Identifier: Apache-2.0
from libc.stddef cimport size_t

cdef extern from "base/grow.h" nogil:
    struct fault:
        size_t needed, had
    int c_grow "grow" (void *array, size_t *capacity, size_t needed, size_t item_bytes, const char *what, fault *f)


cdef inline int grow(void *array, size_t *capacity, size_t needed, size_t item_bytes) except -1:
    """Let an array have room for `needed` items; `array` is the address of the pointer to it (csrc/base/grow.h)."""
    cdef fault f
    if c_grow(array, capacity, needed, item_bytes, "array", &f):
        raise MemoryError(f"{f.needed} bytes needed, {f.had} had")
    return 0
