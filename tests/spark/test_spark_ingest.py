# SPDX-License-Identifier: Apache-2.0
"""The ingest example as a person runs it, and that its check would have noticed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def command(*arguments):
    return [sys.executable, "examples/ingest/ingest.py", *arguments]


def children(pid):
    """All processes below one, by /proc."""
    found, wanted = [], {pid}
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    while new := {child for child, parent in parents.items() if parent in wanted and child not in found}:
        found += new
        wanted = new
    return found


def test_the_demo_ends_well(spark, tmp_path):
    """`spark` only so that it is skipped for the same reasons."""
    ran = subprocess.run(
        command("--seconds", "3", "--messages", "30000", "--output", str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "every confirmed message is there exactly once, both ways" in ran.stdout
    assert int(re.search(r"published\s+([\d,]+) messages", ran.stdout)[1].replace(",", "")) >= 30_000
    by_door = re.findall(r"([\d,]+) through the streams door, ([\d,]+) through the native door", ran.stdout)
    assert len(by_door) == 2 and by_door[0] == by_door[1], "confirmed, and in Parquet"
    assert (tmp_path / "ingest.png").read_bytes().startswith(b"\x89PNG")
    assert not [line for line in ran.stderr.splitlines() if "WARN" in line or "Exception" in line]


def test_an_interrupt_leaves_nothing_behind(spark, tmp_path):
    process = subprocess.Popen(
        command("--output", str(tmp_path)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in process.stderr:
            if "first batch" in line or "ingesting" in line:
                break
        below = children(process.pid)
        assert len(below) >= 3, "a broker, its workers and a Java"
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 30
    while (left := [pid for pid in below if os.path.exists(f"/proc/{pid}")]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


@pytest.fixture(scope="module")
def sampled(spark, own_broker, tmp_path_factory):
    """A stream with a little telemetry in it, written to Parquet and back in this session."""
    import job as work

    output = tmp_path_factory.mktemp("ingest")
    native = f"127.0.0.1:{own_broker.native_port}"
    job = work.Job({"endpoints": own_broker.endpoints}, output, 0.5, 5_000, native, "sampled")
    work.prepare(job)
    publisher = work.Publisher(job, work.Progress())
    publisher.go.set()
    publisher.run()
    assert publisher.failed is None
    for start in work.STARTS:
        assert start(job, spark, {"availableNow": True}).awaitTermination(60)
    return work, job, publisher


def test_the_check_finds_nothing_wrong_and_would_find_a_loss(spark, sampled):
    work, job, publisher = sampled
    outcome = work.check(job, spark, publisher)
    count = publisher.sampler.count
    assert outcome.mismatches == [] and count >= 5_000
    assert outcome.rows == {work.PARQUET: count, work.BACK: count}
    assert outcome.metrics[0][1] >= outcome.metrics[-1][1]
    assert sum(metric[1] for metric in outcome.metrics) == count
    assert outcome.doors == publisher.progress.confirmed_by and outcome.doors["native"] > 0

    tally = publisher.sampler.tallies["load_average", "native"]
    tally.count += 1
    assert sum("load_average" in each for each in work.check(job, spark, publisher).mismatches) == 2
    tally.count -= 1
    tally.checksums += 1
    assert len(work.check(job, spark, publisher).mismatches) == 2, "in Parquet and written back"
    tally.checksums -= 1
    publisher.progress.confirmed_by["native"] -= 1
    assert "confirmed" in work.check(job, spark, publisher).mismatches[0]


def test_what_is_written_back_twice_is_found(spark, sampled):
    work, job, publisher = sampled
    options = {**job.source_options, "stream": job.back}
    once_more = spark.read.format("vibemq").options(**options).load().limit(1).select("value", "message_id", "headers")
    once_more.write.format("vibemq").mode("append").options(**job.options, stream=job.back).save()
    mismatches = work.check(job, spark, publisher).mismatches
    assert [each for each in mismatches if work.BACK in each] and not [
        each for each in mismatches if work.PARQUET in each
    ]
