# SPDX-License-Identifier: Apache-2.0
"""Who changed users and rights, and how, stands in the broker's log, whatever it was done with; passwords do not."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from http_caller import Http, wait_until
from running import ENVIRONMENT, Running, broker

from vibemq.client import connect

SECRETS = ("sesame open", "sesame two", "sesame three")


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> tuple[Running, Path, Path]:
    folder = tmp_path_factory.mktemp("logged")
    script = 'exec "$@" 2> "$0"'  # the broker's own standard error, into a file
    with broker(folder / "data", workers=1, through=["sh", "-c", script, str(folder / "log")]) as running:
        yield running, folder / "data", folder / "log"


@pytest.fixture
def says(logged) -> Callable[[str], None]:
    _, _, file = logged

    def said(line: str) -> None:
        wait_until(lambda: re.search(line, file.read_text()), line)
        assert not any(secret in file.read_text() for secret in SECRETS)

    return said


def vibemq(data: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vibemq.cli", *arguments, "--data-dir", str(data)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_vibemq_users(logged, says):
    _, data, _ = logged
    vibemq(data, "users", "add", "ada", "--superuser", "--password-stdin", stdin=f"{SECRETS[0]}\n")
    says(r"user ada added as a superuser, by vibemq users of \w+")
    vibemq(data, "users", "add", "bob", "--password-stdin", stdin=f"{SECRETS[1]}\n")
    vibemq(data, "users", "passwd", "bob", "--password-stdin", "--json", stdin=f"{SECRETS[2]}\n")
    says("user bob has a new password, by vibemq users of")
    vibemq(data, "users", "grant", "bob", "orders*", "Publish")
    says(r"user bob may Publish where the queue is orders\*, by vibemq users of")
    vibemq(data, "users", "revoke", "bob", "orders*")
    says(r"user bob has no permission by orders\* any more, by vibemq users of")
    token = vibemq(data, "users", "token", "bob", "--for", "60").stdout.strip()
    says("user bob has an access token for 60 s, by vibemq users of")
    assert token not in logged[2].read_text()
    vibemq(data, "users", "remove", "bob")
    says("user bob removed, by vibemq users of")


def test_ctl_and_http(logged, says):
    running, data, _ = logged
    http = Http(running)
    vibemq(data, "ctl", "add_user", "carol", SECRETS[0])
    says("/users/carol .*by vibemq ctl")
    assert http.status("PUT", "users", "carol", "password", body={"password": SECRETS[1]}) == 204
    says("PUT /users/carol/password, by guest")
    assert http.status("PUT", "users", "carol", "tags", body={"tags": "monitoring"}) == 204
    says(r"PUT /users/carol/tags \(tags 'monitoring'\), by guest")
    rights = {"configure": "^c", "write": "^w", "read": "^r"}
    assert http.status("PUT", "permissions", "/", "carol", body=rights) == 201
    says(r"PUT /permissions/%2F/carol \(configure '\^c', write '\^w', read '\^r'\), by guest")
    assert http.status("DELETE", "users", "carol") == 204
    says("DELETE /users/carol, by guest")
    assert http.status("POST", "changes", body={"change": "nothing", "by": "nobody"}) == 403


def test_the_native_door(logged, says):
    running, data, _ = logged
    vibemq(data, "users", "add", "root", "--superuser", "--password-stdin", stdin=f"{SECRETS[0]}\n")
    with connect(f"vibemq://root:{SECRETS[0].replace(' ', '%20')}@{running.host}:{running.native_port}") as client:
        client.create_user("dave", SECRETS[1])
        says("user 'dave' added, by 'root' over the native door")
        client.change_password("dave", SECRETS[2])
        says("user 'dave' has a new password, by 'root' over the native door")
        client.grant("dave", "q*", "Publish")
        says(r"user 'dave' may Publish where the queue is 'q\*', by 'root' over the native door")
        client.revoke("dave", "q*")
        says(r"user 'dave' has no permission by 'q\*' any more, by 'root' over the native door")
        client.delete_user("dave")
        says("user 'dave' removed, by 'root' over the native door")


def test_without_a_broker_nobody_is_told_and_nothing_is_said(tmp_path):
    done = vibemq(tmp_path / "data", "users", "add", "ada", "--password-stdin", stdin=f"{SECRETS[0]}\n")
    assert "could not be told" not in done.stderr
