# SPDX-License-Identifier: Apache-2.0
"""Definitions: what one broker exports, an empty one is made the same by; and whom the hashes of passwords are for."""

import contextlib
import json
import stat
import subprocess
import sys

import pytest
from http_caller import STREAM, Http
from running import ENVIRONMENT, broker

from vibemq.broker.options import stored_options
from vibemq.client import connect
from vibemq.protocols.native.options import QueueOptions
from vibemq.storage.metadata import Metadata

SECRET = "correct horse"
RIGHTS = {"configure": ".*", "write": "^s", "read": ".*"}
#: What differs between two brokers without being set up.
OF_A_BROKER = ("information",)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    """A broker with something of every kind."""
    with broker(tmp_path_factory.mktemp("furnished") / "data") as running:
        http = Http(running)
        assert http.status("PUT", "vhosts", "sales", body={"description": "what is sold", "tags": "a,b"}) == 201
        for name, tags in (("ada", "monitoring"), ("boss", ""), ("bob", "administrator")):
            assert http.status("PUT", "users", name, body={"password": SECRET, "tags": tags}) == 201
        assert http.status("PUT", "users", "nobody", body={"tags": "", "password_hash": ""}) == 201
        salted = "00qX87Cc+tltiAw/k8/AocACUfjXFEtxr5MDjICdFx57E2Cz"  # of "guest", as a RabbitMQ 3.10.8 exported it
        assert http.status("PUT", "users", "rabbit", body={"password_hash": salted, "tags": "management"}) == 201
        with contextlib.closing(Metadata(f"{http.get('nodes')[0]['db_dir']}/meta.db")) as metadata:
            metadata.set_superuser("boss", True)
            metadata.grant("ada", "orders*", [0, 1])
        assert (
            http.status("PUT", "permissions", "sales", "ada", body={"configure": ".*", "write": "^s", "read": ".*"})
            == 201
        )
        assert http.status("PUT", "queues", "sales", "log", body=STREAM) == 201
        arguments = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 10**9, "x-durability": "disk"}
        assert http.status("PUT", "queues", "/", "kept", body={"durable": True, "arguments": arguments}) == 201
        policy = {"pattern": "^k", "definition": {"max-age": "1D"}, "priority": 3, "apply-to": "streams"}
        assert http.status("PUT", "policies", "/", "short", body=policy) == 201
        parts = {"partitions": 3, "arguments": {"max-age": "1h"}}
        assert http.status("PUT", "stream", "super-streams", "sales", "clicks", body=parts) == 201
        with connect(f"vibemq://boss:{SECRET}@{running.host}:{running.native_port}") as client:
            client.create_queue("orders")
            client.create_queue(
                "jobs", mode="priority_based", dead_letter=True, message_ttl_ms=5000, overflow="drop_newest",
                max_messages=7, attempts_max=2, prefetch=3, durability="disk", ack_timeout_ms=1000,
            )  # fmt: skip
            client.create_queue("kept")  # a stream until now
        yield running


@pytest.fixture
def empty(tmp_path):
    with broker(tmp_path / "data", workers=1) as running:
        yield running


def exported(http):
    document = http.get("definitions")
    return {key: document[key] for key in document if key not in OF_A_BROKER}


def in_order(found):
    return sorted(found, key=lambda entry: json.dumps(entry, sort_keys=True)) if isinstance(found, list) else found


def test_an_empty_broker_becomes_the_same_by_an_import(furnished, empty):
    before = exported(Http(furnished))
    assert before["left_out"] == {}
    assert {each["name"] for each in before["queues"]} == {
        "log", "kept", "clicks-0", "clicks-1", "clicks-2", "orders", "jobs",
    }  # fmt: skip
    # Twice: an import that was interrupted is done again.
    assert [Http(empty).status("POST", "definitions", body=before) for _ in range(2)] == [204, 204]
    after = exported(Http(empty))
    for kind, entries in before.items():
        wanted, found = entries, after[kind]
        if isinstance(entries, list):
            wanted, found = (
                sorted(each, key=lambda entry: json.dumps(entry, sort_keys=True)) for each in (wanted, found)
            )
        assert found == wanted, kind
    url = f"{empty.host}:{empty.native_port}"
    with connect(f"vibemq://boss:{SECRET}@{url}") as client:
        options = client.queue_info("jobs").options
        assert (options.mode.name, options.max_messages, options.prefetch) == ("PRIORITY_BASED", 7, 3)
        client.create_user("made-by-the-superuser", "another horse")
        client.publish("kept", 1)
        assert client.queue_info("kept").messages == 1
    with connect(f"vibemq://ada:{SECRET}@{url}") as client:
        assert client.list_queues() == ["orders"]
    assert Http(empty, "rabbit", "guest").get("whoami")["name"] == "rabbit"
    assert Http(empty, "nobody", "").status("GET", "whoami") == 401


