# SPDX-License-Identifier: Apache-2.0
"""``vibemq streams``, as a shell sees it, against a broker."""

import contextlib
import itertools
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT, Running, broker, restartable, wait_until

from vibemq.access.users import add_user
from vibemq.cli.commands import main
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.spec import ExtensionKey
from vibemq.storage.metadata import Metadata

names = (f"shell-{number}" for number in itertools.count())
PATIENCE_S = 60


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("cli-streams") / "data", workers=1) as running:
        yield running


@pytest.fixture(scope="module")
def url(running) -> str:
    return f"vibemq://127.0.0.1:{running.native_port}/?streamsPort={running.port}"


@pytest.fixture
def run(url, monkeypatch):
    monkeypatch.setenv("VIBEMQ_URL", url)
    return lambda *arguments, **options: CliRunner().invoke(main, arguments, prog_name="vibemq", **options)


@pytest.fixture
def streams(run):
    return lambda *arguments, **options: run("streams", *arguments, **options)


@pytest.fixture
def stream(streams) -> str:
    name = next(names)
    assert streams("create", name).exit_code == 0
    return name


@pytest.fixture
def process(url):
    """A command as a process of its own, which ends with the test."""
    started = []

    def start(*arguments, **options):
        command = [sys.executable, "-m", "vibemq.cli", "streams", *arguments]
        environment = ENVIRONMENT | {"VIBEMQ_URL": url}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()
        for pipe in filter(None, (each.stdin, each.stdout, each.stderr)):
            pipe.close()


def described(streams, name):
    return json.loads(streams("info", name, "--json").stdout)


# ---- one way to name a broker ----


def test_the_url_of_queues_and_that_of_stream_clients_name_the_same_broker(run, running, stream):
    run("streams", "publish", stream, "here")
    for where in (
        ("--url", f"rabbitmq-stream://guest:guest@127.0.0.1:{running.port}"),
        ("--url", f"rabbitmq-stream://127.0.0.1:{running.port}/%2f"),
        ("--url", "vibemq://127.0.0.1", "--port", str(running.port)),
        ("--url", "vibemq://guest:guest@nowhere.invalid", "--host", "127.0.0.1", "--port", str(running.port)),
    ):
        assert run("streams", "tail", stream, *where).stdout == "here\n", where
    assert run("queues", "list").exit_code == 0  # by the same VIBEMQ_URL


def test_a_user_is_asked_for_the_password(running, streams):
    where = ("--url", f"rabbitmq-stream://guest@127.0.0.1:{running.port}")
    assert streams("list", *where, "--password-stdin", input="guest\n").exit_code == 0
    assert streams("list", "--user", "guest", "--password-stdin", input="guest\n").exit_code == 0
    refused = streams("list", *where)
    assert (refused.exit_code, refused.stderr.splitlines()) == (
        1,
        ["vibemq: there is no terminal to ask for the password", "  hint: pipe it in, with --password-stdin"],
    )
    assert "--password-stdin needs --user" in streams("list", "--password-stdin").stderr


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        (("--port", "1"), "127.0.0.1:1: could not connect: Connection refused", "is this its streams port"),
        (("--vhost", "sales"), "opening virtual host 'sales' as user 'guest'", "vibemq ctl add_vhost sales"),
        (("--url", "amqp://127.0.0.1"), "needed vibemq://..., had amqp://", "Did you mean vibemq://127.0.0.1?"),
        (("--url", "rabbitmq-stream://"), "there is no host in it", "rabbitmq-stream://localhost:5552"),
        (("--url", "rabbitmq-stream://h/?tls=true"), "had options", "Only vibemq:// has options"),
        (("--url", "rabbitmq-stream://h:x"), "connection string: Port", "rabbitmq-stream://localhost:5552"),
        (("--tls", "--ca-file", "/nowhere.pem"), "--ca-file /nowhere.pem: No such file", "as PEM"),
    ],
)
def test_what_does_not_connect_is_told_with_a_remedy(streams, arguments, what, remedy):
    result = streams("list", *arguments)
    assert result.exit_code == 1
    assert what in result.stderr and remedy in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_password_is_told_without_it(running, streams):
    result = streams("list", "--url", f"rabbitmq-stream://guest:sesame@127.0.0.1:{running.port}")
    assert result.exit_code == 1
    assert "logging in as 'guest'" in result.stderr and "hint: Check user name and password." in result.stderr
    assert "sesame" not in result.output


