# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: each has a limit, and so have all together, whoever sends them.

A small body never waits for what others send: that much of each is not taken from the budget.  A large one takes all
that its Content-Length says before any of it is read; one that does not say its size takes what has come of it.  Who
finds too little left is refused at once, for half a body that waits for others would hold memory as well.  What was
taken is given back when the request is answered, because what JSON makes of a body lives as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from vibemq.admin.api.calls import Refused, bad_request
from vibemq.broker.limits import count_refused
from vibemq.once_a_minute import OnceAMinute

BODY_BYTES_MAX = 16 << 20  # a definitions file of tens of thousands of streams
BODIES_BYTES_MAX = 2 * BODY_BYTES_MAX  # of all together; as objects of JSON up to 30 times as much
SMALL_BODY_BYTES_MAX = 64 << 10  # for each request beside that; less than socket and parser hold of one anyway
BODY_S = 60.0  # for a body of BODY_BYTES_MAX over a slow line
RETRY_S = 5  # when who was refused may come again

refusing = OnceAMinute(logging.getLogger("vibemq.admin"))


class Bodies:
    """The memory for request bodies: room for two bodies of the largest size.

    Each HTTP listener has its own; for the thread of the event loop.
    """

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._body_bytes_max, self._bytes_max = body_bytes_max, 2 * body_bytes_max
        self._free = self._bytes_max

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytearray]:
        """A request's body, which counts until the end of the block.  Raises Refused."""
        taken = 0

        def cover(size: int) -> None:
            nonlocal taken
            if size > self._body_bytes_max:
                raise Refused(413, "too_large", f"a body has at most {self._body_bytes_max} bytes, and this has {size}")
            more = max(0, size - SMALL_BODY_BYTES_MAX - taken)
            if more > self._free:
                said = "%s: a body of %d bytes over HTTP was refused: all together have %d bytes at most"
                count_refused()
                refusing.say("bodies", said, request.remote or "vibemq ctl", size, self._bytes_max)
                reason = f"other large bodies are being read, and all together have at most {self._bytes_max} bytes"
                raise Refused(503, "service_unavailable", f"{reason}: wait {RETRY_S} s", RETRY_S)
            taken += more
            self._free -= more

        try:
            yield await whole(request, BODY_S, cover)
        finally:
            self._free += taken


async def whole(request: web.Request, within_s: float, cover: Callable[[int], None]) -> bytearray:
    """``cover`` hears how large the body is, or is so far, before that is kept, and may refuse it.  Raises Refused."""
    said, body = request.content_length or 0, bytearray()
    cover(said)
    try:
        async with asyncio.timeout(within_s):
            while part := await request.content.readany():
                cover(max(said, len(body) + len(part)))
                body += part
    except TimeoutError:
        raise Refused(408, "timeout", f"no body within {within_s:g} s") from None
    except ConnectionError:  # nobody hears this; as an error of ours it would fill the log
        raise bad_request("the connection ended before the body") from None
    return body
