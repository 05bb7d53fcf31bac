# SPDX-License-Identifier: Apache-2.0
"""The same bytes to RabbitMQ 3.10.8 (Debian's) and to us: what comes back is the same, or stands in DIFFERENT with why.

A conversation is a list of steps on one connection. After each step a question that both answer tells that its answers
are complete, for both answer in order; confirms, deliveries and notifications come when they like, so a step says how
many it waits for. What no two brokers share (addresses, times, how messages are cut into chunks, how confirms are
grouped) is taken out before comparing. Requests that RabbitMQ has learnt since have no peer here, nor has a Create with
a malformed value: its manager process dies of that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from peers.streams import GUEST, Frame, Peer
from running import broker

from benchmarks.servers import RabbitMQStreams
from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Key, OffsetType

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(180)]

STREAM = "same"
UNKNOWN = "nobody-made-this"
#: Steps with another answer, and why that is right.
DIFFERENT: dict[str, str] = {
    "metadata of no stream": "it names the brokers of the streams that were asked for; we always name ourselves",
    "a route in an unknown super stream": "3.10 forgets the response bit, later versions set it",
    "the partitions of an unknown super stream": "3.10 forgets the response bit, later versions set it",
    "a frame that is too large": "3.10 reads it and closes without a word, against its own rule of Close 14",
    "mechanisms": "ANONYMOUS is offered since 4.0",
}
CLOSED = "closed"


class Step(NamedTuple):
    """`frames`: bytes, or (key, fields) to encode; then how many of each come beside the answers."""

    title: str
    frames: tuple[bytes | tuple[int, dict[str, Any]], ...]
    confirms: int = 0
    errors: int = 0
    messages: int = 0
    updates: int = 0


def publish(publisher_id: int, *messages: tuple[int, Any]) -> tuple[int, dict[str, Any]]:
    rows = [(publishing_id, None, data) for publishing_id, data in messages]
    return Key.PUBLISH, {"publisher_id": publisher_id, "messages": rows}


def create(stream: str, **arguments: str) -> tuple[int, dict[str, Any]]:
    return Key.CREATE, {"stream": stream, "arguments": {name.replace("_", "-"): arguments[name] for name in arguments}}


def declare(publisher_id: int, reference: str, stream: str = STREAM) -> tuple[int, dict[str, Any]]:
    return Key.DECLARE_PUBLISHER, {"publisher_id": publisher_id, "reference": reference, "stream": stream}


def subscribe(subscription_id: int, at: int, value: int = 0, stream: str = STREAM) -> tuple[int, dict[str, Any]]:
    fields = {"subscription_id": subscription_id, "stream": stream, "offset_type": at, "offset_value": value}
    return Key.SUBSCRIBE, {**fields, "credit": 50, "properties": {}}


def sequence(reference: str, stream: str = STREAM) -> tuple[int, dict[str, Any]]:
    return Key.QUERY_PUBLISHER_SEQUENCE, {"reference": reference, "stream": stream}


def unsubscribe(subscription_id: int) -> tuple[int, dict[str, Any]]:
    return Key.UNSUBSCRIBE, {"subscription_id": subscription_id}


SUB_BATCH = codec.SubBatch(0, 2, 14, b"\0\0\0\3abc\0\0\0\3def")
COUNTS_ONE = bytes.fromhex("00000024 0002 0001 04 00000001 0000000000000008 00000002 6162 000000000000000b 00000001 63")
CONVERSATION = (
    Step("a stream is created", (create(STREAM),)),
    Step("the same stream again", (create(STREAM),)),
    Step("the same name with other arguments", (create(STREAM, max_length_bytes="1000"),)),
    Step("a stream without a name", (create(""),)),
    Step("a stream is created with arguments", (create("kept", max_age="1h", max_length_bytes="1000000"),)),
    Step("a size of 64 bits", (create("huge", max_length_bytes=str(2**64 - 1)),)),
    Step("unknown arguments are ignored", (create("odd", colour="green"),)),
    Step("an unknown stream is deleted", ((Key.DELETE, {"stream": UNKNOWN}),)),
    Step("metadata of no stream", ((Key.METADATA, {"streams": []}),)),
    Step("metadata of a stream and of none", ((Key.METADATA, {"streams": [STREAM, UNKNOWN]}),)),
    Step("a publisher is declared", (declare(1, "writer"),)),
    Step("its id again", (declare(1, "another"),)),
    Step("its reference again", (declare(2, "writer"),)),
    Step("a publisher of an unknown stream", (declare(3, "", UNKNOWN),)),
    Step("a publisher without a reference", (declare(4, ""),)),
    Step("messages are confirmed", (publish(1, (1, b"one"), (2, b"two"), (5, b"three")),), confirms=3),
    Step("a repeated message is confirmed", (publish(1, (2, b"two"), (6, b"four")),), confirms=2),
    Step("messages without deduplication", (publish(4, (1, b"five"), (1, b"six")),), confirms=2),
    Step("a sub-batch is one confirm", (publish(4, (7, SUB_BATCH)),), confirms=1),
    Step("more entries than their count", (COUNTS_ONE,), confirms=2),
    Step("an unknown publisher", (publish(99, (1, b"a"), (2, b"b")),), errors=2),
    Step("the sequence of a publisher", (sequence("writer"),)),
    Step("the sequence of nobody", (sequence("nobody"),)),
    Step("the sequence in an unknown stream", (sequence("writer", UNKNOWN),)),
    Step("a publisher is deleted", ((Key.DELETE_PUBLISHER, {"publisher_id": 4}),)),
    Step("it is deleted again", ((Key.DELETE_PUBLISHER, {"publisher_id": 4}),)),
    Step("a deleted publisher publishes", (publish(4, (9, b"x")),), errors=1),
    Step("a subscription from the first", (subscribe(1, OffsetType.FIRST),), messages=10),
    Step("its id again", (subscribe(1, OffsetType.FIRST),)),
    Step("a subscription to an unknown stream", (subscribe(2, OffsetType.FIRST, 0, UNKNOWN),)),
    Step("a subscription from the next", (subscribe(3, OffsetType.NEXT),)),
    Step("what is published then", (publish(1, (10, b"seven")),), confirms=1, messages=2),
    Step("a subscription beyond the end", (subscribe(4, OffsetType.OFFSET, 1000),)),
    Step("credit for no subscription", ((Key.CREDIT, {"subscription_id": 77, "credit": 1}),)),
    Step("a subscription ends", (unsubscribe(3),)),
    Step("it ends again", (unsubscribe(3),)),
    Step("a route in an unknown super stream", ((Key.ROUTE, {"routing_key": "k", "super_stream": UNKNOWN}),)),
    Step("the partitions of an unknown super stream", ((Key.PARTITIONS, {"super_stream": UNKNOWN}),)),
    Step("an offset that nobody stored", ((Key.QUERY_OFFSET, {"reference": "reader", "stream": STREAM}),)),
    Step("an offset in an unknown stream", ((Key.QUERY_OFFSET, {"reference": "reader", "stream": UNKNOWN}),)),
    Step(
        "an offset stored in an unknown stream",
        ((Key.STORE_OFFSET, {"reference": "r", "stream": UNKNOWN, "offset": 1}),),
    ),
    Step("a stream with users is deleted", ((Key.DELETE, {"stream": STREAM}),), updates=1),
    Step("its publisher publishes", (publish(1, (11, b"late")),), errors=1),
    Step("its publisher is deleted", ((Key.DELETE_PUBLISHER, {"publisher_id": 1}),)),
    Step("its subscription ends", (unsubscribe(1),)),
    Step("its name is created anew", (create(STREAM),)),
    Step("nothing is known of its old publisher", (sequence("writer"),)),
)
TOO_LARGE = spec.FRAME_SIZE_DEFAULT_BYTES + 1
#: Each ends a connection of its own, after Open.
ENDINGS = {
    "close": codec.encode_request(Key.CLOSE, 7, code=1, reason="enough"),
    "an unknown key": bytes.fromhex("0000000400ff0001"),
    "an unknown version": bytes.fromhex("00000008001500090000002a"),
    "a body that ends too early": bytes.fromhex("00000009000d00010000000100"),
    "bytes after the body": bytes.fromhex("0000000a0006000100000001" + "00ff"),
    "a frame that is too large": TOO_LARGE.to_bytes(4, "big") + bytes.fromhex("00020001") + bytes(TOO_LARGE - 4),
}


# ---- talking, and taking out what may differ ----


def said(frame: Frame) -> Any:
    """A frame as it is compared."""
    decoded = frame.decoded()
    fields = decoded._asdict()
    if frame.key == Key.METADATA | spec.RESPONSE_BIT:
        fields["brokers"] = len(fields["brokers"])
    return spec_name(frame.key), fields


def spec_name(key: int) -> str:
    return Key(key & ~spec.RESPONSE_BIT).name + ("_RESPONSE" if key & spec.RESPONSE_BIT else "")


class Heard:
    """Everything that came in one step: the answers in their order, the rest as what it means."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.confirms: list[tuple[int, int]] = []
        self.errors: list[tuple[int, int, int]] = []
        self.messages: dict[int, tuple[int, int, bytes]] = {}  # first offset, count and entries of a subscription
        self.updates: list[Any] = []

    def add(self, frame: Frame) -> None:
        decoded = frame.decoded()
        match frame.key:
            case Key.PUBLISH_CONFIRM:
                self.confirms += [(decoded.publisher_id, each) for each in decoded.publishing_ids]
            case Key.PUBLISH_ERROR:
                self.errors += [(decoded.publisher_id, each.publishing_id, each.code) for each in decoded.errors]
            case Key.DELIVER:
                chunk = decoded.chunk
                assert (chunk.magic_version, chunk.chunk_type, chunk.epoch) == (0x50, 0, 1)
                first, records, data = self.messages.get(decoded.subscription_id, (chunk.chunk_id, 0, b""))
                self.messages[decoded.subscription_id] = (first, records + chunk.records, data + chunk.data)
            case Key.METADATA_UPDATE:
                self.updates.append(said(frame))
            case _:
                self.answers.append(said(frame))

    def enough(self, step: Step) -> bool:
        records = sum(records for _, records, _ in self.messages.values())
        counts = (len(self.confirms), len(self.errors), records, len(self.updates))
        return all(had >= needed for had, needed in zip(counts, step[2:], strict=True))

    def shown(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "confirms": sorted(self.confirms),
            "errors": sorted(self.errors),
            "messages": self.messages,
            "updates": self.updates,
        }


