# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t
from vibemq.protocols.signalr.wire cimport span

# The entry, with its four bytes of length, in the worker's scratch memory; its size.  `options`: MessageOptions or None;
# `has_escapes`: JSON that may have some.  Raises HubError.
cdef size_t entry_write(span body, int encoding, bint has_escapes, object options, uint8_t **out) except 0
