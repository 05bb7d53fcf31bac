# SPDX-License-Identifier: Apache-2.0
"""Commands whose standard streams are closed, full, or in an encoding that has few characters."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from running import ENVIRONMENT, SERVE, Running, broker, wait_until

from vibemq.cli.commands import main
from vibemq.cli.shell import contexts
from vibemq.client import connect
from vibemq.client.streams import StreamsConnection

NAME = "é→\U0001f600"
ENCODINGS = ("ascii", "iso-8859-1", "utf-8")
LEAVES = [
    context.command_path.split()[1:]
    for context in contexts(main, "vibemq")
    if not isinstance(context.command, click.Group)
]


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("streams") / "data"
    with broker(folder, workers=1) as started:
        with connect(f"vibemq://127.0.0.1:{started.native_port}") as client:
            client.publish("jobs", {"text": NAME})
        with StreamsConnection.connect("127.0.0.1", started.port) as client:
            client.create(NAME)
            with client.publisher(NAME) as publisher:
                publisher.publish([b"one"])
        yield started


@pytest.fixture(scope="module")
def where(running, tmp_path_factory) -> Callable[[str], list[str]]:
    """The words of a command, with the options by which it finds the broker."""
    folder = Path(f"/proc/{running.process.pid}/fd")
    data = next(str(path.parent) for path in map(Path.readlink, folder.iterdir()) if path.name == "lock")
    queues = ["--url", f"vibemq://127.0.0.1:{running.native_port}"]
    streams = ["--url", f"rabbitmq-stream://127.0.0.1:{running.port}"]
    options = {"streams": streams, "queues": queues, "publish": queues, "consume": queues}

    def words(command: str) -> list[str]:
        found = [NAME if word == "NAME" else word for word in command.split()]
        return [*found, *options.get(found[0], ["--data-dir", data])]

    return words


def call(*words: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess:
    """``shell``: redirections, as a shell writes them."""
    script = f'exec "$@" {shell}'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "vibemq.cli", *words]
    return subprocess.run(command, capture_output=True, env=ENVIRONMENT | environment, timeout=60)


# ---- no room, or nobody there ----


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_help_into_a_full_disk_is_an_error_in_one_line(words):
    done = call(*words, "--help", shell=">/dev/full")
    assert (done.returncode, done.stderr) == (1, b"vibemq: cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize(
    "words",
    [
        "queues list", "queues info jobs --json", "streams list --all", "streams tail NAME --from first",
        "publish jobs 1", "consume jobs --count 1", "ctl list_queues", "ctl status --formatter json", "users list",
    ],
)  # fmt: skip
def test_an_answer_into_a_full_disk_is_an_error_in_one_line(where, words):
    done = call(*where(words), shell=">/dev/full")
    assert (done.returncode, done.stderr) == (1, b"vibemq: cannot write to standard output: No space left on device\n")


def test_a_message_that_could_not_be_printed_stays_in_the_queue(running, where):
    with connect(f"vibemq://127.0.0.1:{running.native_port}") as client:
        client.publish("kept", 1)
        for shell in (">/dev/full", ">&-"):
            assert call(*where("consume kept --count 1"), shell=shell).returncode == 1
        assert client.queue_info("kept").messages == 1


def test_a_full_standard_error_leaves_the_exit_code():
    assert call("--version", shell=">/dev/full 2>/dev/full").returncode == 1
    assert call("log", "list", "--data-dir", "/nonexistent", shell="2>/dev/full").returncode == 1
    assert call("nonsense", shell="2>/dev/full").returncode == 2


# ---- closed ----


def test_a_closed_standard_stream_is_an_error_where_it_is_needed(tmp_path):
    done = call("config", shell=">&-")
    assert (done.returncode, done.stderr) == (1, b"vibemq: cannot write to standard output: Bad file descriptor\n")
    words = ["users", "add", "u", "--password-stdin", "--data-dir", str(tmp_path / "data")]
    done = call(*words, shell="<&-")
    assert (done.returncode, done.stderr) == (1, b"vibemq: cannot read standard input: Bad file descriptor\n")
    assert call("log", "list", "--data-dir", "/nonexistent", shell="<&- >&- 2>&-").returncode == 1


def test_closed_standard_streams_of_a_broker_are_no_other_file_in_any_process(tmp_path):
    data = tmp_path / "data"
    words = [*SERVE, "--workers", "2", "--data-dir", str(data)]
    process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], env=ENVIRONMENT)
    try:
        ready = ["ctl", "list_queues", "--formatter", "json", "--data-dir", str(data)]
        wait_until(lambda: (data / "ctl.sock").exists() and call(*ready).returncode == 0, "an answer")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 3, "two workers and the admin process"
        found = {os.readlink(f"/proc/{pid}/fd/{fd}") for pid in (process.pid, *children) for fd in range(3)}
        assert found == {os.devnull}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


# ---- few characters ----


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("words", ["streams list", "streams info NAME", "ctl list_queues", "log list"])
def test_a_name_is_shown_in_any_encoding(where, encoding, words):
    done = call(*where(words), PYTHONIOENCODING=encoding, COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, b"")
    written = "utf-8" if encoding == "ascii" else encoding
    shown = {"utf-8": NAME, "iso-8859-1": r"é\u2192\ud83d\ude00", "ascii": NAME}
    assert shown[encoding] in done.stdout.decode(written)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_lines_of_json_stay_json_in_any_encoding_and_are_published_again(running, where, encoding):
    queue = f"again-{encoding}"
    with connect(f"vibemq://127.0.0.1:{running.native_port}") as client:
        client.publish(queue, {"text": NAME})
        said = call(*where(f"consume {queue} --count 1 --json"), PYTHONIOENCODING=encoding)
        line = json.loads(said.stdout.decode("utf-8" if encoding == "ascii" else encoding))
        assert line["payload"] == {"text": NAME}
        del line["stored"]
        done = subprocess.run(
            [sys.executable, "-m", "vibemq.cli", *where(f"publish {queue} --json")],
            input=json.dumps(line, ensure_ascii=False).encode(), capture_output=True, timeout=60,
            env=ENVIRONMENT | {"PYTHONIOENCODING": "utf-8" if encoding == "iso-8859-1" else encoding},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        with client.consume(queue, timeout_s=60) as consumer:
            assert next(consumer).payload == {"text": NAME}
