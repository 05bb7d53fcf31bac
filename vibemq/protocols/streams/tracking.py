# SPDX-License-Identifier: Apache-2.0
"""StoreOffset and QueryOffset."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vibemq.protocols.streams.replies import answer, find
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)


def store_offset(session: StreamsSession, request: Any) -> None:
    # The protocol has no answer for it; QueryOffset will truthfully say that nothing is stored.
    logger.warning(
        "%s: offset of %r on %s not stored: not offered by this version",
        session.peer,
        request.reference,
        request.stream,
    )


def query_offset(session: StreamsSession, request: Any) -> None:
    if find(session, request, Key.QUERY_OFFSET) is not None:
        answer(session, request, Key.QUERY_OFFSET, Code.NO_OFFSET)
