# SPDX-License-Identifier: Apache-2.0
"""Random bytes against the streams door, as tests/fuzzing.py says.

The invariant in one sentence: whatever a peer sends, at whatever point of a connection, the
broker answers by the protocol or closes that connection, and nobody else notices.
"""

import json
import random
import socket
from pathlib import Path

import pytest
from fuzzing import LIMIT_S, seeded, steps
from running import broker, resident_bytes

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.layout import Field, Items
from vibemq.protocols.streams.spec import Code, Key, OffsetType

pytestmark = [pytest.mark.fuzz]

STREAM, SUPER_STREAM = "fuzzed", "fuzzed-super"
GOLDEN = [
    bytes.fromhex(vector["hex"])
    for vector in json.loads((Path(__file__).parent.parent / "protocols" / "streams" / "vectors.json").read_text())
]
NAMES = {
    "stream": STREAM,
    "super_stream": SUPER_STREAM,
    "name": SUPER_STREAM,
    "reference": "fuzz",
    "first": "",
    "mechanism": "PLAIN",
}
FIELDS = {  # of the types that are not numbers
    "nullable_string": "value",
    "bytes": b"\0guest\0guest",
    "map": {"name": "group", "single-active-consumer": "true", "filter.0": "value", "max-age": "1h"},
    "map_to_end": {"name": "group", "single-active-consumer": "true", "filter.0": "value", "max-age": "1h"},
    "array<string>": [STREAM, f"{SUPER_STREAM}-0"],
    "entry": b"a message",
    "offset_type": OffsetType.OFFSET,
    "offset_type_or_none": OffsetType.TIMESTAMP,
}


def value(field: Field, version: int) -> object:
    """Something that a broker acts upon, of the type of this field."""
    if field.since > version:
        return None
    if isinstance(field.type, Items):
        return [tuple(value(each, version) for each in field.type.fields)] * 2
    if field.type == "string":
        return NAMES.get(field.name, "text")
    return FIELDS.get(field.type, 1)


def whole(command: spec.Command, version: int) -> bytes:
    """The command as a client sends it."""
    fields = {field.name: value(field, version) for field in command.request.fields}
    return codec.encode_request(command.key, version=version, **fields)


#: Every command of every version, and the answer to a question of ours: with names that exist, so that they go deep.
SEEDS = [
    *GOLDEN,
    *(
        whole(command, version)
        for command in spec.COMMANDS + spec.EXTENSIONS
        if "client" in command.sent_by
        for version in range(1, command.version_max + 1)
    ),
    codec.encode_response(Key.CONSUMER_UPDATE, 0x40000000, Code.OK, offset_type=OffsetType.NONE),
]
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
        data = b"".join(mutated(random_.choice(SEEDS), random_) for _ in range(random_.randint(1, 4)))
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


@pytest.mark.timeout(LIMIT_S)
def test_garbage_at_any_point_of_a_connection_is_nobody_elses_trouble(tmp_path):
    random_ = seeded()
    with broker(tmp_path) as running, StreamsConnection.connect(running.host, running.port) as witness:
        witness.create("witness")
        witness.create(STREAM)
        partitions = [f"{SUPER_STREAM}-{number}" for number in range(2)]
        fields = {"name": SUPER_STREAM, "partitions": partitions, "binding_keys": ["0", "1"], "arguments": {}}
        witness.request(Key.CREATE_SUPER_STREAM, **fields)
        workers = running.worker_pids()
        before = [resident_bytes(pid) for pid in workers]
        with witness.publisher("witness") as publisher:
            for connections in steps(1_000):
                if random_.random() < 0.5:
                    with socket.create_connection((running.host, running.port)) as raw:
                        talk(raw, random_)
                else:
                    with StreamsConnection.connect(running.host, running.port).detach() as raw:
                        talk(raw, random_)
                publisher.publish([b"still here %d" % connections])
                publisher.flush()
        assert sum(chunk.records for chunk in witness.read_chunks("witness", 0)) == connections
        assert running.worker_pids() == workers, "a worker has died"
        grown = [resident_bytes(pid) - was for pid, was in zip(workers, before, strict=True)]
        assert max(grown) < GROWTH_BYTES_MAX
