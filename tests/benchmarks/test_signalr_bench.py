# SPDX-License-Identifier: Apache-2.0
"""The load generator on SignalR hubs: that it counts right in both encodings, and notices what a hub does wrong."""

import json
import socket
import threading

import msgspec
import pytest
from benchmarks.peers._signalr import SignalRAudience, SignalRConsumer, SignalRPublisher
from flow_threads import JOIN_TIMEOUT_S, join, load_of, patched, read, run_thread, socket_pair

from benchmarks import fanout, peers
from benchmarks.fanout import FanOut
from benchmarks.peers.signalr import BINARY, TEXT, frame_head, json_record, masked, messagepack_record
from benchmarks.signalr import HUBS as HUB_KINDS
from vibemq.bench._flow import NUMBER_MARK, STAMP_MARK, Tally
from vibemq.bench.queues import QueueLoad
from vibemq.errors import UserError, VibeMQError

KEY = b"\x11\x22\x33\x44"
HUBS = {kind.name: kind for kind in HUB_KINDS}

# ---- real hubs ----


@pytest.fixture(scope="module", params=list(HUBS))
def hub(request, tmp_path_factory):
    running = HUBS[request.param](tmp_path_factory.mktemp(request.param)).start()
    yield running
    running.stop()


def load(hub, kind=QueueLoad, **options):
    return load_of(hub, kind, **{"window": 500, "group": 100, "prefetch": 300, **options})


HANDS_ON = pytest.mark.parametrize("hub", [name for name in HUBS if name != "null-signalr-messagepack"], indirect=True)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "pub"},
        {"mode": "pub", "verify": False, "size_bytes": 300},
        {"mode": "rtt", "messages": 50, "window": 1, "group": 1},
    ],
    ids=str,
)
def test_every_invocation_is_completed(hub, options):
    asked = load(hub, **options)
    result = peers.run(asked)
    assert (result.sent, result.confirmed) == (asked.messages, asked.messages)


@HANDS_ON
@pytest.mark.parametrize(
    "options", [{}, {"verify": False}, {"mode": "lat", "rate": 5_000.0, "messages": 1_000}], ids=str
)
def test_every_delivery_is_counted(hub, options):
    asked = load(hub, **options)
    assert peers.run(asked).consumed == asked.messages


@HANDS_ON
@pytest.mark.parametrize("options", [{}, {"mode": "lat", "rate": 2_000.0}], ids=str)
def test_a_fan_out_counts_what_each_subscriber_gets(hub, options):
    asked = load(hub, FanOut, **{"mode": "pub", "messages": 300, **options}, subscribers=20, threads=2)
    seen = []
    result = fanout.run(asked, look=lambda: seen.append(1))
    assert (result.confirmed, result.consumed, seen) == (300, 6_000, [1])
    figures = result.figures()
    assert figures["subscribers"] == 20 and ("latency_us" in figures) == bool(options)
    json.dumps(figures)


@pytest.mark.parametrize(
    "asked",
    [
        FanOut(protocol="signalr", mode="both"),
        FanOut(protocol="signalr", mode="pub", publishers=2),
        FanOut(protocol="signalr", mode="pub", subscribers=2, threads=3),
        FanOut(protocol="native", mode="pub"),
    ],
    ids=["it consumes", "two publishers", "an idle thread", "no hub"],
)
def test_a_fan_out_that_would_not_measure_is_refused(asked):
    with pytest.raises(UserError):
        fanout.run(asked)


# ---- frames as they go out ----


def read_message(peer):
    """The opcode and the unmasked payload of a masked frame."""
    first, size = read(peer, 2)
    assert first & 0x80 and size & 0x80
    size &= 0x7F
    if size == 126:
        size = int.from_bytes(read(peer, 2), "big")
        assert size > 125
    elif size == 127:
        size = int.from_bytes(read(peer, 8), "big")
        assert size > 0xFFFF
    key = read(peer, 4)
    return first & 15, masked(read(peer, size), key)


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("size", [40, 200, 70_000])
def test_marks_are_masked_where_they_lie(pair, shift, size):
    ours, theirs = pair
    record = b"#" * shift + NUMBER_MARK + b"|" + STAMP_MARK + b"|" + NUMBER_MARK
    record += b"#" * (size - len(record))
    head = frame_head(len(record), TEXT, KEY)
    options = {"connection": ours, "key": KEY, "payload_at": len(head), "frame": head + record}
    publisher = SignalRPublisher(**options, total=5, window=2, group=2)
    thread = run_thread(publisher)
    for number in range(5):
        opcode, payload = read_message(theirs)
        one, stamp, again = payload.strip(b"#").split(b"|")
        assert (opcode, len(payload), one, again) == (TEXT, size, b"%08x" % number, b"%08x" % number)
        assert int(stamp, 16) > 0
        theirs.sendall(server_frame([json_completion(number)]))
    join(thread)
    assert (publisher.confirmed, publisher.fault) == (5, "")


# ---- answers, cut at every byte ----


