# SPDX-License-Identifier: Apache-2.0
"""The queue load generator: that it counts right at every server, and notices what a server does wrong."""

import itertools
import json
import socket
import struct

import pytest
from benchmarks.peers._peers import (
    AmqpConsumer,
    AmqpPublisher,
    EchoPublisher,
    NatsConsumer,
    NatsPublisher,
    RedisConsumer,
    RedisPublisher,
)
from click.testing import CliRunner
from flow_threads import SIZE, join, load_of, patched, read, run_thread, socket_pair
from peers.native import error_frame, publish_ack_frame

from benchmarks import compare, micromsg2, queues, signalr
from benchmarks.__main__ import main as bench
from benchmarks.peers import PEERS, run
from benchmarks.peers.others import amqp_frame, amqp_method, resp_word, short
from vibemq.bench._ends import NativeConsumer, NativePublisher
from vibemq.bench._flow import NUMBER_MARK, QUEUE_MARK, STAMP_MARK, Tally, body
from vibemq.bench.cli import bench as users_bench
from vibemq.bench.queues import Native, QueueLoad
from vibemq.errors import TimeoutExceeded, UserError, VibeMQError
from vibemq.protocols.native import codec
from vibemq.protocols.native.spec import Command

SERVERS = {kind.name: kind for kind in queues.SERVERS}

# ---- real servers ----


@pytest.fixture(scope="module", params=["null", "vibemq", "nats", "redis", "rabbitmq"])
def server(request, tmp_path_factory):
    kind = SERVERS[request.param]
    if why := kind.missing():
        pytest.skip(why)
    running = kind(tmp_path_factory.mktemp(request.param)).start()
    yield running
    running.stop()


def load(server, kind=QueueLoad, **options):
    return load_of(server, kind, **{"window": 500, "group": 100, "prefetch": 300, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "pub"},
        {"mode": "pub", "verify": False, "size_bytes": 300},
        {"mode": "both"},
        {"mode": "both", "verify": False},
        {"mode": "rtt", "messages": 50, "window": 1, "group": 1},
        {"mode": "lat", "rate": 5_000.0, "messages": 1_000},
    ],
    ids=str,
)
def test_a_run_counts_everything(server, options):
    asked = load(server, **options)
    result = run(asked)
    assert (result.sent, result.confirmed) == (asked.messages, asked.messages)
    assert result.consumed == (asked.messages if asked.consumes else 0)
    figures = result.figures()
    assert figures["publish_msg_s"] > 0
    assert ("latency_us" in figures, "confirm_us" in figures) == (asked.mode == "lat", asked.mode in ("rtt", "lat"))
    json.dumps(figures)


@pytest.mark.parametrize("server", ["vibemq", "nats", "redis", "rabbitmq"], indirect=True)
def test_several_ends_share_a_queue(server):
    result = run(load(server, publishers=2, consumers=3))
    assert (result.confirmed, result.consumed, result.repeated) == (2_000, 2_000, 0)


@pytest.mark.parametrize("server", ["vibemq", "nats", "redis", "rabbitmq"], indirect=True)
def test_a_kept_queue_is_consumed_later(server):
    run(load(server, mode="pub", keep=True))
    assert run(load(server, mode="con")).consumed == 2_000


@pytest.mark.parametrize("server", ["vibemq"], indirect=True)
def test_many_queues_get_their_messages_in_turn(server):
    seen = []
    result = run(load(server, queues=20, consumers=3, broker_pid=server.pid), look=lambda: seen.append(1))
    assert (result.consumed, seen) == (2_000, [1])
    assert result.figures()["queues"] == 20


def test_a_bare_round_trip_is_timed(tmp_path):
    running = SERVERS["echo"](tmp_path / "echo").start()
    try:
        asked = load(running, mode="rtt", messages=50, window=1, group=1, apart=True, broker_pid=running.pid)
        assert run(asked).figures()["confirm_us"]["p50"] > 0
    finally:
        running.stop()


# ---- frames as they go out ----


def test_marks_become_numbers_times_and_queues(pair):
    ours, theirs = pair
    first, total = 0xFFFFFF00 - 3, 7
    frame = b"[" + NUMBER_MARK + b"|" + STAMP_MARK + b"|" + QUEUE_MARK + b"|" + NUMBER_MARK + b"]"
    publisher = EchoPublisher(
        connection=ours, frame=frame, total=total, first=first, window=3, group=2, queues=5, reply_size=1
    )
    thread, stamps = run_thread(publisher), []
    for number in range(first, first + total):
        one, stamp, queue, again = read(theirs, len(frame)).strip(b"[]").split(b"|")
        assert one == again == b"%08x" % number
        assert queue == b"%08x" % (number % 5)
        stamps.append(int(stamp, 16))
        theirs.sendall(b"!")
    join(thread)
    assert stamps == sorted(stamps) and publisher.confirmed == total and publisher.fault == ""


