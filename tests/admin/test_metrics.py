# SPDX-License-Identifier: Apache-2.0
"""What /metrics says is true: latencies, lag, processes; and that it stays as large as it is told to be."""

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
from http_caller import STREAM, Http, wait_until
from peers.streams import connected
from running import Running, broker

from vibemq.client import connect
from vibemq.protocols.streams.codec import encode_request
from vibemq.protocols.streams.spec import Key

SAMPLE = re.compile(r"(vibemq_\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Samples = dict[str, list[tuple[dict[str, str], float]]]


def samples(text: str) -> Samples:
    found: Samples = defaultdict(list)
    for line in text.splitlines():
        if match := SAMPLE.fullmatch(line):
            found[match[1]].append((dict(LABEL.findall(match[2] or "")), float(match[3])))
    return found


def scraped(http: Http, path: str = "/metrics") -> Samples:
    reply = http.raw("GET", path)
    assert reply.status == 200, reply.text
    return samples(reply.text)


def value(found: Samples, name: str, **labels: str) -> float:
    """The one sample that has all of these labels."""
    fitting = [number for have, number in found[name] if labels.items() <= have.items()]
    assert len(fitting) == 1, (name, labels, found[name])
    return fitting[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Iterator[Running]:
    """Shows one of each kind, and syncs what it confirms."""
    flags = ("--set", "admin.metrics_objects_max=1", "--durability", "disk")
    with broker(tmp_path_factory.mktemp("small") / "data", *flags, workers=1) as running:
        yield running


def test_each_confirmed_message_is_in_the_histogram_of_its_durability_and_each_delivered_one_in_its_own(
    http, managed, stream
):
    queue = f"{stream}.jobs"
    before = scraped(http)
    with connected(managed) as peer:
        peer.store(stream, [b"x"] * 7)
        peer.subscribe(stream)
        peer.chunk()
    with connect(f"vibemq://{managed.host}:{managed.native_port}") as client:
        client.publish(queue, 1)
        with client.consume(queue) as consumer:
            next(consumer).ack()
        client.delete_queue(queue)
    after = scraped(http)

    def grew(metric: str, **labels: str) -> float:
        return value(after, metric, **labels) - value(before, metric, **labels)

    assert grew("vibemq_confirm_latency_seconds_count", durability="os") == 8
    assert grew("vibemq_delivery_latency_seconds_count", source="stream") == 7
    assert grew("vibemq_delivery_latency_seconds_count", source="queue") == 1
    assert 0 < grew("vibemq_confirm_latency_seconds_sum", durability="os") < 8 * 60
    turns = [number for _, number in after["vibemq_loop_turn_seconds_count"]]
    assert len(turns) == 2 and all(turns)


def test_buckets_add_up_and_the_last_one_is_the_count(http):
    found = scraped(http)
    names = [name.removesuffix("_bucket") for name in found if name.endswith("_bucket")]
    assert names
    for name in names:
        rows: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
        for labels, number in found[f"{name}_bucket"]:
            bound = labels.pop("le")
            rows[tuple(sorted(labels.items()))].append((float(bound), number))
        for labels_of, row in rows.items():
            bounds, numbers = zip(*row, strict=True)
            assert list(bounds) == sorted(bounds) and bounds[-1] == float("inf")
            assert list(numbers) == sorted(numbers)
            assert numbers[-1] == value(found, f"{name}_count", **dict(labels_of))


def test_a_sync_is_timed_and_what_waits_for_it_is_confirmed_after_it(small, name):
    http = Http(small)
    assert http.status("PUT", "queues", "/", name, body=STREAM) == 201
    with connected(small) as peer:
        peer.store(name, [b"x"] * 5)
    found = scraped(http)
    assert value(found, "vibemq_fdatasync_seconds_count") >= 1
    assert value(found, "vibemq_confirm_latency_seconds_count", durability="disk") >= 5
    assert value(found, "vibemq_confirm_latency_seconds_sum", durability="disk") > 0
    assert http.status("DELETE", "queues", "/", name) == 204


def test_no_more_than_so_many_are_shown_one_by_one_and_sums_are_of_all(small):
    http = Http(small)
    for number in range(3):
        assert http.status("PUT", "queues", "/", f"s{number}", body=STREAM) == 201
    with connected(small) as peer, connect(f"vibemq://{small.host}:{small.native_port}") as client:
        for number in range(3):
            peer.store(f"s{number}", [b"x" * 100] * (number + 1))
            peer.send(encode_request(Key.STORE_OFFSET, reference="r", stream=f"s{number}", offset=0))
            client.publish(f"q{number}", number)
        assert peer.ask(Key.QUERY_OFFSET, reference="r", stream="s2").offset == 0
        for number in range(3):
            peer.subscribe(f"s{number}", subscription_id=number, credit=0)
        found = scraped(http)
        every = scraped(http, "/metrics/detailed?family=streams&family=queues&family=stored_offsets&family=consumers")
    assert value(found, "vibemq_streams") == 6 and value(found, "vibemq_queues") == 3
    assert value(found, "vibemq_streams_messages") == 1 + 2 + 3 + 3
    assert value(found, "vibemq_queues_messages_ready") == 3
    assert value(found, "vibemq_stored_offsets") == 3
    assert value(found, "vibemq_consumers") == 3
    assert [labels["stream"] for labels, _ in found["vibemq_stream_messages"]] == ["s2"], "the largest"
    assert [(labels["stream"], lag) for labels, lag in found["vibemq_stored_offset_lag"]] == [("s2", 2)]
    for name in ("queue_messages_ready", "publisher_published_total", "consumer_offset_lag"):
        assert len(found[f"vibemq_{name}"]) <= 1, name
    assert len(every["vibemq_stream_messages"]) == 6
    assert len(every["vibemq_queue_messages_ready"]) == len(every["vibemq_stored_offset_lag"]) == 3
    assert len(every["vibemq_consumer_offset_lag"]) == 3
    assert "vibemq_build_info" not in every


def test_detailed_metrics_are_of_the_families_and_virtual_hosts_that_are_asked_for(http, stream):
    assert http.status("PUT", "vhosts", "sales") == 201
    assert http.status("PUT", "queues", "sales", "theirs", body=STREAM) == 201
    path = "/metrics/detailed?family=streams"
    theirs = [labels["stream"] for labels, _ in scraped(http, f"{path}&vhost=sales")["vibemq_stream_messages"]]
    assert theirs == ["theirs"]
    both = [labels["stream"] for labels, _ in scraped(http, f"{path}&vhost=sales&vhost=%2F")["vibemq_stream_messages"]]
    assert {"theirs", stream} <= set(both)
    assert set(scraped(http, "/metrics/detailed?family=latency")) >= {"vibemq_loop_turn_seconds_bucket"}
    assert http.raw("GET", "/metrics/detailed?vhost=nowhere").status == 404
    unknown = http.raw("GET", "/metrics/detailed?family=queue_metrics")
    assert unknown.status == 400 and "stored_offsets" in unknown.text, "known families are named"
    assert http.status("DELETE", "vhosts", "sales") == 204


def test_lag_is_told_in_seconds_for_subscriptions_queues_and_stored_offsets(http, managed, stream):
    queue = f"{stream}.jobs"
    began_s = time.time() - 0.001  # the broker's clock has whole milliseconds
    with connected(managed) as peer, connect(f"vibemq://{managed.host}:{managed.native_port}") as client:
        peer.store(stream, [b"x"])
        client.publish(queue, 1)
        peer.subscribe(stream, credit=0)
        peer.send(encode_request(Key.STORE_OFFSET, reference="now", stream=stream, offset=0))
        assert peer.ask(Key.QUERY_OFFSET, reference="now", stream=stream).offset == 0

        def is_old(found: Samples) -> bool:
            ages = ("consumer_lag", {"stream": stream}), ("queue_oldest_message_age", {"queue": queue})
            return all(value(found, f"vibemq_{metric}_seconds", **labels) > 0.2 for metric, labels in ages)

        wait_until(lambda: is_old(scraped(http)), "the message is a while old")
        found = scraped(http)
        assert value(found, "vibemq_consumer_offset_lag", stream=stream) == 1
        age_s = value(found, "vibemq_consumer_lag_seconds", stream=stream)
        assert age_s <= time.time() - began_s
        assert value(found, "vibemq_stored_offset_lag_seconds", stream=stream) == 0, "nothing comes after it"
        with client.consume(queue) as consumer:
            message = next(consumer)
            held = scraped(http)
            assert value(held, "vibemq_consumer_messages_unacknowledged", stream=queue) == 1
            assert value(held, "vibemq_consumer_offset_lag", stream=queue) == 1
            message.ack()
        client.delete_queue(queue)


def test_processes_are_told_by_what_the_kernel_says_of_them(http, managed):
    found = scraped(http)
    pid = managed.worker_pids()[0]
    limits = {labels["process"]: number for labels, number in found["vibemq_process_max_fds"]}
    assert limits.keys() == {"worker 0", "worker 1", "supervisor", "admin"}
    assert all(0 < number < limits[labels["process"]] for labels, number in found["vibemq_process_open_fds"])
    assert len(os.listdir(f"/proc/{pid}/fd")) > 0
    assert all(number > 0 for _, number in found["vibemq_process_resident_memory_bytes"])
    assert value(found, "vibemq_process_cpu_seconds_total", process="worker 0") >= 0
    assert all(number == 1 for _, number in found["vibemq_process_starts_total"])
    assert abs(value(found, "vibemq_time_seconds") - time.time()) < 60
    assert value(found, "vibemq_connections_limit") == 2 * 12_000


def test_warnings_in_the_log_are_counted(tmp_path):
    """By a broker of its own: the same warning is said once a minute, and another test may have had it said."""
    with broker(tmp_path / "data", workers=1) as running:
        http = Http(running)
        before = value(scraped(http), "vibemq_log_lines_total", process="admin", level="warning")
        assert Http(running, "guest", "wrong").status("GET", "overview") == 401  # which the log says as a warning
        assert value(scraped(http), "vibemq_log_lines_total", process="admin", level="warning") == before + 1


def test_a_replaced_worker_counts_on(tmp_path):
    with broker(tmp_path / "data", workers=1) as running:
        http = Http(running)
        with connect(f"vibemq://{running.host}:{running.native_port}") as client:
            client.publish("jobs", 1)
        pid = running.worker_pids()[0]
        os.kill(pid, 9)
        wait_until(lambda: value(scraped(http), "vibemq_process_starts_total", process="worker 0") == 2, "another one")
        assert value(scraped(http), "vibemq_confirm_latency_seconds_count", durability="os") == 1


def test_orchestrators_are_told_whether_it_lives_and_is_ready_and_why_not(http, managed):
    for path in ("/health/live", "/health/ready"):
        reply = http.raw("GET", path, Authorization="")
        assert (reply.status, reply.json) == (200, {"status": "ok"})
    assert http.status("PUT", "maintenance") == 204
    try:
        reply = wait_until(
            lambda: (r := http.raw("GET", "/health/ready", Authorization="")).status == 503 and r, "drained"
        )
        why = "this node is in maintenance mode: `vibemq ctl revive` ends that"
        assert reply.json == {"status": "failed", "reason": why}
        assert http.raw("GET", "/health/live", Authorization="").status == 200
    finally:
        assert http.status("DELETE", "maintenance") == 204
    wait_until(lambda: http.raw("GET", "/health/ready", Authorization="").status == 200, "ready again")
