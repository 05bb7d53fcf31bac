# SPDX-License-Identifier: Apache-2.0
"""A peer is not read while too much of what it sent waits; but whatever would lift such a pause is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.http import unmasked
from peers.signalr import HubPeer, fresh
from running import Running, broker

from vibemq.client import connect
from vibemq.protocols.signalr.spec import MessageType

BODY_BYTES, MESSAGES = 64_000, 300  # more than the 16 MiB of one connection that may wait for room in full queues
BLOCKING = {"maxLength": 1, "overflow": "blockPublisher"}


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Running]:
    """A publisher may wait for room longer than any test."""
    with broker(tmp_path / "data", "--set", "queues.block_timeout_ms=600000", workers=1) as running:
        yield running


def publishes(peer: HubPeer, name: str) -> bytes:
    body = "x" * BODY_BYTES
    records = [peer.call_record("Publish", name, body, id=f"p{number}") for number in range(MESSAGES)]
    return b"".join(map(unmasked, records))


def test_the_acks_that_make_room_for_the_same_connections_messages_are_read(patient: Running) -> None:
    name = fresh()
    with HubPeer(patient) as peer:
        peer.ask("CreateQueue", name, BLOCKING)
        items = peer.stream("Subscribe", name, {"ack": "manual", "prefetch": 1})
        writer = threading.Thread(target=peer.http.write, args=(publishes(peer, name),))
        writer.start()
        answered, refused, unacked = 0, 0, 0
        # What is beyond the limit is refused, so the rest has been read; only then is anything acknowledged.
        while answered + refused < MESSAGES:
            message = peer.next()
            if message.id == items:
                unacked = message.payload["tag"]
            elif message.error is None:
                answered += 1
            else:
                assert "QUEUE_FULL" in message.error and "acknowledge" in message.error
                refused += 1
            if refused and unacked and not writer.is_alive():
                peer.notify("Ack", unacked)
                unacked = 0
        writer.join()
        assert answered * BODY_BYTES > 15 << 20
        assert 0 < refused < MESSAGES // 2
        with connect(f"vibemq://{patient.host}:{patient.native_port}") as client:
            assert client.queue_info(name).refused == refused


def test_a_connection_that_only_publishes_waits_until_others_make_room(patient: Running) -> None:
    name = fresh()
    with HubPeer(patient) as peer, HubPeer(patient) as other:
        peer.ask("CreateQueue", name, BLOCKING)
        writer = threading.Thread(target=peer.http.write, args=(publishes(peer, name),))
        writer.start()
        items = other.stream("Subscribe", name)
        for _ in range(MESSAGES):
            assert other.next().type == MessageType.STREAM_ITEM
        writer.join()
        for _ in range(MESSAGES):
            assert peer.next().error is None
        assert items
