# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from vibemq.storage.core cimport reader


# What a helper thread is to call so that `size` bytes are in memory, `begin` bytes behind the reader's place. The
# reader may move or close meanwhile.
cdef object ahead(reader *r, str directory, uint64_t begin, uint64_t size)
# What a helper thread is to call when `reader_enters` says so.
cdef object telling(reader *r, str directory)
