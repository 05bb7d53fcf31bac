# SPDX-License-Identifier: Apache-2.0
"""Random bytes against the streams door, for VIBEMQ_FUZZ_SECONDS (two seconds unless told).

The invariant in one sentence: whatever a peer sends, at whatever point of a connection, the
broker answers by the protocol or closes that connection, and nobody else notices.
"""

import json
import os
import random
import socket
import time
from pathlib import Path

import pytest
from running import broker, resident_bytes

from vibemq.client.streams import StreamsConnection

pytestmark = [pytest.mark.fuzz]

SECONDS = float(os.environ.get("VIBEMQ_FUZZ_SECONDS", "2"))
GOLDEN = [
    bytes.fromhex(vector["hex"])
    for vector in json.loads((Path(__file__).parent.parent / "streams" / "vectors.json").read_text())
]
STREAM = "fuzzed"
GROWTH_BYTES_MAX = 64 << 20  # of one worker, while it is fed garbage


def mutated(frame: bytes, random_: random.Random) -> bytes:
    """A frame as a broken or hostile peer may send it: often with a size that fits, sometimes not."""
    body = bytearray(frame[4:])
    for _ in range(random_.randrange(4)):
        at = random_.randrange(len(body) + 1)
        match random_.randrange(5):
            case 0 if body:
                body[at % len(body)] ^= 1 << random_.randrange(8)
            case 1:
                number = random_.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0" * 4, b"\xff\xff"))
                body[at : at + len(number)] = number
            case 2:
                del body[at : at + random_.randint(1, 9)]
            case 3:
                body[at:at] = random_.randbytes(random_.randint(1, 200))
            case _:
                body[at:at] = body[at : at + random_.randint(1, 60)]
    size = len(body)
    if random_.random() < 0.1:
        size = random_.choice((0, 1, size + 1, max(0, size - 1), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
    return size.to_bytes(4, "big") + bytes(body)


def talk(connection: socket.socket, random_: random.Random) -> None:
    """Send up to 30 frames, in pieces now and then, and read what comes, until either side has enough."""
    connection.settimeout(5)
    for _ in range(random_.randint(1, 30)):
        data = b"".join(mutated(random_.choice(GOLDEN), random_) for _ in range(random_.randint(1, 4)))
        try:
            if random_.random() < 0.3:
                cut = random_.randrange(len(data))
                connection.sendall(data[:cut])
                connection.sendall(data[cut:])
            else:
                connection.sendall(data)
            connection.setblocking(False)
            try:
                while connection.recv(65536):
                    pass
                return
            except BlockingIOError:
                connection.settimeout(5)
        except (ConnectionError, TimeoutError):  # the broker has closed it, as it may
            return


@pytest.mark.timeout(SECONDS * 3 + 120)
def test_garbage_at_any_point_of_a_connection_is_nobody_elses_trouble(tmp_path):
    seed = int(os.environ.get("VIBEMQ_FUZZ_SEED", time.time_ns() % 2**32))
    print(f"VIBEMQ_FUZZ_SEED={seed}")  # pytest shows it when the test fails
    random_ = random.Random(seed)
    with broker(tmp_path) as running, StreamsConnection.connect(running.host, running.port) as witness:
        witness.create("witness")
        witness.create(STREAM)
        workers = running.worker_pids()
        before = [resident_bytes(pid) for pid in workers]
        expected = connections = 0
        with witness.publisher("witness") as publisher:
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                if random_.random() < 0.5:
                    with socket.create_connection((running.host, running.port)) as raw:
                        talk(raw, random_)
                else:
                    with StreamsConnection.connect(running.host, running.port).detach() as raw:
                        talk(raw, random_)
                connections += 1
                publisher.publish([b"still here %d" % connections])
                publisher.flush()
                expected += 1
        assert sum(chunk.records for chunk in witness.read_chunks("witness", 0)) == expected
        assert running.worker_pids() == workers, "a worker has died"
        grown = [resident_bytes(pid) - was for pid, was in zip(workers, before, strict=True)]
        assert max(grown) < GROWTH_BYTES_MAX
    assert connections > 5