@pytest.mark.parametrize("size", [55, 56, 100, 5_000])
def test_a_body_is_json_of_its_size(size):
    text = body(size)
    assert len(text) == size and json.loads(text)["number"] == NUMBER_MARK.decode()


# ---- answers, cut at every byte ----


def native_id(number):
    return f"{'0' * 24}{number:08x}"


def native_deliver(number):
    return codec.encode_frame(Command.DELIVER, native_id(number), queue="q", payload=patched(number))


def native_ack(number):
    return publish_ack_frame(native_id(number).encode(), b"q")


def nats_message(subject, reply, payload):
    return b"MSG %s 1 %s%d\r\n%s\r\n" % (subject, reply and reply + b" ", len(payload), payload)


def redis_entries(numbers):
    entries = [b"*2\r\n" + resp_word(f"{n}-0") + b"*2\r\n" + resp_word("d") + resp_word(patched(n)) for n in numbers]
    return b"*1\r\n*2\r\n" + resp_word("q") + b"*%d\r\n" % len(entries) + b"".join(entries)


def amqp_deliver(number):
    arguments = short("ctag") + struct.pack(">QB", number + 1, 0) + short("") + short("q")
    header = struct.pack(">HHQHB", 60, 0, SIZE, 0x1000, 2)
    return amqp_method(1, (60, 60), arguments) + amqp_frame(2, 1, header) + amqp_frame(3, 1, patched(number))


def amqp_ack(tag, multiple):
    return amqp_method(1, (60, 80), struct.pack(">QB", tag, multiple))


AMQP_ACK = amqp_ack(0, 0)
REDIS = {"read": b"<read>", "ack": b"<ack>", "ack_words": 3}
CONSUMED = {
    "native": (
        NativeConsumer,
        {},
        b"".join(map(native_deliver, range(3))),
        b"".join(codec.encode_frame(Command.ACK, native_id(n)) for n in range(3)),
    ),
    "nats": (
        NatsConsumer,
        {},
        b"PING\r\n" + b"".join(nats_message(b"q.out", b"$JS.ACK.%d" % n, patched(n)) for n in range(3)),
        b"".join(b"PUB $JS.ACK.%d 4\r\n+ACK\r\n" % n for n in range(3)),
    ),
    "redis": (
        RedisConsumer,
        REDIS,
        redis_entries([0, 1]) + b":2\r\n*-1\r\n" + redis_entries([2]),
        b"<read>*5\r\n<ack>" + resp_word("0-0") + resp_word("1-0") + b"<read><read>*4\r\n<ack>"
        b"" + resp_word("2-0") + b"<read>",
    ),
    "amqp": (
        AmqpConsumer,
        {"ack": AMQP_ACK},
        amqp_frame(8, 0, b"") + b"".join(map(amqp_deliver, range(3))),
        b"".join(amqp_ack(n + 1, 0) for n in range(3)),
    ),
}
CONFIRMED = {
    "native": (NativePublisher, b"".join(map(native_ack, [1, 0, 2]))),
    "nats": (
        NatsPublisher,
        b"PING\r\n"
        + b"".join(nats_message(b"_INBOX.p.%08x" % n, b"", b'{"stream":"Q","seq":%d}' % n) for n in range(3)),
    ),
    "redis": (RedisPublisher, b"".join(resp_word(f"{n}-0") for n in range(3))),
    "amqp": (AmqpPublisher, amqp_frame(8, 0, b"") + amqp_ack(2, 0) + amqp_ack(3, 1)),
    "amqp singly": (AmqpPublisher, amqp_ack(3, 0) + amqp_ack(1, 0) + amqp_ack(2, 0)),
}


