# SPDX-License-Identifier: Apache-2.0
"""What /metrics says is Prometheus's text format, with names by its rules: by a check of our own, and by promtool's."""

import re
import shutil
import subprocess

import pytest
from http_caller import Http
from peers.streams import connected
from running import broker

from vibemq.client import connect
from vibemq.protocols.streams.spec import Code, Key

SAMPLE = re.compile(r"(?P<name>[a-z_:][a-z0-9_:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>-?[0-9.e+-]+)")
LABEL = re.compile(r'[a-z_][a-z0-9_]*="(?:[^"\\]|\\["\\n])*"')
PART = re.compile(r"_(?:bucket|sum|count)$")  # of a histogram
#: Units that are no base units, and suffixes that say a type, which the name must not.
UNLIKED = re.compile(r"_(?:milliseconds|ms|minutes|hours|days|kilobytes|megabytes|kb|mb|percent|gauge|counter)(?:_|$)")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """With a sample of every kind: a queue that was used, a publisher and a consumer of a stream."""
    with broker(tmp_path_factory.mktemp("metrics") / "data", workers=1) as running:
        with connect(f"vibemq://{running.host}:{running.native_port}") as client:
            client.publish("jobs", 1)
        with connected(running) as peer:
            peer.create('odd "name"\\')
            assert peer.code(Key.DECLARE_PUBLISHER, publisher_id=9, stream='odd "name"\\') == Code.OK
            peer.store('odd "name"\\', [b"x"])
            peer.subscribe('odd "name"\\')
            peer.chunk()
            reply = Http(running).raw("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return reply.text


def test_every_metric_has_its_help_and_type_first_and_a_name_by_the_rules(page):
    seen: dict[str, str] = {}
    helped = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            _, _, helped, text = line.split(" ", 3)
            assert text and helped not in seen
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == helped and kind in ("counter", "gauge", "histogram")
            assert name.startswith("vibemq_") and not UNLIKED.search(name)
            assert name.endswith("_total") == (kind == "counter"), name
            seen[name] = kind
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            name = PART.sub("", sample["name"]) if seen[helped] == "histogram" else sample["name"]
            assert name == helped, "all samples of a metric stand together"
            assert float(sample["value"]) == float(sample["value"])
            labels = sample["labels"] or ""
            assert ",".join(LABEL.findall(labels)) == labels, line
    users = {"vibemq_publisher_published_total", "vibemq_consumer_consumed_total"}
    assert users | {"vibemq_queue_acked_total", "vibemq_stream_next_offset"} <= set(seen)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: Debian's package prometheus")
def test_promtool_has_nothing_to_say(page):
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
