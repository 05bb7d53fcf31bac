# SPDX-License-Identifier: Apache-2.0
"""The hops of a message through dead-letter queues: its header x-death, as RabbitMQ's, in JSON.

The newest hop comes first: {"queue", "reason", "count", "to"}.  Hops count only while each led to the next queue, so a
message that a client has published again (by `queues replay`, for instance) begins a new path.
"""

from typing import Annotated

import msgspec

from vibemq.broker.options import FailureReason

#: Queues on one path: a longer one counts as a cycle, and the header stays below 32 KiB.
HOPS_MAX = 64
#: A longer header is not ours: names of queues have 255 characters.
HEADER_BYTES_MAX = 64 << 10
#: Hops that are counted of one queue: publishers may write any number into the header.
COUNT_MAX = 2**53
#: Reasons that a consumer caused: such a hop breaks a cycle, because the consumer chose to send the message round.
REJECTIONS = frozenset({FailureReason.MAX_RETRIES_EXCEEDED.value, FailureReason.UNDELIVERABLE.value})


class Hop(msgspec.Struct, frozen=True):
    """A queue that the message has left, the reason, how often, and the queue that it went to."""

    queue: str
    reason: str
    count: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
    to: str


def first_hop_bytes(queue: str, to: str) -> int:
    """Return the largest size in bytes of the header x-death at a message's first hop, quoted as JSON text."""
    longest = max((reason.value for reason in FailureReason), key=len)
    header = msgspec.json.encode([Hop(queue, longest, HOPS_MAX, to)]).decode()
    return len(msgspec.json.encode(header))


def read_hops(header: bytes) -> list[Hop]:
    """Return the hops of a header x-death; none for a header in another form."""
    if not header or len(header) > HEADER_BYTES_MAX:
        return []
    try:
        return msgspec.json.decode(header, type=list[Hop])[:HOPS_MAX]
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # the last: many levels in a member that Hop has not
        return []


def one_more(header: bytes, queue: str, reason: str, to: str, *, is_published: bool) -> tuple[bytes | None, bool]:
    """Return the header with one more hop, and whether the earlier hops led here; no header: the message is in a cycle.

    It is in a cycle when it left the queue `to` before and no consumer has rejected it since.  `is_published`: it comes
    from a publisher and not out of `queue`.
    """
    hops = read_hops(header)
    leads_here = bool(hops) and hops[0].to == queue and not is_published
    earlier = hops if leads_here else []
    if reason not in REJECTIONS:
        for hop in earlier:
            if hop.reason in REJECTIONS:
                break
            if hop.queue == to:
                return None, True
        else:
            if len(earlier) >= HOPS_MAX:
                return None, True
    same = [hop for hop in hops if (hop.queue, hop.reason) == (queue, reason)]
    rest = [hop for hop in earlier if (hop.queue, hop.reason) != (queue, reason)]
    newest = Hop(queue, reason, min(sum(hop.count for hop in same) + 1, COUNT_MAX), to)
    return msgspec.json.encode([newest, *rest[: HOPS_MAX - 1]]), leads_here
