# SPDX-License-Identifier: Apache-2.0
"""The load generator: its histogram, what it refuses to measure, and that it notices what a broker does wrong."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from peers.streams_server import MemoryServer, chunk_of

from vibemq.bench._flow import Histogram
from vibemq.bench.cli import bench
from vibemq.bench.run import run, tree_cpu_s
from vibemq.bench.streams import Streams, StreamsLoad
from vibemq.errors import RequestFailed, TimeoutExceeded, UserError, VibeMQError
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key

# ---- the histogram ----


@given(st.lists(st.integers(1, 60_000_000), min_size=1, max_size=200), st.floats(0, 100))
def test_percentiles_are_within_three_digits(values, percent):
    histogram = Histogram()
    for value in values:
        histogram.record_us(value)
    exact = sorted(values)[max(1, int(percent / 100 * len(values) + 0.5)) - 1]
    assert exact <= histogram.percentile_us(percent) <= max(exact * 1.001, exact)
    assert (histogram.total, histogram.min_us, histogram.max_us) == (len(values), min(values), max(values))


def test_the_layout_is_that_of_the_published_tools():
    hdrh = pytest.importorskip("hdrh.histogram", reason="the hdrhistogram package is not installed")
    ours, theirs, random_ = Histogram(), hdrh.HdrHistogram(1, 60_000_000, 3), random.Random(1)
    for _ in range(20_000):
        value = int(10 ** random_.uniform(0, 7.7))
        ours.record_us(value)
        theirs.record_value(value)
    for percent in (0.1, 50, 90, 99, 99.9, 99.99, 100):
        assert ours.percentile_us(percent) == min(theirs.get_value_at_percentile(percent), ours.max_us)
    assert hdrh.HdrHistogram.decode(ours.encode()).get_total_count() == 20_000


def test_what_is_out_of_range_is_clamped_and_counted():
    histogram = Histogram()
    histogram.record_us(0)
    histogram.record_us(-5)
    histogram.record_us(10**12, 3)
    assert (histogram.min_us, histogram.max_us, histogram.clamped, histogram.total) == (1, 60_000_000, 3, 5)
    assert Histogram().percentile_us(99) == 0


def test_merging_adds():
    first, second = Histogram(), Histogram()
    first.record_us(10)
    second.record_us(1_000, 3)
    first.merge(second)
    assert (first.total, first.min_us, first.max_us, first.percentile_us(50)) == (4, 10, 1_000, 1_000)


# ---- processor time ----


def test_cpu_of_a_process_and_its_children():
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(1, flush=True)\n"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn + 'input()'!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"1\n"
    assert 0.15 < tree_cpu_s(process.pid) < 5
    assert tree_cpu_s(os.getpid()) >= tree_cpu_s(process.pid)
    process.communicate(b"\n", timeout=10)
    with pytest.raises(UserError):
        tree_cpu_s(process.pid)


# ---- runs ----


@pytest.fixture
def server():
    with MemoryServer() as running:
        yield running


def load(server, **options):
    return StreamsLoad(**{"port": server.port, "messages": 2_000, "timeout_s": 10.0, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "pub"},
        {"mode": "pubsub", "verify": True},
        {"mode": "pubsub", "verify": True, "publishers": 2, "consumers": 3},
        {"mode": "pubsub", "verify": True, "publishers": 2, "consumers": 2, "spread": True},
        {"mode": "pubsub", "verify": True, "batch": 1, "group": 64, "window": 200},
        {"mode": "pubsub", "batch": 7, "size_bytes": 5},
        {"mode": "lat", "verify": True, "rate": 20_000},
    ],
    ids=str,
)
def test_a_run_counts_everything(server, options):
    result = run(load(server, **options))
    copies = 0 if result.load.mode == "pub" else 1 if result.load.spread else result.load.consumers
    assert (result.sent, result.confirmed, result.consumed) == (2_000, 2_000, 2_000 * copies)
    figures = result.figures()
    assert figures["publish_msg_s"] > 0 and ("latency_us" in figures) == (result.load.mode == "lat")
    assert server.streams == {}
    json.dumps(figures)


def test_the_way_to_a_confirm_and_back_is_timed(server):
    figures = run(load(server, mode="rtt", messages=50, batch=1, window=1)).figures()
    assert (figures["confirmed"], figures["consumed"]) == (50, 0) and figures["confirm_us"]["p50"] > 0


def test_a_kept_stream_is_consumed_later(server):
    run(load(server, mode="pub", keep=True))
    assert server.next_offset("bench") == 2_000
    assert run(load(server, mode="con", verify=True, broker_pid=os.getpid())).consumed == 2_000


def test_latency_counts_from_the_schedule_and_not_from_the_sending(server):
    """A broker that stands still for 0.5 s makes late all that was due meanwhile, not one message."""
    stalls = iter([0.5])

    def stall_once(connection, request):
        if len(server.requests(Key.PUBLISH)) == 20:
            time.sleep(next(stalls))

    server.replies[Key.PUBLISH] = stall_once
    result = run(load(server, mode="lat", rate=2_000, batch=10, messages=2_000, window=50))
    late = sum(count for value_us, count in result.latencies.buckets() if value_us > 100_000)
    assert late > 600
    assert result.latencies.max_us > 450_000


def test_messages_out_of_order_are_noticed(server):
    def publish_backwards(connection, request):
        messages = [message.data for message in reversed(request.messages)]
        chunks = server.streams["bench"]
        chunks.append(chunk_of(server.next_offset("bench"), messages))
        ids = [message.publishing_id for message in request.messages]
        return [codec.encode_server_frame(Key.PUBLISH_CONFIRM, publisher_id=0, publishing_ids=ids)]

    server.replies[Key.PUBLISH] = publish_backwards
    run(load(server, mode="pub", keep=True))
    with pytest.raises(VibeMQError, match="messages were not what their producer sent next"):
        run(load(server, mode="con", verify=True))


def test_refused_messages_are_an_error(server):
    server.replies[Key.PUBLISH] = lambda connection, request: [
        codec.encode_server_frame(
            Key.PUBLISH_ERROR,
            publisher_id=0,
            errors=[(message.publishing_id, Code.PRECONDITION_FAILED) for message in request.messages],
        )
    ]
    with pytest.raises(RequestFailed, match="2000 refused with PRECONDITION_FAILED"):
        run(load(server, mode="pub"))


def test_lost_messages_are_a_timeout_with_the_state(server):
    server.replies[Key.PUBLISH] = lambda connection, request: []
    with pytest.raises(TimeoutExceeded, match="sent 2000, confirmed 0"):
        run(load(server, mode="pub", timeout_s=2.0))
    assert server.streams == {}


def test_a_broken_connection_is_an_error(server):
    server.replies[Key.PUBLISH] = lambda connection, request: connection.end() or []
    with pytest.raises(VibeMQError, match="a connection ended before all was done"):
        run(load(server, mode="pub"))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sub"},
        {"batch": 0},
        {"mode": "lat"},
        {"mode": "lat", "rate": 5, "size_bytes": 23},
        {"verify": True, "size_bytes": 5},
        {"window": 99},
        {"batch": 1, "window": 1_000_000},
    ],
    ids=str,
)
def test_what_would_not_be_measured_is_refused(server, options):
    with pytest.raises(UserError):
        run(load(server, **options))


# ---- the command ----


def test_port_0_is_the_protocols_own(server, monkeypatch):
    monkeypatch.setattr(Streams, "port_default", server.port)
    result = run(load(server, port=0))
    assert (result.confirmed, result.load.port) == (2_000, server.port)


def test_the_command_prints_a_table_or_json(server):
    runner = CliRunner()
    common = ["--port", str(server.port), "-n", "500", "--broker-pid", str(os.getpid())]
    shown = runner.invoke(bench, [*common, "--mode", "lat", "--rate", "5000"], catch_exceptions=False)
    assert shown.exit_code == 0 and "publish_msg_s" in shown.output and "p99" in shown.output
    line = runner.invoke(bench, ["run", *common, "--mode", "pubsub", "--json"], catch_exceptions=False).output
    assert json.loads(line)["consumed"] == 500
    assert "queues" in runner.invoke(bench, ["--help"]).output
    assert runner.invoke(bench, ["run", "--argument", "no value"]).exit_code == 2
