# SPDX-License-Identifier: Apache-2.0
"""Stored offsets: the last store counts, on every worker and after every restart, and they end with their stream."""

import pytest
from peers.streams import connected, kill, on_every_worker
from running import broker, wait_until

from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key


def store(peer, stream, offset, reference="app"):
    peer.send(codec.encode_request(Key.STORE_OFFSET, reference=reference, stream=stream, offset=offset))


def stored(peer, stream, reference="app"):
    """Code and offset of the answer."""
    answer = peer.ask(Key.QUERY_OFFSET, reference=reference, stream=stream)
    return answer.code, answer.offset


def test_a_store_has_no_answer_and_the_last_one_counts_also_backwards(peer, stream):
    for offset in (5, 2**64 - 1, 7, 0):
        store(peer, stream, offset)
        assert stored(peer, stream) == (Code.OK, offset)
    store(peer, stream, 9, "other")
    assert stored(peer, stream) == (Code.OK, 0)


def test_the_answer_is_these_bytes(peer, stream):
    store(peer, stream, 258)
    peer.correlation_id = 0x0A0B0C0C
    peer.send(peer.command(Key.QUERY_OFFSET, reference="app", stream=stream))
    frame = peer.next_frame()
    assert frame.key == 0x800B
    assert frame.body == bytes.fromhex("0a0b0c0d 0001 0000000000000102")
    peer.send(peer.command(Key.QUERY_OFFSET, reference="nobody", stream=stream))
    assert peer.next_frame().body == bytes.fromhex("0a0b0c0e 0013 0000000000000000")


def test_what_was_never_stored_is_19_and_what_does_not_exist_is_2(peer, stream, name):
    assert stored(peer, stream) == (Code.NO_OFFSET, 0)
    store(peer, "no " + name, 5)
    assert stored(peer, "no " + name) == (Code.STREAM_DOES_NOT_EXIST, 0)


def test_the_log_says_why_an_offset_was_not_stored(tmp_path, capfd):
    """StoreOffset has no answer: whoever misses an offset has only this line."""
    with broker(tmp_path, workers=1) as served, connected(served) as peer:
        store(peer, "nowhere", 5)
        assert stored(peer, "nowhere") == (Code.STREAM_DOES_NOT_EXIST, 0)  # answered after the store was read
    assert "offset 5 of 'app' on nowhere not stored: there is no such stream" in capfd.readouterr().err


def test_a_reference_has_up_to_255_bytes_and_a_longer_one_is_not_stored(peer, stream):
    store(peer, stream, 5, "r" * 255)
    store(peer, stream, 6, "ż" * 128)
    assert stored(peer, stream, "r" * 255) == (Code.OK, 5)
    assert stored(peer, stream, "ż" * 128) == (Code.NO_OFFSET, 0)


def test_publishers_and_consumers_may_use_one_name(peer, stream):
    peer.declare(stream, 0, "app")
    peer.publish([(77, b"x")])
    assert peer.confirmed(1) == [77]
    store(peer, stream, 5)
    assert stored(peer, stream) == (Code.OK, 5)
    assert peer.ask(Key.QUERY_PUBLISHER_SEQUENCE, reference="app", stream=stream).sequence == 77


def test_what_one_worker_stores_every_worker_knows(served, peer, stream):
    peers = []
    try:
        for number, other in enumerate(on_every_worker(served, peers)):
            store(other, stream, number)
            assert stored(other, stream) == (Code.OK, number)  # it is stored when this is answered
            assert stored(peer, stream) == (Code.OK, number)
    finally:
        for other in peers:
            other.socket.close()


def test_they_end_with_their_stream(peer, stream):
    store(peer, stream, 5)
    assert stored(peer, stream) == (Code.OK, 5)
    assert peer.code(Key.DELETE, stream=stream) == Code.OK
    peer.expect(Key.METADATA_UPDATE)
    peer.create(stream)
    assert stored(peer, stream) == (Code.NO_OFFSET, 0)


@pytest.mark.parametrize("key", [Key.STORE_OFFSET, Key.QUERY_OFFSET])
def test_who_stored_or_asked_is_told_once_that_the_stream_is_gone(served, peer, stream, key):
    with connected(served) as other:
        if key == Key.STORE_OFFSET:
            store(other, stream, 5)
        else:
            stored(other, stream)
        other.subscribe(stream)
        other.ask(Key.METADATA, streams=[])
        assert peer.code(Key.DELETE, stream=stream) == Code.OK
        update = other.expect(Key.METADATA_UPDATE)
        assert (update.code, update.stream) == (Code.STREAM_NOT_AVAILABLE, stream)
        other.ask(Key.METADATA, streams=[])  # nothing else came before this answer
        peer.ask(Key.METADATA, streams=[])  # and nothing to who only deleted it


def test_they_survive_killed_workers_and_restarts(tmp_path):
    with broker(tmp_path / "data") as running:
        with connected(running) as peer:
            peer.create("kept")
            store(peer, "kept", 41)
            assert stored(peer, "kept") == (Code.OK, 41)
        before = set(running.worker_pids())
        for pid in before:
            kill(pid)
        wait_until(lambda: len(set(running.worker_pids()) - before) == len(before), "new workers")
        with connected(running) as peer:
            assert stored(peer, "kept") == (Code.OK, 41)
            store(peer, "kept", 42)
            assert stored(peer, "kept") == (Code.OK, 42)
        running.process.terminate()
        running.process.wait()
    with broker(tmp_path / "data") as running, connected(running) as peer:
        assert stored(peer, "kept") == (Code.OK, 42)
