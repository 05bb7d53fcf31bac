# SPDX-License-Identifier: Apache-2.0
"""What the session and the client take from the codec, of a frame that wire.pxd has looked at."""

from vibemq.protocols.native.wire cimport native_frame

# The text of the Error INVALID_MESSAGE for what frame_check has found in a parsed frame; None: there is no fault.
cdef object fault_text(const native_frame *frame, int check)
# The MalformedFrame for what frame_header or frame_parse has returned.
cdef object malformed(int fault, size_t needed, size_t had)
# Headers as text, without the empty ones; of several the last.
cdef dict headers_dict(const native_frame *frame)
