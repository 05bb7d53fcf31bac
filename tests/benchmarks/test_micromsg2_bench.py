# SPDX-License-Identifier: Apache-2.0
"""The load generator on the MicroMsg2 door: it counts right across the wrap, and notices what a server does wrong."""

import json
import socket
import threading

import pytest
from benchmarks.peers._micromsg2_load import Micromsg2Audience, Micromsg2Consumer, Micromsg2Publisher
from flow_threads import JOIN_TIMEOUT_S, join, load_of, patched, run_thread, socket_pair

from benchmarks import fanout, peers
from benchmarks.fanout import FanOut
from benchmarks.servers import NullMicromsg2, VibeMQMicromsg2
from vibemq.bench._flow import NUMBER_MARK, STAMP_MARK, Tally
from vibemq.bench.queues import QueueLoad
from vibemq.errors import UserError, VibeMQError
from vibemq.protocols.micromsg2.codec import (
    decode_frame,
    encode_ack,
    encode_command,
    encode_error,
    encode_extension,
    encode_message,
)
from vibemq.protocols.micromsg2.spec import SEQUENCE_MAX

ACK_ID = 3
SERVERS = {kind.name: kind for kind in (VibeMQMicromsg2, NullMicromsg2)}

# ---- real servers ----


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory):
    running = SERVERS[request.param](tmp_path_factory.mktemp(request.param)).start()
    yield running
    running.stop()


def load(server, kind=QueueLoad, **options):
    return load_of(server, kind, **{"window": 100, "group": 50, "prefetch": 100, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "pub"},
        {"mode": "pub", "publishers": 3, "messages": 300, "size_bytes": 300},
        {"mode": "pub", "messages": SEQUENCE_MAX + 1_000, "window": 10_000, "group": 500},
        {"mode": "rtt", "messages": 50, "window": 1, "group": 1},
    ],
    ids=str,
)
def test_every_message_is_acknowledged(server, options):
    asked = load(server, **options)
    result = peers.run(asked)
    assert (result.sent, result.confirmed) == (asked.messages, asked.messages)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"verify": False, "prefetch": 1},
        {"messages": SEQUENCE_MAX + 1_000, "window": 1_000, "group": 500, "prefetch": 1_000},
        {"mode": "lat", "rate": 5_000.0, "messages": 1_000},
    ],
    ids=str,
)
def test_every_delivery_is_counted(server, options):
    asked = load(server, **options)
    assert peers.run(asked).consumed == asked.messages


def test_what_a_publisher_left_is_consumed_later(server):
    peers.run(load(server, mode="pub", keep=True))
    assert peers.run(load(server, mode="con", verify=False)).consumed == 2_000


@pytest.mark.parametrize("options", [{}, {"mode": "lat", "rate": 2_000.0}], ids=str)
def test_a_fan_out_counts_what_each_subscriber_gets(server, options):
    asked = load(server, FanOut, **{"mode": "pub", "messages": 300, **options}, subscribers=20, threads=2)
    result = fanout.run(asked)
    assert (result.confirmed, result.consumed) == (300, 6_000)
    figures = result.figures()
    assert figures["subscribers"] == 20 and ("latency_us" in figures) == bool(options)
    json.dumps(figures)


@pytest.mark.parametrize("server", ["vibemq-micromsg2"], indirect=True)
@pytest.mark.parametrize("one_in", [1, 16])
def test_a_fan_out_with_filters_counts_what_passes(server, one_in):
    asked = load(server, FanOut, mode="pub", messages=320, subscribers=20, threads=2, one_in=one_in)
    assert fanout.run(asked).consumed == 20 * 320 // one_in


@pytest.mark.parametrize(
    "asked",
    [
        FanOut(protocol="micromsg2", mode="pub", messages=32, one_in=2),
        FanOut(protocol="micromsg2", mode="pub", messages=33, one_in=16),
    ],
    ids=["no such filter", "some get more"],
)
def test_a_fan_out_that_would_not_measure_is_refused(asked):
    with pytest.raises(UserError, match="one_in"):
        fanout.run(asked)


# ---- frames as they go out ----


def read_frame(peer):
    got = b""
    while (found := decode_frame(got)) is None:
        more = peer.recv(1)
        assert more, f"the flow ended after {got}"
        got += more
    return found[0]


def publisher_on(connection, **options):
    frame = encode_message(1, b"queue/q", NUMBER_MARK + STAMP_MARK, b"n:T" + NUMBER_MARK + b";")
    defaults = {"total": 5, "window": 2, "group": 2, "ack_id": ACK_ID}
    return Micromsg2Publisher(connection=connection, frame=frame, **{**defaults, **options})


def test_a_publisher_numbers_its_messages_and_waits_at_the_window(pair):
    ours, theirs = pair
    publisher = publisher_on(ours)
    thread = run_thread(publisher)
    for number in range(5):
        message = read_frame(theirs)
        digits = b"%08x" % number
        assert (message.sequence, message.properties) == (number + 1, b"n:T" + digits + b";")
        assert message.payload.startswith(digits)
        if number % 2:
            assert publisher.sent == number + 1
            theirs.sendall(encode_ack(ACK_ID, number + 1))
    theirs.sendall(encode_ack(ACK_ID, 5))
    join(thread)
    assert (publisher.confirmed, publisher.strange, publisher.fault) == (5, 0, "")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_acknowledgement_is_cumulative_and_cut_anywhere(size):
    ack = encode_extension(ACK_ID, (3).to_bytes(size, "big"))
    answers = encode_extension(1, b"another") + encode_ack(ACK_ID, 1) + ack
    for cut in range(len(answers) + 1):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            publisher = publisher_on(ours, total=3, window=3, group=3)
            thread = run_thread(publisher)
            theirs.sendall(answers[:cut])
            for _ in range(3):
                read_frame(theirs)
            theirs.sendall(answers[cut:])
            join(thread)
            assert (publisher.confirmed, publisher.fault) == (3, ""), f"cut at {cut}"


