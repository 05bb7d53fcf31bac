# SPDX-License-Identifier: Apache-2.0
"""Where the streams client receives: frames come whole however they are cut, a chunk stays while it is held."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import pytest
from peers.streams_server import chunk_of

from vibemq.client._streams import Chunk, Inbox, open_chunk
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key

SIZES = (10, 1_000, 100_000, 140_000, 230_000, 1_000_000, 1_100_000, 3_000_000)
SEED = 20_261_127


def deliver(number: int, size: int) -> bytes:
    return codec.encode_server_frame(
        Key.DELIVER, subscription_id=1, chunk=chunk_of(number, [number.to_bytes(4, "big") * (size // 4)])
    )


def received(inbox: Inbox, wire: bytes, cut: Callable[[], int]) -> Iterator[tuple[int, int, bytes | memoryview]]:
    """The frames of `wire`, of which each call of `receive` gives at most `cut()` bytes."""
    rest = memoryview(wire)

    def into(room: memoryview) -> int:
        nonlocal rest
        count = min(len(room), len(rest), cut())
        room[:count] = rest[:count]
        rest = rest[count:]
        return count

    while rest:
        assert inbox.receive(into) > 0
        while (frame := inbox.next_frame()) is not None:
            yield frame


def text_of(chunk: Chunk) -> tuple[int, bytes]:
    [(offset, message)] = chunk.messages()
    return offset, message


@pytest.mark.parametrize("kept", [0, 1, 1_000])
def test_chunks_of_any_size_come_whole_and_stay_while_they_are_held(kept: int) -> None:
    """Frames are cut at random; the last `kept` chunks are held, and looked at once more when all has come."""
    print("seed", SEED)
    chance = random.Random(SEED)
    sizes = [size for size in SIZES for _ in range(chance.randint(1, 5))]
    chance.shuffle(sizes)
    answer = codec.encode_response(Key.CREATE, 7, Code.OK)
    wire = b"".join(frame for number, size in enumerate(sizes) for frame in (deliver(number, size), answer))
    held: list[Chunk] = []
    seen = answers = 0
    for key, version, body in received(Inbox(), wire, lambda: chance.choice((1, 100, 65_536, 1 << 20, 1 << 30))):
        if key != Key.DELIVER:
            assert bytes(body) == answer[8:]
            answers += 1
            continue
        chunk = open_chunk(body, version, "here")
        assert text_of(chunk) == (seen, seen.to_bytes(4, "big") * (sizes[seen] // 4))
        seen += 1
        held = [*held, chunk][-kept:] if kept else []
    assert seen == answers == len(sizes)
    for chunk in held:
        number = chunk.chunk_id
        assert text_of(chunk) == (number, number.to_bytes(4, "big") * (sizes[number] // 4))


@pytest.mark.parametrize("size", [140_000, 230_000, 1_100_000])
def test_the_same_memory_takes_one_large_chunk_after_another(size: int) -> None:
    """With the one at hand still held, as by a loop: else each would lie in pages that nobody has touched yet."""
    inbox, last = Inbox(), None
    buffers: list[object] = []
    for _, version, body in received(inbox, b"".join(deliver(number, size) for number in range(100)), lambda: 1 << 30):
        last = open_chunk(body, version, "here")
        if not any(buffer is last.data.obj for buffer in buffers):
            buffers.append(last.data.obj)
    assert last is not None and len(buffers) <= 3


def test_frames_may_be_taken_later_than_they_came() -> None:
    """As when a client that writes has to receive, and is in the middle of handling what came before."""
    inbox, sizes = Inbox(), (140_000, 1_000, 1_100_000, 140_000, 10)
    wire = b"".join(deliver(number, size) for number, size in enumerate(sizes))
    at = 0

    def into(room: memoryview) -> int:
        count = min(len(room), len(wire) - at)
        room[:count] = wire[at : at + count]
        return count

    while at < len(wire):
        count = inbox.receive(into)
        assert count > 0
        at += count
    for number, size in enumerate(sizes):
        frame = inbox.next_frame()
        assert frame is not None
        assert text_of(open_chunk(frame[2], frame[1], "here")) == (number, number.to_bytes(4, "big") * (size // 4))
    assert inbox.next_frame() is None


def test_the_memory_of_a_huge_chunk_goes_when_small_ones_follow() -> None:
    """A connection may live for months after it."""
    inbox, free = Inbox(), []

    def into(wire: bytes, room: memoryview) -> int:
        free.append(len(room))
        count = min(len(room), len(wire))
        room[:count] = wire[:count]
        return count

    wire = deliver(0, 20_000_000)
    while wire:
        wire = wire[inbox.receive(partial(into, wire)) :]
    assert inbox.next_frame() is not None, "its body is let go of at once"
    for number in (1, 2):
        inbox.receive(partial(into, deliver(number, 10)))
        frame = inbox.next_frame()
        assert frame is not None and text_of(open_chunk(frame[2], frame[1], "here"))[0] == number
    assert free[-1] <= 2_000_000 < 19_000_000 <= max(free)


def test_a_small_chunk_holds_no_more_than_itself() -> None:
    chunks = [
        open_chunk(body, version, "here")
        for _, version, body in received(Inbox(), b"".join(deliver(n, 1_000) for n in range(50)), lambda: 1 << 30)
    ]
    assert all(isinstance(chunk.data.obj, bytes) for chunk in chunks)
    assert all(one.data.obj is not other.data.obj for one, other in pairwise(chunks))
