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
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from vibemq.addresses import host_port
from vibemq.client.plans import NOT_SAID, WantedRange
from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConfigError, ConnectionClosed, RequestFailed, StreamNotFound, TimeoutExceeded, VibeMQError
from vibemq.spark import endpoints, logins
from vibemq.spark.options import ACCESS, FIELDS, PORTS_NATIVE, Options

log = logging.getLogger("vibemq.spark")

T = TypeVar("T")

FRAME_BYTES_MAX = 64 << 20  # of a message that is written; a broker's own limit is mostly lower
IDLE_SECONDS_MAX = 20.0  # nobody reads from an idle connection: an older one may be dead without knowing
FIRST_PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 2.0
WARN_EVERY_SECONDS = 60.0
WRONG_PORT_SECONDS = 5.0  # the native protocol waits there for the rest of a frame

CODE_NO_SUBSCRIPTION = 4  # a broker that has trouble with a stream ends its subscriptions; a new one is the remedy
ASK_AGAIN = 3
ASK_AGAIN_SECONDS = 0.3
AWAY = (OSError, ConnectionClosed, TimeoutExceeded)  # a wrong password is none of them: it fails at once


class BrokerAway(Exception):
    """The broker cannot be reached, or not just now; trying again may help."""


class Facts(NamedTuple):
    """What the broker says about a stream: the records [first, next) of one incarnation may be planned.

    What a power cut could take back is not among them, where the broker says what that is. `cuts` are offsets where
    the range that was asked for may be parted; the rest is what a broker of ours answers (client.plans).
    """

    incarnation: str
    first: int
    next: int
    cuts: tuple[int, ...] = ()
    at_timestamp: int | None = None
    limit: int = 0  # the end of so many bytes as were asked for
    waiting_bytes: int = 0
    store: str = ""
    directory: str = ""
    is_partial: bool = False  # of a bucket that has closed segments only: what lies behind them may come yet


# Idle, and since when, by the process that made them and by _key. What a parent made is kept, so that no destructor
# speaks on a socket that the parent still uses.
_pool: dict[tuple[Any, ...], list[tuple[StreamsConnection, float]]] = {}
#: Of Options, what tells connections apart.
_key = attrgetter(*(FIELDS.get(name, name) for name in ACCESS), "fetch_timeout_ms")


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
        timeout_s = options.fetch_timeout_ms / 1000
        if port in PORTS_NATIVE:
            timeout_s = min(timeout_s, WRONG_PORT_SECONDS)
        try:
            made = StreamsConnection.connect(
                host,
                port,
                **logins.arguments(options),
                virtual_host=options.vhost,
                timeout_s=timeout_s,
                frame_max=FRAME_BYTES_MAX,
                client_properties={"product": "VibeMQ", "connection_name": f"vibemq-spark-{os.getpid()}"},
            )
            made.timeout_s = options.fetch_timeout_ms / 1000
            return made
        except AWAY as failed:
            if isinstance(failed, VibeMQError) and _is_tls_refusal(failed.__cause__):
                raise with_remedy(failed) from None  # time does not mend that
            if isinstance(failed, TimeoutExceeded) and port in PORTS_NATIVE:
                raise with_remedy(failed) from None
            if said := endpoints.mistake(host, port, failed, tls=options.tls):
                raise ConfigError(f"option endpoints: {said}") from None
            hint = failed.hint if isinstance(failed, VibeMQError) else ""
            refused.append(f"{failed}. {hint}".removesuffix(". "))  # it says which endpoint
        except VibeMQError as failed:
            raise with_remedy(failed) from None
    raise BrokerAway("; ".join(refused))


def _is_tls_refusal(problem: BaseException | None) -> bool:
    """Whether one side does not want the other's certificate, or one of them speaks no TLS."""
    lost = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(problem, ssl.SSLError) and not isinstance(problem, lost)


def _close(connection: StreamsConnection) -> None:
    with contextlib.suppress(*AWAY):
        connection.close()


