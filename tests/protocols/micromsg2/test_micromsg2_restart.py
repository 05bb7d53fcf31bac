# SPDX-License-Identifier: Apache-2.0
"""What survives: workers that are killed, brokers that are killed, and messages that pass between workers."""

import contextlib
import re
import shutil
import subprocess

import pytest
from peers.micromsg2 import Micromsg2Peer, connected, on_worker
from peers.streams import kill
from running import broker, wait_until

from vibemq.protocols.micromsg2.codec import encode_ack

SMALL = "batch-ack:max-count=50;pub-sub;x-reply"
LARGE = "batch-ack:max-count=10000;pub-sub;x-reply"


def numbers(first, last):
    return [b"%d" % at for at in range(first, last)]


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_everything_acknowledged_is_there_after_the_broker_was_killed(tmp_path, durability):
    with contextlib.suppress(AssertionError), broker(tmp_path) as running:  # which does not stop cleanly
        with connected(running, LARGE) as peer:
            peer.create("queue/q", max_messages=0, durability=durability)
            peer.create("topic/t")
            peer.write(*(peer.message("q", b"%d" % at, b"at:N%d;" % at) for at in range(5_000)))
            peer.acked()
            peer.publish("topic/t", b"kept for the first subscription")
            pids = [running.process.pid, *running.worker_pids()]
        for pid in pids:
            kill(pid)
    with broker(tmp_path) as running, connected(running, LARGE) as peer:
        peer.subscribe("q")
        for at in range(5_000):
            message = peer.deliver(ack=False)
            assert (message.payload, message.properties) == (b"%d" % at, b"at:N%d;" % at)
        peer.ack()
        assert peer.denied("subscribe", destination="queue/t") == "WRONG_KIND"
        peer.subscribe("topic/t")
        assert peer.delivers(1) == [b"kept for the first subscription"]


def test_with_durability_disk_many_publishers_are_acknowledged_and_reading_pauses_at_the_limit(tmp_path):
    flags = ("--set", "store.durability=disk", "--set", "micromsg2.unconfirmed_max=3")
    with broker(tmp_path, *flags) as running:
        peers = [connected(running, LARGE) for _ in range(5)]
        peers[0].create("q", max_messages=0)
        for peer in peers:
            peer.write(*(peer.message("q") for _ in range(400)))
        for peer in peers:
            peer.acked(400)
            peer.socket.close()
        with connected(running) as peer:
            assert peer.info("q")["messages"] == 2_000


def test_publisher_and_consumer_on_different_workers(served, name):
    with contextlib.ExitStack() as stack:
        here, there = served.worker_pids()
        for publisher_pid, consumer_pid in ((here, there), (there, here)):
            queue = f"{name}-{publisher_pid}"
            publisher = on_worker(served, publisher_pid, stack)
            consumer = on_worker(served, consumer_pid, stack, "batch-ack:max-count=7;pub-sub;x-reply")
            publisher.publish(queue, b"0")
            consumer.subscribe(queue)
            for first in range(1, 1_001, 100):
                publisher.write(*(publisher.message(queue, b"%d" % at) for at in range(first, first + 100)))
                publisher.acked()
            assert consumer.delivers(1_001) == numbers(0, 1_001)
            wait_until(
                lambda queue=queue, publisher=publisher: (
                    publisher.info(queue) == {"messages": 0, "in-flight": 0, "consumers": 1}
                ),
                "all are settled",
            )


def test_consumers_on_all_workers_share_a_queue_and_a_lost_one_gives_back(served, peer, name):
    with contextlib.ExitStack() as stack:
        here, there = served.worker_pids()
        readers = [on_worker(served, pid, stack, "batch-ack:max-count=5;pub-sub;x-reply") for pid in (here, there)]
        for reader in readers:
            reader.subscribe(name)
        peer.write(*(peer.message(name, b"%d" % at) for at in range(10)))
        peer.acked()
        parts = [set(reader.delivers(5, ack=False)) for reader in readers]
        assert set.union(*parts) == set(numbers(0, 10))
        readers[0].ack()
        readers[0].ping()
        readers[1].socket.close()
        assert set(readers[0].delivers(5)) == parts[1]


@pytest.mark.parametrize("victim", ["publishers", "consumers", "both"])
def test_a_killed_worker_loses_nothing_that_was_acknowledged(tmp_path, victim):
    with broker(tmp_path) as running, contextlib.ExitStack() as stack:
        here, there = running.worker_pids()
        publisher = on_worker(running, here, stack, LARGE)
        consumer = on_worker(
            running, here if victim == "both" else there, stack, "batch-ack:max-count=50;pub-sub;x-reply"
        )
        publisher.create("q", max_messages=0)
        publisher.write(*(publisher.message("q", b"%d" % at) for at in range(1_000)))
        publisher.acked()
        consumer.subscribe("q")
        got = []
        while len(got) < 200:
            got += consumer.delivers(50, ack=False)
            consumer.ack()
        assert consumer.delivers(1, ack=False) == [b"200"], "the acknowledgement of all before has made the room"
        kill(there if victim == "consumers" else here)
        wait_until(lambda: len(running.worker_pids()) == 2, "there is another worker")
        with reconnected(running) as again:
            again.subscribe("q")
            left = {b"200"} if victim == "publishers" else set()
            readers = [again, consumer] if victim == "publishers" else [again]

            def read():
                for reader in readers:
                    while reader.has_frame():
                        left.add(reader.deliver().payload)
                return len(left) == 800

            wait_until(read, "all that was not acknowledged comes")
            assert left == set(numbers(200, 1_000))


def reconnected(running):
    """A connection to a broker of which a part is gone: until somebody answers."""
    found = []

    def answers():
        peer = Micromsg2Peer(running)
        try:
            peer.handshake(LARGE)
            peer.ping()
        except ConnectionError:
            peer.socket.close()
            return False
        found.append(peer)
        return True

    wait_until(answers, "somebody answers")
    return found[0]


@pytest.mark.skipif(shutil.which("strace") is None, reason="the strace command is not installed")
def test_with_durability_disk_the_acknowledgement_comes_behind_the_sync(tmp_path):
    trace = tmp_path / "trace"
    with broker(tmp_path / "data", workers=1) as running, connected(running) as peer:
        peer.create("q", durability="disk")
        peer.publish("q")  # the log is open and its files are there
        (pid,) = running.worker_pids()
        calls = "trace=fsync,fdatasync,sync_file_range,sendmsg,sendto,write,writev"
        tracing = subprocess.Popen(
            ["strace", "-f", "-xx", "-s", "64", "-e", calls, "-o", str(trace), "-p", str(pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            line = tracing.stderr.readline()
            if "attached" not in line:
                pytest.skip(f"strace may not attach here: {line}")
            peer.publish("q")
        finally:
            tracing.terminate()
            tracing.wait()
            tracing.stderr.close()
    ack = "".join(f"\\x{byte:02x}" for byte in encode_ack(peer.agreed.ack_id, 2))
    before, found, _ = trace.read_text().partition(ack)
    assert found, "the acknowledgement was not seen"
    assert re.search(r"f(data)?sync(\(| resumed>).*= 0", before), "no sync came before it"
