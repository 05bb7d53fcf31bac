# SPDX-License-Identifier: Apache-2.0
"""Topics: a copy for each subscription, filters, and reading a log from a place on."""

import contextlib
import json
from pathlib import Path

import pytest
from peers.micromsg2 import USUAL, Message, code, connected, on_worker
from running import wait_until

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.micromsg2.codec import encode_command

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


@pytest.fixture
def topic(name):
    return f"topic/{name}"


def test_every_subscriber_gets_every_message_in_order(served, peer, topic):
    readers = [connected(served) for _ in range(5)]
    try:
        for reader in readers:
            reader.subscribe(topic)
        for at in range(20):
            peer.publish(topic, b"%d" % at)
        for reader in readers:
            assert reader.delivers(20) == [b"%d" % at for at in range(20)]
            reader.ping()
    finally:
        for reader in readers:
            reader.socket.close()


def test_subscribers_and_publisher_may_be_on_any_worker(served, topic):
    with contextlib.ExitStack() as stack:
        here, there = served.worker_pids()
        readers = [on_worker(served, pid, stack) for pid in (here, there, here)]
        for reader in readers:
            reader.subscribe(topic)
        for pid in (here, there):
            publisher = on_worker(served, pid, stack)
            publisher.publish(topic, b"%d" % pid)
            for reader in readers:
                assert reader.deliver().payload == b"%d" % pid


def test_who_subscribes_later_gets_what_comes_later_and_who_leaves_nothing(served, peer, other, topic):
    peer.subscribe(topic)
    with connected(served) as publisher:
        publisher.publish(topic, b"1")
        assert peer.deliver().payload == b"1"
        other.subscribe(topic)
        publisher.publish(topic, b"2")
        assert peer.deliver().payload == other.deliver().payload == b"2"
        peer.tell("unsubscribe", destination=topic)
        publisher.publish(topic, b"3")
        assert other.deliver().payload == b"3"
        peer.ping()


def test_a_copy_that_was_not_acknowledged_comes_to_the_next_subscriber_and_not_to_others(served, peer, other, topic):
    other.subscribe(topic)
    with connected(served) as lost:
        lost.subscribe(topic)
        peer.publish(topic, b"1")
        assert lost.deliver(ack=False).payload == b"1"
        assert other.deliver().payload == b"1"
    wait_until(lambda: other.info(topic)["consumers"] == 1, "the other has gone")
    peer.publish(topic, b"2")
    assert other.deliver().payload == b"2"
    with connected(served) as following:
        following.subscribe(topic)
        assert following.deliver().payload == b"1"
        wait_until(lambda: other.info(topic) == {"messages": 0, "in-flight": 0, "consumers": 2}, "nothing is left")


# ---- filters ----


def test_a_filter_selects_and_the_rest_counts_as_delivered(peer, other, topic):
    other.subscribe(topic, filter="age>=N18;first_name<Tto")
    people = [(b"tomas", 18), (b"tomas", 17), (b"anna", 40), (b"tobias", 99)]
    for who, age in people:
        peer.publish(topic, who, b"first_name:T%b;age:N%d;" % (who, age))
    peer.publish(topic, b"nobody")
    assert other.delivers(2) == [b"tomas", b"tobias"]
    other.ping()
    wait_until(lambda: other.info(topic) == {"messages": 0, "in-flight": 0, "consumers": 1}, "nothing is left")


def test_filters_of_one_subscription_must_all_hold(peer, other, topic):
    other.write(
        encode_command("subscribe", [("destination", topic), ("filter", "a=N1"), ("filter", "b=N2"), ("id", "s")])
    )
    assert other.next().name == "ok"
    for at, properties in enumerate((b"a:N1;", b"b:N2;", b"a:N1;b:N2;")):
        peer.publish(topic, b"%d" % at, properties)
    assert other.delivers(1) == [b"2"]
    other.ping()


def test_subscribing_again_replaces_the_filter(peer, other, topic):
    for filters, wanted in (("k=Ta", [b"a"]), ("k=Tb", [b"b"]), (None, [b"a", b"b"]), ("k=Ta", [b"a"])):
        other.subscribe(topic, **({"filter": filters} if filters else {}))
        for value in (b"a", b"b"):
            peer.publish(topic, value, b"k:T%b;" % value)
        assert other.delivers(len(wanted)) == wanted
        other.ping()


def test_each_subscriber_has_its_own_filter(served, peer, topic):
    readers = {value: connected(served) for value in (b"a", b"b", b"c")}
    try:
        for value, reader in readers.items():
            reader.subscribe(topic, filter=f"k=T{value.decode()}")
        for value in (b"a", b"b", b"c") * 5:
            peer.publish(topic, value, b"k:T%b;" % value)
        for value, reader in readers.items():
            assert reader.delivers(5) == [value] * 5
            reader.ping()
    finally:
        for reader in readers.values():
            reader.socket.close()


