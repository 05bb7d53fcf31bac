# SPDX-License-Identifier: Apache-2.0
"""What the session takes from the codec: verdicts on a frame that wire.pxd has parsed."""

from libc.stdint cimport uint8_t

from vibemq.protocols.native.wire cimport native_frame

# May a queue bear this name? Unicode's tables decide where wire.queue_name_check cannot.
cdef bint queue_name_valid(const uint8_t *name, size_t size) except -1
# The text of the Error INVALID_MESSAGE for a parsed frame, or None: all of wire.frame_check, and what that leaves open.
cdef object frame_fault(const native_frame *frame)
# The same for what frame_check has returned already, so that a frame is not looked at twice.
cdef object fault_text(const native_frame *frame, int check)
# The MalformedFrame for what frame_header or frame_parse has returned.
cdef object malformed(int fault, size_t needed, size_t had)
# Headers as text, without the empty ones; of several the last.
cdef dict headers_dict(const native_frame *frame)
