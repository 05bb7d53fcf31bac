# SPDX-License-Identifier: Apache-2.0
"""Servers of the streams protocol side by side: how they are named, who begins, and what is reported."""

import json
import os

import pytest
from click.testing import CliRunner
from peers.streams_server import MemoryServer

from benchmarks.__main__ import main
from benchmarks.report import rotated
from benchmarks.servers import Target
from benchmarks.streams import SCENARIOS
from vibemq.errors import UserError
from vibemq.protocols.streams.spec import Key


@pytest.fixture
def server():
    with MemoryServer() as running:
        yield running


def test_targets_are_read_from_text():
    target = Target("ours=127.0.0.1:5552,pid=12,durability=page cache,max-age=1h")
    where = {"protocol": "streams", "host": "127.0.0.1", "port": 5552, "broker_pid": 12, "tls_ca": ""}
    assert (target.name, target.durability) == ("ours", "page cache")
    assert target.place() == where | {"arguments": (("max-age", "1h"),)}
    where |= {"host": "localhost", "port": 5551, "broker_pid": 0, "tls_ca": "ca.crt", "arguments": ()}
    secret = Target("tls=localhost:5551,tls_ca=ca.crt")
    assert (secret.name, secret.durability, secret.place()) == ("tls", "not stated", where)
    for wrong in ("ours", "ours=5552", "ours=host:port", "=host:1", "ours=host:1,pid=x"):
        with pytest.raises(UserError):
            Target(wrong)


def test_a_comparison_alternates_and_reports(server, tmp_path):
    with MemoryServer(version="3.10.8") as other:
        arguments = ["targets", "--rounds", "3", "--scale", "0.0002", "--warm-mb", "1"]
        arguments += ["--target", f"ours=127.0.0.1:{server.port},durability=os,pid={os.getpid()}"]
        arguments += ["--target", f"theirs=127.0.0.1:{other.port}", "--output", str(tmp_path / "report")]
        shown = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [target["durability"] for target in report["servers"]] == ["os", "not stated"]
    assert [scenario["name"] for scenario in report["scenarios"]] == [s.name for s in SCENARIOS]
    for scenario in report["scenarios"]:
        assert scenario["ratio"]["theirs"] == 1
        for result in scenario["results"].values():
            low, high = result["spread"][scenario["figure"]]
            assert len(result["runs"]) == 3 and low <= result["median"][scenario["figure"]] <= high
    text = (tmp_path / "report.md").read_text()
    assert text in shown.output and text.count("| ours |") == 1 + len(SCENARIOS)
    assert server.streams == other.streams == {}


def test_a_failed_run_is_reported_and_the_others_go_on(server):
    server.replies[Key.PUBLISH] = lambda connection, request: connection.end() or []
    with MemoryServer() as other:
        arguments = ["targets", "--rounds", "1", "--scale", "0.0002", "--scenario", "pub-100"]
        arguments += ["--target", f"ours=127.0.0.1:{server.port}", "--target", f"theirs=127.0.0.1:{other.port}"]
        shown = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert shown.exit_code == 1 and "**1 failed**" in shown.output


def test_who_begins_changes_with_each_round():
    targets = [Target(f"{name}=h:1") for name in "abc"]
    assert ["".join(t.name for t in rotated(targets, turn)) for turn in range(4)] == [
        "abc",
        "bca",
        "cab",
        "abc",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--protocol", "native", "--port", "1", "--mode", "pub"], "127.0.0.1:1: needed a server"),
        (["run", "--protocol", "native", "--mode", "lat"], "mode lat: needed a rate"),
        (["targets", "--target", "nobody"], "target: needed NAME=HOST:PORT"),
    ],
)
def test_what_the_user_did_wrong_is_one_line(arguments, said):
    shown = CliRunner().invoke(main, arguments)
    assert (shown.exit_code, isinstance(shown.exception, SystemExit)) == (1, True)
    assert shown.output.startswith(f"vibemq: {said}") and "Traceback" not in shown.output
