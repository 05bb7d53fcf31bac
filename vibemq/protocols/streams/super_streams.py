# SPDX-License-Identifier: Apache-2.0
"""Route, Partitions, CreateSuperStream and DeleteSuperStream."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vibemq.protocols.streams.replies import answer
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)


def no_super_stream(key: Key) -> Callable[[Any, Any], None]:
    def refused(session: StreamsSession, request: Any) -> None:
        answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)

    return refused


def create_super_stream(session: StreamsSession, request: Any) -> None:
    logger.warning("%s: super streams are not offered by this version", session.peer)
    answer(session, request, Key.CREATE_SUPER_STREAM, Code.PRECONDITION_FAILED)