def test_what_a_user_may_not_do_is_told_with_the_user_the_right_and_a_remedy(tmp_path, run):
    with broker(tmp_path / "data", workers=1) as running:
        with contextlib.closing(Metadata(str(tmp_path / "data" / "meta.db"))) as metadata:
            add_user(metadata, "ann", "correct horse", is_superuser=False)
            metadata.set_permissions("/", "ann", "^mine", "^mine", "^(mine|yours)")
        ann = ("--url", f"rabbitmq-stream://ann:correct%20horse@127.0.0.1:{running.port}")
        where = ("--url", f"rabbitmq-stream://127.0.0.1:{running.port}")
        for name in ("mine", "yours", "theirs"):
            assert run("streams", "create", name, *where).exit_code == 0
        assert [each["name"] for each in json.loads(run("streams", "list", "--json", *ann).stdout)] == ["mine", "yours"]
        for right, words in (
            ("configure", ("create", "other")),
            ("configure", ("delete", "yours", "--yes")),
            ("write", ("publish", "yours", "x")),
            ("read", ("tail", "theirs")),
            ("read", ("offsets", "theirs")),
        ):
            refused = run("streams", *words, *ann)
            assert refused.exit_code == 1
            assert "ACCESS_REFUSED" in refused.stderr
            needed = f"User 'ann' needs the permission to {right} it in virtual host '/': `vibemq ctl set_permissions"
            assert needed in refused.stderr, words


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_it_speaks_tls(tmp_path, run, monkeypatch):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj"]
    command += ["/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out"]
    subprocess.run([*command, str(certificate)], check=True, capture_output=True)
    flags = ("--set", f"tls.certificate={certificate}", "--set", f"tls.key={key}", "--set", "streams.tls_port=0")
    with broker(tmp_path / "data", *flags, "--set", "signalr.tls_port=0", workers=1) as running:
        where = ("--host", "localhost", "--port", str(running.tls_port))
        trusted = (*where, "--tls", "--ca-file", str(certificate))
        assert run("streams", "create", "safe", *trusted).stdout == "stream safe created\n"
        by_url = ("--url", f"rabbitmq-stream+tls://localhost:{running.tls_port}", "--ca-file", str(certificate))
        assert described(lambda *words: run("streams", *words, *by_url), "safe")["messages"] == 0
        careless = f"vibemq://localhost/?streamsPort={running.tls_port}&tls=true&skipCertValidation=true"
        assert run("streams", "list", "--url", careless).exit_code == 0
        stranger = run("streams", "list", *where, "--tls")
        assert stranger.exit_code == 1 and "the TLS handshake failed" in stranger.stderr
        assert "--ca-file" in stranger.stderr
    assert "add --tls" in run("streams", "list", "--ca-file", str(certificate)).stderr


# ---- create, list, info, delete ----


def test_a_stream_is_made_described_listed_and_deleted(streams):
    name = next(names)
    arguments = ("--max-age", "12h", "--max-length-bytes", "20GB", "--segment-size", "64MiB", "--durability", "disk")
    assert streams("create", name, *arguments).stdout == f"stream {name} created\n"
    assert described(streams, name) == {
        "name": name,
        "kind": "stream",
        "first_offset": None,
        "last_offset": None,
        "messages": 0,
        "segments": 1,
        "size_bytes": described(streams, name)["size_bytes"],
        "arguments": {
            "max-age": "12h",
            "max-length-bytes": "20000000000",
            "stream-max-segment-size-bytes": str(64 << 20),
            "durability": "disk",
        },
    }
    streams("publish", name, "a", "b", "c")
    seen = described(streams, name)
    assert (seen["first_offset"], seen["last_offset"], seen["messages"]) == (0, 2, 3)
    assert seen["size_bytes"] > 0
    assert "max-age=12h" in streams("info", name).stdout
    assert seen in json.loads(streams("list", "--json").stdout)
    assert name in streams("list").stdout
    assert json.loads(streams("delete", name, "--yes", "--json").stdout) == {"stream": name, "result": "deleted"}
    gone = streams("info", name)
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert "STREAM_DOES_NOT_EXIST" in gone.stderr and "vibemq streams create NAME" in gone.stderr
    assert streams("delete", name, "--yes").exit_code == 1