@pytest.mark.parametrize("name", CONSUMED)
def test_a_consumer_takes_deliveries_cut_anywhere(name):
    kind, options, deliveries, answers = CONSUMED[name]
    for cut in range(len(deliveries) + 1):
        with socket_pair() as (ours, theirs):
            tally = Tally(3)
            consumer = kind(connection=ours, early=deliveries[:cut], wanted=3, tally=tally, timed=True, **options)
            thread = run_thread(consumer)
            theirs.sendall(deliveries[cut:])
            assert read(theirs, len(answers)) == answers, f"cut at {cut}"
            join(thread)
            found = (consumer.received, tally.missing, tally.repeated, tally.strange, consumer.disordered)
            assert (found, consumer.fault) == ((3, 0, 0, 0, 0), ""), f"cut at {cut}"


@pytest.mark.parametrize("name", CONFIRMED)
@pytest.mark.parametrize("verify", [False, True])
def test_a_publisher_takes_acks_cut_anywhere(name, verify):
    kind, acks = CONFIRMED[name]
    for cut in range(len(acks) + 1):
        with socket_pair() as (ours, theirs):
            publisher = kind(connection=ours, frame=b"x", total=3, window=3, group=3, verify=verify)
            thread = run_thread(publisher)
            assert read(theirs, 3) == b"xxx"
            theirs.sendall(acks[:cut])
            theirs.sendall(acks[cut:])
            join(thread)
            assert (publisher.confirmed, publisher.strange, publisher.fault) == (3, 0, ""), f"cut at {cut}"


# ---- what servers do wrong ----


def consume(pair, numbers, wanted):
    ours, theirs = pair
    tally = Tally(wanted)
    consumer = NativeConsumer(connection=ours, wanted=len(numbers), tally=tally)
    thread = run_thread(consumer)
    theirs.sendall(b"".join(map(native_deliver, numbers)))
    join(thread)
    return tally.missing, tally.repeated, tally.strange, consumer.disordered


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([0, 1, 2], (0, 0, 0, 0)),
        ([0, 2], (1, 0, 0, 0)),
        ([0, 1, 1, 2], (0, 1, 0, 1)),
        ([1, 0, 2], (0, 0, 0, 1)),
        ([0, 1, 2, 77], (0, 0, 1, 0)),
    ],
    ids=["right", "one is lost", "one comes again", "two change places", "one is nobody's"],
)
def test_a_tally_tells_what_came(pair, numbers, found):
    assert consume(pair, numbers, 3) == found


def publish(pair, kind, answers, **options):
    ours, theirs = pair
    publisher = kind(connection=ours, frame=b"x", total=3, window=3, group=3, verify=True, **options)
    thread = run_thread(publisher)
    read(theirs, 3)
    theirs.sendall(answers)
    theirs.shutdown(socket.SHUT_WR)
    join(thread)
    return publisher


def test_an_ack_for_nothing_is_counted(pair):
    publisher = publish(pair, NativePublisher, native_ack(0) + native_ack(0) + native_ack(9))
    assert (publisher.confirmed, publisher.strange) == (1, 2)


def test_an_ack_of_many_counts_what_was_acknowledged_singly_before_once(pair):
    publisher = publish(pair, AmqpPublisher, amqp_ack(2, 0) + amqp_ack(2, 0) + amqp_ack(2, 1) + amqp_ack(9, 1))
    assert (publisher.confirmed, publisher.strange) == (2, 2)


