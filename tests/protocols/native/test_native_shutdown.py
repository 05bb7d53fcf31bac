# SPDX-License-Identifier: Apache-2.0
"""The end of a broker as its clients see it: a word, time to finish, and nothing confirmed that is not there later."""

import contextlib
import signal
import threading

import pytest
from peers.native import NativePeer, connected
from running import STOP_SECONDS_MAX, broker

from vibemq.protocols.native.spec import Command


def stopping(running):
    running.process.send_signal(signal.SIGTERM)


def stopped(running):
    """It has ended by itself: a second signal would kill it."""
    assert running.process.wait(STOP_SECONDS_MAX) == 0


@pytest.mark.parametrize("text", [False, True], ids=["dotnet", "text"])
def test_clients_are_told_and_let_go(tmp_path, text):
    with broker(tmp_path) as running, connected(running, text=text) as peer, NativePeer(running) as nobody:
        peer.publish("q")
        stopping(running)
        (goodbye,) = peer.rest()
        assert (goodbye.type, goodbye.headers) == (Command.DISCONNECT, {"reason": "server_shutdown"})
        assert nobody.rest() == []
        stopped(running)


def test_acknowledgements_are_still_read_and_count(tmp_path):
    with broker(tmp_path) as running, connected(running) as peer, connected(running) as other:
        for at in range(3):
            other.publish("q", b"1", b"m%d" % at)
        peer.subscribe("q", prefetch="2")
        peer.delivers(2, ack=False)
        stopping(running)
        assert peer.next().type == Command.DISCONNECT
        for id in (b"m0", b"m1"):
            peer.ping()
            peer.send(Command.ACK, id)
        assert peer.rest() == [], "no more is delivered, though there is room"
        assert [message.type for message in other.rest()] == [Command.DISCONNECT]
        stopped(running)
    with broker(tmp_path) as running, connected(running) as peer:
        assert peer.info("q")["messageCount"] == 1
        peer.subscribe("q")
        assert peer.deliver().id == b"m2"


def test_a_connection_that_is_waited_for_may_still_publish(tmp_path):
    with broker(tmp_path) as running, connected(running) as peer:
        peer.publish("q", b"1", b"m0")
        peer.subscribe("q", prefetch="1")
        peer.deliver(ack=False)
        stopping(running)
        assert peer.next().type == Command.DISCONNECT
        peer.publish("q", b"2", b"m1")
        peer.send(Command.ACK, b"m0")
        assert peer.rest() == []
        stopped(running)
    with broker(tmp_path) as running, connected(running) as peer:
        peer.subscribe("q")
        assert peer.deliver().id == b"m1"


def test_what_is_not_acknowledged_in_time_is_there_after_the_restart(tmp_path):
    with broker(tmp_path, "--set", "server.shutdown_timeout_s=2") as running, connected(running) as peer:
        peer.publish("q", b"1", b"m")
        peer.subscribe("q")
        peer.deliver(ack=False)
        stopping(running)
        assert [message.type for message in peer.rest()] == [Command.DISCONNECT]
        stopped(running)
    with broker(tmp_path) as running, connected(running) as peer:
        peer.subscribe("q")
        message = peer.deliver()
        assert (message.id, message.headers["deliveryAttempts"]) == (b"m", "2")


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_every_publish_that_was_confirmed_while_stopping_is_there_afterwards(tmp_path, durability):
    confirmed = []
    with broker(tmp_path, "--set", f"store.durability={durability}") as running, connected(running) as peer:
        peer.create("q", maxQueueSize=0)
        frames = [peer.frame(Command.PUBLISH, b"m%d" % at, queue="q", payload=b"1") for at in range(2000)]
        peer.write(*frames[:1000])
        confirmed.append(peer.expect(Command.PUBLISH_ACK).id)
        stopping(running)
        peer.write(*frames[1000:])
        confirmed += [message.id for message in peer.rest() if message.type == Command.PUBLISH_ACK]
        stopped(running)
    with broker(tmp_path) as running, connected(running) as peer:
        peer.subscribe("q")
        assert peer.delivers(len(confirmed)) == confirmed


def test_a_peer_that_publishes_without_end_does_not_keep_the_broker(tmp_path):
    """With durability `disk` there is always something that waits for a sync."""
    hour = ("--set", "store.durability=disk", "--shutdown-timeout", "3600")
    with broker(tmp_path, *hour) as running, connected(running) as peer:
        peer.create("q", maxQueueSize=0)
        peer.publish("q")
        publishing = threading.Thread(target=publish_on, args=(peer,))
        publishing.start()
        peer.expect(Command.PUBLISH_ACK)
        stopping(running)
        peer.rest()
        stopped(running)
        publishing.join(STOP_SECONDS_MAX)
        assert not publishing.is_alive()


def publish_on(peer):
    with contextlib.suppress(ConnectionError):
        while True:
            peer.write(peer.frame(Command.PUBLISH, b"m", queue="q", payload=b"1"))