def server_frame(records, opcode=TEXT):
    payload = b"".join(records)
    head = bytearray(frame_head(len(payload), opcode, b""))
    head[1] &= 0x7F
    return bytes(head) + payload


def json_completion(number, **outcome):
    return json_record({"type": 3, "invocationId": f"{number:08x}", **(outcome or {"result": {"offset": number}})})


def json_item(number):
    item = {"tag": number << 20, "id": f"m{number}", "queue": "q", "body": json.loads(patched(number))}
    return json_record({"type": 2, "invocationId": "s", "item": item | {"offset": number}})


def messagepack_item(number):
    item = {"tag": number << 20, "id": f"m{number}", "queue": "q", "body": patched(number), "offset": number}
    return messagepack_record([2, {}, "s", item])


def spaced(record):
    """The same with blanks and another order, as other hubs write it."""
    value = json.loads(record.rstrip(b"\x1e"))
    return json.dumps(dict(sorted(value.items(), reverse=True))).replace(': {"at": ', ':{"at":').encode() + b"\x1e"


JSON_PING, MESSAGEPACK_PING = json_record({"type": 6}), messagepack_record([6])
NUMBERS = range(3)
ANSWERS = {
    "json": (False, server_frame([*map(json_completion, NUMBERS), JSON_PING])),
    "json in messages of their own": (False, b"".join(server_frame([json_completion(n)]) for n in NUMBERS)),
    "json with blanks": (False, server_frame([spaced(json_completion(n)) for n in NUMBERS])),
    "messagepack": (
        True,
        b"\x89\x00"  # a WebSocket ping
        + server_frame([messagepack_record([3, {}, f"{n:08x}", 3, {"offset": n}]) for n in NUMBERS], BINARY)
        + server_frame([MESSAGEPACK_PING], BINARY),
    ),
}
DELIVERIES = {
    "json": (False, server_frame([JSON_PING, *map(json_item, NUMBERS)])),
    "messagepack": (True, server_frame([*map(messagepack_item, NUMBERS), MESSAGEPACK_PING], BINARY)),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("verify", [False, True])
def test_a_publisher_takes_completions_cut_anywhere(name, verify):
    is_messagepack, answers = ANSWERS[name]
    for cut in range(len(answers) + 1):
        with socket_pair() as (ours, theirs):
            options = {"key": KEY, "payload_at": 6, "frame": frame_head(1, TEXT, KEY) + b"x", "verify": verify}
            publisher = SignalRPublisher(
                connection=ours, is_messagepack=is_messagepack, total=3, window=3, group=3, **options
            )
            thread = run_thread(publisher)
            read(theirs, 3 * 7)
            theirs.sendall(answers[:cut])
            theirs.sendall(answers[cut:])
            join(thread)
            assert (publisher.confirmed, publisher.strange, publisher.fault) == (3, 0, ""), f"cut at {cut}"


@pytest.mark.parametrize("name", DELIVERIES)
def test_a_consumer_acknowledges_deliveries_cut_anywhere(name):
    is_messagepack, deliveries = DELIVERIES[name]
    for cut in range(len(deliveries) + 1):
        with socket_pair() as (ours, theirs):
            tally = Tally(3)
            options = {"key": KEY, "is_messagepack": is_messagepack, "tally": tally, "timed": True, "wanted": 3}
            consumer = SignalRConsumer(connection=ours, early=deliveries[:cut], **options)
            thread = run_thread(consumer)
            theirs.sendall(deliveries[cut:])
            tags = []
            while len(tags) < 3:
                tags += acknowledged(*read_message(theirs))
            join(thread)
            assert tags == [number << 20 for number in NUMBERS], f"cut at {cut}"
            found = (consumer.received, tally.missing, tally.repeated, tally.strange, consumer.disordered)
            assert (found, consumer.fault) == ((3, 0, 0, 0, 0), ""), f"cut at {cut}"


def acknowledged(opcode, payload):
    """The tags in an Ack that wants no answer."""
    if opcode == TEXT:
        assert payload.endswith(b"\x1e")
        record = json.loads(payload[:-1])
        assert record.keys() == {"type", "target", "arguments"}
        kind, target, arguments = record["type"], record["target"], record["arguments"]
    else:
        at = next(i for i, byte in enumerate(payload) if not byte & 0x80) + 1
        size = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(payload[:at]))
        assert size == len(payload) - at
        kind, headers, call, target, arguments, uploads = msgspec.msgpack.decode(payload[at:])
        assert (headers, call, uploads) == ({}, None, [])
    assert (kind, target, len(arguments)) == (1, "Ack", 1)
    return arguments[0]


