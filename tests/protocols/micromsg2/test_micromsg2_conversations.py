# SPDX-License-Identifier: Apache-2.0
"""Conversations that go wrong, against a live broker as tests/fuzzing.py says.

The invariant in one sentence: whatever some connections do, each gets whole frames or is closed, no worker dies, and a
connection that behaves is served all the time.  The log names no error of ours.  What is sent is mostly legal, because
the faults that matter lie in what comes together: subscriptions and large messages, windows and deletions.
"""

from __future__ import annotations

import random
import select
import socket

import pytest
from fuzzing import LIMIT_S, seeded, steps
from peers.micromsg2 import connected
from running import Running, broker

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.micromsg2 import codec
from vibemq.protocols.micromsg2.codec import Command, Handshake, Message

pytestmark = [pytest.mark.fuzz]

PEERS = 4  # at once
STILL_S_MAX = 1  # that neither side can do anything: then another peer takes its turn
STREAMS = ("plain", "simple")  # that are no queues
DESTINATIONS = ["a", "b", "queue/a", "topic/t", "topic/u", "t", *STREAMS, ""]
EXTENSIONS = [
    ["json"],
    ["dotnet"],
    ["ack", "ack:count=3", "batch-ack:max-count=1", "batch-ack:max-count=2", "batch-ack:max-count=100"],
    ["pub-sub"],
    ["x-reply"],
    ["x-heartbeat:interval=100000"],
    ["x-subscribe:destination=a", "x-subscribe:destination=topic%2Ft", "x-subscribe:destination=plain,from=first"],
]
PAYLOADS = [b"m", b"m", b"m", b"", b"y" * 300, b"z" * 70_000, b"w" * 2_500_000]
PROPERTIES = [b"", b"a:N1;", b"a:N2;b:Tx;", b"a=;;:::", b"message-id:T1;", b"%", b"a:" + b"x" * 60_000]
FILTERS = ["a=N1", "a>N0;b=Tx", "zz", "a~Tx", "b!=T1"]
PLACES = ["first", "last", "next", "0", "3", "100", "x"]
OVERFLOWS = ["drop-newest", "block-publisher", "redirect-to-dlq", "drop-oldest"]
MODES = ["round-robin", "fan-out-with-ack", "fan-out-without-ack", "priority-based"]


