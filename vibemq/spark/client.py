# SPDX-License-Identifier: Apache-2.0
"""Connections to the broker, kept for each process, and what to do while it is away.

Spark's Python workers outlive their tasks and its readers are pickled, so connections belong
neither to a reader nor to a task: they lie in a pool of this module, keyed by where and as
whom they connect. A forked child never touches what its parent opened.

Every wait has an end: one answer may take `fetchTimeoutMs`; a broker may be away for `brokerDownTimeoutMs`, during
which attempts are spaced out, then the query fails with the reason of the last attempt.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConnectionClosed, RequestFailed, StreamNotFound, TimeoutExceeded, VibeMQError
from vibemq.spark.options import Options

log = logging.getLogger("vibemq.spark")

T = TypeVar("T")

IDLE_SECONDS_MAX = 20.0  # nobody reads from an idle connection: an older one may be dead without knowing
FIRST_PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 2.0
WARN_EVERY_SECONDS = 60.0

CODE_NO_SUBSCRIPTION = 4  # a broker that has trouble with a stream ends its subscriptions; a new one is the remedy
ASK_AGAIN = 3
ASK_AGAIN_SECONDS = 0.3
AWAY = (OSError, ConnectionClosed, TimeoutExceeded)  # a wrong password is none of them: it fails at once


class BrokerAway(Exception):
    """The broker cannot be reached, or not just now; trying again may help."""


class Facts(NamedTuple):
    """What the broker says about a stream: the records [first, next) of one incarnation."""

    incarnation: str
    first: int
    next: int


# Idle, and since when, by the process that made them and by _key. What a parent made is kept, so that no destructor
# speaks on a socket that the parent still uses.
_pool: dict[tuple[Any, ...], list[tuple[StreamsConnection, float]]] = {}
#: Of Options, what tells connections apart.
_key = attrgetter("endpoints", "vhost", "username", "password", "password_env", "password_file", "fetch_timeout_ms")


def _idle(options: Options) -> list[tuple[StreamsConnection, float]]:
    return _pool.setdefault((os.getpid(), *_key(options)), [])


def _take(options: Options) -> StreamsConnection:
    idle = _idle(options)
    while idle:
        connection, since = idle.pop()
        if not connection.closed and time.monotonic() - since <= IDLE_SECONDS_MAX:
            return connection
        _close(connection)
    return _connect(options)


def _connect(options: Options) -> StreamsConnection:
    """A new connection to the first endpoint that takes one."""
    refused: list[str] = []
    for host, port in options.endpoints:
        try:
            return StreamsConnection.connect(
                host,
                port,
                user=options.username,
                password=options.secret(),
                virtual_host=options.vhost,
                timeout_s=options.fetch_timeout_ms / 1000,
                client_properties={"product": "VibeMQ", "connection_name": f"vibemq-spark-{os.getpid()}"},
            )
        except AWAY as failed:
            refused.append(str(failed))  # it says which endpoint
        except VibeMQError as failed:
            raise _with_remedy(failed) from None
    raise BrokerAway("; ".join(refused))


def _close(connection: StreamsConnection) -> None:
    with contextlib.suppress(*AWAY):
        connection.close()


@contextlib.contextmanager
def connection(options: Options) -> Iterator[StreamsConnection]:
    """A connection for one use. It goes back to the pool only when the use ended well.

    BrokerAway stands for every failure after which trying again makes sense, StreamNotFound
    for a stream that is really not there.
    """
    taken = _take(options)
    well = False
    try:
        yield taken
        well = True
    except RequestFailed as failed:
        if failed.code == CODE_NO_SUBSCRIPTION:
            raise BrokerAway(str(failed)) from failed
        raise _with_remedy(failed) from None
    except StreamNotFound as failed:
        if _all_exist(taken, options.streams):
            raise BrokerAway(str(failed)) from failed
        raise _with_remedy(failed) from None
    except AWAY as failed:
        raise BrokerAway(f"{type(failed).__name__}: {failed}") from failed
    finally:
        if well:
            _idle(options).append((taken, time.monotonic()))
        else:
            _close(taken)


def _with_remedy(failed: VibeMQError) -> VibeMQError:
    """The same with its hint in the message: Spark shows nothing else."""
    if failed.hint and failed.hint not in failed.message:
        failed.message = f"{failed.message}. {failed.hint}"
        failed.args = (failed.message,)
    return failed


def _all_exist(taken: StreamsConnection, streams: tuple[str, ...]) -> bool:
    """Whether every stream exists, perhaps without a leader at the moment: then to be refused one is no verdict."""
    try:
        return all(taken.exists(stream) for stream in streams)
    except AWAY:
        return True  # nobody said that it is gone


def close_all() -> None:
    """Close this process's idle connections."""
    for (pid, *_), idle in _pool.items():
        while idle and pid == os.getpid():
            _close(idle.pop()[0])


