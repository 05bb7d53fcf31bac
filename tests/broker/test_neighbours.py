# SPDX-License-Identifier: Apache-2.0
"""Peers that behave badly, and the others who must not notice: memory stays bounded, nobody waits for them."""

import os
import random
import resource
import select
import socket
import threading
import zlib
from pathlib import Path

import pytest
from peers.streams import DEADLINE_S, Peer, connected, publish_frame, readable
from running import broker, resident_bytes, wait_until

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key, OffsetType

MIB = 1 << 20
GROWTH_BYTES_MAX = 64 * MIB  # of one worker, while a peer holds up what is meant for it
CONNECTIONS = 2000
PER_CONNECTION_BYTES_MAX = 30_000  # 10,000 idle connections are promised in less than 300 MB
BIG_BYTES = 40 * MIB  # of one chunk: no pair of socket buffers holds it, so its Deliver is half sent for long
SMALL_BUFFER_BYTES = 4096
FEW_PUBLISHES = 50


@pytest.fixture
def calm(tmp_path):
    """A broker of its own with one worker: whoever is disturbed shares it with whoever disturbs."""
    with broker(tmp_path, "--set", f"streams.frame_max_bytes={2 * BIG_BYTES}", workers=1) as running:
        yield running


def worker_bytes(running):
    return max(resident_bytes(pid) for pid in running.worker_pids())


class grows_little:
    """The worker's memory before and after, printed; it may not grow by more than `bytes_max`."""

    def __init__(self, running, bytes_max=GROWTH_BYTES_MAX):
        self.running, self.bytes_max = running, bytes_max

    def __enter__(self):
        self.before, self.pids = worker_bytes(self.running), self.running.worker_pids()

    def __exit__(self, kind, error, trace):
        if kind is None:
            grown = worker_bytes(self.running) - self.before
            print(f"the worker grew by {grown / MIB:.1f} MiB, {self.bytes_max / MIB:.0f} MiB allowed")
            assert grown < self.bytes_max
            assert self.running.worker_pids() == self.pids, "a worker has died"


def test_a_consumer_that_never_reads_holds_nobody_up(calm):
    with (
        StreamsConnection.connect(calm.host, calm.port) as client,
        connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as deaf,
    ):
        client.create("s")
        with grows_little(calm):
            deaf.subscribe("s", credit=60_000)
            for subscription_id in range(1, 20):
                deaf.subscribe("s", subscription_id, credit=60_000)
            with client.publisher("s") as publisher:
                for _ in range(64):
                    publisher.publish([bytes(1000)] * 1000)
                publisher.flush()
            assert sum(chunk.records for chunk in client.read_chunks("s", 0)) == 64_000


def flood(peer, frame):
    """Send until neither side's socket takes any more; the number of whole and begun frames sent."""
    peer.socket.setblocking(False)
    rest, frames = b"", 0
    # Once the broker has stopped reading nothing makes the socket writable again.
    while select.select([], [peer.socket], [], 1.0)[1]:
        if not rest:
            rest, frames = frame, frames + 1
        rest = rest[peer.socket.send(rest) :]
    peer.socket.settimeout(DEADLINE_S)
    return frames, rest


