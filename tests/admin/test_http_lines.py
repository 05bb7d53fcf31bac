# SPDX-License-Identifier: Apache-2.0
"""Lines that agents send over HTTP: each is a message once, and the answer says what became of them."""

import gzip
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard
from http_caller import STREAM, Http, Reply, wait_until
from running import broker

from vibemq.admin.http import INGEST_THREADS_MAX
from vibemq.broker.ingest import LINE_BYTES_MAX, partition_of
from vibemq.client.streams import StreamsConnection

TEXT = "text/plain"
JSON = "application/json"


def send(http: Http, name: str, body: bytes, query: str = "", kind: str = TEXT, **headers: str) -> Reply:
    return http.raw("POST", f"/api/stream/%2F/{name}/lines{query}", body, Content_Type=kind, **headers)


def messages(http: Http, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        more = http.get("stream", "/", name, "messages", query=f"?count=100&offset={len(found)}")["messages"]
        if not more:
            return found
        found += more


def bodies(http: Http, name: str) -> list[str]:
    return [message["body"] for message in messages(http, name)]


def test_each_line_is_a_message_and_the_answer_comes_after_the_confirm(http, stream):
    reply = send(http, stream, b"one\ntwo\r\n\nthree")
    assert (reply.status, reply.json) == (200, {"stored": 3, "duplicates": 0})
    assert bodies(http, stream) == ["one", "two", "three"]


def test_a_body_without_lines_stores_nothing(http, stream):
    for body in (b"", b"\n\r\n\n"):
        assert send(http, stream, body).json == {"stored": 0, "duplicates": 0}
    assert bodies(http, stream) == []


# ---- bodies ----


def zstd_stream(data: bytes) -> bytes:
    """As agents write it that do not know the size before."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


PACKERS = {"gzip": gzip.compress, "zstd": zstd_stream, "br": brotli.compress}


@pytest.mark.parametrize("encoding", PACKERS)
def test_a_packed_body_is_unpacked(http, stream, encoding):
    lines = [f"line {number} of a packed body" for number in range(5000)]
    packed = PACKERS[encoding]("\n".join(lines).encode())
    assert send(http, stream, packed, Content_Encoding=encoding).json == {"stored": 5000, "duplicates": 0}
    assert bodies(http, stream) == lines


def test_several_gzip_members_and_zstd_frames_are_one_body(http, stream):
    for encoding, pack in (("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)):
        packed = pack(b"one\ntw") + pack(b"o\nthree\n")
        assert send(http, stream, packed, Content_Encoding=encoding).json["stored"] == 3
    assert bodies(http, stream) == ["one", "two", "three"] * 2


@pytest.mark.parametrize("encoding", PACKERS)
def test_a_packed_body_that_is_cut_short_or_broken_stores_nothing(http, stream, encoding):
    packed = PACKERS[encoding](b"some line\n" * 1000 + bytes(range(256)))
    for broken in (
        packed[:-1],
        packed[: len(packed) // 2],
        packed[:1],
        b"",
        b"\x00nothing packed at all",
        packed + b"x",
    ):
        reply = send(http, stream, broken, Content_Encoding=encoding)
        assert reply.status == 400, (broken[:20], reply.text)
    assert bodies(http, stream) == []


@pytest.mark.parametrize("encoding", PACKERS)
def test_a_body_that_unpacks_to_more_than_the_limit_is_refused_before_it_is_stored(tmp_path, encoding):
    flags = ("--set", "admin.ingest_body_max_bytes=1000000")
    with broker(tmp_path, *flags, workers=1) as running:
        http = Http(running)
        assert http.status("PUT", "queues", "/", "bombed", body=STREAM) == 201
        bomb = PACKERS[encoding](b"\n" * (64 << 20))
        assert len(bomb) < 1_000_000
        reply = send(http, "bombed", bomb, Content_Encoding=encoding)
        assert (reply.status, reply.json["error"]) == (413, "too_large")
        assert send(http, "bombed", b"x" * 1_000_001).status == 413
        assert send(http, "bombed", b"x" * 999_999 + b"\n").json["stored"] == 1
        assert len(messages(http, "bombed")) == 1


def test_an_encoding_or_content_type_that_is_not_taken_is_refused_with_those_that_are(http, stream):
    reply = send(http, stream, b"x", Content_Encoding="deflate")
    assert reply.status == 415 and "br, gzip, identity, x-gzip, zstd" in reply.json["reason"]
    reply = send(http, stream, b"x", kind="application/x-protobuf")
    assert reply.status == 415 and "application/x-ndjson" in reply.json["reason"]
    assert bodies(http, stream) == []


def test_a_chunked_body_is_taken(http, managed, stream):
    connection = HTTPConnection(managed.host, managed.admin_port, timeout=30)
    parts = iter([b"one\nt", b"wo\n", b"three"])
    headers = {"Authorization": f"Basic {http.login}", "Content-Type": TEXT}
    connection.request("POST", f"/api/stream/%2F/{stream}/lines", parts, headers, encode_chunked=True)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["stored"]) == (200, 3)
    connection.close()
    assert bodies(http, stream) == ["one", "two", "three"]


def test_the_elements_of_a_json_array_are_messages_as_they_were_written(http, stream):
    array = b' \n[{"a": [1, 2], "b": "],\\"[\\\\"},\n  "text", 5 , null, [], {"c":\n{}}]\n'
    reply = send(http, stream, array, kind=JSON)
    assert reply.json == {"stored": 6, "duplicates": 0}
    assert bodies(http, stream) == ['{"a": [1, 2], "b": "],\\"[\\\\"}', '"text"', "5", "null", "[]", '{"c":\n{}}']
    assert send(http, stream, b" [ ]\n", kind=JSON).json == {"stored": 0, "duplicates": 0}


def test_one_json_value_is_one_message_and_several_are_lines(http, stream):
    assert send(http, stream, b'{\n  "a": 1\n}\n', kind=JSON).json["stored"] == 1
    assert send(http, stream, b'{"a": 1}\n{"a": 2}\n', kind=JSON).json["stored"] == 2
    assert send(http, stream, b'{\n"a"\n}', kind="application/x-ndjson").json["stored"] == 3
    assert bodies(http, stream) == ['{\n  "a": 1\n}\n', '{"a": 1}', '{"a": 2}', "{", '"a"', "}"]


@pytest.mark.parametrize("body", [b"[1, 2", b"[1,, 2]", b"[1] 2", b'["', b"[" * 100_000])
def test_a_json_array_that_is_none_stores_nothing(http, stream, body):
    reply = send(http, stream, body, kind=JSON)
    assert reply.status == 400 and reply.json["reason"].startswith("not_json: ")
    assert bodies(http, stream) == []


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("text/plain; charset=utf-8", b"text/plain; charset=utf-8"),
        ("application/x-ndjson", b"application/x-ndjson"),
        ("application/x-www-form-urlencoded", b"text/plain"),  # curl's, where nobody says what it is
        ("", b"text/plain"),
    ],
)
def test_the_content_type_is_kept(http, managed, stream, sent, kept):
    assert send(http, stream, b"x", kind=sent).json["stored"] == 1
    with StreamsConnection.connect(managed.host, managed.port, user="guest", password="guest") as client:
        chunk = next(client.read_chunks(stream, 0))
        assert kept in next(bytes(message) for _, message in chunk.messages())


# ---- refused lines ----


def test_a_line_that_is_too_long_is_named_and_the_others_are_stored(http, stream):
    reply = send(http, stream, b"one\n" + b"x" * (LINE_BYTES_MAX + 1) + b"\nthree\n" + b"y" * LINE_BYTES_MAX)
    assert (reply.status, reply.json["stored"]) == (400, 3)
    assert [(each["first"], each["last"]) for each in reply.json["refused"]] == [(2, 2)]
    assert f"{LINE_BYTES_MAX + 1} bytes" in reply.json["refused"][0]["reason"]
    assert len(messages(http, stream)) == 3


def test_a_full_queue_that_rejects_refuses_the_rest_of_the_lines(http, queue):
    name = queue(max_messages=3, overflow=1)
    reply = send(http, name, b"1\n2\n3\n4\n5\n6\n")
    assert (reply.status, reply.json["stored"]) == (503, 3)
    assert int(reply.headers["Retry-After"]) > 0
    assert [(each["first"], each["last"]) for each in reply.json["refused"]] == [(4, None)]
    assert bodies(http, name) == ["1", "2", "3"]


def test_a_full_queue_that_redirects_takes_all_lines(http, queue):
    name = queue(max_messages=3, overflow=3, dead_letter=True)
    assert send(http, name, b"1\n2\n3\n4\n5\n").json["stored"] == 5
    assert bodies(http, name) == ["1", "2", "3"]
    assert bodies(http, f"{name}.dlq") == ["4", "5"]


def test_a_full_queue_that_blocks_holds_the_lines_until_there_is_room(http, managed, queue):
    name = queue(max_messages=3, overflow=2)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, http, name, b"1\n2\n3\n4\n5\n")
        wait_until(lambda: len(messages(http, name)) == 3, "three messages")
        assert not sent.done()
        assert http.status("DELETE", "queues", "/", name, "contents") == 204
        assert (sent.result().status, sent.result().json) == (200, {"stored": 5, "duplicates": 0})


def test_the_last_line_waits_for_room_as_the_others_do(http, queue):
    name = queue(max_messages=1, overflow=2)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, http, name, b"1\n2\n")
        wait_until(lambda: len(messages(http, name)) == 1, "a message")
        assert http.status("DELETE", "queues", "/", name, "contents") == 204
        assert (sent.result().status, sent.result().json) == (200, {"stored": 2, "duplicates": 0})


def test_a_stream_that_is_not_there_is_said(http, name):
    reply = send(http, name, b"x")
    assert reply.status == 404 and name in reply.json["reason"]
    assert http.status("GET", "stream", "/", name, "lines") == 405


# ---- publishers ----


def test_a_repeated_request_of_a_publisher_stores_nothing_twice(http, stream):
    named = {"Publisher": "agent 1", "Sequence": "100"}
    assert send(http, stream, b"1\n2\n3\n", **named).json == {"stored": 3, "duplicates": 0}
    assert send(http, stream, b"1\n2\n3\n", **named).json == {"stored": 3, "duplicates": 3}
    assert send(http, stream, b"2\n3\n4\n5\n", Publisher="agent 1", Sequence="101").json == {
        "stored": 4,
        "duplicates": 2,
    }
    assert send(http, stream, b"other\n", Publisher="agent 2", Sequence="100").json == {"stored": 1, "duplicates": 0}
    assert bodies(http, stream) == ["1", "2", "3", "4", "5", "other"]


def test_lines_that_were_refused_are_stored_by_a_repeated_request(http, queue):
    name = queue(max_messages=3, overflow=1)
    named = {"Publisher": "agent", "Sequence": "0"}
    assert send(http, name, b"1\n2\n3\n4\n5\n", **named).json["stored"] == 3
    assert http.status("PUT", "queues", "/", name, "options", body={"max_messages": 10}) in (200, 201, 204)
    wait_until(lambda: send(http, name, b"1\n2\n3\n4\n5\n", **named).status == 200, "the new limit at the worker")
    assert bodies(http, name) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Publisher": "a"},
        {"Sequence": "1"},
        {"Publisher": "a", "Sequence": "-1"},
        {"Publisher": "a", "Sequence": "x"},
        {"Publisher": "a" * 256, "Sequence": "1"},
    ],
)
def test_a_publisher_and_its_sequence_belong_together(http, stream, headers):
    assert send(http, stream, b"x", **headers).status == 400
    assert bodies(http, stream) == []


# ---- super streams ----


@pytest.fixture
def super_stream(http: Http, name: str) -> Iterator[str]:
    assert http.status("PUT", "stream", "super-streams", "/", name, body={"partitions": 3}) == 201
    yield name
    http.status("DELETE", "stream", "super-streams", "/", name)


def murmur3(key: bytes) -> int:
    """The 32-bit hash with the seed of the clients of RabbitMQ Streams."""
    mask, found = 0xFFFFFFFF, 104729

    def mixed(word: int) -> int:
        word = word * 0xCC9E2D51 & mask
        return (word << 15 | word >> 17) * 0x1B873593 & mask

    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        found ^= mixed(int.from_bytes(key[at : at + 4], "little"))
        found = ((found << 13 | found >> 19) & mask) * 5 + 0xE6546B64 & mask
    found ^= mixed(int.from_bytes(key[whole:], "little")) ^ len(key)
    found = (found ^ found >> 16) * 0x85EBCA6B & mask
    found = (found ^ found >> 13) * 0xC2B2AE35 & mask
    return found ^ found >> 16


def test_partitions_are_those_of_the_hash_of_the_clients():
    for key in (b"", b"a", b"host-17", b"\xff" * 5):
        assert partition_of(key, 1000) == murmur3(key) % 1000


def test_a_field_of_a_line_chooses_the_partition_as_clients_do(http, managed, super_stream):
    hosts = [f"host-{number}" for number in range(20)]
    lines = [json.dumps({"n": number, "host": host}) for number, host in enumerate(hosts)]
    reply = send(http, super_stream, "\n".join(lines).encode(), query="?key=host", kind="application/x-ndjson")
    assert reply.json == {"stored": 20, "duplicates": 0}
    array = f"[{','.join(lines)}]".encode()
    named = {"Publisher": "agent", "Sequence": "1"}
    for duplicates in (0, 20):
        reply = send(http, super_stream, array, query="?key=host", kind=JSON, **named)
        assert reply.json == {"stored": 20, "duplicates": duplicates}
    found = {name: bodies(http, name) for name in (f"{super_stream}-{at}" for at in range(3))}
    for partition, stored in found.items():
        expected = [line for line, host in zip(lines, hosts, strict=True)
                    if f"{super_stream}-{murmur3(host.encode()) % 3}" == partition]  # fmt: skip
        assert stored == expected * 2


def test_a_line_without_the_field_is_named_and_the_others_are_stored(http, super_stream):
    body = b'{"host": "a"}\n{"other": 1}\nno json\n\n{"host": null}\n{"host": 5}\n'
    reply = send(http, super_stream, body, query="?key=host")
    assert (reply.status, reply.json["stored"]) == (400, 2)
    assert [(each["first"], each["last"]) for each in reply.json["refused"]] == [(2, 3), (5, 5)]
    assert send(http, super_stream, body).status == 400


# ---- who may, and when ----


def test_a_user_without_a_tag_needs_the_write_permission_and_nothing_else(http, managed, stream, name):
    user = f"agent-{name}"[:60]
    assert http.status("PUT", "users", user, body={"password": "secret-1", "tags": ""}) in (201, 204)
    try:
        agent = Http(managed, user, "secret-1")
        assert send(agent, stream, b"x").status == 401
        allowed = {"configure": "^$", "write": f"^{stream}$", "read": "^$"}
        assert http.status("PUT", "permissions", "/", user, body=allowed) in (201, 204)
        wait_until(lambda: send(agent, stream, b"x").status == 200, "the right")
        assert agent.status("GET", "stream", "/", stream, "messages") == 401
    finally:
        http.status("DELETE", "users", user)


def test_who_publishes_above_a_rate_limit_is_told_when_to_come_again(http, managed, stream, name):
    user = f"fast-{name}"[:60]
    assert http.status("PUT", "users", user, body={"password": "secret-1", "tags": ""}) in (201, 204)
    try:
        http.status("PUT", "permissions", "/", user, body={"configure": "", "write": ".*", "read": ""})
        assert http.status("PUT", "user-limits", user, "publish-rate", body={"value": 100}) in (201, 204)
        agent = Http(managed, user, "secret-1")

        def is_held() -> bool:
            with ThreadPoolExecutor(2) as pool:
                throttled, refused = pool.map(lambda _: send(agent, stream, b"x\n" * 200), range(2))
            if throttled.status == 429:
                throttled, refused = refused, throttled
            return throttled.status == 200 and refused.status == 429 and int(refused.headers["Retry-After"]) > 0

        wait_until(is_held, "the limit at the worker")
    finally:
        http.status("DELETE", "users", user)


def test_during_an_alarm_and_maintenance_lines_are_refused_for_a_while(tmp_path):
    with broker(tmp_path, "--set", f"store.disk_free_min_bytes={10**15}", workers=1) as running:
        http = Http(running)
        assert http.status("PUT", "queues", "/", "held", body=STREAM) == 201
        reply = send(http, "held", b"x\ny")
        assert (reply.status, reply.json["stored"], reply.json["refused"][0]["last"]) == (503, 0, None)
        assert "disk" in reply.json["reason"] and int(reply.headers["Retry-After"]) > 0
        assert http.status("PUT", "maintenance") == 204
        reply = send(http, "held", b"x")
        assert reply.status == 503 and "maintenance" in reply.json["reason"]
        assert int(reply.headers["Retry-After"]) > 0


# ---- ends ----


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_confirms_of_each_durability_are_waited_for(tmp_path, durability):
    with broker(tmp_path, "--durability", durability, workers=1) as running:
        http = Http(running)
        assert http.status("PUT", "queues", "/", "kept", body=STREAM) == 201
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: send(http, "kept", b"a line\n" * 20_000), range(8)))
        assert [reply.json["stored"] for reply in replies] == [20_000] * 8
        wait_until(lambda: http.get("queues", "/", "kept")["messages"] == 160_000, "the count")


def test_a_deleted_stream_refuses_the_lines_that_wait(http, queue):
    name = queue(max_messages=1, overflow=2)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, http, name, b"1\n2\n3\n")
        wait_until(lambda: len(messages(http, name)) == 1, "a message")
        assert http.status("DELETE", "queues", "/", name) == 204
        reply = sent.result()
    assert (reply.status, reply.json["stored"]) == (404, 1)
    assert [(each["first"], each["last"]) for each in reply.json["refused"]] == [(2, None)]


def test_a_killed_worker_is_said_and_a_repeated_request_stores_each_line_once(tmp_path):
    with broker(tmp_path, workers=1) as running:
        http = Http(running)
        options = {"queue_options": {"max_messages": 2, "overflow": 2}}
        assert http.status("PUT", "queues", "/", "killed", "definition", body=options) == 201
        named = {"Publisher": "agent", "Sequence": "0"}
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(send, http, "killed", b"1\n2\n3\n4\n", **named)
            wait_until(lambda: len(messages(http, "killed")) == 2, "two messages")
            os.kill(running.worker_pids()[0], signal.SIGKILL)
            reply = sent.result()
        assert reply.status == 503 and "nobody knows" in reply.json["reason"]
        assert int(reply.headers["Retry-After"]) > 0
        assert http.status("PUT", "queues", "/", "killed", "options", body={"max_messages": 10}) in (200, 201, 204)
        wait_until(lambda: send(http, "killed", b"1\n2\n3\n4\n", **named).status == 200, "another worker")
        assert bodies(http, "killed") == ["1", "2", "3", "4"]


def test_requests_that_a_full_queue_holds_keep_nobody_else_waiting(tmp_path):
    with broker(tmp_path, workers=1) as running:
        http = Http(running)
        options = {"queue_options": {"max_messages": 1, "overflow": 2}}
        assert http.status("PUT", "queues", "/", "full", "definition", body=options) == 201
        assert http.status("PUT", "queues", "/", "free", body=STREAM) == 201
        held = 3 * INGEST_THREADS_MAX
        with ThreadPoolExecutor(held) as pool:
            sent = [pool.submit(send, http, "full", b"x\ny\n") for _ in range(held)]
            wait_until(lambda: len(messages(http, "full")) == 1, "the queue is full")
            assert send(http, "free", b"a\nb\n").json["stored"] == 2
            assert http.get("overview")
            assert not any(one.done() for one in sent)
            assert http.status("DELETE", "queues", "/", "full") == 204
            replies = [one.result() for one in sent]
        assert {reply.status for reply in replies} == {404}
        # A request that comes after the deletion is answered without a count.
        assert sum(reply.json.get("stored", 0) for reply in replies) == 1


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_a_body_of_millions_of_elements_takes_a_few_times_its_size(tmp_path):
    with broker(tmp_path, workers=1) as running:
        http = Http(running)
        assert http.status("PUT", "queues", "/", "many", body=STREAM) == 201
        assert send(http, "many", b"[1]", kind=JSON).json["stored"] == 1
        before = peak_bytes(running.admin_pid())
        body = b"[" + b"1," * 1_000_000 + b"1]"
        assert send(http, "many", body, kind=JSON).json["stored"] == 1_000_001
        assert send(http, "many", b"x\n" * 1_000_000).json["stored"] == 1_000_000
        assert peak_bytes(running.admin_pid()) - before < 20 * len(body)


def test_a_worker_that_hangs_is_said_and_the_lines_are_stored_by_a_repeated_request(tmp_path):
    with broker(tmp_path, "--set", "server.worker_hang_s=0", workers=1) as running:
        http = Http(running)
        assert http.status("PUT", "queues", "/", "hung", body=STREAM) == 201
        named = {"Publisher": "agent", "Sequence": "7"}
        pid = running.worker_pids()[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            reply = send(http, "hung", b"1\n2\n", **named)
            assert reply.status == 503 and "nobody knows" in reply.json["reason"]
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: send(http, "hung", b"1\n2\n", **named).status == 200, "the worker")
        assert bodies(http, "hung") == ["1", "2"]
