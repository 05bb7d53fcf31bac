# SPDX-License-Identifier: Apache-2.0
"""Legal, odd and mutated frames against a live broker as tests/fuzzing.py says.

The invariant in one sentence: whatever one connection sends, it is answered by whole frames or closed, no worker dies,
and a connection that behaves is served all the time.  The log names no error of ours.
"""

import select

import pytest
from fuzzing import LIMIT_S, seeded, steps
from peers.micromsg2 import ErrorFrame, ExtensionFrame, Message, Micromsg2Peer, connected
from running import broker

from vibemq.protocols.micromsg2.codec import (
    Handshake,
    decode_frame,
    encode_ack,
    encode_command,
    encode_error,
    encode_extension,
    encode_handshake,
    encode_message,
)

pytestmark = [pytest.mark.fuzz]

NAMES = ["fuzz-a", "queue/fuzz-a", "topic/fuzz-t", "fuzz-t", "größe", "fuzz-full", "fuzz-dlq", "", "a\nb", "topic/"]
LISTS = [
    "batch-ack:max-count=20;pub-sub;x-reply",
    "ack;pub-sub;x-reply;dotnet;json",
    "ack:MessagesPerAck=3,AckExpireTime=20;pub-sub;x-reply;dotnet",
    "pub-sub;x-reply;dotnet",
    "batch-ack:max-count=3;x-heartbeat:interval=200;pub-sub;xml;protobuf",
    "batch-ack;x-subscribe:destination=topic%2Ffuzz-t,filter=k%3DN1",
    "batch-ack;x-subscribe:destination=fuzz-a,prefetch=2;x-reply",
    "",
]
PROPERTIES = [
    b"",
    b"k:N1;",
    b"k:Tv;message-id:Tm;",
    b"content-type:Tx;dotnet-type:Ty;",
    b";;:=;x",
    b"k:D1.5;" * 50,
    b"\xff" * 9,
]
ODD_ITEMS = [";?", ";x-odd", ":max-count=0", ";" * 300]
TYPES = [b"", b"Type, x", b"\0\1", b"t" * 4_096]
MORE = [{}, {}, {"prefetch": 1}, {"from": "first"}]
OPTIONS = [
    {},
    {"max-messages": 3, "overflow": "block-publisher"},
    {"max-messages": 3, "overflow": "redirect-to-dlq", "dead-letter": 1, "attempts-max": 1},
    {"max-messages": 2, "overflow": "drop-newest"},
    {"max-messages": 2, "overflow": "drop-oldest", "mode": "priority-based"},
    {"mode": "fan-out-without-ack", "message-ttl-ms": 5},
    {"durability": "disk", "ack-timeout-ms": 50, "backoff-ms": 0},
]
FILTERS = ["k=N1", "k!=N1;k~Tx", "=", "k<=Tx", "message-id&Tm"]


