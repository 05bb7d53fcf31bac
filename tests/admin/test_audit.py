# SPDX-License-Identifier: Apache-2.0
"""The audit log: a line for each change, by whom, from where, by which door, and no secret in any."""

import json
import logging
import os
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from http_caller import STREAM, Http
from peers.signalr import HubPeer
from peers.streams import DEADLINE_S
from running import ENVIRONMENT, Running, broker, exit_code, forked

from vibemq.admin.api.changes import audit, told
from vibemq.broker.audit import LINE_BYTES_MAX, AuditLog, Author
from vibemq.client import connect
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection
from vibemq.config import Audit
from vibemq.once_a_minute import OnceAMinute

PASSWORD = "S3cret-of-root"
OTHER = "S3cret-of-others"
ROOT = ("--set", "native.superuser_name=root", "--set", f"native.superuser_password={PASSWORD}")
ADA = Author("ada", "127.0.0.1:4000", "native")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    folder = tmp_path_factory.mktemp("audited") / "data"
    with broker(folder, *ROOT) as running:
        yield running, folder


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_door_says_who_has_changed_what_from_where(audited: tuple[Running, Path]) -> None:
    running, folder = audited
    url = f"vibemq://root:{PASSWORD}@127.0.0.1:{running.native_port}"
    with connect(url) as client:
        client.create_queue("by-native", max_messages=5)
        client.alter_queue("by-native", max_messages=6)
        client.publish("by-native", 1)
        client.purge_queue("by-native")
        client.publish("by-use", 1)
        client.create_user("ada", OTHER)
        client.grant("ada", "*", "Publish")
        client.change_password("ada", OTHER + "-2")
        client.revoke("ada", "*")
        client.delete_user("ada")
        client.delete_queue("by-native")
    how = {"user": "root", "password": PASSWORD, "timeout_s": DEADLINE_S}
    with StreamsConnection.connect("127.0.0.1", running.port, **how) as connection:  # type: ignore[arg-type]
        connection.create("by-streams", {"max-age": "1h"})
        connection.delete("by-streams")
    with Micromsg2Client("127.0.0.1", running.ports["micromsg2"], user="root", password=PASSWORD) as peer:
        peer.command("create", destination="queue/by-micromsg2")
    login = b64encode(f"root:{PASSWORD}".encode()).decode()
    with HubPeer(running, Authorization=f"Basic {login}") as hub:
        assert hub.ask("PurgeQueue", "by-use") == 1
    found = [event for event in events(folder / "audit.log") if event["door"] not in ("admin", "ctl", "files")]
    assert {event["user"] for event in found} == {"root"}
    assert all(event["from"].startswith("127.0.0.1:") for event in found)
    assert [(event["door"], event["what"], event["name"]) for event in found] == [
        ("native", "queue.created", "by-native"),
        ("native", "queue.altered", "by-native"),
        ("native", "queue.purged", "by-native"),
        ("native", "queue.created", "by-use"),
        ("native", "user.added", "ada"),
        ("native", "permissions.set", "ada"),
        ("native", "user.password", "ada"),
        ("native", "permissions.deleted", "ada"),
        ("native", "user.deleted", "ada"),
        ("native", "queue.deleted", "by-native"),
        ("streams", "stream.created", "by-streams"),
        ("streams", "stream.deleted", "by-streams"),
        ("micromsg2", "queue.created", "by-micromsg2"),
        ("signalr", "queue.purged", "by-use"),
    ]
    assert found[0]["options"]["max_messages"] == 5 and found[1]["options"] == {"max_messages": 6}
    assert found[2]["messages"] == 1
    assert found[5]["operations"] == ["Publish"]
    assert found[10]["arguments"]["max-age"] == "1h"


def test_the_management_api_and_the_command_line_say_it_too(audited: tuple[Running, Path]) -> None:
    running, folder = audited
    http = Http(running, "root", PASSWORD)
    before = len(events(folder / "audit.log"))
    assert http.status("PUT", "users", "bob", body={"password": OTHER, "tags": "management"}) == 201
    assert http.status("PUT", "user-limits", "bob", "max-queues", body={"value": 3}) == 204
    policy = {"pattern": "^x", "definition": {"max-age": "1h"}}
    assert http.status("PUT", "policies", "/", "p", body=policy) == 201
    assert http.status("PUT", "queues", "/", "by/http", body=STREAM) == 201
    assert http.status("PUT", "queues", "/", "amq.no", body=STREAM) == 400  # was not done
    assert http.status("GET", "users") == 200  # changes nothing
    ctl = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(folder)]
    for words in (["change_password", "bob", OTHER + "-3"], ["set_user_limits", "bob", '{"publish-rate": 7}']):
        subprocess.run([*ctl, *words], check=True, capture_output=True, env=ENVIRONMENT, timeout=60)
    users = [sys.executable, "-m", "vibemq.cli", "users", "remove", "bob", "--data-dir", str(folder)]
    subprocess.run(users, check=True, capture_output=True, env=ENVIRONMENT, timeout=60)
    found = events(folder / "audit.log")[before:]
    assert [(event["door"], event["user"], event["what"], event["name"]) for event in found[:6]] == [
        ("admin", "root", "user.set", "bob"),
        ("admin", "root", "user_limits.set", "bob/max-queues"),
        ("admin", "root", "policy.set", "//p"),
        ("admin", "root", "queue.set", "//by/http"),
        ("ctl", "", "user.password", "bob/password"),
        ("ctl", "", "user_limits.set", "bob"),
    ]
    assert found[0]["from"] == "127.0.0.1" and found[0]["body"] == {"tags": "management"}
    assert found[2]["body"] == policy
    assert found[5]["body"] == {"publish-rate": 7}
    assert (found[6]["door"], found[6]["what"]) == ("files", "accounts.changed")
    assert "bob" in found[6]["name"] and found[6]["user"].startswith("vibemq users of ")


