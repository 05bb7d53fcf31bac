# SPDX-License-Identifier: Apache-2.0
"""Publish to a stream through restarts of its broker: messages are kept until they are confirmed, and sent again.

With a publisher's name the broker says which of them it has, so each is stored once.  Without one, messages whose
confirm was lost may be stored twice, and their number is said.
"""

import time
from collections import deque
from typing import TYPE_CHECKING

import click

from vibemq.cli.connection import StreamsBroker
from vibemq.cli.terminal import messages_text
from vibemq.errors import ConnectionClosed, RequestFailed, TimeoutExceeded, VibeMQError
from vibemq.protocols.streams.spec import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from vibemq.client._flows import Publisher
    from vibemq.client.streams import StreamsConnection

#: Given to the publisher at a time; with those on their way, so many are kept.
BATCH_MESSAGES_MAX = 4096
FIRST_PAUSE_S, PAUSE_S_MAX = 0.1, 2.0


class Resuming:
    """One stream's publisher, on a new connection whenever the old one ends, for at most `patience_s` without one."""

    def __init__(
        self, broker: StreamsBroker, stream: str, reference: str, patience_s: float, is_over: "Callable[[], object]"
    ) -> None:
        """`is_over`: asked while there is no connection; whether to give up, as after Ctrl-C."""
        self.confirmed = 0
        self.unconfirmed = 0
        self._broker, self._stream, self._reference = broker, stream, reference
        self._where = broker.address()  # once: a password may be asked for
        self._patience_s, self._is_over = patience_s, is_over
        self._kept: deque[bytes] = deque()  # not confirmed yet, in their order
        self._client, self._publisher = self._connect()
        self._kept_id = self._publisher.next_id  # of the first of them
        self._seen = 0  # confirms of this publisher that are counted

    def publish(self, messages: list[bytes]) -> None:
        """Send all of them.  Raises VibeMQError for a refusal, and when the patience is over."""
        for start in range(0, len(messages), BATCH_MESSAGES_MAX):
            batch = messages[start : start + BATCH_MESSAGES_MAX]
            self._kept.extend(batch)
            try:
                self._publisher.publish(batch)
                self._settle()
            except ConnectionClosed as lost:
                self._resume(lost)

    def close(self) -> None:
        """Wait for all confirms and close the connection.  Raises as `publish` does."""
        try:
            while True:
                try:
                    self._publisher.flush()
                    return
                except ConnectionClosed as lost:
                    self._resume(lost)
        finally:
            self._settle()
            self.unconfirmed = len(self._kept)
            self._client.close()

    def _connect(self) -> "tuple[StreamsConnection, Publisher]":
        client = self._broker.connect(self._where)
        try:
            return client, client.publisher(self._stream, self._reference)
        except BaseException:
            client.close()
            raise

    def _settle(self) -> None:
        """Forget messages that the broker has confirmed; it confirms a publisher's in their order."""
        self._forget(self._publisher.confirmed - self._seen)
        self._seen = self._publisher.confirmed

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._kept.popleft()
        self.confirmed += count
        self._kept_id += count

    def _resume(self, lost: ConnectionClosed) -> None:
        """Connect again, and send what is not confirmed; again if that connection ends, too."""
        deadline = time.monotonic() + self._patience_s
        while True:
            self._settle()
            unsure = self._publisher.unconfirmed
            self._client.close()
            click.echo(f"vibemq: {lost}; connecting again", err=True)
            self._client, self._publisher = self._connect_again(deadline, lost)
            self._seen = 0
            if self._reference:
                self._forget(min(len(self._kept), max(0, self._publisher.next_id - self._kept_id)))
            elif unsure:
                said = f"vibemq: {messages_text(unsure)} may be stored twice, as no confirm came; --name avoids that"
                click.echo(said, err=True)
            try:
                self._publisher.publish(list(self._kept))
                return
            except ConnectionClosed as again:
                lost = again

    def _connect_again(self, deadline: float, lost: ConnectionClosed) -> "tuple[StreamsConnection, Publisher]":
        pause_s, failed = FIRST_PAUSE_S, VibeMQError(str(lost), hint=lost.hint)
        while time.monotonic() < deadline and not self._is_over():
            try:
                return self._connect()
            except (ConnectionClosed, TimeoutExceeded) as away:
                failed = away
            except RequestFailed as refused:
                if refused.code != Code.STREAM_NOT_AVAILABLE:
                    raise
                failed = refused
            time.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)
        raise failed
