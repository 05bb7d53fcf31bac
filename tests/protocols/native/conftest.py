# SPDX-License-Identifier: Apache-2.0
"""A broker where nobody has to log in, and raw connections to its native door."""

from functools import partial

from fixtures import connection, shared_broker
from peers.native import NativePeer, connected

served = shared_broker(
    "native",
    *("--set", "queues.ack_timeout_ms=60000"),
    *("--set", "queues.block_timeout_ms=700"),
)
raw = connection(NativePeer)  # without Connect
peer = connection(connected)
other = connection(connected)
text = connection(partial(connected, text=True))  # of the text layout