def test_no_secret_is_in_it_and_nobody_else_may_read_it(audited: tuple[Running, Path]) -> None:
    path = audited[1] / "audit.log"
    text = path.read_text()
    assert "by-native" in text
    assert PASSWORD not in text and "S3cret" not in text and "argon" not in text.lower()
    assert path.stat().st_mode & 0o077 == 0


def test_without_a_broker_the_command_line_writes_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ctl = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(folder)]
    subprocess.run([*ctl, "add_user", "carol", OTHER], check=True, capture_output=True, env=ENVIRONMENT, timeout=60)
    (event,) = events(folder / "audit.log")
    assert (event["door"], event["what"], event["name"]) == ("files", "user.added", "carol")
    assert "S3cret" not in json.dumps(event)


def test_a_definitions_file_is_named_without_the_hashes_of_its_users(tmp_path: Path) -> None:
    body = {"users": [{"name": "ada", "password_hash": "aGFzaA==", "verifier": "v1"}], "policies": []}
    audit(AuditLog(Audit(), str(tmp_path)), ADA, "POST", "/definitions", body)
    (event,) = events(tmp_path / "audit.log")
    assert event["what"] == "definitions.added" and event["body"] == {"users": ["ada"]}
    assert told({"users": {"ada": "aGFzaA=="}}) == {}


# ---- its files ----


def test_a_line_that_the_disk_has_no_room_for_leaves_no_half(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = AuditLog(Audit(), str(tmp_path)), os.write
    log.say(ADA, "queue.created", "one")
    with monkeypatch.context() as full:
        full.setattr("vibemq.broker.audit.failing", OnceAMinute(logging.getLogger("vibemq.broker.audit")))
        full.setattr(os, "write", lambda fd, line: write(fd, line[:10]))
        log.say(ADA, "queue.created", "two")
    log.say(ADA, "queue.created", "three")
    assert [event["name"] for event in events(tmp_path / "audit.log")] == ["one", "three"]
    assert "No space left" in caplog.text and '"two"' in caplog.text


def test_files_are_bounded_and_older_ones_go(tmp_path: Path) -> None:
    log = AuditLog(
        Audit(size_max_bytes=65_536, files_max=3), str(tmp_path), clock=lambda zone: datetime(2026, 1, 1, tzinfo=UTC)
    )
    for number in range(1500):
        log.say(ADA, "stream.created", f"s-{number}", padding="x" * 100)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(path.stat().st_size <= 65_536 for path in tmp_path.iterdir())
    kept = [event["name"] for name in reversed(files) for event in events(tmp_path / name)]
    assert kept == [f"s-{number}" for number in range(1500 - len(kept), 1500)]  # the last ones, without a gap
    assert events(tmp_path / "audit.log")[0]["at"] == "2026-01-01T00:00:00.000Z"


def test_processes_that_write_at_once_lose_no_line(tmp_path: Path) -> None:
    def write(worker: int) -> None:
        log = AuditLog(Audit(size_max_bytes=65_536, files_max=1000), str(tmp_path))
        for number in range(400):
            log.say(ADA, "stream.created", f"{worker}-{number}")

    children = [forked(partial(write, worker)) for worker in range(4)]
    assert [exit_code(pid) for pid in children] == [0] * 4
    found = Counter(event["name"] for path in tmp_path.iterdir() for event in events(path))
    assert found == {f"{worker}-{number}": 1 for worker in range(4) for number in range(400)}


def test_what_is_long_is_cut_and_what_cannot_be_written_is_in_the_ordinary_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(Audit(), str(tmp_path))
    log.say(ADA, "policy.set", "p", definition={"a": "x" * 5000}, **{f"more{at}": "y" * 900 for at in range(20)})
    (line,) = (tmp_path / "audit.log").read_bytes().splitlines()
    assert len(line) <= LINE_BYTES_MAX and json.loads(line)["details"] == "too long"
    gone = AuditLog(Audit(file="nowhere/audit.log"), str(tmp_path))
    gone.say(ADA, "queue.created", "q")
    assert "cannot be written: No such file" in caplog.text and '"queue.created"' in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "vibemq.audit"):
        AuditLog(Audit(to="log"), str(tmp_path)).say(ADA, "queue.deleted", "q")
        AuditLog(Audit(to="none"), str(tmp_path)).say(ADA, "queue.deleted", "other")
    assert [json.loads(record.message)["name"] for record in caplog.records] == ["q"]
