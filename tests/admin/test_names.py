# SPDX-License-Identifier: Apache-2.0
"""Names that no address can hold, "." and "..": nothing new gets one by any door, and what has one goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peers.micromsg2
import pytest
from http_caller import STREAM, Http, wait_until
from peers.native import connected as native
from peers.signalr import HubPeer
from peers.streams import connected as streams
from running import ENVIRONMENT, Running, broker

import vibemq.client
from vibemq import config
from vibemq.access.tool_users import delete_user, put_user
from vibemq.broker.arguments import stream_arguments
from vibemq.broker.audit import Author
from vibemq.broker.catalog import Catalog
from vibemq.client.streams import StreamsConnection
from vibemq.errors import UserError
from vibemq.protocols.native.spec import Command
from vibemq.protocols.streams.spec import Code, Key
from vibemq.storage.metadata import Metadata

NEW, OLD = ".", ".."
SOMEBODY = Author("ada", "127.0.0.1:1", "native")
#: What is said of it, wherever the door has words.
WHY = "browsers and HTTP libraries take it for a folder"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one of everything but users that is called "..", as earlier versions made them."""
    folder = tmp_path_factory.mktemp("names") / "data"
    (folder / "streams").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch, closing(Metadata(str(folder / "meta.db"))) as metadata:
        patch.setattr("vibemq.storage.names.NO_ADDRESS", ())
        options = config.load(environ={}, overrides={})
        catalog = Catalog(options, SimpleNamespace(metadata=metadata, helpers=None))  # type: ignore[arg-type]
        metadata.add_vhost(OLD)
        metadata.set_policy("/", OLD, "^nothing$", {"max-age": "1D", "dead-letter-routing-key": OLD})
        catalog.create_super_stream(OLD, OLD, [OLD], ["k"], {}, by=SOMEBODY)
        catalog.create_queue("/", OLD, {}, by=SOMEBODY)
        catalog.create_queue(
            "/", "older", {"dead_letter": True, "dead_letter_queue": NEW, "attempts_max": 1}, by=SOMEBODY
        )
        catalog.create_stream("/", "events", stream_arguments({}, options.store), by=SOMEBODY)
    return folder


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[Running]:
    with broker(data) as running:
        yield running


