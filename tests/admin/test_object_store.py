# SPDX-License-Identifier: Apache-2.0
"""The object store as operators see it: /metrics, GET /api/remote/status, `vibemq ctl remote_status` and `status`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from http_caller import Http
from running import ENVIRONMENT, broker, wait_until, written

from vibemq.cli.ctl_remote import cost_of_a_month, in_words
from vibemq.client.streams import StreamsConnection

pytest.importorskip("obstore", reason="needs the extra remote")

FLAGS = ("--set", "store.durability=remote", "--set", "remote.interval_ms=10", "--set", "remote.name=a")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A broker with a bucket and a stream in it, and its data directory."""
    folder = tmp_path_factory.mktemp("stored")
    with broker(folder / "data", *FLAGS, "--set", f"remote.url=file://{folder}/bucket", workers=1) as running:
        with StreamsConnection.connect(running.host, running.port, user="guest", password="guest") as connection:
            connection.create("events")
            with connection.publisher("events", "load") as publisher:
                publisher.publish([b"x"] * 100)
                publisher.flush()
        yield running, folder / "data"


def ctl(data, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(data), *words]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)


def metrics_of(running) -> dict[str, float]:
    samples = [line for line in Http(running).raw("GET", "/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in samples)}


def test_the_status_says_what_is_up_and_what_waits(stored):
    found = Http(stored[0]).get("remote", "status")
    assert found["is_up"] and found["broker"] == "a" and found["url"].startswith("file://")
    assert (found["streams"], found["messages_waiting"], found["errors"], found["away_s"]) == (1, 0, 0, 0.0)
    assert found["requests"]["put"] >= 2 and found["sent_bytes"] > 100


def test_the_management_page_has_the_same_status(stored):
    found = Http(stored[0]).get("live", "node")["remote"]
    assert found["is_up"] and (found["streams"], found["messages_waiting"], found["errors"]) == (1, 0, 0)
    (segment,) = Http(stored[0]).get("live", "streams", "/", "events")["segments"]
    assert segment["first_offset"] == 0 and segment["place"].startswith("disk")


def test_a_message_that_is_published_here_waits_for_the_object_store(stored):
    http = Http(stored[0])
    answer = http.call("POST", "stream", "/", "events", "messages", body={"body": "kept there"})
    assert answer.status == 201
    offset = answer.json["offset"]
    found = http.get("stream", "/", "events", "messages", query=f"?offset={offset}&count=1")
    assert found["messages"][0]["body"] == "kept there"
    assert http.get("remote", "status")["messages_waiting"] == 0


def test_metrics_have_the_object_store(stored):
    found = metrics_of(stored[0])
    assert found["vibemq_remote_up"] == 1
    assert found['vibemq_remote_requests_total{request="put"}'] >= 2
    assert found["vibemq_remote_sent_bytes_total"] > 100 and found["vibemq_remote_write_ahead_objects"] >= 1
    assert found["vibemq_remote_messages_waiting"] == found["vibemq_remote_away_seconds"] == 0
    assert found["vibemq_remote_streams_unsent"] == 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: Debian's package prometheus")
def test_promtool_has_nothing_to_say(stored):
    page = Http(stored[0]).raw("GET", "/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ctl_shows_it_with_what_a_month_costs(stored):
    data = stored[1]
    shown = ctl(data, "remote_status").stdout
    assert "object_store" not in shown and "object store: file://" in shown and " answers\n" in shown
    found = json.loads(ctl(data, "remote_status", "--put-price", "7", "--formatter", "json").stdout)
    assert found["cost_of_a_month"]["at"].startswith("7 and 0.0004 for 1000 requests, 0.023 for a GB")
    assert "object store: file://" in ctl(data, "status").stdout


def test_a_broker_without_one_says_so(http, managed, tmp_path):
    assert http.status("GET", "remote", "status") == 404
    assert not any(name.startswith("vibemq_remote_") for name in metrics_of(managed))
    with broker(tmp_path / "data", workers=1):
        done = ctl(tmp_path / "data", "remote_status")
        assert done.returncode == 69 and "remote.url is empty" in done.stderr
        assert "object store" not in ctl(tmp_path / "data", "status").stdout


def test_an_archiver_that_does_not_answer_takes_nothing_else_with_it(stored):
    running, data = stored
    pid = running._children("vibemq: archiver")[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        found = metrics_of(running)
        assert time.monotonic() - began_s < 8
        assert found["vibemq_remote_up"] == 0 and "vibemq_remote_segments" not in found
        assert found["vibemq_workers_answering"] == 1
        assert Http(running).get("remote", "status")["is_up"] is False
        assert "the archiver does not answer" in ctl(data, "remote_status").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: metrics_of(running)["vibemq_remote_up"] == 1, "the archiver")


def test_a_store_that_is_away_is_said_as_its_return_is_and_the_broker_stays_ready(tmp_path, capfd):
    """A folder that cannot be written to: what a mount that is gone is like."""
    bucket = tmp_path / "bucket"
    flags = (*FLAGS, "--set", f"remote.url=file://{bucket}")
    with ExitStack() as stack:
        running = stack.enter_context(broker(tmp_path / "data", *flags, workers=1))
        connection = stack.enter_context(
            StreamsConnection.connect(running.host, running.port, user="guest", password="guest")
        )
        connection.create("events")
        shutil.move(bucket, tmp_path / "away")
        bucket.write_text("no folder")
        publisher = connection.publisher("events", "load")
        publisher.publish([b"x"] * 7)
        wait_until(lambda: Http(running).get("remote", "status")["away_s"] >= 5, "a store that is away")
        found = Http(running).get("remote", "status")
        assert found["messages_waiting"] == 7 and found["objects_on_their_way"] >= 1 and found["errors"] >= 1
        assert metrics_of(running)["vibemq_remote_away_seconds"] >= 5
        assert Http(running).status("GET", "health", "checks", "ready-to-serve-clients") == 200
        assert "has taken nothing for" in ctl(tmp_path / "data", "status").stdout
        bucket.unlink()
        shutil.move(tmp_path / "away", bucket)
        publisher.flush()
        wait_until(lambda: Http(running).get("remote", "status")["away_s"] == 0, "the store")
        wait_until(lambda: "the object store answers again" in written(capfd), "its return is said")
    assert "the object store has taken nothing for" in written(capfd)


def test_the_cost_of_a_month_is_that_of_its_requests_and_bytes():
    status = {
        "up_s": 86_400.0, "requests": {"put": 863_000, "list": 1000, "get": 1_000_000, "delete": 5},
        "segment_bytes": 1_000_000_000_000,
    }  # fmt: skip
    cost = cost_of_a_month(status, 0.005, 0.0004, 0.023)
    assert (cost["puts_and_lists"], cost["gets"], cost["storage_of_segments"]) == (129.6, 12.0, 23.0)
    assert cost["all"] == 164.6


def test_a_store_that_has_just_missed_an_answer_is_not_called_away():
    status = {"is_up": True, "url": "s3://b", "away_s": 1.0, "last_error": "x", "advice": "y", "messages_waiting": 0}
    status["streams_that_cannot_be_sent"] = {}
    assert in_words(status) == "s3://b answers"
    said = in_words(status | {"away_s": 6.0})
    assert "has taken nothing for 6 s: x;" in said and said.endswith(": y")
    assert "events: damaged" in in_words(status | {"streams_that_cannot_be_sent": {"events": "damaged"}})