class Attack:
    """One connection that knows what it has agreed on, and does as it likes."""

    def __init__(self, running, random_):
        self.random, self.peer = random_, Micromsg2Peer(running)
        self.number = self.got = 0
        self.inbox = b""
        self.ids = 1

    def list(self):
        text = self.random.choice(LISTS)
        return text if self.random.random() < 0.95 else text + self.random.choice(ODD_ITEMS)

    def handshake(self):
        c1 = self.list().encode()
        required, optional = (b"", c1) if self.random.random() < 0.2 else (c1, b"")
        minor = self.random.choice((0, 0, 1, 9))
        step = Handshake(minor=minor, identity=b"fuzz", required=required, optional=optional)
        c2 = step if self.random.random() < 0.9 else step._replace(required=self.list().encode())
        self.ids = min(len(c1.split(b";")) + 1, 255)
        return encode_handshake(step) + encode_handshake(c2)

    def frame(self):
        random_ = self.random
        name = random_.choice(NAMES)
        match random_.randrange(10):
            case 0 | 1 | 2 | 3:
                self.number = random_.choice((self.number % 65_535 + 1,) * 9 + (self.number, 1, 0))
                payload = random_.choice((b"", b"1", b"x" * 300, b"y" * 20_000))
                return encode_message(
                    self.number, name.encode(), payload, random_.choice(PROPERTIES), random_.random() < 0.1
                )
            case 4 | 5:
                number = random_.choice((self.got, self.got, self.got, max(self.got - 1, 0), 9, 65_535))
                return encode_ack(random_.randint(1, self.ids), number)
            case 6:
                return encode_extension(random_.randint(1, self.ids), random_.choice(TYPES))
            case 7:
                pairs = {"destination": name, "id": random_.randrange(99), **random_.choice(MORE)}
                if random_.random() < 0.3:
                    pairs["filter"] = random_.choice(FILTERS)
                return encode_command(random_.choice(("subscribe", "subscribe", "unsubscribe")), pairs)
            case 8:
                command = random_.choice(("create", "create", "delete", "info", "list", "ok", "launch"))
                options = random_.choice(OPTIONS) if command == "create" else {}
                return encode_command(command, {"destination": name, "id": random_.randrange(99), **options})
            case _:
                return random_.choice((encode_error("no"), b"", encode_command("list", {"id": 1, "pattern": "*z*"})))

    def mutated(self, data):
        data = bytearray(data)
        if not data or self.random.random() < 0.97:
            return bytes(data)
        at = self.random.randrange(len(data))
        match self.random.randrange(4):
            case 0:
                data[at] ^= 1 << self.random.randrange(8)
            case 1:
                data[at : at + 2] = self.random.choice((b"\xff\xff", b"\0\0", b"\x7f\xff"))
            case 2:
                del data[at : at + self.random.randint(1, 9)]
            case _:
                data[at:at] = self.random.randbytes(self.random.randint(1, 50))
        return bytes(data)

    def read_what_came(self):
        """Whole frames, or the beginning of one; False when the broker has closed the connection."""
        while select.select([self.peer.socket], [], [], 0)[0]:
            try:
                data = self.peer.socket.recv(1 << 18)
            except ConnectionError:
                return False
            if not data:
                assert not self.inbox, "the last frame is not whole"
                return False
            self.take(data)
        return True

    def take(self, data):
        self.inbox += data
        while (found := decode_frame(self.inbox)) is not None:
            frame, used = found
            self.inbox = self.inbox[used:]
            self.got = frame.sequence if isinstance(frame, Message) else self.got

    def run(self):
        with self.peer as peer:
            peer.socket.settimeout(10)
            try:
                peer.write(self.mutated(self.handshake()))
                if isinstance(peer.answered(), ErrorFrame):
                    return
                self.take(peer.inbox)
                for _ in range(self.random.randint(1, 40)):
                    peer.write(*(self.mutated(self.frame()) for _ in range(self.random.randint(1, 10))))
                    if not self.read_what_came():
                        return
            except (ConnectionError, TimeoutError):  # closed, or the handshake was cut
                return


@pytest.mark.timeout(LIMIT_S)
def test_whatever_is_sent_no_worker_dies_and_others_are_served(tmp_path, capfd):
    random_ = seeded()
    flags = ("--set", "queues.block_timeout_ms=100", "--set", "server.log_level=error")
    timeout = ("--set", "micromsg2.handshake_timeout_s=1", "--set", "server.shutdown_timeout_s=2")
    with broker(tmp_path, *flags, *timeout) as running, connected(running) as peer:
        pids = running.worker_pids()
        peer.subscribe("calm")
        for step in steps(200):
            Attack(running, random_).run()
            peer.send("calm", b"%d" % step)
            assert {type(peer.next()), type(peer.next())} == {ExtensionFrame, Message}
            peer.ack()
        assert running.worker_pids() == pids, "a worker has died"
    said, log = capfd.readouterr()
    print(said)
    assert "error of ours" not in log and "Traceback" not in log, log