def test_a_publisher_that_never_reads_its_confirms_is_stopped_by_tcp_and_loses_none(calm):
    count = 4000
    frame = publish_frame([(at, b"") for at in range(count)])
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as deaf, connected(calm) as other:
        deaf.create("s")
        other.create("t")
        deaf.declare("s")
        with grows_little(calm):
            frames, rest = flood(deaf, frame)
            other.store("t", [b"undisturbed"] * 100)
        reader = threading.Thread(target=lambda: deaf.socket.sendall(rest))
        reader.start()
        assert len(deaf.confirmed(frames * count)) == frames * count
        reader.join()
        assert other.ask(Key.STREAM_STATS, stream="s").statistics["committed_offset"] == frames * count - 1


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_a_publisher_that_never_stops_leaves_the_others_their_turn(calm, durability):
    enough = threading.Event()
    frame = publish_frame([(at, bytes(100)) for at in range(1000)])
    with connected(calm) as greedy, connected(calm) as other, connected(calm) as reader:
        greedy.create("busy", **{"max-length-bytes": str(64 * MIB), "durability": durability})
        other.create("quiet")
        greedy.declare("busy")
        confirms = [0]

        def publish():
            while not enough.is_set():
                greedy.socket.sendall(frame)

        def read():
            while not enough.is_set() or select.select([greedy.socket], [], [], 0)[0]:
                if select.select([greedy.socket], [], [], 0.1)[0]:
                    confirms[0] += len(greedy.expect(Key.PUBLISH_CONFIRM).publishing_ids)

        threads = [threading.Thread(target=work) for work in (publish, read)]
        with grows_little(calm):
            for thread in threads:
                thread.start()
            try:
                other.declare("quiet")
                reader.subscribe("quiet", at=OffsetType.NEXT, credit=1000)
                for at in range(FEW_PUBLISHES):
                    other.publish([(at, b"%d" % at)])
                    assert other.confirmed(1) == [at]
                    assert reader.chunk().data == len(b"%d" % at).to_bytes(4, "big") + b"%d" % at
            finally:
                enough.set()
                for thread in threads:
                    thread.join(DEADLINE_S)
        assert confirms[0] > 0


def test_two_thousand_connections_at_once(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} open files, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    peers = []
    try:
        with broker(tmp_path) as running:
            before = sum(map(resident_bytes, running.worker_pids()))
            for _ in range(CONNECTIONS):
                peers.append(Peer(running))
            # All at the same step at the same time, so that none is alone in its turn.
            frames = [
                codec.encode_request(Key.PEER_PROPERTIES, 1, properties={"product": "many"}),
                codec.encode_request(Key.SASL_HANDSHAKE, 2),
                codec.encode_request(Key.SASL_AUTHENTICATE, 3, mechanism="PLAIN", data=b"\0guest\0guest"),
                codec.encode_request(Key.TUNE, frame_max=0, heartbeat=0)
                + codec.encode_request(Key.OPEN, 4, virtual_host="/"),
            ]
            for step, frame in enumerate(frames, 1):
                for peer in peers:
                    peer.send(frame)
                for peer in peers:
                    answer = peer.next_frame().decoded()
                    assert (answer.correlation_id, answer.code) == (step, Code.OK)
                    if step == 3:
                        peer.expect(Key.TUNE)
            grown = sum(map(resident_bytes, running.worker_pids())) - before
            print(f"{CONNECTIONS} open connections: {grown / CONNECTIONS:.0f} bytes each")
            assert grown < CONNECTIONS * PER_CONNECTION_BYTES_MAX
            first, last = peers[0], peers[-1]
            first.create("s")
            last.subscribe("s")
            first.store("s", [b"through the crowd"])
            assert last.chunk().data.endswith(b"through the crowd")
            for peer in peers:
                peer.send(codec.encode_request(Key.CLOSE, 5, code=1, reason="OK"))
            for peer in peers:
                assert peer.expect(Key.CLOSE | spec.RESPONSE_BIT).code == Code.OK
                assert peer.rest() == b""
    finally:
        for peer in peers:
            peer.socket.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_subscriber_with_one_credit_gets_everything_one_chunk_at_a_time(calm):
    with connected(calm) as slow, connected(calm) as publisher:
        publisher.create("s")
        publisher.store("s", [b"x" * 10] * 20_000)
        slow.subscribe("s", credit=1)
        records = 0
        while True:
            chunk = slow.chunk()
            assert (chunk.chunk_id, zlib.crc32(chunk.data)) == (records, chunk.crc)
            records += chunk.records
            slow.ask(Key.METADATA, streams=[])  # answered next: nothing came without credit
            if records == 20_000:
                break
            slow.credit(0, 1)


