# SPDX-License-Identifier: Apache-2.0
"""``vibemq publish``, ``vibemq consume`` and ``vibemq queues``, as a shell sees them, against a broker."""

import functools
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT, Running, broker

from vibemq.cli.commands import main
from vibemq.client import connect
from vibemq.client.streams import StreamsConnection

names = (f"shell-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("cli-queues") / "data", workers=1) as started:
        yield started


@pytest.fixture(scope="module")
def url(running) -> str:
    return f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def streams_port(running) -> int:
    return running.port


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


def test_consuming_makes_a_queue_only_when_told(run, queue):
    first = run("consume", queue, "--drain")
    assert (first.exit_code, first.stdout) == (1, "")
    assert f"Queue '{queue}' does not exist. (QUEUE_NOT_FOUND)" in first.stderr
    assert "--create" in first.stderr
    assert queue not in run("queues", "list").stdout
    made = run("consume", queue, "--drain", "--create")
    assert (made.exit_code, made.stdout, made.stderr) == (0, "", "")
    assert run("consume", queue, "--drain").exit_code == 0


def test_a_stream_is_not_consumed_but_read(url, streams_port, run, queue):
    with StreamsConnection.connect("127.0.0.1", streams_port) as connection:
        connection.create(queue)
    refused = run("consume", queue, "--drain")
    assert refused.exit_code == 1
    assert f"'{queue}' is a stream, not a queue" in refused.stderr
    assert "vibemq streams tail" in refused.stderr
    assert run("consume", queue, "--drain", "--create").exit_code == 0
    assert json.loads(run("queues", "info", queue, "--json").stdout)["max_messages"] == 0


def test_a_publisher_that_is_interrupted_says_how_many_messages_the_broker_has(url, queue):
    with connect(url) as client:
        consumer = client.consume(queue, create=True)
        consumer.open()
        command = [sys.executable, "-m", "vibemq.cli", "publish", queue, "1", "--count", "1000000", "--rate", "200"]
        # Tests that run in the background of a shell ignore the signal, and their children would with them.
        heeding = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        publisher = subprocess.Popen(
            [*command, "--url", url], stdout=subprocess.PIPE, env=ENVIRONMENT, text=True, preexec_fn=heeding
        )
        try:
            for _ in range(3):
                next(consumer)  # it is under way
            publisher.send_signal(signal.SIGINT)
            stdout, _ = publisher.communicate(timeout=60)
        finally:
            publisher.kill()
        info = client.queue_info(queue)
        consumer.close()
    assert publisher.returncode == 130
    count = info.messages + info.in_flight
    assert stdout == f"published {count} messages to queue {queue}\n"


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
    assert message.pop("stored")  # tests/client/test_native_moving.py reads it
    assert message == {"headers": {"k": "v=w", "priority": "High"}, "attempts": 1, "payload": [1]}


def test_a_line_that_is_no_whole_message_is_told_in_plain_words(run, queue):
    for line, said in (('{"pay": 3}', "there is no 'payload' in it"), ("oops", "Expecting value"), ("[]", "had []")):
        told = run("publish", queue, "--json", input=line + "\n").stderr
        assert told.startswith("vibemq: line 1: needed an object") and said in told
        assert "Error(" not in told


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
    assert run("queues", "create", queue, "--ttl", "1.5", "--dead-letter").stdout == f"queue {queue} created\n"
    run("publish", queue, "1")
    described = json.loads(run("queues", "info", queue, "--json").stdout)
    assert (described["name"], described["messages"], described["message_ttl_ms"]) == (queue, 1, 1500)
    assert described["dead_letter_queue"] == f"{queue}.dlq"
    assert queue in run("queues", "list").stdout
    assert queue in [found["name"] for found in json.loads(run("queues", "list", "--json").stdout)]
    assert "round_robin" in run("queues", "info", queue).stdout
    assert json.loads(run("queues", "purge", queue, "--yes", "--json").stdout) == {"queue": queue, "result": "purged"}
    assert json.loads(run("queues", "info", queue, "--json").stdout)["messages"] == 0
    assert run("queues", "delete", queue, "--yes").stdout == f"queue {queue} deleted\n"
    gone = run("queues", "delete", queue, "--yes")
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert gone.stderr.startswith("vibemq: 127.0.0.1:") and f": there is no queue {queue} to delete" in gone.stderr
    assert "`vibemq queues list` shows all" in gone.stderr


@pytest.mark.parametrize("command", ["delete", "purge"])
def test_without_a_terminal_nothing_is_thrown_away_unless_told(run, queue, command):
    run("publish", queue, "1")
    refused = run("queues", command, queue)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "add --yes" in refused.stderr
    assert json.loads(run("queues", "info", queue, "--json").stdout)["messages"] == 1


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 0), (b"n\n", 2)], ids=["yes", "no"])
def test_at_a_terminal_one_is_asked_and_told_how_much_there_is(url, run, queue, answer, left):
    run("publish", queue, "1", "--count", "2")
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    command = [sys.executable, "-m", "vibemq.cli", "queues", "purge", queue, "--url", url]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    os.close(theirs)
    os.close(ours)
    assert f"Purge queue {queue} with 2 messages?" in done.stderr
    assert done.returncode == (0 if left == 0 else 1)
    assert json.loads(run("queues", "info", queue, "--json").stdout)["messages"] == left