def test_a_stream_that_is_there_is_left_alone(streams):
    name = next(names)
    streams("create", name, "--max-age", "1h")
    assert streams("create", name, "--max-age", "1h").stdout == f"stream {name} was there already\n"
    other = streams("create", name, "--max-age", "2h")
    assert other.exit_code == 1
    assert f"stream {name} is there already, with other arguments: it has max-age=1h" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--max-age", "12"), "one of Y M D h m s is needed"),
        (("--max-length-bytes", "20XB"), "such as 1000000, 20GB or 512MiB"),
        (("--argument", "max-age"), "NAME=VALUE is needed"),
    ],
)
def test_arguments_are_checked_before_they_are_sent(streams, arguments, why):
    result = streams("create", next(names), *arguments)
    assert result.exit_code == 2 and why in result.stderr


def test_a_queue_is_shown_when_asked_for_and_never_deleted_here(run, streams):
    queue = next(names)
    run("queues", "create", queue)
    assert queue not in [each["name"] for each in json.loads(streams("list", "--json").stdout)]
    (shown,) = [each for each in json.loads(streams("list", "--all", "--json").stdout) if each["name"] == queue]
    assert shown["kind"] == "queue"
    refused = streams("delete", queue, "--yes")
    assert refused.exit_code == 1 and "`vibemq queues delete`" in refused.stderr
    assert f"{queue} is a queue" in streams("create", queue, "--max-age", "1h").stderr
    assert run("queues", "info", queue).exit_code == 0


def test_more_streams_than_one_answer_holds_are_all_listed(running):
    wanted = [f"many-{number:04}" for number in range(600)]
    with StreamsConnection.connect(running.host, running.port) as client:
        client.request(0x1D, name="many", partitions=wanted, binding_keys=wanted)
        assert [each.name for each in client.list_streams("many-")][:600] == wanted
        client.request(0x1E, name="many")
        assert not [each for each in client.list_streams("many-") if each.name in wanted]


@pytest.mark.parametrize("frame_max", [200_000, 1 << 20])
def test_a_listing_of_large_arguments_is_in_answers_that_the_peer_takes(running, frame_max):
    wanted = {f"large-{number:02}": {f"x-{key}": "é" * 16_000 for key in range(3)} for number in range(12)}
    with StreamsConnection.connect(running.host, running.port, frame_max=frame_max) as client:
        for name, arguments in wanted.items():
            client.create(name, arguments)
        seen, first = {}, "large-"
        while page := client.request(ExtensionKey.LIST_STREAMS, first=first, count=256).streams:
            large = [each for each in page if each.name in wanted]
            assert sum(2 * len(value) for each in large for value in each.arguments.values()) < min(frame_max, 1 << 19)
            seen |= {each.name: each.arguments for each in large}
            first = page[-1].name + "\0"
        assert seen == wanted
        for name in wanted:
            client.delete(name)


def test_a_stream_larger_than_an_answer_is_listed_alone(running):
    wanted = {"huge-0": {}, "huge-1": {f"x-{key}": "v" * 30_000 for key in range(3)}, "huge-2": {}}
    with StreamsConnection.connect(running.host, running.port) as client:
        for name, arguments in wanted.items():
            client.create(name, arguments)
    with StreamsConnection.connect(running.host, running.port, frame_max=65_536) as client:
        listed = {each.name: each.arguments for each in client.list_streams("huge-")}
        assert {name: listed[name] for name in wanted} == wanted
        for name in wanted:
            client.delete(name)