REFUSALS = {
    "an error": (
        NativePublisher,
        error_frame(native_id(0).encode(), b"q", "QUEUE_FULL", "there is no room"),
        "QUEUE_FULL  there is no room",
    ),
    "another frame": (NativePublisher, native_deliver(0), "needed a PublishAck"),
    "no frame": (NativePublisher, b"HTTP/1.1 400 Bad Request\r\n", "needed a frame"),
    "a JetStream error": (
        NatsPublisher,
        nats_message(b"_INBOX.p.00000000", b"", b'{"error":{"code":503,"description":"no room"}}'),
        "no room",
    ),
    "a NATS error": (NatsPublisher, b"-ERR 'Permissions Violation'\r\n", "Permissions Violation"),
    "no responders": (NatsPublisher, b"HMSG _INBOX.p.00000000 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", "503"),
    "a Redis error": (RedisPublisher, b"-OOM command not allowed\r\n", "OOM command"),
    "an AMQP close": (
        AmqpPublisher,
        amqp_method(1, (20, 40), struct.pack(">H", 404) + short("NOT_FOUND") + struct.pack(">HH", 60, 40)),
        "NOT_FOUND",
    ),
    "no AMQP frame": (AmqpPublisher, b"AMQP\0\0\x09\x01" * 20, "needed an AMQP frame"),
    "the end": (NativePublisher, native_ack(0), "the server ended the connection"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_ends_the_publisher_with_the_servers_words(pair, name):
    kind, answers, words = REFUSALS[name]
    assert words in publish(pair, kind, answers).fault


@pytest.mark.parametrize("size", [1, 3])
def test_a_delivery_whose_lengths_lie_ends_the_consumer(pair, size):
    ours, theirs = pair
    frame = bytearray(native_deliver(0))
    frame[7:9] = b"\xff\xff" if size == 1 else b"\x00\x30"
    consumer = NativeConsumer(connection=ours, wanted=1)
    thread = run_thread(consumer)
    theirs.sendall(bytes(frame))
    join(thread)
    assert consumer.fault.startswith("a Deliver ends inside") and consumer.received == 0


def test_a_run_that_cannot_end_is_a_timeout_with_the_state():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = QueueLoad(
            protocol="echo", port=silent.getsockname()[1], mode="pub", messages=5, window=5, group=5, timeout_s=2.0
        )
        with pytest.raises(TimeoutExceeded, match="sent 5, confirmed 0"):
            run(asked)


def test_nobody_at_the_port_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(VibeMQError, match="needed a server"):
        run(QueueLoad(port=port))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sub"},
        {"protocol": "smtp"},
        {"window": 0},
        {"size_bytes": 54},
        {"mode": "lat"},
        {"messages": 5, "publishers": 2},
        {"messages": 1 << 32},
        {"protocol": "nats", "queues": 2},
        {"protocol": "echo", "mode": "both"},
        {"queues": 2, "consumers": 3},
        {"apart": True},
    ],
    ids=str,
)
def test_what_would_not_be_measured_is_refused(options):
    with pytest.raises(UserError):
        run(QueueLoad(**options))


# ---- comparisons and the command ----


def test_a_comparison_alternates_and_reports(tmp_path):
    arguments = ["queues", "--server", "null", "--server", "echo", "--rounds", "3", "--scale", "0.0005"]
    arguments += ["--verify", "--warm-mb", "1", "--folder", str(tmp_path), "--output", str(tmp_path / "report")]
    shown = CliRunner().invoke(bench, [*arguments, "--baseline", "null"], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert [each["durability"] for each in report["servers"]] == ["none", "none"]
    assert [each["name"] for each in report["scenarios"]] == [s.name for s in queues.SCENARIOS]
    for scenario in report["scenarios"]:
        assert scenario["ratio"]["null"] == 1
        assert ("echo" in scenario["results"]) == scenario["name"].startswith("round-trip")
        for result in scenario["results"].values():
            low, high = result["spread"][scenario["figure"]]
            assert len(result["runs"]) == 3 and low <= result["median"][scenario["figure"]] <= high
    text = (tmp_path / "report.md").read_text()
    assert text in shown.output and text.count("| null |") == 1 + len(queues.SCENARIOS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


def test_a_server_that_is_missing_is_named_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(SERVERS["redis"], "missing", classmethod(lambda kind: "it is not installed"))
    told = []
    found = compare.installed([SERVERS["redis"], SERVERS["null"]], tmp_path, told.append)
    assert [server.name for server in found] == ["null"]
    assert told == ["redis is not measured: it is not installed"]


def test_a_failed_run_is_reported_and_the_others_go_on(monkeypatch, tmp_path):
    turns = itertools.count()

    def fail_once(peer):
        if next(turns) == 0:
            raise VibeMQError("it fell over")

    monkeypatch.setattr(Native, "create", fail_once)
    arguments = ["queues", "--server", "null", "--rounds", "2", "--scale", "0.0005", "--scenario", "publish"]
    shown = CliRunner().invoke(bench, [*arguments, "--folder", str(tmp_path)], catch_exceptions=False)
    assert shown.exit_code == 1 and "**1 failed**" in shown.output


def test_the_command_prints_json(tmp_path):
    running = SERVERS["null"](tmp_path).start()
    try:
        common = ["queues", "--port", str(running.port), "-n", "500", "--broker-pid", str(running.pid)]
        shown = CliRunner().invoke(users_bench, [*common, "--mode", "rtt"], catch_exceptions=False)
    finally:
        running.stop()
    figures = json.loads(shown.output)
    assert (figures["confirmed"], figures["window"]) == (500, 1) and "broker_cpu_us_per_msg" in figures


def test_every_server_speaks_a_protocol_that_is_there():
    servers = (*queues.SERVERS, *signalr.HUBS, *micromsg2.SERVERS)
    assert {server.protocol for server in servers} == set(PEERS) - {"streams"}
