# SPDX-License-Identifier: Apache-2.0
"""``vibemq publish``, ``vibemq consume`` and ``vibemq queues``, as a shell sees them, against a broker."""

import itertools
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT, broker

from vibemq.cli import main

names = (f"shell-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with broker(tmp_path_factory.mktemp("cli-queues") / "data", workers=1) as running:
        yield f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def run(url, monkeypatch):
    monkeypatch.setenv("VIBEMQ_URL", url)
    return lambda *arguments, **options: CliRunner().invoke(main, arguments, prog_name="vibemq", **options)


@pytest.fixture
def queue():
    return next(names)


def test_a_payload_is_published_and_consumed(run, queue):
    assert run("publish", queue, '{"a": 1}').stdout == f"published 1 message to queue {queue}\n"
    assert run("publish", queue, "some text").exit_code == 0
    result = run("consume", queue, "--count", "2")
    assert (result.stdout, result.exit_code) == ('{"a": 1}\n"some text"\n', 0)
    assert run("consume", queue, "--drain").stdout == ""


def test_text_stays_text_when_asked(run, queue):
    run("publish", queue, "17", "--text")
    assert run("consume", queue, "--drain").stdout == '"17"\n'


def test_lines_of_standard_input_and_of_files_are_messages(run, queue, tmp_path):
    assert run("publish", queue, input="1\n\nzwei\n").stdout == f"published 2 messages to queue {queue}\n"
    (tmp_path / "lines").write_text("3\r\n4")
    run("publish", queue, "--file", str(tmp_path / "lines"))
    assert run("consume", queue, "--drain").stdout == '1\n"zwei"\n3\n4\n'


def test_json_shows_all_of_a_message(run, queue):
    run("publish", queue, "[1]", "--header", "k=v=w", "--priority", "high")
    (line,) = run("consume", queue, "--drain", "--json").stdout.splitlines()
    message = json.loads(line)
    assert len(message.pop("id")) == 32
    assert message == {"headers": {"k": "v=w", "priority": "High"}, "attempts": 1, "payload": [1]}


def test_no_ack_leaves_the_messages(run, queue):
    run("publish", queue, "1", "--count", "3")
    assert run("consume", queue, "--no-ack", "--count", "2").stdout == "1\n1\n"
    assert run("consume", queue, "--no-ack", "--drain").stdout == "1\n1\n1\n"
    assert run("consume", queue, "--drain").stdout == "1\n1\n1\n"


@pytest.mark.parametrize("how", [[], ["--rate", "100000"], ["--window", "1"]], ids=str)
def test_a_payload_can_be_sent_many_times(run, queue, how):
    result = run("publish", queue, "1", "--count", "50", "--json", *how)
    assert json.loads(result.stdout) == {"queue": queue, "published": 50, "failed": 0}
    assert json.loads(run("queues", "info", queue, "--json").stdout)["messages"] == 50


def test_what_is_refused_is_an_error_after_the_count(run, queue):
    run("queues", "create", queue, "--max-messages", "2", "--overflow", "drop_newest")
    result = run("publish", queue, "1", "--count", "5")
    assert result.exit_code == 1
    assert result.stdout == f"published 2 messages to queue {queue}\n"
    assert "vibemq: 3 messages refused" in result.stderr
    assert "(QUEUE_FULL)" in result.stderr


def test_queues_are_made_listed_described_purged_and_deleted(run, queue):
    assert run("queues", "create", queue, "--ttl", "1.5", "--dead-letter").stdout == f"queue {queue} is there\n"
    run("publish", queue, "1")
    described = json.loads(run("queues", "info", queue, "--json").stdout)
    assert (described["name"], described["messages"], described["message_ttl_ms"]) == (queue, 1, 1500)
    assert described["dead_letter_queue"] == f"{queue}.dlq"
    assert queue in run("queues", "list").stdout
    assert queue in [found["name"] for found in json.loads(run("queues", "list", "--json").stdout)]
    assert "round_robin" in run("queues", "info", queue).stdout
    assert json.loads(run("queues", "purge", queue, "--json").stdout) == {"queue": queue, "result": "purged"}
    assert json.loads(run("queues", "info", queue, "--json").stdout)["messages"] == 0
    assert run("queues", "delete", queue).stdout == f"queue {queue} deleted\n"
    gone = run("queues", "delete", queue)
    assert gone.exit_code == 1
    assert f"there is no queue {queue}" in gone.stderr
    assert "`vibemq queues list` shows all" in gone.stderr


def test_making_a_queue_that_is_otherwise_is_an_error_unless_told(run, queue):
    run("queues", "create", queue)
    assert run("queues", "create", queue).exit_code == 0
    other = ("queues", "create", queue, "--mode", "priority_based")
    result = run(*other)
    assert result.exit_code == 1
    assert "mode is RoundRobin, declared PriorityBased" in result.stderr
    assert run(*other, "--on-conflict", "ignore").exit_code == 0
    assert run(*other, "--on-conflict", "override").exit_code == 0
    assert json.loads(run("queues", "info", queue, "--json").stdout)["mode"] == "priority_based"


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "q", "1", "--file", "/dev/null"],
        ["publish", "q", "--count", "3"],
        ["publish", "q", "1", "--header", "k"],
        ["publish", "q", "1", "--password-stdin"],
        ["consume", "q", "--count", "0"],
    ],
    ids=lambda arguments: " ".join(arguments[2:]),
)
def test_wrong_usage_is_exit_code_2(run, arguments):
    assert run(*arguments).exit_code == 2


def test_a_broker_that_is_not_there_is_one_line_and_a_hint(run):
    result = run("queues", "list", "--url", "vibemq://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("vibemq: 127.0.0.1:1: could not connect: ")
    assert "hint: Does the broker run" in result.stderr


def test_a_password_is_never_asked_for_without_a_terminal(run):
    result = run("queues", "list", "--user", "ada")
    assert result.exit_code == 1
    assert "--password-stdin" in result.stderr


def test_a_password_may_be_the_first_line(run, queue):
    result = run("publish", queue, "--user", "ada", "--password-stdin", input="secret\n1\n2\n")
    assert result.stdout == f"published 2 messages to queue {queue}\n"


def test_a_terminal_sees_progress_and_standard_output_does_not(url, queue):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vibemq.cli", "publish", queue, "1", "--count", "500", "--url", url]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**ENVIRONMENT, "TERM": "xterm"}, text=True, timeout=60
    )
    os.close(theirs)
    shown = os.read(ours, 65_536)
    os.close(ours)
    assert done.stdout == f"published 500 messages to queue {queue}\n"
    assert b"500/500" in shown
