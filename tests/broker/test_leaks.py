# SPDX-License-Identifier: Apache-2.0
"""What is made and deleted leaves nothing in any process: no descriptor, no mapping, no memory to speak of."""

import contextlib
import os
import re
import socket
from collections import Counter
from pathlib import Path

from peers.streams import connected, on_every_worker
from running import broker, wait_until

import vibemq.client
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key, OffsetType

ROUNDS = 100  # of 20 logs each: 11 streams, 2 partitions, 6 queues and a dead-letter queue
WARM_UP_ROUNDS = 20  # threads, caches and allocators have what they will ever have
STREAMS = 11
QUEUES = 6
LOGS = STREAMS + 2 + QUEUES + 1
#: Of each process, for each log: what an allocator's pages or a dictionary that has grown may come to, and less than
#: what is made for a stream or queue: a log's handle alone has more.
GROWTH_BYTES_PER_LOG_MAX = 512
GROWTH_BYTES_FREE = 4 << 20  # what waits for the collector, and steps in which allocators take memory from the kernel
#: Of each process: the last few queues may wait for the interpreter's collector, which comes with more work.
MAPPED_FILES_MAX = 32
METADATA_FILE = re.compile(r"/meta\.db(-wal|-shm)?$")  # each helper thread has a connection from its first use on


def descriptors(pid: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(link)
            if not METADATA_FILE.search(target):
                found[re.sub(r"\d+\]$", "]", target)] += 1
    return found


def mapped_files(pid: int, data: Path) -> Counter[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return Counter(line.split(None, 5)[5] for line in lines if f" {data}/streams" in line)


def memory_bytes(pid: int) -> int:
    """Its own: not what it shares with the supervisor that it was forked from."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Swap:")))


def make_and_delete(served, keepers, client, number: int) -> None:
    """`keepers`: a connection to each worker that stays; all others end with the round."""
    streams = [f"stream-{number}-{i}" for i in range(STREAMS)]
    partitions = [f"super-{number}-{i}" for i in range(2)]
    first = keepers[0]
    for name in streams:
        first.create(name, **{"max-age": "1h", "stream-filter-size-bytes": "32"})
    fields = {"partitions": partitions, "binding_keys": ["0", "1"], "arguments": {}}
    assert first.code(Key.CREATE_SUPER_STREAM, name=f"super-{number}", **fields) == Code.OK
    for keeper in keepers:  # which hear of the end of each stream, because they have stored offsets
        for name in streams + partitions:
            store = {"reference": "keeper", "stream": name, "offset": 1}
            keeper.send(codec.encode_request(Key.STORE_OFFSET, **store))
            assert keeper.ask(Key.QUERY_OFFSET, reference="keeper", stream=name).offset == 1
    with connected(served) as publisher, connected(served) as reader, connected(served) as later:
        for place, name in enumerate(streams + partitions):
            publisher.declare(name, place, f"reference-{number}")
            rows = [(each, "eu", b"message") for each in (1, 2, 2, 3)]  # one of them a duplicate
            publisher.send(codec.encode_request(Key.PUBLISH, version=2, publisher_id=place, messages=rows))
            for _ in ("what is kept", "the duplicate"):
                publisher.until(Key.PUBLISH_CONFIRM)
            group = {"single-active-consumer": "true", "name": "group"}
            wanted = {"filter.0": "eu"} if place % 2 else group
            fields = {"subscription_id": place, "stream": name, "offset_type": OffsetType.FIRST, "credit": 2}
            for peer in (reader, later):
                peer.send(peer.command(Key.SUBSCRIBE, properties=wanted, **fields))
            # Asked for and stored by a connection that is gone when the stream goes.
            later.send(codec.encode_request(Key.STORE_OFFSET, reference="later", stream=name, offset=2))
        later.until(Key.SUBSCRIBE | 0x8000)
        use_queues(served, client, number)
        later.socket.shutdown(socket.SHUT_RDWR)
        with connected(served) as deleter:
            for name in streams:
                assert deleter.code(Key.DELETE, stream=name) == Code.OK
            assert deleter.code(Key.DELETE_SUPER_STREAM, name=f"super-{number}") == Code.OK
        for keeper in keepers:
            for _ in streams + partitions:
                keeper.until(Key.METADATA_UPDATE)


def use_queues(served, client, number: int) -> None:
    queues = [f"queue-{number}-{i}" for i in range(QUEUES)]
    dead = f"dead-{number}"
    with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as other:
        consumers = []
        for place, name in enumerate(queues):
            mode = ("round_robin", "fan_out_with_ack", "priority_based")[place % 3]
            options = {"message_ttl_ms": 3_600_000, "attempts_max": 1, "dead_letter": True, "dead_letter_queue": dead}
            client.create_queue(name, mode=mode, max_messages=1000, **options)
            client.publish_many(name, list(range(10)))
            consumer = other.consume(name, prefetch=5)
            consumers.append(consumer)
            next(consumer).ack()
            next(consumer).nack()  # its last attempt: it is a dead letter
            next(consumer)  # stays in flight
        # All of them: one that came after its queue is deleted would make that anew.
        wait_until(lambda: dead in client.list_queues(), "a dead letter arrives")
        wait_until(lambda: client.queue_info(dead).messages == QUEUES, "the other dead letters arrive")
        for name in (*queues, dead):
            client.delete_queue(name)


def wait_until_nothing_is_left(data: Path, pids: list[int]) -> None:
    """Files and mappings of what was deleted go a moment after the answer."""

    def left() -> list[object]:
        mapped = [mapped_files(pid, data) for pid in pids]
        return [*(data / "streams").iterdir(), *(each for each in mapped if each.total() > MAPPED_FILES_MAX)]

    try:
        wait_until(lambda: not left(), "")
    except AssertionError:
        raise AssertionError(f"left over: {left()}") from None


def test_two_thousand_logs_with_every_feature_used_leave_nothing_behind(tmp_path):
    data, peers = tmp_path / "data", []
    with broker(data, workers=2) as served:
        client = vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}")
        keepers = list(on_every_worker(served, peers))
        pids = [served.process.pid, served.admin_pid(), *served.worker_pids()]
        for number in range(WARM_UP_ROUNDS):
            make_and_delete(served, keepers, client, number)

        wait_until_nothing_is_left(data, pids)
        held = {pid: descriptors(pid) for pid in pids}
        memory = {pid: memory_bytes(pid) for pid in pids}
        for number in range(WARM_UP_ROUNDS, WARM_UP_ROUNDS + ROUNDS):
            make_and_delete(served, keepers, client, number)
        wait_until_nothing_is_left(data, pids)
        # Connections of the last round end a moment after their clients.
        wait_until(lambda: all(descriptors(pid) <= held[pid] for pid in pids), f"descriptors go: {held}")
        logs = ROUNDS * LOGS
        grown = {pid: memory_bytes(pid) - memory[pid] for pid in pids}
        assert max(grown.values()) <= GROWTH_BYTES_FREE + logs * GROWTH_BYTES_PER_LOG_MAX, grown
        client.close()
        for peer in peers:
            peer.socket.close()
