# SPDX-License-Identifier: Apache-2.0
"""What frames, windows, properties and filters of the MicroMsg2 door cost, for each message.

pytest benchmarks/test_micromsg2_bench.py --benchmark-only

A call from Python is in every figure, and those of a codec make Python values besides; the door itself does neither.
"""

import pytest

from vibemq.protocols.micromsg2 import codec, properties
from vibemq.protocols.micromsg2.filters import compile_filter
from vibemq.protocols.micromsg2.window import ReceiveWindow, SendWindow

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

WINDOW = 1_000
ONE = b"kind:Torder;"
STRICT = b"kind:Torder;age:N42;at:D1413198000.0;say:THello%20world;"
LOOSE = b"first_name:alice;twitter:somebody;"  # untyped: kept as it is beside what it means
PROPERTIES = {"none": b"", "one text": ONE, "four typed": STRICT, "two untyped": LOOSE}
PAYLOAD = bytes(100)
FILTERS = {
    "a number": "age>=N18",
    "a text": "kind=Torder",
    "four conditions": "kind=Torder;age>=N18;at>D1413000000;say&Tworld",
    "one that fails at once": "kind=Tother;age>=N18;at>D1413000000;say&Tworld",
    "a key that is not there": "missing=T1",
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_decode_message_frame(benchmark, name):
    frame = codec.encode_message(1, b"queue/orders", PAYLOAD, PROPERTIES[name])
    assert benchmark(codec.decode_frame, frame)[1] == len(frame)


def test_encode_message_frame(benchmark):
    assert benchmark(codec.encode_message, 1, b"queue/orders", PAYLOAD, STRICT)


def test_decode_acknowledgement(benchmark):
    assert benchmark(codec.decode_frame, codec.encode_ack(1, 1_000))[1] == 5


def test_send_window_of_1000(benchmark):
    window = SendWindow(WINDOW)

    def turn():
        while window.has_room():
            window.push(0, 0, window.next())
        covered = window.covered(window.last)
        for _ in range(covered):
            window.pop()
        return covered

    assert benchmark(turn) == WINDOW


def test_receive_window_of_1000(benchmark):
    window, numbers = ReceiveWindow(WINDOW), SendWindow(0)

    def turn():
        for _ in range(WINDOW):
            window.take(numbers.next())
            window.accepted(window.index)
        return window.acknowledge()

    assert benchmark(turn) > 0


@pytest.mark.parametrize("name", PROPERTIES)
def test_write_message(benchmark, name):
    assert benchmark(properties.write, PROPERTIES[name], PAYLOAD)


@pytest.mark.parametrize("name", PROPERTIES)
def test_read_properties(benchmark, name):
    assert benchmark(properties.read, properties.write(PROPERTIES[name], PAYLOAD)) == PROPERTIES[name]


def test_compile_filter_of_four_conditions(benchmark):
    assert benchmark(compile_filter, FILTERS["four conditions"])


@pytest.mark.parametrize("name", FILTERS)
def test_filter(benchmark, name):
    message = properties.write(STRICT, PAYLOAD)
    passes = name in ("a number", "a text", "four conditions")
    assert benchmark(compile_filter(FILTERS[name]).matches_bytes, message) == passes