@pytest.mark.parametrize("case", VECTORS["filter_cases"]["cases"], ids=lambda case: case["filter"])
def test_the_filters_of_the_vectors(served, peer, topic, case):
    with connected(served) as reader:
        if "match" not in case:
            assert reader.denied("subscribe", destination=topic, filter=case["filter"]) == "BAD_FILTER"
            return
        reader.subscribe(topic, filter=case["filter"])
        peer.publish(topic, b"wanted", VECTORS["filter_cases"]["properties"].encode())
        if case["match"]:
            assert reader.delivers(1) == [b"wanted"]
        reader.ping()


def test_with_a_window_of_one_what_a_filter_leaves_out_takes_no_room(served, peer, topic):
    with connected(served, "ack;pub-sub;x-reply") as reader:
        reader.subscribe(topic, filter="k=T5")
        for at in range(10):
            peer.publish(topic, b"%d" % at, b"k:T%d;" % at)
        assert reader.delivers(1, ack=False) == [b"5"]
        reader.ping()


# ---- without acknowledgements ----


@pytest.mark.parametrize("mode", ["fan-out-with-ack", "fan-out-without-ack"])
@pytest.mark.parametrize("extensions", [USUAL, "pub-sub;x-reply"])
def test_every_mode_of_a_topic_serves_peers_with_and_without_acknowledgements(served, peer, topic, mode, extensions):
    peer.create(topic, mode=mode)
    with connected(served, extensions) as reader:
        reader.subscribe(topic)
        for at in range(30):
            peer.publish(topic, b"%d" % at)
        assert reader.delivers(30) == [b"%d" % at for at in range(30)]
        wait_until(lambda: peer.info(topic)["in-flight"] == 0, "all are settled")


# ---- from a place on ----


def test_a_stream_is_read_from_a_place_on_and_nothing_is_taken_away(served, peer, name):
    with StreamsConnection.connect(served.host, served.port) as streams:
        streams.create(name)
    for at in range(10):
        peer.publish(name, b"%d" % at, b"k:N%d;" % at)
    for place, first in (("first", 0), ("4", 4), ("last", None), ("first", 0)):
        with connected(served) as reader:
            reader.subscribe(name, from_=place)
            if first is not None:
                assert reader.delivers(10 - first) == [b"%d" % at for at in range(first, 10)]
            else:
                frame = reader.deliver()
                while frame.payload != b"9":
                    frame = reader.deliver()
    with connected(served) as reader:
        reader.subscribe(name)  # from its end on
        peer.publish(name, b"new")
        assert reader.delivers(1) == [b"new"]
        assert reader.denied("subscribe", destination=name, from_="noon") == "BAD_COMMAND"


def test_a_queue_read_from_its_first_message_keeps_them_all(served, peer, other, name):
    for at in range(5):
        peer.publish(name, b"%d" % at)
    with connected(served) as reader:
        reader.subscribe(name, from_="first")
        assert reader.delivers(5) == [b"%d" % at for at in range(5)]
        peer.publish(name, b"5")
        assert reader.delivers(1) == [b"5"]
    assert peer.info(name)["messages"] == 6
    other.subscribe(name)
    assert other.delivers(6) == [b"%d" % at for at in range(6)]


def test_a_stream_is_read_through_a_window_and_a_filter(served, peer, name):
    with StreamsConnection.connect(served.host, served.port) as streams:
        streams.create(name)
    for at in range(40):
        peer.publish(name, b"%d" % at, b"k:N%d;" % (at % 4))
    with connected(served, "batch-ack:max-count=3;pub-sub;x-reply") as reader:
        reader.subscribe(name, from_="first", filter="k=N1")
        got = []
        for _ in range(3):
            got += reader.delivers(3, ack=False)
            reader.ping()
            reader.ack()
        assert got + reader.delivers(1) == [b"%d" % at for at in range(1, 40, 4)]


def test_a_deleted_stream_ends_its_subscription_with_a_word(served, peer, other, name):
    with StreamsConnection.connect(served.host, served.port) as streams:
        streams.create(name)
        peer.publish(name)
        other.subscribe(name, from_="first")
        other.deliver()
        streams.delete(name)
        assert code(other.error()) == "QUEUE_NOT_FOUND"
        other.ping()


# ---- a storm ----


def test_ten_subscribers_with_small_windows_all_get_a_thousand_messages(served, peer, topic):
    readers = [connected(served, "batch-ack:max-count=7;pub-sub;x-reply") for _ in range(10)]
    try:
        for reader in readers:
            reader.subscribe(topic)
        for first in range(0, 1_000, 100):
            peer.write(*(peer.message(topic, b"%d" % at) for at in range(first, first + 100)))
            peer.acked()
        for reader in readers:
            got = []
            while len(got) < 1_000:
                frame = reader.next()
                assert isinstance(frame, Message), frame
                got.append(frame.payload)
                if len(got) % 7 == 0:
                    reader.ack()
            assert got == [b"%d" % at for at in range(1_000)]
    finally:
        for reader in readers:
            reader.socket.close()
