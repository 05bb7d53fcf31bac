# SPDX-License-Identifier: Apache-2.0
"""What can go wrong only here: records that a query needs are gone.

One class for all its kinds, because a job handles them alike; the message says which
it was, gives both ranges and says what to do, since Spark shows nothing but the message.
"""

from __future__ import annotations

from vibemq.errors import VibeMQError

REMEDY = (
    "Start the query with a new checkpoint, or set failOnDataLoss=false to go on with what is there; "
    "longer retention on the stream keeps it from happening again"
)


class DataLost(VibeMQError):
    """Records that were asked for are not in the stream (any more)."""

    def __init__(self, stream: str, wanted: str, there: str, why: str) -> None:
        super().__init__(f"stream {stream!r}: {why}: wanted {wanted}, the stream has {there}. {REMEDY}", hint=REMEDY)
        self.stream = stream
