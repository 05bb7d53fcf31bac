# SPDX-License-Identifier: Apache-2.0
"""The sampler on files written here and on this host, and the arithmetic of the report."""

from __future__ import annotations

import json
import math
import zlib

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="pyspark is not installed")

from ingest import ingest
from job import Progress
from report import Line, busy_shares, with_gaps
from telemetry import Sampler

FILES = {
    "stat": "cpu  10 0 20 970 0\ncpu0 10 0 20 970 0\nintr 5 1 2\nctxt 77\nbtime 1\nprocesses 9\nprocs_running 2\n",
    "meminfo": "MemTotal:  24 kB\nHugePages_Total: 0\n",
    "vmstat": "nr_free_pages 5\npgfault 6\npswpin 7\nsomething 8\n",
    "net/dev": "a\nb\n    lo: 100 2 0 0 0 0 0 0 200 3 1 0 0 0 0 0\n",
    "diskstats": " 8 0 sda 1 0 2 3000 4 0 5 6000 7 8 9\n",
    "loadavg": "0.50 0.25 0.10 1/99 4242\n",
    "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n",
    "42/stat": "42 (odd) name)) S 1 1 1 0 -1 0 11 0 12 0 150 50 0 0 20 0 3 0 5 4096 2 0\n",
}


@pytest.fixture
def proc(tmp_path):
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_each_counter_is_a_sample(proc):
    sampler = Sampler(proc, "here", clock=lambda: 5.0)
    found = {(metric, device, field): value for metric, device, field, value in sampler.samples()}
    sampler.close()
    expected = {
        ("cpu_seconds", "cpu0", "idle"): 9.7,
        ("kernel_events", "", "context_switches"): 77,
        ("kernel_events", "", "intr"): 5,
        ("memory_bytes", "", "MemTotal"): 24 * 1024,
        ("vm_pages", "", "nr_free_pages"): 5,
        ("vm_paging", "", "pgfault"): 6,
        ("vm_swap", "", "pswpin"): 7,
        ("vm_other", "", "something"): 8,
        ("network_bytes", "lo", "sent"): 200,
        ("network_errors", "lo", "sent"): 1,
        ("disk_bytes", "sda", "written"): 5 * 512,
        ("disk_seconds", "sda", "read"): 3,
        ("disk_in_flight", "sda", "both"): 7,
        ("load_average", "", "5m"): 0.25,
        ("pressure_seconds", "cpu", "some"): 2.5,
        ("process_cpu_seconds", "odd) name)[42]", "user"): 1.5,
        ("process_threads", "odd) name)[42]", ""): 3,
        ("process_memory_bytes", "odd) name)[42]", "virtual"): 4096,
        ("process_page_faults", "odd) name)[42]", "major"): 12,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_messages_and_tallies_agree(proc):
    sampler = Sampler(proc, "here", clock=lambda: 5.0)
    bodies = sampler.sweep("streams") + sampler.sweep("native")
    sampler.close()
    messages = [json.loads(body) for body in bodies]
    assert [each["sequence"] for each in messages] == list(range(5_000_000_000, 5_000_000_000 + len(bodies)))
    assert messages[0]["host"] == "here" and messages[0]["timestamp"] == 5_000_000
    assert sampler.count == len(bodies) and sampler.bytes == sum(map(len, bodies))
    assert sum(tally.count for tally in sampler.tallies.values()) == len(bodies)
    by_door = [{m for m, door in sampler.tallies if door == name} for name in ("streams", "native")]
    assert by_door[0] == by_door[1] == {each["metric"] for each in messages}
    assert sum(tally.checksums for tally in sampler.tallies.values()) == sum(map(zlib.crc32, bodies))
    assert sum(tally.sequences for tally in sampler.tallies.values()) == sum(each["sequence"] for each in messages)


def test_this_host_has_a_bounded_number_of_metrics():
    sampler = Sampler()
    assert len(sampler.sweep("streams")) > 50
    assert len(sampler.tallies) < 50, "Parquet is partitioned by metric"
    sampler.close()


def test_no_line_is_drawn_across_missing_samples():
    joined = with_gaps([(0.0, 1.0), (1.0, 2.0), (5.0, 3.0), (6.0, 4.0)], 2.0)
    assert [second for second, _ in joined] == [0.0, 1.0, 3.0, 5.0, 6.0]
    assert [math.isnan(value) for _, value in joined] == [False, False, True, False, False]


def test_busy_shares():
    totals = [
        ("cpu0", 10, "user", 1.0),
        ("cpu0", 10, "idle", 9.0),
        ("cpu0", 11, "user", 1.25),
        ("cpu0", 11, "idle", 9.75),
        ("cpu0", 11, "guest", 5.0),
        ("cpu1", 10, "idle", 1.0),
    ]
    assert busy_shares(totals) == {"cpu0": [(11.5, 25.0)]}
    assert busy_shares([]) == {}


def test_the_line_says_what_was_done(capsys):
    progress = Progress(sent=1_200, confirmed_by={"streams": 1_000, "native": 100})
    progress.batches["Parquet", 0] = 900
    progress.history += [(0.0, 0, 0), (2.0, 1_100, 900)]
    with Line(progress) as line:
        line.tell("ingesting")
        line.tell("ingesting")
    (text,) = capsys.readouterr().err.splitlines()
    rates = ("550 confirmed/s", "450 to Parquet/s")
    for part in ("sent     1,200", "confirmed     1,100", "in Parquet       900", *rates):
        assert part in text


def test_the_line_has_no_rates_while_publishing_waits_for_spark(capsys):
    progress = Progress()
    with Line(progress) as line:
        line.tell("starting Spark")
        progress.sent, progress.confirmed_by = 600, {"streams": 600}
        progress.history += [(8.0, 600, 0), (14.0, 600, 0)]
        line.tell("first batch")
    for text in capsys.readouterr().err.splitlines():
        assert text.endswith("publishing waits for Spark's first batch") and "/s" not in text


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--seconds", "0"], "--seconds"), (["--messages", "x"], "--messages")]
)
def test_wrong_usage(arguments, says):
    result = CliRunner().invoke(ingest, arguments)
    assert result.exit_code == 2 and says in result.output