def talk(peer: Peer, step: Step) -> Any:
    heard, over = Heard(), False
    try:
        for each in step.frames:
            if isinstance(each, bytes):
                peer.send(each)
                continue
            key, fields = each
            without_id = key in (Key.PUBLISH, Key.CREDIT, Key.STORE_OFFSET)
            peer.send(codec.encode_request(key, **fields) if without_id else peer.command(key, **fields))
        # The last question: what it answers is known, and everything before it has been answered.
        peer.send(peer.command(Key.METADATA, streams=[]))
        while not (over and heard.enough(step)):
            frame = peer.next_frame()
            if frame.key == Key.METADATA | spec.RESPONSE_BIT and frame.decoded().correlation_id == peer.correlation_id:
                over = True
            elif frame.key != Key.HEARTBEAT:
                heard.add(frame)
    except ConnectionError:
        heard.answers.append(CLOSED)
    return heard.shown()


def titles() -> Iterator[tuple[str, Step]]:
    """A title that is used twice is told apart by its number."""
    seen: dict[str, int] = {}
    for step in CONVERSATION:
        seen[step.title] = seen.get(step.title, 0) + 1
        yield step.title + (f" ({seen[step.title]})" if seen[step.title] > 1 else ""), step


def converse(where: Any) -> dict[str, Any]:
    """The answers to everything, by title."""
    answers: dict[str, Any] = {}
    with Peer(where) as peer:
        peer.open()
        for title, step in titles():
            answers[title] = talk(peer, step)
    for title, data in ENDINGS.items():
        with Peer(where) as peer:
            peer.open()
            peer.send(data)
            answers[title] = until_the_end(peer)
    return answers | greet(where)


