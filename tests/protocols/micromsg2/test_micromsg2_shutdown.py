# SPDX-License-Identifier: Apache-2.0
"""The end of a broker as its peers see it: time to finish, a word, and nothing acknowledged that is not there later."""

import contextlib
import itertools

import pytest
from peers.micromsg2 import USUAL, ExtensionFrame, Message, Micromsg2Peer, code, connected
from running import STOP_SECONDS_MAX, broker, wait_until

from vibemq.protocols.micromsg2.codec import ack_sequence


def stopped(running):
    """It has ended by itself: a second signal would kill it."""
    assert running.process.wait(STOP_SECONDS_MAX) == 0


def test_peers_are_told_and_let_go_also_in_the_handshake(tmp_path):
    with (
        broker(tmp_path) as running,
        connected(running) as peer,
        Micromsg2Peer(running) as nobody,
        Micromsg2Peer(running) as undecided,
    ):
        undecided.hello("json")
        peer.publish("q")
        running.process.terminate()
        for one in (peer, nobody, undecided):
            assert code(one.ended()) == "SHUTTING_DOWN"
        stopped(running)


def test_acknowledgements_in_flight_are_waited_for_and_no_more_is_delivered(tmp_path):
    with broker(tmp_path, workers=1) as running, connected(running) as other:
        with connected(running, "batch-ack:max-count=2;pub-sub;x-reply") as peer:
            for at in range(3):
                other.publish("q", b"%d" % at)
            peer.subscribe("q")
            assert peer.delivers(2, ack=False) == [b"0", b"1"]
            running.process.terminate()
            assert code(other.ended()) == "SHUTTING_DOWN"
            peer.ack(1)
            peer.ping()
            peer.ack(2)
            assert code(peer.ended()) == "SHUTTING_DOWN"
        stopped(running)
    with broker(tmp_path) as running, connected(running) as peer:
        assert peer.info("q")["messages"] == 1
        peer.subscribe("q")
        assert peer.delivers(1) == [b"2"]


def test_a_connection_that_is_waited_for_may_still_publish(tmp_path):
    with broker(tmp_path, workers=1) as running, connected(running) as peer, connected(running) as other:
        peer.publish("q", b"0")
        peer.subscribe("q")
        peer.deliver(ack=False)
        running.process.terminate()
        other.ended()
        peer.publish("q", b"1")
        peer.ack()
        assert code(peer.ended()) == "SHUTTING_DOWN"
        stopped(running)
    with broker(tmp_path) as running, connected(running) as peer:
        peer.subscribe("q")
        assert peer.delivers(1) == [b"1"]


def test_a_message_whose_fragments_are_on_their_way_is_finished(tmp_path):
    data = bytes(range(256)) * 4096 * 2 + b"!"
    with broker(tmp_path, workers=1) as running, connected(running) as other:
        with connected(running, "ack;pub-sub;x-reply") as peer:
            other.publish("q", data)
            peer.subscribe("q")
            payload = peer.deliver(ack=False).payload
            running.process.terminate()
            other.ended()
            for _ in range(2):
                peer.ack()
                payload += peer.deliver(ack=False).payload
            assert payload == data
            peer.ack()
            assert code(peer.ended()) == "SHUTTING_DOWN"
        stopped(running)


def test_what_is_not_acknowledged_in_time_is_there_after_the_restart(tmp_path):
    with broker(tmp_path, "--set", "server.shutdown_timeout_s=2") as running, connected(running) as peer:
        peer.publish("q", b"1", b"k:Tv;")
        peer.subscribe("q")
        peer.deliver(ack=False)
        running.process.terminate()
        peer.rest()
        stopped(running)
    with broker(tmp_path) as running, connected(running) as peer:
        peer.subscribe("q")
        message = peer.deliver()
        assert (message.properties, message.payload) == (b"k:Tv;", b"1")


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_everything_that_was_acknowledged_while_stopping_is_there_afterwards(tmp_path, durability):
    count, acked = 2_000, 0
    with broker(tmp_path) as running:
        with connected(running, "batch-ack:max-count=10000;x-reply") as peer:
            peer.create("q", max_messages=0, durability=durability)
            messages = [peer.message("q", b"%d" % at) for at in range(count)]
            peer.write(*messages[: count // 2])
            frames = [peer.next()]
            running.process.terminate()
            with contextlib.suppress(ConnectionError):
                peer.write(*messages[count // 2 :])
                while True:
                    frames.append(peer.next())
            acked = max(ack_sequence(frame.payload) for frame in frames if isinstance(frame, ExtensionFrame))
        stopped(running)
    with broker(tmp_path) as running, connected(running, "batch-ack:max-count=10000;pub-sub;x-reply") as peer:
        peer.subscribe("q")
        assert peer.delivers(acked, ack=False) == [b"%d" % at for at in range(acked)]


def test_messages_that_wait_before_a_full_queue_are_not_acknowledged(tmp_path):
    with broker(tmp_path) as running, connected(running) as peer:
        peer.create("q", max_messages=1, overflow="block-publisher")
        peer.publish("q", b"0")
        peer.write(peer.message("q", b"1"), peer.message("q", b"2"))
        peer.ping()
        running.process.terminate()
        assert [type(frame) for frame in peer.rest()].count(ExtensionFrame) == 0
        stopped(running)
    with broker(tmp_path) as running, connected(running, USUAL) as peer:
        peer.subscribe("q")
        assert isinstance(peer.deliver(), Message)
        wait_until(lambda: peer.info("q") == {"messages": 0, "in-flight": 0, "consumers": 1}, "there is no other")


def test_a_peer_that_publishes_without_end_does_not_keep_the_broker(tmp_path):
    """With durability `disk` there is nearly always something that waits for a sync."""
    hour = ("--shutdown-timeout", "3600")
    with broker(tmp_path, *hour) as running, connected(running, "batch-ack:max-count=100;x-reply") as peer:
        peer.create("q", max_messages=0, durability="disk")
        messages = [peer.message("q", b"1") for _ in range(100)]
        with contextlib.suppress(ConnectionError):
            for turn in itertools.count():
                peer.write(*messages)
                peer.next()
                if turn == 1:
                    running.process.terminate()
        stopped(running)