# ---- a Deliver that is half sent ----


def big_stream(running, name="big"):
    with Peer(running).open(frame_max=2 * BIG_BYTES) as peer:
        peer.create(name)
        peer.store(name, [bytes(range(256)) * (BIG_BYTES // 256)])


def whole_big_chunk(frame):
    """The frame is a Deliver that is complete and undamaged."""
    chunk = frame.decoded().chunk
    assert (chunk.records, chunk.data_size) == (1, BIG_BYTES + 4)
    assert zlib.crc32(chunk.data) == chunk.crc
    assert chunk.data[4:] == bytes(range(256)) * (BIG_BYTES // 256)


def still_usable(peer):
    peer.create("after")
    peer.store("after", [b"still here"])
    peer.subscribe("after", 9)
    assert peer.chunk(9).data == b"\0\0\0\x0astill here"


def test_chunks_larger_than_the_socket_takes_come_whole_and_in_order(calm):
    chance = random.Random(BIG_BYTES)
    messages = [chance.randbytes(BIG_BYTES) for _ in range(3)]
    with Peer(calm).open(frame_max=2 * BIG_BYTES) as peer:
        peer.create("noise")
        for message in messages:
            peer.store("noise", [message])
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow:
        slow.subscribe("noise", credit=10)
        for at, message in enumerate(messages):
            chunk = slow.chunk()
            assert (chunk.chunk_id, zlib.crc32(chunk.data)) == (at, chunk.crc)
            assert chunk.data[4:] == message
        still_usable(slow)


def of_two_large_chunks(peer, stream):
    """Both of a named publisher and with a filter value; their bodies."""
    chance = random.Random(BIG_BYTES)
    peer.create(stream)
    peer.declare(stream, reference="a" * 14)
    bodies = [chance.randbytes(BIG_BYTES) for _ in range(2)]
    for number, body in enumerate(bodies):
        peer.send(codec.encode_request(Key.PUBLISH, version=2, publisher_id=0, messages=[(number, "eu", body)]))
        assert peer.confirmed(1) == [number]
    return bodies


@pytest.mark.parametrize(("version", "cached"), [(1, True), (2, False)])
def test_two_half_sent_delivers_come_whole_with_their_trailers(calm, tmp_path, version, cached):
    """Not cached: the rest of each has to come from the disk while it is half sent."""
    with Peer(calm).open(frame_max=2 * BIG_BYTES) as publisher:
        bodies = of_two_large_chunks(publisher, "big")
    (segment,) = [found for found in tmp_path.glob("**/streams/*/*") if found.stat().st_size > BIG_BYTES]
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow:
        slow.ask(Key.EXCHANGE_COMMAND_VERSIONS, versions=[(Key.DELIVER, 1, version)])
        properties = {"chunk_selector": "all", "filter.0": "eu"}
        for subscription_id in (1, 2):
            slow.subscribe("big", subscription_id, credit=0, properties=properties)
        for subscription_id in (1, 2):
            slow.credit(subscription_id, 2)
        seen = {1: [], 2: []}
        for _ in range(4):
            readable(slow)
            if not cached:
                with segment.open("rb") as file:
                    os.fdatasync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            deliver = slow.expect(Key.DELIVER)
            chunk = deliver.chunk
            assert (zlib.crc32(chunk.data), chunk.data[4:]) == (chunk.crc, bodies[chunk.chunk_id])
            assert chunk.trailer == bytes([0, 14]) + b"a" * 14 + chunk.chunk_id.to_bytes(8, "big")
            seen[deliver.subscription_id].append(chunk.chunk_id)
        assert seen == {1: [0, 1], 2: [0, 1]}
        still_usable(slow)


@pytest.mark.parametrize("version", [1, 2])
def test_unsubscribe_in_the_middle_of_a_deliver_ends_it_first(calm, version):
    big_stream(calm)
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow:
        slow.ask(Key.EXCHANGE_COMMAND_VERSIONS, versions=[(Key.DELIVER, 1, version)])
        slow.subscribe("big", credit=10)
        readable(slow)
        slow.send(slow.command(Key.UNSUBSCRIBE, subscription_id=0), slow.command(Key.METADATA, streams=[]))
        frame = slow.next_frame()
        whole_big_chunk(frame)
        assert frame.version == version
        assert slow.expect(Key.UNSUBSCRIBE | spec.RESPONSE_BIT).code == Code.OK
        slow.expect(Key.METADATA | spec.RESPONSE_BIT)
        still_usable(slow)


def test_unsubscribe_in_the_middle_of_another_subscriptions_deliver_waits_for_it(calm):
    big_stream(calm)
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow:
        subscribe = {"stream": "big", "offset_type": OffsetType.FIRST, "credit": 1, "properties": {}}
        slow.send(*(slow.command(Key.SUBSCRIBE, subscription_id=at, **subscribe) for at in range(2)))
        for _ in range(2):
            assert slow.expect(Key.SUBSCRIBE | spec.RESPONSE_BIT).code == Code.OK
        readable(slow)
        slow.send(slow.command(Key.UNSUBSCRIBE, subscription_id=1))
        whole_big_chunk(slow.next_frame())
        assert slow.expect(Key.UNSUBSCRIBE | spec.RESPONSE_BIT).code == Code.OK
        still_usable(slow)


def test_a_stream_deleted_in_the_middle_of_a_deliver_lets_it_end_first(calm):
    big_stream(calm)
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow, connected(calm) as other:
        slow.subscribe("big", credit=10)
        readable(slow)
        assert other.code(Key.DELETE, stream="big") == Code.OK
        whole_big_chunk(slow.next_frame())
        update = slow.expect(Key.METADATA_UPDATE)
        assert (update.code, update.stream) == (Code.STREAM_NOT_AVAILABLE, "big")
        still_usable(slow)


def test_answers_wait_for_the_end_of_a_deliver(calm):
    big_stream(calm)
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow:
        slow.subscribe("big", credit=1)
        readable(slow)
        slow.send(*(slow.command(Key.METADATA, streams=[]) for _ in range(100)))
        whole_big_chunk(slow.next_frame())
        for _ in range(100):
            slow.expect(Key.METADATA | spec.RESPONSE_BIT)
        still_usable(slow)


def test_a_consumer_that_vanishes_in_the_middle_of_a_deliver_leaves_nothing_behind(calm):
    big_stream(calm)
    with grows_little(calm, 3 * BIG_BYTES):
        for _ in range(10):
            with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow:
                slow.subscribe("big", credit=1)
                readable(slow)
                slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, no goodbye
        with connected(calm) as other:
            assert other.code(Key.DELETE, stream="big") == Code.OK
            still_usable(other)


def test_a_half_sent_deliver_whose_rest_is_damaged_ends_its_connection_and_holds_nothing_open(calm, tmp_path):
    big_stream(calm)
    (segment,) = [found for found in tmp_path.glob("**/streams/*/*") if found.stat().st_size > BIG_BYTES]
    with connected(calm, receive_buffer_bytes=SMALL_BUFFER_BYTES) as slow:
        slow.subscribe("big", credit=1)
        readable(slow)
        with segment.open("r+b") as file:
            file.seek(BIG_BYTES // 2)
            file.write(b"damage")
        slow.send(slow.command(Key.UNSUBSCRIBE, subscription_id=0))
        slow.rest()
        (pid,) = calm.worker_pids()

        def is_open():
            return any(os.path.realpath(fd) == str(segment.resolve()) for fd in Path(f"/proc/{pid}/fd").iterdir())

        wait_until(lambda: not is_open(), "the segment's file is closed")
