# SPDX-License-Identifier: Apache-2.0
"""Mistakes of whoever uses the clients: each is told as what it is, with what to do."""

import datetime
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from peers.native_server import NativeServer
from running import ENVIRONMENT, broker

from vibemq.client import QueueDeclaration, QueueOptions, _link, connect
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.settings import parse
from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConfigError, InvalidValue, ServerFailed, VibeMQError
from vibemq.protocols.native.spec import Command, ErrorCode


@dataclass
class Reading:
    value: float


@pytest.mark.parametrize("priority", ["urgent", "", 7, -1, 1.5])
def test_a_priority_that_there_is_none_of_is_an_error_that_names_them(client, priority):
    with pytest.raises(ValueError, match="needed one of low, normal, high, critical, had ") as raised:
        client.publish("q", 1, priority=priority)
    assert isinstance(raised.value, VibeMQError)


@pytest.mark.parametrize(
    "payload",
    [float("nan"), [1, [float("inf")]], {"a": {"b": float("-inf")}}, (None, float("nan")), Reading(float("nan"))],
    ids=repr,
)
def test_a_number_that_json_has_no_word_for_is_refused(server, client, payload):
    with pytest.raises(ValueError, match=r"payload: needed what JSON can say, had the number (nan|inf|-inf)"):
        client.publish("q", payload)
    with pytest.raises(ValueError, match="payload"), client.publisher("q") as publisher:
        publisher.publish(payload)
    assert server.of(Command.PUBLISH) == []


@pytest.mark.parametrize("payload", [None, {"null": None}, "null", Reading(1.5), [datetime.date(2026, 1, 1), None]])
def test_null_itself_is_sent(server, client, payload):
    client.publish("q", payload)
    assert len(server.of(Command.PUBLISH)) == 1


@pytest.mark.parametrize("payload", [object(), [1, {"a": object()}], {(1, 2): 3}, 1 + 2j, "\ud83d"], ids=range(5))
def test_what_json_cannot_say_is_refused_at_once(server, client, payload):
    with pytest.raises(InvalidValue, match="payload: needed what JSON can say, had") as raised:
        client.publish("q", payload)
    assert "raw=True" in raised.value.hint
    with client.publisher("q") as publisher:
        with pytest.raises(InvalidValue, match="payload"):
            publisher.publish(payload)
        publisher.publish("goes on")
    assert len(server.of(Command.PUBLISH)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"payload": 5, "raw": True}, "payload: needed JSON text with raw, as str or bytes, had 5"),
        ({"payload": object(), "raw": True}, "payload: needed JSON text with raw"),
        ({"payload": 1, "id": 5}, "id: needed a text, had 5"),
        ({"payload": 1, "queue": 5}, "queue: needed a name"),
        ({"payload": 1, "queue": None}, "queue: needed a name"),
    ],
)
def test_arguments_of_another_type_are_refused_at_once(server, client, options, message):
    with pytest.raises(VibeMQError, match=message):
        client.publish(**{"queue": "q"} | options)
    assert server.of(Command.PUBLISH) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_messages": "3"}, "max_messages: needed a whole number, had '3'"),
        ({"max_messages": 3.0}, "max_messages: needed a whole number, had 3.0"),
        ({"attempts_max": "3"}, "attempts_max: needed a whole number, had '3'"),
        ({"prefetch": True}, "prefetch: needed a whole number, had True"),
        ({"message_ttl_ms": datetime.timedelta(seconds=1)}, "message_ttl_ms: needed a whole number, had datetime"),
        ({"dead_letter": "yes"}, "dead_letter: needed True or False, had 'yes'"),
        ({"dead_letter": True, "dead_letter_queue": 7}, "dead_letter_queue: needed the name of a queue, had 7"),
        ({"durability": 1}, "durability: needed 'os', 'disk' or 'remote', had 1"),
    ],
)
def test_an_option_of_a_queue_of_another_type_is_refused_before_it_is_sent(server, client, options, message):
    for call in (client.create_queue, client.declare_queue):
        with pytest.raises(ConfigError, match=message):
            call("q", **options)
        with pytest.raises(ConfigError, match=message):
            call("q", QueueOptions(**options))
    with pytest.raises(ConfigError, match=message):
        QueueDeclaration("q", QueueOptions(**options))
    assert server.of(Command.CREATE_QUEUE) == []


def test_an_option_of_another_type_is_refused_where_a_queue_is_altered(client):
    with pytest.raises(ConfigError, match="message_ttl_ms: needed a whole number, had '1 s'") as raised:
        client.alter_queue("q", message_ttl_ms="1 s")
    assert raised.value.hint == "Times are in milliseconds."