def test_deleting_asks_at_a_terminal_and_needs_yes_without_one(streams, stream, process):
    streams("publish", stream, "a", "b")
    refused = streams("delete", stream)
    assert refused.exit_code == 2 and "add --yes" in refused.stderr
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    asked = process("delete", stream, stdin=theirs, stderr=subprocess.PIPE)
    _, said = asked.communicate(timeout=PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    assert f"Delete stream {stream} with 2 messages?" in said and asked.returncode == 1
    assert described(streams, stream)["messages"] == 2


# ---- publish ----


def test_arguments_lines_and_files_are_messages(streams, stream, tmp_path):
    assert streams("publish", stream, "one", "two words").stdout == f"published 2 messages to stream {stream}\n"
    assert json.loads(streams("publish", stream, "--json", input="three\r\n\nfour").stdout) == {
        "stream": stream,
        "published": 2,
        "failed": 0,
    }
    (tmp_path / "lines").write_bytes(b"five\n\xff\n")
    streams("publish", stream, "--file", str(tmp_path / "lines"))
    assert streams("tail", stream, "--from", "first").stdout == "one\ntwo words\nthree\nfour\nfive\n\ufffd\n"


def test_the_password_may_be_the_first_line(running, streams, stream):
    result = streams("publish", stream, "--user", "guest", "--password-stdin", input="guest\none\ntwo\n")
    assert result.stdout == f"published 2 messages to stream {stream}\n"
    assert streams("tail", stream, "--from", "first").stdout == "one\ntwo\n"


def test_messages_are_those_of_stream_clients_unless_told(running, streams, stream):
    streams("publish", stream, "amqp")
    streams("publish", stream, "bytes", "--raw")
    with StreamsConnection.connect(running.host, running.port) as client:
        stored = [message for chunk in client.read_chunks(stream, 0) for _, message in chunk.messages()]
    assert stored == [b"\0Su\xa0\x04amqp", b"bytes"]


def test_a_line_is_published_when_it_is_there_and_an_interrupt_tells_the_count(streams, stream, process):
    heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    tail = process("tail", stream, "--follow", "--from", "first", **heeding)
    publisher = process("publish", stream, stdin=subprocess.PIPE, **heeding)
    for line in ("one\n", "two\n"):
        publisher.stdin.write(line)
        publisher.stdin.flush()
        assert tail.stdout.readline() == line
    publisher.send_signal(signal.SIGINT)
    stdout, _ = publisher.communicate(timeout=PATIENCE_S)
    assert (publisher.returncode, stdout) == (130, f"published 2 messages to stream {stream}\n")
    tail.send_signal(signal.SIGINT)
    assert tail.wait(PATIENCE_S) == 130


def test_publishing_to_no_stream_says_so(streams):
    result = streams("publish", "nothing", "x")
    assert result.exit_code == 1 and "STREAM_DOES_NOT_EXIST" in result.stderr
    assert "published" not in result.stdout


# ---- tail ----


@pytest.fixture
def ten(running, stream) -> str:
    with StreamsConnection.connect(running.host, running.port) as client, client.publisher(stream) as publisher:
        publisher.publish([b"%d" % number for number in range(5)])
        publisher.flush()  # two chunks
        publisher.publish([b"%d" % number for number in range(5, 10)])
    return stream


def lines(result):
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def test_tail_begins_where_it_is_told(streams, ten):
    numbers = [str(number) for number in range(10)]
    assert lines(streams("tail", ten)) == numbers[5:]
    assert lines(streams("tail", ten, "--from", "first")) == numbers
    assert lines(streams("tail", ten, "--from", "7")) == numbers[7:]
    assert lines(streams("tail", ten, "--from", "3", "--count", "4")) == numbers[3:7]
    assert lines(streams("tail", ten, "--from", "1h")) == numbers
    assert lines(streams("tail", ten, "--from", "2020-01-31T12:00:00Z")) == numbers
    for nothing in ("10", "1000", "2999-01-01"):
        assert lines(streams("tail", ten, "--from", nothing)) == []
    wrong = streams("tail", ten, "--from", "yesterday")
    assert wrong.exit_code == 2 and "none of first, last, next, an offset, a time" in wrong.stderr


def test_an_empty_stream_has_nothing_to_print(streams, stream):
    for where in ("first", "last", "0", "1h"):
        assert lines(streams("tail", stream, "--from", where)) == []


def test_json_shows_all_of_a_message(run, streams, running, stream):
    queue = next(names)
    run("publish", queue, '{"a": 1}', "--header", "k=v")
    shown = json.loads(streams("tail", queue, "--json").stdout)
    assert (shown["offset"], shown["body"], shown["headers"]["k"]) == (0, '{"a": 1}', "v")
    assert len(shown["id"]) == 32
    when = datetime.fromisoformat(shown["timestamp"])
    assert when.tzinfo is UTC and abs((datetime.now(UTC) - when).total_seconds()) < 3600
    with StreamsConnection.connect(running.host, running.port) as client, client.publisher(stream) as publisher:
        publisher.publish([b"\xff\0"])
    assert json.loads(streams("tail", stream, "--json").stdout)["body_base64"] == "/wA="


def test_next_waits_for_what_comes(streams, ten, process):
    tail = process("tail", ten, "--from", "next", "--count", "1", "--json")
    while tail.poll() is None:  # until it is there to hear one
        streams("publish", ten, "news")
    assert json.loads(tail.stdout.read())["body"] == "news"
    assert tail.returncode == 0


def test_a_reader_that_goes_ends_it_at_once(ten, process):
    tail = process("tail", ten, "--from", "first", "--follow")
    assert tail.stdout.readline() == "0\n"
    tail.stdout.close()  # nothing more is published
    assert tail.wait(PATIENCE_S) is not None


def test_a_stream_that_is_deleted_ends_it_with_the_reason(running, ten, process):
    tail = process("tail", ten, "--from", "first", "--follow", stderr=subprocess.PIPE)
    for number in range(10):
        assert tail.stdout.readline() == f"{number}\n"
    with StreamsConnection.connect(running.host, running.port) as client:
        client.delete(ten)
    _, said = tail.communicate(timeout=PATIENCE_S)
    assert tail.returncode == 1 and "the broker announced STREAM_NOT_AVAILABLE" in said


# ---- stored offsets ----


def test_stored_offsets_are_shown_with_their_lag(running, streams, ten):
    assert "no consumer has stored an offset" in streams("offsets", ten).stdout
    with StreamsConnection.connect(running.host, running.port) as client:
        client.store_offset("billing", ten, 4)
        client.store_offset("audit", ten, 9)
        assert client.query_offset("audit", ten) == 9
    billing, audit = {"consumer": "billing", "offset": 4, "lag": 5}, {"consumer": "audit", "offset": 9, "lag": 0}
    assert json.loads(streams("offsets", ten, "--json").stdout) == [audit, billing]
    nobody = {"consumer": "nobody", "offset": None, "lag": None}
    assert json.loads(streams("offsets", ten, "nobody", "billing", "--json").stdout) == [nobody, billing]
    shown = streams("offsets", ten, "billing", "nobody").stdout
    assert re.search(r"billing\s*│\s*4\s*│\s*5", shown) and "none" in shown


@pytest.mark.parametrize("named", [False, True], ids=["without a name", "with a name"])
def test_a_pipe_into_a_stream_survives_a_restart(tmp_path, named):
    """Lines that were written while there was no broker are there, in their order; with a name each is there once."""
    with restartable(tmp_path / "data") as broker:
        port = broker.running.port
        where = ["--host", "127.0.0.1", "--port", str(port)]
        invoke = CliRunner().invoke
        assert invoke(main, ["streams", "create", "orders", *where]).exit_code == 0
        command = [sys.executable, "-m", "vibemq", "streams", "publish", "orders", *where]
        command += ["--name", "shipper"] if named else []
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=ENVIRONMENT) as piped:  # fmt: skip
            piped.stdin.write(b"".join(b"%d\n" % number for number in range(1000)))
            piped.stdin.flush()
            with StreamsConnection.connect("127.0.0.1", port) as client:
                wait_until(lambda: client.next_offset("orders") == 1000, "the first lines")
            broker.stop()
            piped.stdin.write(b"".join(b"%d\n" % number for number in range(1000, 2000)))
            piped.stdin.flush()
            broker.restart()
            out, said = piped.communicate(timeout=PATIENCE_S)
        assert piped.returncode == 0, said
        assert out == b"published 2000 messages to stream orders\n"
        assert b"connecting again" in said
        tail = invoke(main, ["streams", "tail", "orders", "--from", "first", *where])
        numbers = [int(line) for line in tail.stdout.splitlines()]
        assert list(dict.fromkeys(numbers)) == list(range(2000))
        if named:
            assert len(numbers) == 2000


def test_a_broker_that_stays_away_ends_a_pipe_with_the_count(tmp_path):
    with restartable(tmp_path / "data") as broker:
        where = ["--host", "127.0.0.1", "--port", str(broker.running.port)]
        assert CliRunner().invoke(main, ["streams", "create", "orders", *where]).exit_code == 0
        command = [sys.executable, "-m", "vibemq", "streams", "publish", "orders", "--wait", "1ms", "--json", *where]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=ENVIRONMENT) as piped:  # fmt: skip
            piped.stdin.write(b"one\n")
            piped.stdin.flush()
            with StreamsConnection.connect("127.0.0.1", broker.running.port) as client:
                wait_until(lambda: client.next_offset("orders") == 1, "the first line")
            broker.stop()
            out, said = piped.communicate(b"two\n", timeout=PATIENCE_S)
        assert piped.returncode == 1 and b"vibemq: 127.0.0.1:" in said
        assert json.loads(out)["published"] + json.loads(out)["failed"] == 2