@pytest.mark.parametrize("is_messagepack", [False, True])
def test_many_deliveries_of_one_read_are_acknowledged_in_few_acks(pair, is_messagepack):
    ours, theirs = pair
    count = 5_000
    item = messagepack_item if is_messagepack else json_item
    frames = server_frame([item(number) for number in range(count)], BINARY if is_messagepack else TEXT)
    options = {"key": KEY, "is_messagepack": is_messagepack, "tally": Tally(count), "wanted": count}
    thread = run_thread(SignalRConsumer(connection=ours, early=frames, **options))
    acks = []
    while sum(map(len, acks)) < count:
        acks.append(acknowledged(*read_message(theirs)))
    join(thread)
    assert [tag for ack in acks for tag in ack] == [number << 20 for number in range(count)]
    assert len(acks) == 3


# ---- many subscribers ----


def listen(frames, messages, ends=False):
    """An audience of one for each list of pieces; what it found."""
    pairs = [socket.socketpair() for _ in frames]
    try:
        connections = [(ours, b"", 0) for ours, _ in pairs]
        audience = SignalRAudience(connections=connections, messages=messages, timed=True)
        thread = run_thread(audience)
        for (_, theirs), pieces in zip(pairs, frames, strict=True):
            for piece in pieces:
                theirs.sendall(piece)
            if ends:
                theirs.shutdown(socket.SHUT_WR)
        join(thread)
        return audience
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


def test_an_audience_takes_deliveries_cut_anywhere():
    whole = server_frame(map(json_item, NUMBERS)) + server_frame([JSON_PING, json_item(3)])
    cuts = range(1, len(whole))
    audience = listen([[whole[:cut], whole[cut:]] for cut in cuts], messages=4)
    assert (audience.received, audience.least, audience.disordered, audience.fault) == (4 * len(cuts), 4, 0, "")
    assert audience.latencies.total == 4 * len(cuts)


@pytest.mark.parametrize(
    ("numbers", "disordered"), [([0, 2, 1], 2), ([0, 0, 1], 1), ([1, 2, 3], 1)], ids=["order", "again", "lost"]
)
def test_an_audience_notices_the_wrong_order(numbers, disordered):
    audience = listen([[server_frame(map(json_item, numbers))]], messages=3)
    assert (audience.received, audience.disordered) == (3, disordered)


WRONG = {
    "an end": (b"", "the server ended a subscriber's connection"),
    "a completion": (server_frame([json_record({"type": 3, "invocationId": "s"})]), "the hub ended a subscription"),
    "an error": (
        server_frame([json_record({"type": 3, "invocationId": "s", "error": "no such queue"})]),
        "no such queue",
    ),
    "no delivery": (server_frame([json_record({"type": 2, "invocationId": "s", "item": 5})]), "needed a delivery"),
    "half a record": (server_frame([json_item(0)[:-1]]), "needed whole records"),
    "a masked frame": (frame_head(1, TEXT, KEY) + b"x", "needed whole unmasked messages"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_audience_says_what_ended_it(name):
    sent, words = WRONG[name]
    assert words in listen([[sent]], messages=3, ends=not sent).fault


REFUSALS = {
    "an error": (server_frame([json_completion(0, error="HubException: QUEUE_FULL")]), "QUEUE_FULL"),
    "a Close": (server_frame([json_record({"type": 7, "error": "Server shutting down"})]), "Server shutting down"),
    "a WebSocket close": (b"\x88\x05\x03\xe8bye", "bye"),
    "a fragment": (b"\x01\x02{}", "needed whole unmasked messages"),
    "no record": (server_frame([b"HTTP/1.1 400 Bad Request\r\n"]), "needed whole records"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_publisher_ends_with_the_hubs_words(pair, name):
    sent, words = REFUSALS[name]
    ours, theirs = pair
    frame = frame_head(1, TEXT, KEY) + b"x"
    publisher = SignalRPublisher(connection=ours, key=KEY, payload_at=6, frame=frame, total=1, window=1, group=1)
    thread = run_thread(publisher)
    read(theirs, len(frame))
    theirs.sendall(sent)
    join(thread)
    assert words in publisher.fault


def test_a_completion_for_nothing_is_counted(pair):
    ours, theirs = pair
    frame = frame_head(1, TEXT, KEY) + b"x"
    options = {"key": KEY, "payload_at": 6, "frame": frame, "verify": True}
    publisher = SignalRPublisher(connection=ours, total=2, window=2, group=2, **options)
    thread = run_thread(publisher)
    read(theirs, 2 * len(frame))
    theirs.sendall(server_frame([json_completion(0), json_completion(0), json_completion(9)]))
    theirs.shutdown(socket.SHUT_WR)
    join(thread)
    assert (publisher.confirmed, publisher.strange) == (1, 2)


def test_a_server_that_is_no_hub_is_said():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=refuse, args=(listener,))
        answering.start()
        with pytest.raises(VibeMQError, match=r"needed a WebSocket, the server answered HTTP/1\.1 404"):
            peers.run(QueueLoad(protocol="signalr", port=listener.getsockname()[1], timeout_s=JOIN_TIMEOUT_S))
        join(answering)


def refuse(listener):
    connection, _ = listener.accept()
    with connection:
        while b"\r\n\r\n" not in connection.recv(1 << 16, socket.MSG_PEEK):
            continue
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