@contextlib.contextmanager
def connection(options: Options, streams: Sequence[str] = ()) -> Iterator[StreamsConnection]:
    """A connection for one use. It goes back to the pool only when the use ended well.

    BrokerAway stands for every failure after which trying again makes sense, StreamNotFound for a stream that is really
    not there: one of `streams`, or of all that are read. Without endpoints it is the bucket that answers.
    """
    if not options.endpoints:
        with _bucket(options) as catalog:
            yield catalog
        return
    taken = _take(options)
    well = False
    try:
        yield taken
        well = True
    except RequestFailed as failed:
        if failed.code == CODE_NO_SUBSCRIPTION:
            raise BrokerAway(str(failed)) from failed
        raise with_remedy(failed) from None
    except StreamNotFound as failed:
        if _all_exist(taken, options, streams):
            raise BrokerAway(str(failed)) from failed
        raise with_remedy(failed) from None
    except AWAY as failed:
        raise BrokerAway(f"{type(failed).__name__}: {failed}") from failed
    finally:
        if well:
            _idle(options).append((taken, time.monotonic()))
        else:
            _close(taken)


@contextlib.contextmanager
def _bucket(options: Options) -> Iterator[Any]:
    from vibemq.remote.bucket import Away
    from vibemq.spark import remote
    from vibemq.spark.remote_plans import Catalog

    try:
        yield Catalog(remote.store(options), options)
    except Away as failed:
        raise BrokerAway(str(failed)) from failed


def with_remedy(failed: VibeMQError) -> VibeMQError:
    """The same with its hint in the message: Spark shows nothing else."""
    if failed.hint and failed.hint not in failed.message:
        failed.message = f"{failed.message}. {failed.hint}"
        failed.args = (failed.message,)
    return failed


def _all_exist(taken: StreamsConnection, options: Options, streams: Sequence[str]) -> bool:
    """Whether every stream exists, perhaps without a leader at the moment: then to be refused one is no verdict."""
    try:
        return all(taken.exists(stream) for stream in streams or names(taken, options))
    except StreamNotFound:
        return False  # a super stream
    except AWAY:
        return True  # nobody said that it is gone


def close_all() -> None:
    """Close this process's idle connections."""
    for (pid, *_), idle in _pool.items():
        while idle and pid == os.getpid():
            _close(idle.pop()[0])


def partitions(taken: StreamsConnection, options: Options, more: str = "") -> list[str]:
    """A super stream's streams. StreamNotFound with the remedy, which is another one than a stream's."""
    try:
        return taken.partitions(options.super_stream)
    except StreamNotFound:
        if not options.endpoints:  # a bucket, which says so itself
            raise
        raise StreamNotFound(
            f"super stream {options.super_stream!r} does not exist{more}; `vibemq ctl add_super_stream` makes one"
        ) from None


def names(taken: StreamsConnection, options: Options) -> list[str]:
    """The streams that are to be read, as of now."""
    if options.super_stream:
        return partitions(taken, options)
    if options.pattern:
        return [each.name for each in taken.list_streams() if re.fullmatch(options.pattern, each.name)]
    return list(options.streams)


def ask(
    taken: StreamsConnection,
    wanted: Iterable[WantedRange],
    at_least: Mapping[str, int] | None = None,
    super_stream: str = "",
) -> dict[str, Facts]:
    """What the broker says about streams, or a super stream's partitions; in one round trip if it is ours.

    `at_least`: an end that a stream had once. Where it says nothing, a stream is likely to hold something.
    """
    if hasattr(taken, "ask"):  # a bucket
        return taken.ask(wanted, super_stream)
    ranges = {each.stream: each for each in wanted}
    if not taken.has_plans:
        streams = taken.partitions(super_stream) if super_stream else list(ranges)
        return {
            name: _found_out(taken, ranges.get(name, WantedRange(name)), (at_least or {}).get(name, 1))
            for name in streams
        }
    plan = taken.plan_reads(list(ranges.values()), super_stream=super_stream)
    return {
        name: Facts(
            f"{int(each.incarnation, 16):x}",
            each.first,
            each.durable,
            each.cuts,
            each.at_timestamp,
            each.limit,
            each.waiting_bytes,
            plan.store,
            plan.directory,
        )
        for name, each in plan.streams.items()
    }