@pytest.mark.parametrize(
    ("option", "right"),
    [
        ("keepalife", "keepAlive"),
        ("comandTimeout", "commandTimeout"),
        ("reconectMaxDelay", "reconnectMaxDelay"),
        ("queue", "queues"),
        ("zzz", ""),
    ],
)
@pytest.mark.parametrize("form", ["vibemq://localhost/?{}=1", "Host=localhost;{}=1"])
def test_a_misspelt_option_is_an_error_that_names_the_nearest(form, option, right):
    with pytest.raises(ConfigError, match=f"there is no option '{option.lower()}'") as raised:
        parse(form.format(option))
    assert f"Did you mean {right}" in raised.value.hint


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("wrong-doors") / "data", workers=1) as started:
        yield started


def told(call) -> str:
    with pytest.raises(VibeMQError) as raised:
        call()
    return f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize(
    ("door", "words"),
    [
        ("streams", "streams 5552"),
        ("signalr", "HTTP"),
        ("admin", "HTTP"),
        ("micromsg2", "MicroMsg2 is spoken on port 2928"),
    ],
)
def test_the_native_client_at_another_door_is_told_which(running, door, words):
    text = told(lambda: connect(f"vibemq://127.0.0.1:{running.ports[door]}", timeout_s=20))
    assert words in text
    assert "native 2925" in text
    assert "does it want TLS" not in text


@pytest.mark.parametrize(
    ("door", "words"),
    [("signalr", "HTTP"), ("admin", "HTTP"), ("micromsg2", "MicroMsg2 is spoken"), ("native", "native 2925")],
)
def test_the_streams_client_at_another_door_is_told_which(running, door, words):
    patience_s = 0.5 if door == "native" else 20  # which waits for the rest of what it takes for a frame
    text = told(lambda: StreamsConnection.connect("127.0.0.1", running.ports[door], timeout_s=patience_s))
    assert words in text
    assert "streams 5552 (TLS 5551)" in text


@pytest.mark.parametrize("door", ["streams", "signalr", "admin", "native"])
def test_the_micromsg2_client_at_another_door_is_told_which(running, door):
    assert "MicroMsg2 2928" in told(lambda: Micromsg2Client(port=running.ports[door], timeout_s=20))


UNCLOSED = {
    "connected": "",
    "consuming": "consumer = client.consume('q'); consumer.open()",
    "publishing": "publisher = client.publisher('q'); publisher.publish(1)",
    "handling": "client.subscribe('q', print)",
}
SYNC = """
import sys, vibemq.client
client = vibemq.client.connect(sys.argv[1], reconnect_initial_delay_s=0.01)
{use}
"""
AIO = """
import asyncio, sys, vibemq.client
async def main():
    client = await vibemq.client.aconnect(sys.argv[1])
    await client.publish("q", 1)
asyncio.run(main())
"""


@pytest.mark.parametrize("script", [*(SYNC.format(use=use) for use in UNCLOSED.values()), AIO], ids=[*UNCLOSED, "aio"])
def test_a_client_that_is_not_closed_is_a_warning_and_no_traceback(script, tmp_path):
    with NativeServer() as server:
        (tmp_path / "unclosed.py").write_text(script)
        command = [sys.executable, "-W", "always::ResourceWarning", str(tmp_path / "unclosed.py"), server.url]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "never retrieved" not in done.stderr
    assert "destroyed but it is pending" not in done.stderr
    if "subscribe" not in script and "publisher" not in script:  # a thread has those, until the process ends
        assert "ResourceWarning: unclosed <vibemq.client" in done.stderr


def test_a_client_that_nobody_has_any_more_ends_its_thread(server):
    client = connect(server.url)
    thread = client._thread
    with pytest.warns(ResourceWarning, match="unclosed"):
        del client
    thread.join(30)
    assert not thread.is_alive()


def test_reconnecting_that_fails_by_surprise_is_told(server, monkeypatch):
    client = connect(server.url, reconnect_initial_delay_s=0.01)

    async def ending(link):
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(_link.Link, "open", ending)
    server.drop()
    with pytest.raises(VibeMQError, match="could not reconnect: RuntimeError"):
        client.publish("q", 1, timeout_s=30)
    client.close()


def test_every_port_in_a_hint_is_that_of_the_sample(running):
    sample = (Path(__file__).parents[2] / "vibemq/sample.toml").read_text()
    text = told(lambda: connect(f"vibemq://127.0.0.1:{running.port}", timeout_s=20))
    for port in ("2925", "5552", "5551", "2928", "2938", "2927", "2937", "2926"):
        assert port in text
        assert f"ort = {port}\n" in sample


@pytest.mark.parametrize(
    ("told", "hint"),
    [
        ("The message could not be stored.", "The broker's log says what went wrong."),
        ("The message is not stored: the disk has less than 9 bytes free (disk alarm); publish again later.", ""),
    ],
)
def test_who_is_told_all_by_the_broker_is_not_sent_to_its_log(server, client, told, hint):
    server.replies[Command.PUBLISH] = lambda connection, frame: connection.refuse(frame, ErrorCode.SERVER_ERROR, told)
    with pytest.raises(ServerFailed) as caught:
        client.publish("q", 1)
    assert caught.value.hint == hint