def until_the_end(peer: Peer) -> list[Any]:
    """What the broker says until it closes, or asks us to."""
    heard: list[Any] = []
    with contextlib.suppress(ConnectionError):
        while not heard or heard[-1][0] != Key.CLOSE.name:
            frame = peer.next_frame()
            if frame.key != Key.HEARTBEAT:
                heard.append(said(frame))
        return heard
    return [*heard, CLOSED]


def greet(where: Any) -> dict[str, Any]:
    """The handshake, well and badly."""
    answers: dict[str, Any] = {}
    with Peer(where) as peer:
        answers["names of the peer's properties"] = sorted(peer.ask(Key.PEER_PROPERTIES, properties={}).properties)
        answers["mechanisms"] = peer.ask(Key.SASL_HANDSHAKE).mechanisms
        answers["log-in"] = peer.ask(Key.SASL_AUTHENTICATE, mechanism="PLAIN", data=GUEST)._asdict()
        answers["what is proposed"] = peer.expect(Key.TUNE)._asdict()
        peer.send(codec.encode_request(Key.TUNE, frame_max=1 << 20, heartbeat=0))
        answers["names in the answer to Open"] = sorted(peer.ask(Key.OPEN, virtual_host="/").properties)
    for title, mechanism, data in (
        ("an unknown mechanism", "SECRET-HANDSHAKE", GUEST),
        ("a wrong password", "PLAIN", b"\0guest\0guess"),
        ("an unknown user", "PLAIN", b"\0nobody\0guest"),
        ("PLAIN without its zeros", "PLAIN", b"guest"),
    ):
        with Peer(where) as peer:
            peer.ask(Key.PEER_PROPERTIES, properties={})
            peer.ask(Key.SASL_HANDSHAKE)
            peer.send(peer.command(Key.SASL_AUTHENTICATE, mechanism=mechanism, data=data))
            answers[title] = until_the_end(peer)
    with Peer(where) as peer:
        peer.log_in()
        peer.send(codec.encode_request(Key.TUNE, frame_max=1 << 20, heartbeat=0))
        peer.send(peer.command(Key.OPEN, virtual_host="nowhere"))
        answers["an unknown virtual host"] = until_the_end(peer)
    for title, data in (
        ("an unknown key before Open", ENDINGS["an unknown key"]),
        ("Create before Open", codec.encode_request(Key.CREATE, 1, stream="s", arguments={})),
        ("a frame over 8 KiB before Open", bytes.fromhex("0000ffff00110001") + bytes(100)),
    ):
        with Peer(where) as peer:
            peer.send(data)
            answers[title] = until_the_end(peer)
    return answers