def test_creating_says_whether_the_queue_was_there(run, queue):
    create = ("queues", "create", queue)
    assert run(*create).stdout == f"queue {queue} created\n"
    assert run(*create).stdout == f"queue {queue} was there already\n"
    otherwise = (*create, "--mode", "priority_based", "--on-conflict")
    kept = run(*otherwise, "ignore")
    assert kept.stdout == f"queue {queue} was there already\n"
    assert "is not as declared: mode is RoundRobin" in kept.stderr
    assert json.loads(run(*otherwise, "override", "--json").stdout)["result"] == "deleted and created again"


def test_making_a_queue_that_is_otherwise_is_an_error_unless_told(run, queue):
    run("queues", "create", queue)
    other = ("queues", "create", queue, "--mode", "priority_based")
    result = run(*other)
    assert result.exit_code == 1
    assert "mode is RoundRobin, declared PriorityBased" in result.stderr
    assert "`vibemq queues alter` changes options" in result.stderr
    assert run(*other, "--on-conflict", "ignore").exit_code == 0
    assert run(*other, "--on-conflict", "override").exit_code == 0
    assert json.loads(run("queues", "info", queue, "--json").stdout)["mode"] == "priority_based"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--mode", "priority_based"], "mode is RoundRobin, declared PriorityBased"),
        (["--max-messages", "3"], "max_messages is 2, declared 3"),
        (["--overflow", "drop_oldest"], "overflow is DropNewest, declared DropOldest"),
        (["--ttl", "1"], "message_ttl_ms is not set, declared 1000"),
        (["--attempts", "4"], "attempts_max is not set, declared 4"),
        (["--dead-letter"], "dead_letter is False, declared True"),
        (
            ["--dead-letter-queue", "letters"],
            "dead_letter is False, declared True; dead_letter_queue is not set, declared letters",
        ),
        (["--ack-timeout", "5"], "ack_timeout_ms is not set, declared 5000"),
        (["--prefetch", "7"], "prefetch is not set, declared 7"),
        (["--durability", "disk"], "durability is not set, declared disk"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_option_that_is_otherwise_is_told_alone_and_can_be_overridden(run, queue, arguments, told):
    run("queues", "create", queue, "--max-messages", "2", "--overflow", "drop_newest")
    other = ("queues", "create", queue, *arguments)
    refused = run(*other)
    assert refused.exit_code == 1
    assert f"queue {queue} is not as declared: {told}\n" in refused.stderr
    assert run(*other, "--on-conflict", "override").stdout == f"queue {queue} deleted and created again\n"
    assert run(*other).stdout == f"queue {queue} was there already\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "q", "1", "--file", "/dev/null"],
        ["publish", "q", "--count", "3"],
        ["publish", "q", "1", "--header", "k"],
        ["publish", "q", "1", "--password-stdin"],
        ["consume", "q", "--count", "0"],
        ["queues", "create", "q", "--overflow", "redirect_to_dlq"],
    ],
    ids=lambda arguments: " ".join(arguments[2:]),
)
def test_wrong_usage_is_exit_code_2(run, arguments):
    assert run(*arguments).exit_code == 2


def test_what_is_no_time_is_told_with_the_unit(run):
    assert "'abc' is not a valid number of seconds" in run("queues", "create", "q", "--ttl", "abc").stderr


