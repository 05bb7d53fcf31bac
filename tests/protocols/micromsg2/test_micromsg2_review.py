# SPDX-License-Identifier: Apache-2.0
"""What peers may do at no cost to others: subscribe again, give long ids, read past much, be refused often."""

import pytest
from peers import streams as streams_peer
from peers.micromsg2 import code, connected
from running import broker

from vibemq.broker.admission import SUBSCRIPTIONS_MAX
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.micromsg2.codec import Command, ExtensionFrame, ack_sequence, encode_command
from vibemq.protocols.streams.codec import SubBatch


@pytest.fixture
def stream(served, name):
    with StreamsConnection.connect(served.host, served.port) as streams:
        streams.create(name)
    return name


# ---- subscribing again ----


def test_its_only_reader_may_subscribe_again_from_another_place(served, peer, stream):
    for at in range(3):
        peer.publish(stream, b"%d" % at)
    peer.socket.close()
    with connected(served) as reader:
        for place in (0, 2, 1):
            reader.subscribe(stream, from_=place)
            assert reader.delivers(3 - place) == [b"%d" % at for at in range(place, 3)]


def test_the_only_consumer_of_a_queue_may_read_it_instead(served, peer, name):
    peer.create(name)
    peer.publish(name, b"1")
    peer.socket.close()
    with connected(served) as consumer:
        consumer.subscribe(name)
        assert consumer.deliver(ack=False).payload == b"1"
        consumer.subscribe(name, from_="first")
        assert consumer.deliver().payload == b"1"
        assert consumer.info(name) == {"messages": 1, "in-flight": 0, "consumers": 0}


def test_another_filter_of_a_stream_leaves_the_place(served, peer, stream):
    for at in range(6):
        peer.publish(stream, b"%d" % at, b"k:N%d;" % at)
    with connected(served, "batch-ack:max-count=2;pub-sub;x-reply") as reader:
        reader.subscribe(stream, from_="first")
        assert reader.delivers(2, ack=False) == [b"0", b"1"]
        reader.subscribe(stream, filter="k>N3")
        reader.ack()
        assert reader.delivers(2) == [b"4", b"5"]


# ---- what would be too large for an answer ----


@pytest.mark.parametrize("command", ["list", "subscribe", "info", "nothing-known"])
def test_a_command_with_an_endless_id_is_refused(peer, name, command):
    peer.create(name)
    peer.command(command, destination=name, id="!" * 20_000)
    assert code(peer.error()) == "BAD_COMMAND"
    peer.ping()
    assert peer.info(name)["consumers"] == 0


def test_a_connection_has_a_limited_number_of_subscriptions(tmp_path):
    with broker(tmp_path, workers=1) as running, connected(running) as peer:
        for at in range(SUBSCRIPTIONS_MAX):
            peer.subscribe(f"q{at}")
        peer.command("subscribe", destination="one-more")
        assert code(peer.error()) == "LIMIT_EXCEEDED"
        peer.subscribe("q0")
        peer.command("unsubscribe", destination="q1")
        peer.subscribe("one-more")


# ---- a peer's share of a turn ----


def test_passing_over_a_long_log_takes_more_than_one_turn(peer, name):
    """Or nobody else at this worker would be served meanwhile: commands behind the subscription are answered first."""
    peer.create(f"topic/{name}")
    for _ in range(40):
        peer.write(*[peer.message(name, b"", b"k:N1;") for _ in range(100)])
        peer.acked()
    peer.publish(name, b"the end", b"k:N2;")
    behind = encode_command("unknown", [("id", "1")])
    peer.write(encode_command("subscribe", [("destination", name), ("from", "first"), ("filter", "k=N2")]), behind)
    assert isinstance(peer.next(), Command)
    assert peer.deliver().payload == b"the end"
    peer.ping()


def test_sub_batches_that_cannot_be_unpacked_take_many_turns_and_one_line_of_the_log(tmp_path, capfd):
    """Twenty bytes may say that they are 65,535 messages: commands behind the subscription are answered first."""
    bad = SubBatch(compression=2, records=65_535, uncompressed_size=4 * 65_535, body=b"not snappy")
    with broker(tmp_path, workers=1) as running, streams_peer.connected(running) as streams:
        streams.create("s")
        streams.declare("s", 1)
        streams.publish([(1, bad), (2, bad), (3, b"the end")], 1)
        assert streams.confirmed(3, 1) == [1, 2, 3]
        with connected(running) as peer:
            behind = [encode_command("unknown", [("id", str(at))]) for at in range(200)]
            peer.write(encode_command("subscribe", [("destination", "s"), ("from", "first")]), *behind)
            for _ in behind:
                assert isinstance(peer.next(), Command)
            assert peer.deliver().payload == b"the end"
    assert capfd.readouterr().err.count("stream s: passed over") == 1


def test_messages_that_a_reader_cannot_be_sent_take_one_line_of_the_log(tmp_path, capfd):
    with broker(tmp_path, workers=1) as running, connected(running) as peer:
        peer.create("q")
        for _ in range(3):
            peer.publish("q", bytes(16_385))
        peer.publish("q", b"the end")
        with connected(running, "ack;x-subscribe:destination=q,from=first", minor=1) as sharp:
            assert sharp.deliver().payload == b"the end"
    assert capfd.readouterr().err.count("and passed over") == 1


@pytest.mark.parametrize("place", [{}, {"from": "first"}], ids=["topic", "log"])
def test_a_costly_filter_takes_more_than_one_turn(peer, name, place):
    """Else one subscriber would hold up the worker for seconds: two hundred commands behind it are answered first."""
    topic = peer.create(f"topic/{name}")
    for _ in range(4):
        peer.write(*[peer.message(topic, b"", b"k:T" + b"ab" * 25_000 + b";") for _ in range(10)])
        peer.acked()
    peer.publish(topic, b"the end", b"k:Tab;")
    costly = ";".join(f"k~T{'ab' * 60}{at}" for at in range(60)) + ";k=Tab"
    pairs = {"destination": topic, "filter": costly, **place}
    behind = [encode_command("unknown", [("id", str(at))]) for at in range(200)]
    peer.write(encode_command("subscribe", list(pairs.items())), *behind)
    for _ in behind:
        assert isinstance(peer.next(), Command)
    assert peer.deliver().payload == b"the end"
    peer.ping()


@pytest.mark.parametrize("overflow", ["drop-newest", "redirect-to-dlq"])
def test_refusing_many_messages_takes_more_than_one_turn(peer, name, overflow):
    """Or nobody else would be served meanwhile: what lies between them is acknowledged before the end."""
    full, spacious = peer.create(f"{name}-full", max_messages=1, overflow=overflow, dead_letter=1), peer.create(name)
    peer.publish(full)
    batch = [peer.message(full) for _ in range(40)], peer.message(spacious), [peer.message(full) for _ in range(40)]
    peer.write(*batch[0], batch[1], *batch[2])
    acknowledged = 0
    while acknowledged < peer.sent - 40:
        frame = peer.next()
        if isinstance(frame, ExtensionFrame):
            acknowledged = ack_sequence(frame.payload)
    assert acknowledged < peer.sent