GREETINGS = (
    "names of the peer's properties",
    "mechanisms",
    "log-in",
    "what is proposed",
    "names in the answer to Open",
    "an unknown mechanism",
    "a wrong password",
    "an unknown user",
    "PLAIN without its zeros",
    "an unknown virtual host",
    "an unknown key before Open",
    "Create before Open",
    "a frame over 8 KiB before Open",
)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if why := RabbitMQStreams.missing():
        pytest.skip(why)
    server = RabbitMQStreams(tmp_path_factory.mktemp("rabbitmq"))
    server.start()
    try:
        yield converse(SimpleNamespace(host="127.0.0.1", port=server.streams_port))
    finally:
        server.stop()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # The largest frame is RabbitMQ's, so that both propose and refuse the same.
    options = ("--set", f"streams.frame_max_bytes={spec.FRAME_SIZE_DEFAULT_BYTES}")
    with broker(tmp_path_factory.mktemp("broker") / "data", *options) as running:
        return converse(running)


@pytest.mark.parametrize("title", [*(title for title, _ in titles()), *ENDINGS, *GREETINGS])
def test_the_answer_is_the_same(title, ours, theirs):
    if title in DIFFERENT:
        assert ours[title] != theirs[title], "they are the same by now: take it out of DIFFERENT"
    else:
        assert ours[title] == theirs[title]


def test_every_difference_is_one_of_a_step():
    assert set(DIFFERENT) <= {*(title for title, _ in titles()), *ENDINGS, *GREETINGS}


def test_a_stored_offset_is_found(served, theirs):
    """Not a step: RabbitMQ writes it into the stream, which moves the offsets of what follows."""
    with Peer(served) as peer:
        peer.open()
        peer.create("offsets")
        peer.send(codec.encode_request(Key.STORE_OFFSET, reference="reader", stream="offsets", offset=42))
        answer = peer.ask(Key.QUERY_OFFSET, reference="reader", stream="offsets")
        assert (answer.code, answer.offset) == (1, 42)
