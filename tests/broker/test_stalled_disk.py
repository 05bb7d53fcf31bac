# SPDX-License-Identifier: Apache-2.0
"""The disk of one log stalls: each call that changes a file in its directory waits until the test ends that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from admin.http_caller import Http
from held_disk import HeldDisk
from peers.streams import Peer, connected
from running import ENVIRONMENT, Running, broker, wait_until, written

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