class Wild:
    """A connection that mostly knows the protocol."""

    def __init__(self, running: Running, random_: random.Random) -> None:
        self.random = random_
        self.socket = socket.create_connection((running.host, running.ports["micromsg2"]))
        self.socket.setblocking(False)
        self.inbox = b""
        self.outbox = bytearray()
        self.sequence = 0
        self.shaken = False
        names = [random_.choice(group) for group in EXTENSIONS if random_.random() < 0.6]
        random_.shuffle(names)
        self.ack_id = next((at for at, name in enumerate(names, 1) if name.startswith(("ack", "batch-ack"))), 0)
        shake = codec.encode_handshake(
            Handshake(minor=random_.choice((0, 0, 0, 1)), identity=b"wild", required=";".join(names).encode())
        )
        self.outbox += shake + shake  # C2 may come before S1 was read

    def act(self) -> None:
        random_ = self.random
        match random_.choices(range(8), (30, 18, 8, 8, 3, 6, 3, 2))[0]:
            case 0:
                for _ in range(random_.choice((1, 1, 3, 20))):
                    self.send(random_.choice(PAYLOADS))
            case 1:
                self.command("subscribe", **self.subscription())
            case 2:
                self.command("unsubscribe")
            case 3:
                options = {"max-messages": "3", "overflow": random_.choice(OVERFLOWS), "mode": random_.choice(MODES)}
                self.command("create", **options, **{"dead-letter": random_.choice("01")})
            case 4:
                self.command(random_.choice(("info", "list", "delete")))
            case 5:
                self.send(random_.choice(PAYLOADS), continued=True)
                if random_.random() < 0.8:
                    self.send(b"end", destination=b"")
            case 6:
                payload = random_.choice((b"", b"Type", b"\0\1", b"\0\0\0\1", b"123"))
                self.outbox += codec.encode_extension(random_.randint(1, 8), payload)
            case _:
                frame = bytearray(codec.encode_message(1, b"a", b"payload", b"a:N1;"))
                frame[random_.randrange(len(frame))] ^= 1 << random_.randrange(8)
                self.outbox += frame

    def subscription(self) -> dict[str, str]:
        more: dict[str, str] = {}
        if self.random.random() < 0.4:
            more["from"] = self.random.choice(PLACES)
        if self.random.random() < 0.3:
            more["filter"] = self.random.choice(FILTERS)
        if self.random.random() < 0.3:
            more["prefetch"] = self.random.choice("012")
        return more

    def send(self, payload: bytes, *, destination: bytes | None = None, continued: bool = False) -> None:
        if destination is None:
            destination = self.random.choice(DESTINATIONS).encode()
        if self.random.random() > 0.02:  # else the number comes twice
            self.sequence = self.sequence % 65_535 + 1
        properties = self.random.choice(PROPERTIES)
        self.outbox += codec.encode_message(self.sequence, destination, payload, properties, continued)

    def command(self, name: str, **pairs: str) -> None:
        pairs["destination"] = self.random.choice(DESTINATIONS)
        if self.random.random() < 0.7:
            pairs["id"] = str(self.random.randrange(1000))
        self.outbox += codec.encode_command(name, list(pairs.items()))

    def write(self) -> bool:
        """All that is to go out, reading only once the broker takes no more; False as in read."""
        while self.outbox:
            try:
                del self.outbox[: self.socket.send(self.outbox)]
            except BlockingIOError:
                readable, writable, _ = select.select([self.socket], [self.socket], [], STILL_S_MAX)
                if not (readable or writable):  # its window may be full of what we never acknowledge
                    return False
                if readable and not self.read():
                    return False
        return True

    def read(self) -> bool:
        """What came, acknowledging most of it; False when the broker has closed the connection."""
        while select.select([self.socket], [], [], 0)[0]:
            data = self.socket.recv(1 << 18)
            if not data:
                return False
            self.inbox += data
            self.inbox = self.inbox[self.read_frames() :]
        return True

    def read_frames(self) -> int:
        at = 0
        while True:
            if not self.shaken:
                shake = codec.decode_handshake(self.inbox[at:])
                if shake is None:
                    return at
                self.shaken = True
                at += shake[1]
                continue
            found = codec.decode_frame(self.inbox[at:])
            if found is None:
                return at
            frame, used = found
            at += used
            assert not isinstance(frame, Command) or frame.name in ("ok", "error")
            if isinstance(frame, Message) and self.ack_id and self.random.random() < 0.7:
                self.outbox += codec.encode_ack(self.ack_id, frame.sequence)


def live(peer: Wild) -> bool:
    """One more step of its life; False when that was the last."""
    try:
        peer.act()
        return peer.write() and peer.read() and peer.write() and peer.random.random() > 0.003
    except ConnectionError:
        return False


@pytest.mark.timeout(LIMIT_S)
def test_whatever_peers_do_together_no_worker_dies_and_others_are_served(tmp_path, capfd):
    random_ = seeded()
    flags = ("--set", "queues.block_timeout_ms=100", "--set", "server.log_level=error")
    with broker(tmp_path, *flags) as running, connected(running) as calm:
        with StreamsConnection.connect(running.host, running.port) as connection:
            for stream in STREAMS:
                connection.create(stream)
        pids = running.worker_pids()
        calm.subscribe("calm")
        peers: list[Wild] = []
        for step in steps(250):
            while len(peers) < PEERS:
                peers.append(Wild(running, random_))
            peer = random_.choice(peers)
            if not live(peer):
                peer.socket.close()
                peers.remove(peer)
            if step % 50 == 0:
                calm.send("calm", b"%d" % step)
                kinds = {type(calm.next()), type(calm.next())}
                assert Message in kinds and len(kinds) == 2, "a message and the acknowledgement of one"
                calm.ack()
        for peer in peers:
            peer.socket.close()
        assert running.worker_pids() == pids, "a worker has died"
    said, log = capfd.readouterr()
    print(said)
    assert "error of ours" not in log and "Traceback" not in log, log
