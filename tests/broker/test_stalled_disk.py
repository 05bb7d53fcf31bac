# SPDX-License-Identifier: Apache-2.0
"""The disk of one log stalls: each call that changes a file in its directory waits until the test ends that."""

from __future__ import annotations

import json
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