def facts(taken: StreamsConnection, stream: str, at_least: int = 0) -> Facts:
    """What the broker says about a stream. Only ours names an incarnation.

    `at_least` is an end that the stream had once, or 1 where it is likely to hold anything.
    An older broker tells its end by what it delivers, and a late delivery looks like an
    empty stream: it is asked again before anyone takes it for empty or speaks of lost data.
    """
    for again in range(ASK_AGAIN + 1):
        try:
            stats = taken.stats(stream)
        except RequestFailed:
            stats = {}  # a broker that does not know the command
        incarnation = format(stats["incarnation"] & (1 << 64) - 1, "x") if "incarnation" in stats else ""
        if "first_chunk_id" in stats and "committed_offset" in stats:
            has = Facts(incarnation, max(0, stats["first_chunk_id"]), stats["committed_offset"] + 1)
        else:
            has = Facts(incarnation, taken.first_offset(stream), taken.next_offset(stream))
        if incarnation or has.next >= at_least or again == ASK_AGAIN:
            break
        time.sleep(ASK_AGAIN_SECONDS)
    return has


class Patience:
    """How long to wait for a broker that is away, counted from the last time things went well."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_seconds = options.broker_down_timeout_ms / 1000
        self.where = ",".join(f"{host}:{port}" for host, port in options.endpoints)
        self.clock = clock
        self.away_since: float | None = None
        self.warned_at = -WARN_EVERY_SECONDS
        self.pause_seconds = FIRST_PAUSE_SECONDS

    def well(self) -> None:
        self.away_since = None
        self.pause_seconds = FIRST_PAUSE_SECONDS

    def away(self, failed: BrokerAway) -> None:
        """Note a failure; TimeoutExceeded once the broker has been away for too long."""
        now = self.clock()
        if self.away_since is None:
            self.away_since = now
        gone = now - self.away_since
        if gone >= self.limit_seconds:
            raise TimeoutExceeded(
                f"the broker at {self.where} has been away for {gone:.0f} s, "
                f"brokerDownTimeoutMs allows {self.limit_seconds * 1000:.0f}: {failed}"
            ) from failed
        if now - self.warned_at >= WARN_EVERY_SECONDS:
            self.warned_at = now
            log.warning("the broker at %s is away, waiting for it: %s", self.where, failed)

    def wait(self, failed: BrokerAway) -> None:
        """Note a failure and sleep longer each time; the jitter keeps tasks from coming all at once."""
        self.away(failed)
        time.sleep(self.pause_seconds * random.uniform(0.5, 1.0))
        self.pause_seconds = min(PAUSE_SECONDS_MAX, self.pause_seconds * 2)


def patiently(options: Options, call: Callable[[StreamsConnection], T]) -> T:
    """The result of `call`, tried until the broker has been away for too long."""
    patience = Patience(options)
    while True:
        try:
            with connection(options) as taken:
                return call(taken)
        except BrokerAway as failed:
            patience.wait(failed)