def test_hashes_go_to_superusers_only_and_who_is_not_told_is_told_so(furnished):
    seen = Http(furnished, "boss", SECRET).call("GET", "definitions")
    assert seen.status == 200 and "argon2id" in seen.text and "scram" in seen.text
    other = Http(furnished, "bob", SECRET).call("GET", "definitions")
    assert other.status == 200
    assert not any(word in other.text for word in ("argon2", "scram", "password_hash", "verifier"))
    assert other.json["left_out"]["passwords_of"] == ["ada", "bob", "boss", "nobody", "rabbit"]
    assert "which superusers get only" in other.json["information"][0]
    assert Http(furnished, "ada", SECRET).status("GET", "definitions") == 401
    assert "argon2" not in Http(furnished, "boss", SECRET).call("GET", "definitions", "/").text


def test_an_administrator_makes_no_superuser_by_an_import(furnished):
    bob = Http(furnished, "bob", SECRET)
    user = {"name": "mallory", "password": SECRET, "tags": ""}
    assert bob.status("POST", "definitions", body={"users": [{**user, "superuser": True}]}) == 403
    hashed = next(each for each in exported(Http(furnished))["users"] if each["name"] == "boss")
    assert bob.status("POST", "definitions", body={"users": [{**hashed, "superuser": False}]}) == 403
    assert "mallory" not in [each["name"] for each in bob.get("users")]


DEAR = "$argon2id$v=19$m=4194304,t=9,p=1$dmliZW1xLW5vYm9keS0xNg$bm9ib2R5IGhhcyB0aGlzIHBhc3N3"


def user(**fields):
    return {"users": [{"name": "u", "tags": "", **fields}]}


def queue(name, **options):
    return {"queues": [{"name": name, "vhost": "sales" if name == "log" else "/", "queue_options": options}]}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (
            user(password_hash="$argon2id$x", hashing_algorithm="argon2id"),
            "name 'u': the password hash is not one",
        ),
        (user(password_hash=DEAR, hashing_algorithm="argon2id"), "KiB of memory"),
        (user(password="x", verifier="v"), "the verifier is none of ours"),
        (user(password="x", superuser="yes"), "superuser must be true or false"),
        ({"queue_grants": [{"user": "ada", "queue_pattern": "x", "operations": ["Fly"]}]}, "no operation 'Fly'"),
        ({"queue_grants": [{"user": "ada", "operations": []}]}, "queue_pattern"),
        (queue("q", mode=9), "mode: needed one of 0 (round_robin)"),
        (queue("q", colour=1), "there is no option 'colour'; known are mode"),
        (queue("orders", mode=1), "is there with another "),
        (queue("log", mode=0), "there as a stream"),
    ],
)
def test_what_cannot_be_imported_is_told_with_its_place(furnished, document, why):
    refused = Http(furnished).call("POST", "definitions", body=document)
    assert refused.status == 400
    assert why in refused.json["reason"]


def test_the_file_is_for_its_owner_only(furnished, tmp_path):
    file = tmp_path / "definitions.json"
    file.touch(0o644)
    folder = Http(furnished).get("nodes")[0]["db_dir"]
    command = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", folder, "export_definitions", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "argon2id" in file.read_text() and "left out" not in done.stderr


def test_every_option_that_a_queue_is_stored_with_can_be_imported():
    assert stored_options(QueueOptions().stored())
    assert stored_options({"keep": True, "durability": "disk"}) == {"keep": True, "durability": "disk"}