def test_an_acknowledgement_of_what_was_not_sent_is_counted(pair):
    ours, theirs = pair
    publisher = publisher_on(ours, total=2)
    thread = run_thread(publisher)
    for _ in range(2):
        read_frame(theirs)
    theirs.sendall(encode_ack(ACK_ID, 4))
    join(thread)
    assert (publisher.confirmed, publisher.strange) == (2, 2)


REFUSALS = {
    "an error": (encode_error("QUEUE_FULL: q"), "QUEUE_FULL: q"),
    "no frame": (b"\xff", "needed a frame"),
    "an ack of nothing": (encode_ack(ACK_ID, 0), "an ack has no number"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_publisher_ends_with_the_servers_words(pair, name):
    sent, words = REFUSALS[name]
    ours, theirs = pair
    publisher = publisher_on(ours)
    thread = run_thread(publisher)
    read_frame(theirs)
    theirs.sendall(sent)
    join(thread)
    assert words in publisher.fault


# ---- deliveries ----


def deliveries(numbers, first=1):
    return b"".join(
        encode_message((first + place - 1) % SEQUENCE_MAX + 1, b"queue/q", patched(number), b"a:T1;")
        for place, number in enumerate(numbers)
    )


def test_a_consumer_acknowledges_deliveries_cut_anywhere():
    sent = encode_command("ok", {"id": "c"}) + deliveries(range(3), first=SEQUENCE_MAX - 1)
    for cut in range(len(sent) + 1):
        with socket_pair() as (ours, theirs):
            tally = Tally(3)
            options = {"ack_id": ACK_ID, "window": 100, "tally": tally, "timed": True, "wanted": 3}
            consumer = Micromsg2Consumer(connection=ours, early=sent[:cut], **options)
            thread = run_thread(consumer)
            theirs.sendall(sent[cut:])
            while (ack := read_frame(theirs)).payload != (1).to_bytes(2, "big"):
                assert ack.id == ACK_ID
            join(thread)
            found = (consumer.received, tally.missing, tally.repeated, tally.strange, consumer.disordered)
            assert (found, consumer.fault) == ((3, 0, 0, 0, 0), ""), f"cut at {cut}"


def test_a_consumer_acknowledges_at_half_of_its_window_and_when_nothing_more_comes(pair):
    ours, theirs = pair
    options = {"ack_id": ACK_ID, "window": 10, "wanted": 13, "early": deliveries(range(13))}
    thread = run_thread(Micromsg2Consumer(connection=ours, **options))
    acks = [int.from_bytes(read_frame(theirs).payload, "big") for _ in range(3)]
    join(thread)
    assert acks == [5, 10, 13]


WRONG = {
    "an error": (encode_error("SHUTTING_DOWN: soon"), "SHUTTING_DOWN"),
    "a part": (encode_message(1, b"queue/q", b"x", continued=True), "had a part"),
    "no frame": (b"\x80", "needed a frame"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_consumer_says_what_ended_it(pair, name):
    sent, words = WRONG[name]
    ours, _ = pair
    consumer = Micromsg2Consumer(connection=ours, early=sent, ack_id=ACK_ID, window=10, wanted=1)
    join(run_thread(consumer))
    assert words in consumer.fault


def listen(pieces, **options):
    """An audience of one that gets these bytes; what it found."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        audience = Micromsg2Audience(connections=[(ours, b"", 0)], **{"messages": 3, "timed": True, **options})
        thread = run_thread(audience)
        for piece in pieces:
            theirs.sendall(piece)
        join(thread)
        return audience


def test_an_audience_takes_deliveries_cut_anywhere():
    whole = deliveries([0, 16, 32])
    for cut in range(len(whole) + 1):
        audience = listen([whole[:cut], whole[cut:]], step=16)
        found = (audience.received, audience.least, audience.disordered, audience.latencies.total, audience.fault)
        assert found == (3, 3, 0, 3, ""), f"cut at {cut}"


@pytest.mark.parametrize(
    ("numbers", "disordered"), [([0, 2, 1], 2), ([0, 0, 1], 1), ([1, 2, 3], 1)], ids=["order", "again", "lost"]
)
def test_an_audience_notices_the_wrong_order(numbers, disordered):
    assert listen([deliveries(numbers)]).disordered == disordered


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (encode_error("TOO_SLOW: x"), "TOO_SLOW"),
        (b"\x80", "needed a frame"),
        (encode_message(1, b"topic/t", b"short"), "needed a message of ours"),
    ],
    ids=["an error", "no frame", "another message"],
)
def test_an_audience_says_what_ended_it(sent, words):
    assert words in listen([sent]).fault


def test_a_server_that_refuses_is_said():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=refuse, args=(listener,))
        answering.start()
        with pytest.raises(VibeMQError, match="AUTH_REQUIRED: who are you"):
            peers.run(QueueLoad(protocol="micromsg2", port=listener.getsockname()[1], timeout_s=JOIN_TIMEOUT_S))
        join(answering)


def refuse(listener):
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(1 << 16)
        connection.sendall(encode_error("AUTH_REQUIRED: who are you"))