def test_a_broker_that_is_not_there_is_one_line_and_a_hint(run):
    result = run("queues", "list", "--url", "vibemq://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("vibemq: 127.0.0.1:1: could not connect: ")
    assert "hint: Does the broker run" in result.stderr
    assert "A broker in maintenance takes no connection either: `vibemq ctl status`" in result.stderr


def test_a_password_is_never_asked_for_without_a_terminal(run):
    result = run("queues", "list", "--user", "ada")
    assert result.exit_code == 1
    assert "--password-stdin" in result.stderr


def test_a_password_may_be_the_first_line(run, queue):
    result = run("publish", queue, "--user", "ada", "--password-stdin", input="secret\n1\n2\n")
    assert result.stdout == f"published 2 messages to queue {queue}\n"


def test_a_password_is_for_the_user_in_the_url(url, run, queue):
    named = url.replace("vibemq://", "vibemq://bob@")
    result = run("publish", queue, "--url", named, "--password-stdin", input="secret\n1\n")
    assert result.stdout == f"published 1 message to queue {queue}\n"
    assert json.loads(run("consume", queue, "--json", "--drain").stdout)["payload"] == 1


def test_consuming_ends_at_once_when_nobody_reads_on(url, run, queue):
    run("publish", queue, "1")
    command = [sys.executable, "-m", "vibemq.cli", "consume", queue, "--url", url]
    consumer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True)
    try:
        assert consumer.stdout.readline() == "1\n"
        consumer.stdout.close()  # as head -1 does; no further message comes
        assert consumer.wait(60) == 0
        assert consumer.stderr.read() == ""
    finally:
        consumer.kill()
        consumer.wait()
        consumer.stderr.close()


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


def test_options_of_a_queue_are_altered_and_its_messages_stay(run, queue):
    assert run("queues", "create", queue, "--max-messages", "3").exit_code == 0
    assert run("publish", queue, "1", "--count", "3").exit_code == 0
    altered = run("queues", "alter", queue, "--max-messages", "9", "--ttl", "3600", "--no-dead-letter", "--json")
    assert json.loads(altered.stdout) == {"queue": queue, "result": "altered"}
    assert run("publish", queue, "2", "--count", "3").exit_code == 0
    info = json.loads(run("queues", "info", queue, "--json").stdout)
    wanted = {"messages": 6, "max_messages": 9, "message_ttl_ms": 3_600_000, "dropped": 0, "dead_letter_queue": None}
    assert {key: info[key] for key in wanted} == wanted
    assert run("queues", "alter", queue, "--reset", "max_messages", "--reset", "message_ttl_ms").exit_code == 0
    info = json.loads(run("queues", "info", queue, "--json").stdout)
    assert (info["max_messages"], info["message_ttl_ms"]) == (0, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no option to change was given"),
        (("--mode", "priority_based"), "the mode of a queue cannot change while it lives: make another queue"),
        (("--durability", "disk"), "the durability of a queue cannot change"),
        (("--max-messages", "1", "--reset", "max_messages"), "--reset max_messages contradicts"),
    ],
    ids=str,
)
def test_what_cannot_be_altered_is_refused_with_what_to_do(run, queue, options, said):
    refused = run("queues", "alter", queue, *options)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.replace("│", " ").split())


def test_a_queue_that_is_not_there_cannot_be_altered(run, queue):
    refused = run("queues", "alter", queue, "--attempts", "2")
    assert refused.exit_code == 1
    assert "QUEUE_NOT_FOUND" in refused.stderr


def test_a_table_in_a_pipe_cuts_no_name(run, queue):
    name = f"{queue}-{'long' * 40}"
    run("queues", "create", name, "--max-messages", "7")
    assert any(name in line for line in run("queues", "list").stdout.splitlines())
    assert any(name in line for line in run("queues", "info", name).stdout.splitlines())


def test_a_line_that_cannot_be_sent_ends_with_the_count_of_those_before_it(run, queue):
    long = "x" * 2_000_000
    result = run("publish", queue, input=f"one\ntwo\n{long}\nthree\n")
    assert result.exit_code == 1 and result.stdout == f"published 2 messages to queue {queue}\n"
    assert "at most 1048576 allowed" in result.stderr
    result = run("publish", queue, "--json", input='{"payload": 3}\nnonsense\n')
    assert result.exit_code == 1 and "line 2: needed an object" in result.stderr
    assert json.loads(result.stdout) == {"queue": queue, "published": 1, "failed": 0}
    assert run("consume", queue, "--drain").stdout.splitlines() == ['"one"', '"two"', "3"]


def test_a_refused_publish_says_how_many_are_stored(run, queue):
    run("queues", "create", queue, "--max-messages", "2", "--overflow", "drop_newest")
    result = run("publish", queue, input="one\ntwo\nthree\n")
    assert result.exit_code == 1 and result.stdout == f"published 2 messages to queue {queue}\n"
    assert "vibemq: 1 message refused, the first as follows" in result.stderr