def facts(taken: StreamsConnection, stream: str, at_least: int = 0) -> Facts:
    """The same about one stream, for who reads it."""
    return ask(taken, [WantedRange(stream)], {stream: at_least})[stream]


def _found_out(taken: StreamsConnection, wanted: WantedRange, at_least: int) -> Facts:
    """Of a broker that plans nothing. Only ours names an incarnation.

    An older broker tells its end by what it delivers, and a late delivery looks like an empty stream: it is asked again
    before anyone takes it for empty or speaks of lost data.
    """
    stream = wanted.stream
    for again in range(ASK_AGAIN + 1):
        try:
            stats = taken.stats(stream)
        except RequestFailed:
            stats = {}  # a broker that does not know the command
        incarnation = format(stats["incarnation"] & (1 << 64) - 1, "x") if "incarnation" in stats else ""
        # What another broker has committed may be a record of its own, which it delivers to nobody.
        if incarnation and "first_chunk_id" in stats and "committed_offset" in stats:
            has = Facts(incarnation, max(0, stats["first_chunk_id"]), stats["committed_offset"] + 1)
        else:
            has = Facts(incarnation, taken.first_offset(stream), taken.next_offset(stream))
        if incarnation or has.next >= at_least or again == ASK_AGAIN:
            break
        time.sleep(ASK_AGAIN_SECONDS)
    start, end = max(wanted.start, has.first), has.next if wanted.end == NOT_SAID else min(wanted.end, has.next)
    if wanted.split_records:  # nobody knows where chunks begin: tasks drop what they get of their neighbours'
        has = has._replace(cuts=tuple(range(end - wanted.split_records, start, -wanted.split_records))[::-1])
    if wanted.bytes_max and start < end:
        with contextlib.closing(taken.read_chunks(stream, start, start + 1)) as chunks:
            chunk = next(chunks, None)
        # Nobody says how many bytes lie there: as many for each record as in the first chunk.
        records, size = (chunk.records, len(chunk.data)) if chunk else (1, 1)
        waiting = (end - start) * size // records
        has = has._replace(limit=min(end, start + max(1, wanted.bytes_max * records // size)), waiting_bytes=waiting)
    return has


class Patience:
    """How long to wait for a broker that is away, counted from the last time things went well."""

    def __init__(self, options: Options) -> None:
        self.limit_seconds = options.broker_down_timeout_ms / 1000
        brokers = ",".join(host_port(host, port) for host, port in options.endpoints)
        self.where = f"the broker at {brokers}" if brokers else f"the bucket {options.remote}"
        self.away_since: float | None = None
        self.warned_at = -WARN_EVERY_SECONDS
        self.pause_seconds = FIRST_PAUSE_SECONDS

    def well(self) -> None:
        self.away_since = None
        self.pause_seconds = FIRST_PAUSE_SECONDS

    def wait(self, failed: BrokerAway) -> None:
        """Note a failure and sleep longer each time; TimeoutExceeded once the broker has been away for too long."""
        now = time.monotonic()
        if self.away_since is None:
            self.away_since = now
        gone = now - self.away_since
        if gone >= self.limit_seconds:
            raise TimeoutExceeded(
                f"{self.where} has been away for {gone:.0f} s, "
                f"brokerDownTimeoutMs allows {self.limit_seconds * 1000:.0f}: {failed}"
            ) from failed
        if now - self.warned_at >= WARN_EVERY_SECONDS:
            self.warned_at = now
            log.warning("%s is away, waiting for it: %s", self.where, failed)
        time.sleep(self.pause_seconds * random.uniform(0.5, 1.0))  # so that tasks do not come all at once
        self.pause_seconds = min(PAUSE_SECONDS_MAX, self.pause_seconds * 2)


def patiently(options: Options, call: Callable[[StreamsConnection], T], streams: Sequence[str] = ()) -> T:
    """The result of `call`, which is about `streams`, or all; tried until the broker has been away for too long."""
    patience = Patience(options)
    while True:
        try:
            with connection(options, streams) as taken:
                return call(taken)
        except BrokerAway as failed:
            patience.wait(failed)
