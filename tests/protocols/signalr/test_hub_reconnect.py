# SPDX-License-Identifier: Apache-2.0
"""Stateful reconnect: a socket is lost, the hub connection is not; nothing is lost with it and nothing comes twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from peers.http import HttpPeer, unmasked
from peers.hub_messages import Message
from peers.signalr import HubPeer, bodies, fresh
from running import Running, broker, wait_until

from vibemq.protocols.signalr.spec import Encoding, MessageType

BOTH = pytest.mark.parametrize("encoding", list(Encoding))


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Running]:
    with broker(tmp_path / "data", "--set", "signalr.disconnect_timeout_s=1", workers=1) as running:
        yield running


class StatefulPeer(HubPeer):
    """Counts as a client does, and may come again with another socket."""

    def __init__(self, running: Running, encoding: Encoding) -> None:
        with HttpPeer(running) as http:
            answer = http.negotiate("?negotiateVersion=1&useStatefulReconnect=true")
        assert answer["useStatefulReconnect"] is True
        self.running, self.target = running, f"/hub?id={answer['connectionToken']}"
        self.received = self.acked = 0
        super().__init__(running, encoding=encoding, version=2, target=self.target)

    def next(self) -> Message:
        while True:
            message = super().next()
            if message.type == MessageType.ACK:
                self.acked = message.sequence
            elif message.type == MessageType.SEQUENCE:
                self.coming = message.sequence
            elif not self._is_old():
                return message

    coming = 0

    def _is_old(self) -> bool:
        if self.coming:  # after a reconnect: what was seen is dropped
            self.coming += 1
            if self.coming - 1 <= self.received:
                return True
        self.received += 1
        return False

    def again(self) -> None:
        """Lose the socket, and come back with another."""
        self.http.socket.close()
        self.inbox.clear()
        self.http = HttpPeer(self.running)
        self.http.upgrade(self.target)

    def sequence(self, number: int) -> None:
        self.send(MessageType.SEQUENCE, sequence=number)


@BOTH
def test_what_was_not_acknowledged_comes_again_and_nothing_twice(served: Running, encoding: Encoding) -> None:
    name = fresh()
    with StatefulPeer(served, encoding) as peer:
        id = peer.stream("Subscribe", name, {"ack": "manual"})
        peer.notify("PublishBatch", name, [1, 2])
        assert bodies(peer.items(id, 2)) == [1, 2]
        peer.again()
        peer.sequence(3)  # the broker has both, and may have said so
        with HubPeer(served) as other:
            other.ask("PublishBatch", name, [3, 4])
        assert bodies(peer.items(id, 2)) == [3, 4]
        # all four are still in flight at one and the same subscription
        assert peer.ask("QueueInfo", name)["unacked"] == 4


@BOTH
def test_calls_that_are_repeated_are_not_done_twice(served: Running, encoding: Encoding) -> None:
    name = fresh()
    with StatefulPeer(served, encoding) as peer:
        peer.ask("Publish", name, "once")
        peer.again()
        repeated = peer.call_record("Publish", name, "once", id="1")
        ignored = peer.call_record("Publish", name, "before the sequence", id="9")
        peer.raw(ignored)
        peer.sequence(1)
        peer.raw(repeated + peer.call_record("QueueInfo", name, id="2"))
        answer = peer.next()
        assert answer.id == "2"
        info: Any = answer.payload
        assert info["messages"] == 1


@BOTH
def test_the_broker_acknowledges_what_it_has(served: Running, encoding: Encoding) -> None:
    with StatefulPeer(served, encoding) as peer:
        peer.ask("ServerInfo")
        peer.ask("ServerInfo")

        def acked() -> bool:
            peer.ask("ServerInfo")
            return peer.acked >= 2

        wait_until(acked, "an Ack of two calls")


@BOTH
def test_a_sequence_behind_what_was_lost_closes(served: Running, encoding: Encoding) -> None:
    with StatefulPeer(served, encoding) as peer:
        peer.ask("ServerInfo")
        peer.again()
        peer.sequence(5)
        end = HubPeer.closed(peer)
        assert end is not None
        assert "Sequence 5 is above 2" in str(end.error)


@BOTH
def test_too_much_that_is_not_acknowledged_is_held_back(served: Running, encoding: Encoding) -> None:
    name, body = fresh("stream"), "x" * 4000
    with HubPeer(served) as other:
        other.ask("CreateQueue", name, {"type": "stream"})
        for _ in range(20):
            other.ask("PublishBatch", name, [body, body, body])
    with StatefulPeer(served, encoding) as peer:
        id = peer.stream("ReadStream", name)
        first = 100_000 // (len(body) + 400)
        peer.items(id, first)
        with HubPeer(served) as other:
            assert other.ask("ServerInfo")
        answer = peer.begin("ServerInfo")  # is held back too
        count = first
        while count < 60:
            peer.send(MessageType.ACK, sequence=peer.received)
            message = peer.next()
            if message.type == MessageType.STREAM_ITEM:
                count += 1
            else:
                assert message.id == answer


@BOTH
def test_thousands_of_calls_at_once_are_all_answered(served: Running, encoding: Encoding) -> None:
    """More of them wait than are read while nothing is to be acknowledged, and their answers fill what is kept."""
    with StatefulPeer(served, encoding) as peer:
        calls = [peer.call_record("ServerInfo", id=str(number)) for number in range(4000)]
        for at in range(0, len(calls), 100):
            peer.raw(b"".join(calls[at : at + 100]))
        for number in range(len(calls)):
            assert peer.next().id == str(number)
            if number % 50 == 0:
                peer.send(MessageType.ACK, sequence=peer.received)


def test_calls_beyond_a_limit_without_an_acknowledgement_close(served: Running) -> None:
    with StatefulPeer(served, Encoding.JSON) as peer:
        held = [peer.call_record("ServerInfo", id=f"{number:0200}") for number in range(500)]
        for at in range(0, len(held), 50):
            peer.raw(b"".join(held[at : at + 50]))
        more = unmasked(peer.call_record("ServerInfo", nonblocking=True) * 200)
        threading.Thread(target=write_until_closed, args=(peer, more), daemon=True).start()
        end = HubPeer.closed(peer)
        assert end is not None
        assert "bytes of calls wait for acknowledgements" in str(end.error)


def test_answers_beyond_a_limit_without_an_acknowledgement_close(served: Running) -> None:
    with StatefulPeer(served, Encoding.JSON) as peer:
        more = unmasked(peer.call_record("Ack", 1, id="x" * 250) * 50)
        threading.Thread(target=write_until_closed, args=(peer, more), daemon=True).start()
        last = b""
        while b"bytes were sent and never acknowledged" not in last:
            data = peer.http.socket.recv(1 << 16)
            assert data
            last = (last + data)[-70_000:]


def test_who_never_acknowledges_is_given_up(tmp_path: Path) -> None:
    with (
        broker(tmp_path / "data", "--set", "signalr.stateful_ack_timeout_s=1", workers=1) as running,
        StatefulPeer(running, Encoding.JSON) as peer,
    ):
        peer.raw(b"".join(peer.call_record("ServerInfo", id=f"{number:0200}") for number in range(500)))
        end = HubPeer.closed(peer)
        assert end is not None
        assert "Nothing was acknowledged for 1 s" in str(end.error)


def write_until_closed(peer: HubPeer, data: bytes) -> None:
    with suppress(OSError):
        while True:
            peer.http.write(data)


def test_a_connection_that_does_not_come_back_gives_everything_back(impatient: Running) -> None:
    name = fresh()
    with HubPeer(impatient) as other, StatefulPeer(impatient, Encoding.JSON) as peer:
        other.ask("Publish", name, 1)
        id = peer.stream("Subscribe", name, {"ack": "manual"})
        peer.items(id, 1)
        peer.http.socket.close()
        found: list[Any] = []
        while not found:
            found = other.ask("Receive", name, {"waitMs": 20_000})
        assert found[0]["redelivered"] is True
