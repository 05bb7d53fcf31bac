# SPDX-License-Identifier: Apache-2.0
"""A synchronous client of the streams protocol for moving data in bulk: the Spark source, tools and tests use it::

    with StreamsConnection.connect("localhost", 5552) as connection:
        connection.create("demo", exist_ok=True)
        with connection.publisher("demo") as publisher:
            publisher.publish([b"one", b"two"])
        for chunk in connection.read_chunks("demo", 0):
            print(chunk.chunk_id, chunk.records)

It works in chunks, never in single messages, and against any server of the protocol from RabbitMQ 3.9 on: what an
older server lacks (StreamStats) is found out by other means. One thread uses a connection at a time. Every wait has
a deadline; every error says where it happened, and its hint what to do.

A connection goes to the broker that it was told; it does not look for the leader of a stream in a cluster.
"""

from __future__ import annotations

import shlex
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from vibemq.client._failures import failure, is_known, not_a_broker, wrong_door
from vibemq.client._flows import Publisher, Subscription
from vibemq.client._frames import free_number
from vibemq.client._staging import Committed, Staging, Transactions
from vibemq.client._streams import Chunk, Inbox
from vibemq.client._transport import Deadline, TlsContext, Transport
from vibemq.client.plans import Plan, WantedRange, plan
from vibemq.errors import (
    ConnectionClosed,
    ProtocolError,
    RequestFailed,
    StreamExists,
    StreamNotFound,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, ExtensionKey, Key, OffsetType, TransactionState

__all__ = [
    "Chunk", "Committed", "ListedStream", "Publisher", "Staging", "StreamLocation", "StreamsConnection", "Subscription",
    "TransactionState",
]  # fmt: skip

CREDIT_DEFAULT_COUNT = 16  # chunks on the way: enough to hide the round trip, little to throw away at the end
UNCONFIRMED_DEFAULT_COUNT_MAX = 50_000  # the reference server stops reading at this number anyway
STATS_SERVER_VERSION_MIN = (3, 11)  # ExchangeCommandVersions and StreamStats; an older server closes over them
CLOSE_TIMEOUT_S = 5.0  # a broker that does not answer Close is not waited for


class StreamLocation(NamedTuple):
    """What Metadata says of one stream; addresses are (host, port), and leader is None where there is none."""

    code: int
    leader: tuple[str, int] | None
    replicas: tuple[tuple[str, int], ...]


class ListedStream(NamedTuple):
    """A stream as a listing shows it; a queue is a stream, too, and has no arguments of its own."""

    name: str
    is_queue: bool
    arguments: dict[str, str]


class StreamsConnection(Transactions, AbstractContextManager["StreamsConnection"]):
    """One connection, opened and authenticated. Made by `connect`."""

    # ---- opening and closing ----

    @classmethod
    def connect(
        cls,
        host: str,
        port: int = spec.PORT_DEFAULT,
        *,
        user: str = "guest",
        password: str = "guest",
        mechanism: str = "PLAIN",
        virtual_host: str = "/",
        tls: TlsContext | bool | None = None,
        timeout_s: float = 10.0,
        heartbeat_s: int = spec.HEARTBEAT_DEFAULT_S,
        client_properties: Mapping[str, str] | None = None,
        frame_max: int = spec.FRAME_SIZE_DEFAULT_BYTES,
    ) -> StreamsConnection:
        """Connects, authenticates and opens `virtual_host`.

        mechanism: PLAIN; or, without a password, EXTERNAL, which is whom the TLS certificate names, or ANONYMOUS.
        tls: a context, or True for the system's trusted authorities. timeout_s: for this and for each later wait.
        heartbeat_s: 0 for none. frame_max: our upper bound in bytes; the broker's may be lower.
        """
        context = ssl.create_default_context() if tls is True else (tls or None)
        inbox = Inbox()
        connection = cls(Transport(host, port, context, timeout_s, "streams", inbox.receive), inbox, timeout_s)
        connection.user, connection.virtual_host = user, virtual_host
        try:
            connection._open(mechanism, password, heartbeat_s, client_properties or {}, frame_max)
        except BaseException:
            connection._transport.close()
            raise
        return connection

    def _open(
        self, mechanism: str, password: str, heartbeat_s: int, client_properties: Mapping[str, str], frame_max: int
    ) -> None:
        user, virtual_host = self.user, self.virtual_host
        properties = {"product": spec.OWN_PRODUCT, "platform": "Python", "connection_name": "vibemq"}
        try:
            answer = self.request(Key.PEER_PROPERTIES, properties={**properties, **client_properties})
        except (ConnectionClosed, TimeoutExceeded) as problem:
            heard = self._inbox.first_bytes()
            if is_known(heard):
                raise not_a_broker(self._transport.peer, "streams", heard, problem) from None
            problem.hint = wrong_door("streams", heard)
            raise
        except ProtocolError as problem:
            raise not_a_broker(self._transport.peer, "streams", self._inbox.first_bytes(), problem) from None
        self.server_properties = answer.properties
        self.request(Key.SASL_HANDSHAKE)
        data = b"\0" + user.encode() + b"\0" + password.encode() if mechanism == "PLAIN" else b""
        who = f"as {user!r}" if data else f"with {mechanism}"
        self.request(Key.SASL_AUTHENTICATE, where=f"logging in {who}", mechanism=mechanism, data=data)
        deadline = Deadline(self.timeout_s, f"{self._transport.peer}: waiting for Tune")
        while self._tune is None:
            self._wait(deadline)
        # 0 means that this side has no wish of its own.
        heartbeat = min(heartbeat_s, self._tune.heartbeat or heartbeat_s)
        self.frame_max = min(frame_max, self._tune.frame_max or frame_max)
        tune = codec.encode_response(Key.TUNE, None, None, frame_max=self.frame_max, heartbeat=heartbeat)
        self._send(tune, "answering Tune")
        where = f"opening virtual host {virtual_host!r} as user {user!r}"
        try:
            self.open_properties = self.request(Key.OPEN, where=where, virtual_host=virtual_host).properties
        except RequestFailed as refused:
            if refused.code == Code.VIRTUAL_HOST_ACCESS_FAILURE:
                quoted, quoted_user = shlex.quote(virtual_host), shlex.quote(user)
                refused.hint = (
                    f"There is no such virtual host (`vibemq ctl add_vhost {quoted}` makes it), it is closed to the "
                    f"user (`vibemq ctl set_permissions --vhost {quoted} {quoted_user} CONFIGURE WRITE READ` opens "
                    "it), or a limit of connections is reached: the broker's log says which."
                )
            raise
        if heartbeat:
            self._transport.start_heartbeats(heartbeat)
        numbers = self.server_properties.get("version", "0").split(".")[:2]
        if tuple(int(number) if number.isdigit() else 0 for number in numbers) >= STATS_SERVER_VERSION_MIN:
            versions = [(Key.DELIVER, 1, 1)]
            for item in self.request(Key.EXCHANGE_COMMAND_VERSIONS, versions=versions).versions:
                self.commands[item.key] = item.version_max

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Says Close and waits a little for the answer. Never raises: what was confirmed is safe either way."""
        if self._transport.closed:
            return
        try:
            deadline = Deadline(min(self.timeout_s, timeout_s), "closing")
            self._exchange(Key.CLOSE, deadline, code=Code.OK, reason="OK")
        except VibeMQError:
            return
        finally:
            self._transport.close()

    def detach(self) -> socket.socket:
        """Gives the blocking socket to a caller that speaks the protocol itself from here on, as load generators do.

        Call it while nothing is on its way: bytes that came already would be lost with this object.
        """
        self._check()
        self._failure = ConnectionClosed(f"{self._transport.peer}: the socket was handed on", hint="Use the socket.")
        return self._transport.detach()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- commands ----

    def create(
        self,
        stream: str,
        arguments: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Declares a stream; `arguments` as in `{"max-length-bytes": 1_000_000, "max-age": "12h"}`."""
        texts = {name: str(value) for name, value in (arguments or {}).items()}
        try:
            self.request(Key.CREATE, stream=stream, arguments=texts, timeout_s=timeout_s)
        except StreamExists:
            if not exist_ok:
                raise

    def delete(self, stream: str, *, missing_ok: bool = False, timeout_s: float | None = None) -> None:
        try:
            self.request(Key.DELETE, stream=stream, timeout_s=timeout_s)
        except StreamNotFound:
            if not missing_ok:
                raise

    def metadata(self, streams: Sequence[str], *, timeout_s: float | None = None) -> dict[str, StreamLocation]:
        """Where streams are. A stream that does not exist has its code, and no leader."""
        answer = self.request(Key.METADATA, streams=list(streams), timeout_s=timeout_s)
        brokers = {broker.ref: (broker.host, broker.port) for broker in answer.brokers}
        found = {}
        for item in answer.streams:
            replicas = tuple(brokers[ref] for ref in item.replica_refs if ref in brokers)
            found[item.stream] = StreamLocation(item.code, brokers.get(item.leader_ref), replicas)
        return found

    def exists(self, stream: str, *, timeout_s: float | None = None) -> bool:
        location = self.metadata([stream], timeout_s=timeout_s).get(stream)
        if location is not None and location.code == Code.ACCESS_REFUSED:
            raise failure(f"{self._transport.peer}: Metadata {stream}", location.code)
        return location is not None and location.code in (Code.OK, Code.STREAM_NOT_AVAILABLE)

    def stats(self, stream: str, *, timeout_s: float | None = None) -> dict[str, int]:
        """StreamStats: first_chunk_id, committed_chunk_id, ... each -1 while the stream is empty."""
        if not self.has_stats:
            raise RequestFailed(
                f"StreamStats {stream}: needed a broker with this command, had version "
                f"{self.server_properties.get('version', 'unknown')}",
                code=Code.UNKNOWN_FRAME,
                hint="first_offset and next_offset work with older brokers too.",
            )
        return self.request(Key.STREAM_STATS, stream=stream, timeout_s=timeout_s).statistics

    def list_streams(self, first: str = "", *, timeout_s: float | None = None) -> Iterator[ListedStream]:
        """The streams and queues that the user may read or write, by name, from `first` on. Of our brokers only."""
        while page := self._listed(first, spec.LIST_STREAMS_COUNT_MAX, timeout_s):
            yield from page
            first = page[-1].name + "\0"  # the next name that there can be

    def find_stream(self, stream: str, *, timeout_s: float | None = None) -> ListedStream | None:
        """One of them, or None where there is none that the user may read or write."""
        page = self._listed(stream, 1, timeout_s)
        return page[0] if page and page[0].name == stream else None

    def _listed(self, first: str, count: int, timeout_s: float | None) -> list[ListedStream]:
        page = self._extension(ExtensionKey.LIST_STREAMS, first=first, count=count, timeout_s=timeout_s).streams
        return [ListedStream(item.name, bool(item.is_queue), item.arguments) for item in page]

    def list_offsets(self, stream: str, *, timeout_s: float | None = None) -> dict[str, int]:
        """Every reference for which the stream has a stored offset. Of our brokers only."""
        answer = self._extension(ExtensionKey.LIST_OFFSETS, stream=stream, timeout_s=timeout_s)
        return {item.reference: item.offset for item in answer.offsets}

    def plan_reads(
        self,
        ranges: Sequence[WantedRange] = (),
        *,
        reference: str = "",
        super_stream: str = "",
        timeout_s: float | None = None,
    ) -> Plan:
        """What a plan to read needs, in one round trip. Of our brokers only: see has_plans.

        reference: whose stored offsets are wanted. super_stream: its partitions are the streams, and `ranges` names
        those of them for which there is more to say.
        """
        ask = partial(self._extension, ExtensionKey.PLAN_READS, timeout_s=timeout_s)
        found = plan(ask, list(ranges), reference, super_stream)
        for each in found.streams.values():
            if each.code != Code.OK:
                raise failure(f"{self._transport.peer}: PlanReads {each.stream}", each.code)
        return found

    def filter_range(
        self,
        stream: str,
        start: int,
        end: int,
        values: Sequence[str],
        *,
        match_unfiltered: bool = False,
        timeout_s: float | None = None,
    ) -> list[tuple[int, int]]:
        """Spans of [start, end) in chunks that may hold messages of these filter values. Of our brokers only."""
        ask = partial(self._extension, ExtensionKey.FILTER_RANGE, timeout_s=timeout_s)
        spans: list[tuple[int, int]] = []
        while start < end:
            answer = ask(stream=stream, start=start, end=end, match_unfiltered=match_unfiltered, values=list(values))
            found = list(zip(answer.spans[::2], answer.spans[1::2], strict=True))
            if spans and found and spans[-1][1] == found[0][0]:
                found[0] = (spans.pop()[0], found[0][1])
            spans += found
            if answer.until <= start:  # the stream ends there
                break
            start = answer.until
        return spans

    def partitions(self, super_stream: str, *, timeout_s: float | None = None) -> list[str]:
        """The streams of a super stream, in their order."""
        return list(self.request(Key.PARTITIONS, super_stream=super_stream, timeout_s=timeout_s).streams)

    @property
    def has_plans(self) -> bool:
        """Whether the broker is one of ours that knows plan_reads."""
        return ExtensionKey.PLAN_READS in self.commands

    @property
    def has_stats(self) -> bool:
        return Key.STREAM_STATS in self.commands

    @property
    def has_listings(self) -> bool:
        """Whether the broker is one of ours that knows list_streams, find_stream and list_offsets."""
        return ExtensionKey.LIST_STREAMS in self.commands

    def query_publisher_sequence(self, reference: str, stream: str, *, timeout_s: float | None = None) -> int:
        """The highest publishing id that is stored under `reference`; 0 if there is none."""
        fields = {"reference": reference, "stream": stream}
        return self.request(Key.QUERY_PUBLISHER_SEQUENCE, timeout_s=timeout_s, **fields).sequence

    def store_offset(self, reference: str, stream: str, offset: int, *, timeout_s: float | None = None) -> None:
        """Fire and forget: the protocol has no answer to this command."""
        frame = codec.encode_request(Key.STORE_OFFSET, reference=reference, stream=stream, offset=offset)
        self._send(frame, f"StoreOffset {stream}", timeout_s)

    def query_offset(self, reference: str, stream: str, *, timeout_s: float | None = None) -> int | None:
        """What was stored under `reference`, or None."""
        try:
            return self.request(Key.QUERY_OFFSET, timeout_s=timeout_s, reference=reference, stream=stream).offset
        except RequestFailed as error:
            if error.code == Code.NO_OFFSET:
                return None
            raise

    def resolve_offset(
        self, stream: str, offset_type: OffsetType, offset_value: int = 0, *, timeout_s: float | None = None
    ) -> int | None:
        """The offset at which a subscription would begin, or None where the broker does not know the command."""
        if Key.RESOLVE_OFFSET_SPEC not in self.commands:
            return None
        fields: dict[str, Any] = {"offset_type": offset_type, "offset_value": offset_value, "properties": {}}
        return int(self.request(Key.RESOLVE_OFFSET_SPEC, stream=stream, timeout_s=timeout_s, **fields).offset)

    # ---- where a stream begins and ends ----

    def first_offset(self, stream: str, *, timeout_s: float | None = None) -> int:
        """Offset of the first message that is still there; 0 on an empty stream."""
        if self.has_stats:
            return max(0, self.stats(stream, timeout_s=timeout_s)["first_chunk_id"])
        chunk = self._probe(stream, OffsetType.FIRST, timeout_s)
        return chunk.chunk_id if chunk else 0

    def next_offset(self, stream: str, *, timeout_s: float | None = None) -> int:
        """The offset after the last committed message; 0 on an empty stream."""
        if self.has_stats:
            statistics = self.stats(stream, timeout_s=timeout_s)
            # What RabbitMQ has committed may be a record of its own, which it delivers to nobody.
            if "committed_offset" in statistics and "incarnation" in statistics:
                return statistics["committed_offset"] + 1
            if statistics.get("committed_chunk_id", -1) < 0:
                return 0
        chunk = self._probe(stream, OffsetType.LAST, timeout_s)
        return chunk.next_offset if chunk else 0

    def _probe(self, stream: str, offset_type: OffsetType, timeout_s: float | None) -> Chunk | None:
        """The first chunk that a subscription would get, or None if there is none now.

        A server sends the answer to Subscribe, then what its credit allows, then the answer to the next request: so
        when Unsubscribe is answered without a chunk before it, there was none. One more look, since the chunk may
        still be on its way from another thread of the server.
        """
        for wait_s in (0.0, 0.2):
            with self.subscribe(stream, offset_type, credit=1, timeout_s=timeout_s) as subscription:
                if wait_s:
                    subscription._receive(wait_s, must=False)
                subscription.close(keep=True, timeout_s=timeout_s)
                chunk = subscription.next_chunk(0.0, default=None)
            if chunk is not None:
                return chunk
        return None

    # ---- publishing and consuming ----

    def publisher(
        self,
        stream: str,
        reference: str = "",
        *,
        unconfirmed_max: int = UNCONFIRMED_DEFAULT_COUNT_MAX,
        timeout_s: float | None = None,
    ) -> Publisher:
        """With a reference the broker drops what was published under it before; ids then go on from there."""
        last = self.query_publisher_sequence(reference, stream, timeout_s=timeout_s) if reference else 0
        id = self._free_publisher_id()
        self.request(Key.DECLARE_PUBLISHER, timeout_s=timeout_s, publisher_id=id, reference=reference, stream=stream)
        publisher = self._publishers[id] = Publisher(self, id, stream, last + 1, unconfirmed_max, reference)
        return publisher

    def subscribe(
        self,
        stream: str,
        offset_type: OffsetType = OffsetType.NEXT,
        offset_value: int = 0,
        *,
        credit: int = CREDIT_DEFAULT_COUNT,
        properties: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Chunks from a place on, without an end. Offset N gives the chunk that contains N, from its beginning."""
        return self._subscribe(stream, offset_type, offset_value, credit, properties or {}, timeout_s)

    def _subscribe(
        self,
        stream: str,
        offset_type: OffsetType,
        offset_value: int,
        credit: int,
        properties: Mapping[str, str],
        timeout_s: float | None,
        until: int | None = None,
    ) -> Subscription:
        # Always another id, so that nothing of an old subscription can be taken for the new one's.
        most = spec.SUBSCRIPTIONS_PER_CONNECTION_COUNT_MAX
        id = self._last_subscription_id = free_number(
            self._subscriptions, self._last_subscription_id + 1, most, "subscriptions"
        )
        subscription = self._subscriptions[id] = Subscription(self, id, stream, credit, until)
        try:  # chunks may come with the answer
            self.request(
                Key.SUBSCRIBE,
                timeout_s=timeout_s,
                subscription_id=id,
                stream=stream,
                offset_type=offset_type,
                offset_value=offset_value,
                credit=subscription.granted,
                properties=dict(properties),
            )
        except BaseException:
            del self._subscriptions[id]
            raise
        return subscription

    def read_chunks(
        self,
        stream: str,
        start_offset: int,
        end_offset: int | None = None,
        credit: int = CREDIT_DEFAULT_COUNT,
        *,
        timeout_s: float | None = None,
    ) -> Generator[Chunk, None, None]:
        """The chunks that hold the offsets from start_offset up to, not including, end_offset.

        The first and the last may hold more; the caller drops what is outside. A first chunk that begins behind
        start_offset means that retention has removed what is missing. Without end_offset it ends where the stream
        ends now. It waits at most timeout_s for each chunk, and gives up with TimeoutExceeded.
        """
        if end_offset is None:
            end_offset = self.next_offset(stream, timeout_s=timeout_s)
        if start_offset >= end_offset:
            return
        with self._subscribe(
            stream, OffsetType.OFFSET, start_offset, credit, {}, timeout_s, end_offset
        ) as subscription:
            position = start_offset
            while position < end_offset:
                chunk = subscription.next_chunk(self.timeout_s if timeout_s is None else timeout_s)
                if chunk.chunk_id >= end_offset:
                    return
                position = chunk.next_offset
                if position > start_offset:
                    yield chunk