def vibemq_command(data: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vibemq.cli", *words, "--data-dir", str(data)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)


# ---- each door, in its own words ----


def by_streams(served: Running) -> None:
    with streams(served) as peer:
        assert peer.code(Key.CREATE, stream=NEW, arguments={}) == Code.PRECONDITION_FAILED
        for name, partition in ((NEW, "p"), ("s", NEW)):
            fields = {"name": name, "partitions": [partition], "binding_keys": ["k"], "arguments": {}}
            assert peer.code(Key.CREATE_SUPER_STREAM, **fields) == Code.PRECONDITION_FAILED


def by_native(served: Running) -> None:
    with native(served) as peer:
        letters = b'{"enableDeadLetterQueue":true,"deadLetterQueueName":"."}'
        for command, queue, payload in (
            (Command.CREATE_QUEUE, NEW, None),
            (Command.PUBLISH, NEW, b"{}"),
            (Command.CREATE_QUEUE, "with-letters", letters),
        ):
            refused = peer.ask(command, queue=queue, payload=payload)
            assert refused.error_code == "INVALID_PAYLOAD" and WHY in refused.error_message, refused


def by_signalr(served: Running) -> None:
    with HubPeer(served) as peer:
        for call in (
            ("CreateQueue", NEW),
            ("CreateQueue", NEW, {"type": "stream"}),
            ("CreateQueue", "with-letters", {"deadLetter": NEW}),
            ("Publish", NEW, {"a": 1}),
        ):
            assert WHY in peer.refusal(*call), call


def by_micromsg2(served: Running) -> None:
    with peers.micromsg2.connected(served) as peer:
        refused = peer.ask("create", destination=NEW)
        assert refused["reply"] == "error" and WHY in refused["text"], refused
        peer.send(NEW)
        assert WHY in peer.error()


def by_http(served: Running) -> None:
    http = Http(served)
    policy = {"pattern": "^nothing$", "definition": {"max-age": "1D"}}
    letters = {"pattern": "^nothing$", "definition": {"dead-letter-routing-key": NEW}}
    for parts, body in (
        (("vhosts", NEW), {}),
        (("users", NEW), {"password": "a-password", "tags": ""}),
        (("policies", "/", NEW), policy),
        (("policies", "/", "letters"), letters),
        (("exchanges", "/", NEW), {"type": "direct"}),
        (("queues", "/", NEW), STREAM),
        (("queues", "/", NEW, "definition"), {"queue_options": {}}),
        (("queues", "/", "older", "options"), {"dead_letter_queue": NEW}),
        (("stream", "super-streams", "/", NEW), {"partitions": 1}),
    ):
        refused = http.call("PUT", *parts, body=body)
        assert (refused.status, WHY in refused.json["reason"]) == (400, True), (parts, refused.text)


def by_definitions(served: Running) -> None:
    for kind, more in (
        ("vhosts", {}),
        ("users", {"password": "a-password", "tags": ""}),
        ("policies", {"vhost": "/", "pattern": "x", "definition": {"max-age": "1D"}}),
        ("exchanges", {"vhost": "/", "type": "direct"}),
        ("queues", {"vhost": "/", **STREAM}),
    ):
        refused = Http(served).call("POST", "definitions", body={kind: [{"name": NEW, **more}]})
        assert (refused.status, WHY in refused.json["reason"]) == (400, True), (kind, refused.text)


def by_commands(served: Running) -> None:
    data = Path(Http(served).get("nodes")[0]["db_dir"])
    for words, stdin in (
        (("users", "add", NEW, "--password-stdin"), "a-long-password"),
        (("ctl", "add_vhost", NEW), ""),
        (("ctl", "add_user", NEW, "a-password"), ""),
    ):
        refused = vibemq_command(data, *words, stdin=stdin)
        assert refused.returncode and WHY in refused.stderr, (words, refused)


DOORS = (by_streams, by_native, by_signalr, by_micromsg2, by_http, by_definitions, by_commands)


@pytest.mark.parametrize("refuses", DOORS, ids=lambda door: door.__name__)
def test_nothing_new_gets_a_name_that_no_address_can_hold(served: Running, refuses: Callable[[Any], None]) -> None:
    refuses(served)
    assert [found for found in Http(served).get("queues") if found["name"] in (NEW, "with-letters", "p")] == []


# ---- what was there before ----


def test_what_has_such_a_name_from_before_is_declared_used_and_exported(served: Running) -> None:
    http = Http(served)
    with native(served) as peer, streams(served) as reader:
        peer.ask(Command.CREATE_QUEUE, queue=OLD)
        peer.publish(OLD, b'"kept"')
        peer.subscribe(OLD)
        assert peer.deliver().payload == b'"kept"'
        assert reader.code(Key.CREATE, stream=OLD, arguments={}) == Code.STREAM_ALREADY_EXISTS
    with StreamsConnection.connect(served.host, served.port, virtual_host=OLD) as connection:
        connection.create(OLD, exist_ok=True)
        with connection.publisher(OLD) as publisher:
            publisher.publish([b"one"])
    document = http.get("definitions")
    imported = http.call("POST", "definitions", body=document)  # onto itself
    assert imported.status == 204, imported.text
    assert http.status("GET", "vhosts", OLD) == 200


def test_a_user_of_such_a_name_from_before_is_changed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Metadata(str(tmp_path / "meta.db"))) as metadata:
        with monkeypatch.context() as patch:
            patch.setattr("vibemq.storage.names.NO_ADDRESS", ())
            put_user(metadata, OLD, (), "a-password")
        assert put_user(metadata, OLD, ("monitoring",), "another-password") is False
        delete_user(metadata, OLD)
        with pytest.raises(UserError, match=WHY):
            put_user(metadata, OLD, (), "a-password")


def test_dead_letters_still_go_where_an_older_queue_says(served: Running) -> None:
    with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
        client.publish("older", {"a": 1})
        with client.consume("older") as consumer:  # who lets go of one gives back what is not settled
            next(consumer).nack()
            wait_until(lambda: NEW in client.list_queues(), "the dead letter makes its queue")
            with client.consume(NEW) as dead_letters:
                found = next(dead_letters)
                assert found.payload == {"a": 1}
                found.ack()
        client.delete_queue(NEW)


def test_a_binding_whose_key_is_dots_is_told_apart_by_what_an_address_can_hold(served: Running) -> None:
    http = Http(served)
    assert http.status("PUT", "exchanges", "/", "routes", body={"type": "direct"}) == 201
    where = "bindings", "/", "e", "routes", "q", "events"
    for key in ("..", ".", "plain"):
        assert http.status("POST", *where, body={"routing_key": key}) == 201
    found = {row["routing_key"]: row["properties_key"] for row in http.get(*where)}
    assert found.keys() == {"..", ".", "plain"} and not {"..", "."} & set(found.values())
    for properties in found.values():
        assert http.status("DELETE", *where, properties) == 204
    assert http.get(*where) == []


def test_what_has_such_a_name_from_before_is_deleted(served: Running, data: Path) -> None:
    for words in (
        ("delete_queue", OLD),
        ("clear_policy", OLD),
        ("delete_super_stream", OLD, "--vhost", OLD),
        ("delete_vhost", OLD),
    ):
        done = vibemq_command(data, "ctl", *words)
        assert done.returncode == 0, (words, done.stderr)
    http = Http(served)
    names = {row["name"] for kind in ("queues", "vhosts", "policies", "exchanges") for row in http.get(kind)}
    assert OLD not in names
