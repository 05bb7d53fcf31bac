# SPDX-License-Identifier: Apache-2.0
"""The disk of one log stalls: each call that changes a file in its directory waits until the test ends that."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from admin.http_caller import Http
from held_disk import HeldDisk
from peers.queues import QueuePeer
from peers.streams import Peer, connected, on_every_worker, publish_frame, server_of
from running import ENVIRONMENT, Running, broker, wait_until, written

from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, Key
from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata

DISK_STREAM = "stalls"


def log_of(folder: Path, stream: str) -> Path:
    """The directory of a stream."""
    record = Metadata(metadata_path(str(folder))).find_stream("/", stream)
    assert record is not None
    return Path(record.directory)


def stalled(folder: Path, disk: HeldDisk, stack: ExitStack) -> tuple[Running, Peer]:
    """A broker with one worker, whose disk stalls for one stream, and a publisher whose message waits for it."""
    running = stack.enter_context(broker(folder, workers=1, through=disk.through))
    stack.callback(disk.unstall)
    publisher = stack.enter_context(connected(running))
    publisher.create(DISK_STREAM)
    publisher.declare(DISK_STREAM)
    publisher.publish([(1, b"before")])
    assert publisher.confirmed(1) == [1]
    assert len(Http(running).get("nodes")[0]["workers"]) == 1
    disk.stall(log_of(folder, DISK_STREAM))
    publisher.publish([(2, b"waits")])
    disk.wait_until_stalled("pwritev")
    return running, publisher


def sample(http: Http, name: str, **labels: str) -> float:
    """A value of /metrics."""
    shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
    line = name + (f"{{{shown}}}" if shown else "") + " "
    lines = http.raw("GET", "/metrics").text.splitlines()
    return next(float(each.removeprefix(line)) for each in lines if each.startswith(line))


def test_a_stalled_write_is_told_while_it_lasts_and_after_it(disk: HeldDisk, tmp_path: Path, stack: ExitStack, capfd):
    running, publisher = stalled(tmp_path / "data", disk, stack)
    wait_until(lambda: "worker 0: a write to " in written(capfd), "a line about the running call")
    assert " and goes on; 1 such calls wait" in written(capfd)
    http = Http(running)
    assert sample(http, "vibemq_file_call_running_seconds", process="worker 0") >= 1
    (shown,) = http.get("nodes")[0]["stalled_file_calls"]
    assert shown["process"] == "worker 0"
    assert shown["call"].startswith("a write to ") and shown["call"].endswith(".segment")
    command = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(tmp_path / "data"), "--formatter", "json"]
    told = subprocess.run([*command, "status"], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert json.loads(told.stdout)["stalled_file_calls"][0].startswith("worker 0: a write to ")
    assert http.get("live", "overview")["stalled"][0]["call"] == shown["call"]

    disk.unstall()
    assert publisher.confirmed(1) == [2]
    wait_until(lambda: ".segment took " in written(capfd), "a line about the ended call")
    assert sample(http, "vibemq_file_calls_slow_total", call="write") >= 1
    assert sample(http, "vibemq_file_call_slowest_seconds", process="worker 0") >= 1
    wait_until(lambda: http.get("nodes")[0]["stalled_file_calls"] == [], "no stalled call")


def test_metrics_and_readiness_are_whole_while_a_worker_waits(disk: HeldDisk, tmp_path: Path, stack: ExitStack):
    running, _ = stalled(tmp_path / "data", disk, stack)
    http = Http(running)
    wait_until(lambda: http.get("nodes")[0]["stalled_file_calls"] != [], "a stalled call")
    assert sample(http, "vibemq_workers_answering") == 1
    assert sample(http, "vibemq_connections") == 1
    assert sample(http, "vibemq_limits_refused_total", process="worker 0") == 0
    assert http.raw("GET", "/health/ready").status == 200


def fill(publisher: Peer, stream: str, segments: int) -> None:
    """Publish until the stream has begun so many segments of 4 KiB."""
    publisher.declare(stream)
    for number in range(segments * 5):
        publisher.publish([(number, b"x" * 1000)])
        publisher.confirmed(1)


SMALL = {"stream-max-segment-size-bytes": "4096"}


def test_a_worker_is_replaced_and_the_broker_stops_while_segments_cannot_be_removed(
    disk: HeldDisk, tmp_path: Path, stack: ExitStack, capfd
):
    folder = tmp_path / "data"
    flags = ("--set", "store.retention_interval_s=1")
    running = stack.enter_context(broker(folder, *flags, through=disk.through))
    stack.callback(disk.unstall)
    publisher = stack.enter_context(connected(running))
    publisher.create("aging", **SMALL, **{"max-age": "1s"})
    fill(publisher, "aging", 3)
    disk.stall(f"{log_of(folder, 'aging')}/", call="unlink")
    workers = running.worker_pids()
    wait_until(lambda: any(call.pid not in workers for call in disk.calls()), "retention waits for the disk")

    os.kill(workers[1], signal.SIGKILL)
    wait_until(lambda: len(set(running.worker_pids()) - {workers[1]}) == 2, "another worker")
    running.process.terminate()
    wait_until(lambda: "SIGTERM: stopping" in written(capfd), "the supervisor hears SIGTERM")


def test_confirms_do_not_wait_for_the_removal_of_segments(disk: HeldDisk, tmp_path: Path, stack: ExitStack):
    """More removals wait than there are threads for syncs."""
    folder = tmp_path / "data"
    running = stack.enter_context(broker(folder, "--durability", "disk", workers=1, through=disk.through))
    stack.callback(disk.unstall)
    publisher = stack.enter_context(connected(running))
    disk.stall(folder / "streams", call="unlink")
    for number in range(10):
        publisher.create(f"short{number}", **SMALL, **{"max-length-bytes": "4096"})
        publisher.declare(f"short{number}", number)
        for message in range(15):
            publisher.publish([(message, b"x" * 1000)], number)
            publisher.confirmed(1, number)
    disk.wait_until_stalled("unlink")


def test_a_log_in_a_file_that_stalls_stops_no_process(disk: HeldDisk, tmp_path: Path, stack: ExitStack):
    file = tmp_path / "broker.log"
    through = ("sh", "-c", f'exec "$@" 2>{file}', "sh", *disk.through)
    running = stack.enter_context(broker(tmp_path / "data", "--set", "server.shutdown_timeout_s=2", through=through))
    stack.callback(disk.unstall)
    disk.stall(file)
    pids = running.worker_pids()
    for pid in pids:  # each death is a line of the supervisor
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda gone=pid: len(set(running.worker_pids()) - {gone}) == 2, "another worker")
    disk.wait_until_stalled("write")
    for attempt in range(3):  # each is a line of a worker or of the admin process
        assert Http(running, password=f"wrong{attempt}").status("GET", "overview") == 401
        with connected(running) as peer:
            peer.create(f"s{attempt}")
            peer.store(f"s{attempt}", [b"stored"])
    disk.unstall()
    for pid in pids:
        wait_until(lambda dead=pid: f"pid {dead}, was killed by SIGKILL" in file.read_text(), "the waiting lines")


# ---- the loop of a worker goes on ----


def stalled_again(folder: Path, disk: HeldDisk, stack: ExitStack) -> tuple[Running, Peer]:
    """As ``stalled``, but the worker has met a slow write before: only then it hands appends to helper threads."""
    running, publisher = stalled(folder, disk, stack)
    metric = "vibemq_file_call_running_seconds"
    wait_until(lambda: sample(Http(running), metric, process="worker 0") > 0.3, "a slow write")
    disk.unstall()
    assert publisher.confirmed(1) == [2]
    disk.stall(log_of(folder, DISK_STREAM))
    publisher.publish([(3, b"waits in a helper thread")])
    wait_until(lambda: sum(call.name.startswith("pwritev") for call in disk.calls()) == 2, "another stalled write")
    return running, publisher


@pytest.mark.parametrize("first", [True, False], ids=["the worker's first stall", "a later one"])
def test_everything_else_goes_on_while_the_disk_of_one_log_stalls(
    disk: HeldDisk, tmp_path: Path, stack: ExitStack, first: bool
):
    running, publisher = (stalled if first else stalled_again)(tmp_path / "data", disk, stack)
    earlier = 1 if first else 2
    other = stack.enter_context(connected(running))  # a login
    other.create("other")
    other.store("other", [b"stored"])
    other.subscribe("other", 1)
    assert bytes(other.chunk(1).data).endswith(b"stored")
    other.subscribe(DISK_STREAM, 2, credit=10)  # what is cached of the log that stalls
    assert [other.chunk(2).chunk_id for _ in range(earlier)] == list(range(earlier))
    with QueuePeer(running) as queues:
        queues.create("q")
        queues.publish("q", "a message")
        queues.subscribe("q")
        queues.ack(queues.delivery())
        queues.await_counts("q", 0)
    assert sample(Http(running), "vibemq_connections") == 2
    assert not publisher.has_frame(), "nothing is confirmed early"

    disk.unstall()
    assert publisher.confirmed(1) == [earlier + 1]
    assert other.chunk(2).chunk_id == earlier
    publisher.publish([(earlier + 2, b"after it")])
    assert publisher.confirmed(1) == [earlier + 2]


def test_a_first_stall_within_the_input_of_a_connection_stops_nobody_else(
    disk: HeldDisk, tmp_path: Path, stack: ExitStack
):
    """The segments are small, so a frame fills several batches."""
    folder = tmp_path / "data"
    running = stack.enter_context(broker(folder, workers=1, through=disk.through))
    stack.callback(disk.unstall)
    publisher = stack.enter_context(connected(running))
    publisher.create(DISK_STREAM, **SMALL)
    publisher.declare(DISK_STREAM)
    disk.stall(log_of(folder, DISK_STREAM))
    publisher.publish([(number, b"%04d" % number * 250) for number in range(20)])
    disk.wait_until_stalled("pwritev")
    other = stack.enter_context(connected(running))
    other.create("other")
    other.store("other", [b"stored"])
    assert not publisher.has_frame(), "nothing is confirmed early"

    disk.unstall()
    assert publisher.confirmed(20) == list(range(20))
    other.subscribe(DISK_STREAM, credit=100)
    chunks = [other.chunk()]
    while (read := sum(chunk.records for chunk in chunks)) < 20:
        chunks.append(other.chunk())
    assert read == 20
    data = b"".join(bytes(chunk.data) for chunk in chunks)
    assert sorted(range(20), key=lambda number: data.index(b"%04d" % number * 250)) == list(range(20))


def test_appends_that_are_slow_together_leave_the_loop_as_one_does_that_stalls(
    disk: HeldDisk, tmp_path: Path, stack: ExitStack
):
    """None of them takes long, but those of one turn do: a login would wait for all of them in each of its turns."""
    folder = tmp_path / "data"
    running = stack.enter_context(broker(folder, workers=1, through=disk.through))
    publisher = stack.enter_context(connected(running))
    streams = [f"{DISK_STREAM}{number}" for number in range(20)]
    for number, stream in enumerate(streams):
        publisher.create(stream)
        publisher.declare(stream, number)
    disk.slow(folder / "streams")

    def publish() -> set[int]:
        """To all of them in one turn; which threads have appended it."""
        before = len(disk.calls())
        publisher.send(*(publish_frame([(1, b"slow")], number) for number in range(len(streams))))
        for _ in streams:
            publisher.expect(Key.PUBLISH_CONFIRM)
        return {call.thread for call in disk.calls()[before:] if call.name.startswith("pwritev")}

    (loop,) = running.worker_pids()
    assert loop in publish()
    assert loop not in publish()


def more(running: Running, peers: list[Peer]) -> Peer:
    """A connection that has not logged in: a worker that waits for the disk could not answer."""
    peers.append(Peer(running))
    return peers[-1]


def listens(running: Running) -> bool:
    try:
        socket.create_connection((running.host, running.port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_worker_does_not_wait_for_another_one_that_holds_the_lock(disk: HeldDisk, tmp_path: Path, stack: ExitStack):
    """The first worker is in its first slow write; the second has met none."""
    folder = tmp_path / "data"
    running = stack.enter_context(broker(folder, workers=2, through=disk.through))
    stack.callback(disk.unstall)
    peers: list[Peer] = []
    stack.callback(lambda: [peer.socket.close() for peer in peers])
    first, second = on_every_worker(running, peers)
    first.create(DISK_STREAM)
    first.store(DISK_STREAM, [b"before"])
    for peer in (first, second):
        peer.declare(DISK_STREAM)
    disk.stall(log_of(folder, DISK_STREAM))
    first.publish([(1, b"waits for the disk")])
    disk.wait_until_stalled("pwritev")
    second.publish([(1, b"waits for the lock")])
    second.create("other")
    second.store("other", [b"stored"])
    named = {"publisher_id": 9, "reference": "named", "stream": DISK_STREAM}
    second.send(second.command(Key.DECLARE_PUBLISHER, **named))  # for which the lock is needed
    workers = {server_of(second, set(running.worker_pids()))}
    third = next(peer for _ in range(200) if server_of(peer := more(running, peers), workers))
    third.open()  # a login
    third.store("other", [b"stored"])

    disk.unstall()
    assert first.confirmed(1) == [1]
    before, answer = second.until(Key.DECLARE_PUBLISHER | RESPONSE_BIT)
    assert answer.code == Code.OK
    if not before:
        assert second.confirmed(1) == [1]


def test_a_publisher_that_sends_more_than_may_wait_is_read_later(disk: HeldDisk, tmp_path: Path, stack: ExitStack):
    running, publisher = stalled_again(tmp_path / "data", disk, stack)
    count = 40
    sender = threading.Thread(
        target=lambda: [publisher.publish([(number, b"x" * 1_000_000)]) for number in range(4, 4 + count)]
    )
    sender.start()
    with connected(running) as other:
        other.create("other")
        other.store("other", [b"stored"])
    pid = running.worker_pids()[0]
    disk.unstall()
    assert publisher.confirmed(1 + count) == list(range(3, 4 + count))
    sender.join()
    assert running.worker_pids() == [pid]


def test_what_waits_for_the_disk_is_stored_though_its_publisher_leaves(
    disk: HeldDisk, tmp_path: Path, stack: ExitStack
):
    running, publisher = stalled_again(tmp_path / "data", disk, stack)
    publisher.publish([(4, b"in the next batch")])
    publisher.ask(Key.METADATA, streams=[])
    publisher.socket.close()
    disk.unstall()
    with connected(running) as reader:
        reader.subscribe(DISK_STREAM, credit=10)
        data = b"".join(bytes(reader.chunk().data) for _ in range(4))
    assert data.index(b"waits in a helper thread") < data.index(b"in the next batch")


def test_each_message_of_a_batch_with_duplicates_is_confirmed_once(disk: HeldDisk, tmp_path: Path, stack: ExitStack):
    """The batch with the duplicates waits in a helper thread while the next one is filled."""
    folder = tmp_path / "data"
    _, publisher = stalled_again(folder, disk, stack)
    disk.unstall()
    assert publisher.confirmed(1) == [3]
    for number, reference in ((1, "first"), (2, "second")):
        publisher.declare(DISK_STREAM, number, reference)
        publisher.publish([(at, b"kept") for at in range(1, 51)], number)
        publisher.confirmed(50, number)
    disk.stall(log_of(folder, DISK_STREAM))
    before = len(disk.calls())
    # "second" is the second name of the first batch, and the first of the next one.
    publisher.send(*(publish_frame([(at, b"again") for at in range(1, 101)], number) for number in (1, 2)))
    wait_until(lambda: len(disk.calls()) > before, "a stalled write")
    publisher.send(publish_frame([(at, b"next") for at in range(101, 111)], 2))
    publisher.ask(Key.METADATA, streams=[])
    disk.unstall()
    confirmed: dict[int, list[int]] = {1: [], 2: []}
    while sum(map(len, confirmed.values())) < 210:
        frame = publisher.expect(Key.PUBLISH_CONFIRM)
        confirmed[frame.publisher_id] += frame.publishing_ids
    assert sorted(confirmed[1]) == list(range(1, 101))
    assert sorted(confirmed[2]) == list(range(1, 111))


def test_a_stream_may_be_deleted_and_the_broker_stop_while_its_disk_stalls(
    disk: HeldDisk, tmp_path: Path, stack: ExitStack
):
    running, publisher = stalled_again(tmp_path / "data", disk, stack)
    with connected(running) as other:
        other.send(other.command(Key.DELETE, stream=DISK_STREAM))
        disk.unstall()
        assert other.expect(Key.DELETE | RESPONSE_BIT).code == Code.OK
        other.create("other")
        other.store("other", [b"stored"])
    publisher.send(publisher.command(Key.METADATA, streams=[]))
    publisher.until(Key.METADATA | RESPONSE_BIT)


def test_the_broker_confirms_what_waited_for_the_disk_before_it_stops(disk: HeldDisk, tmp_path: Path, stack: ExitStack):
    running, publisher = stalled_again(tmp_path / "data", disk, stack)
    running.process.terminate()
    wait_until(lambda: not listens(running), "the worker hears SIGTERM")
    disk.unstall()
    assert publisher.confirmed(1) == [3]
    assert running.process.wait(30) == 0
