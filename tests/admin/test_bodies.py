# SPDX-License-Identifier: Apache-2.0
"""Bodies that are sent to the management API: their memory is bounded together, and small ones pass."""

import gzip
import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from http_caller import DEADLINE_S, Http
from running import ENVIRONMENT, Running, broker, wait_until

from vibemq.admin.bodies import BODIES_BYTES_MAX, BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX

AT_ONCE = BODIES_BYTES_MAX // BODY_BYTES_MAX
SENDERS = 30
#: What an object of Python, a connection and its buffers may take, generously.
CONNECTION_BYTES = 512 << 10
LOGIN = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q="
#: Definitions that set up nothing: what is not known is passed over.
LARGEST = b'{"x": "' + b"x" * (BODY_BYTES_MAX - 9) + b'"}'


#: A body that is to take room does so until its sender goes, however slow the machine is.
PATIENT = "from vibemq.admin import bodies\nbodies.BODY_S = 86400.0\n"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    through = ("env", os.pathsep.join((f"PYTHONPATH={tmp_path}", ENVIRONMENT["PYTHONPATH"])))
    with broker(tmp_path / "data", workers=1, through=through) as running:
        yield running


class Sender:
    """Sends definitions over a connection of its own, as far as it is let."""

    def __init__(self, running: Running, *headers: str, path: str = "/api/definitions", login: str = LOGIN) -> None:
        self.socket = socket.create_connection((running.host, running.admin_port), timeout=DEADLINE_S)
        lines = f"POST {path} HTTP/1.1", "Host: localhost", login, *headers, "", ""
        self.socket.sendall("\r\n".join(lines).encode())

    def answer(self) -> tuple[int, bytes]:
        """Status and headers."""
        found = b""
        while b"\r\n\r\n" not in found:
            part = self.socket.recv(1 << 16)
            assert part, found
            found += part
        return int(found.split()[1]), found

    def has_answer(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])


def sized(running: Running, size: int = BODY_BYTES_MAX) -> Sender:
    return Sender(running, f"Content-Length: {size}")


def peak_bytes(running: Running) -> int:
    said = Path(f"/proc/{running.admin_pid()}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", said)
    assert found is not None
    return int(found[1]) << 10


def send(sender: Sender, data: bytes) -> None:
    with suppress(ConnectionError):  # who is refused is not read for ever
        sender.socket.sendall(data)


def fill(stack: ExitStack, running: Running, count: int) -> list[Sender]:
    """So many send half a body, and as many as fit are read: who is refused."""
    senders = [sized(running) for _ in range(count)]
    for sender in senders:
        stack.callback(sender.socket.close)
        send(sender, LARGEST[: BODY_BYTES_MAX // 2])
    wait_until(lambda: sum(map(Sender.has_answer, senders)) == count - AT_ONCE, "the others are refused")
    return [each for each in senders if each.has_answer()]


def all_fit(running: Running) -> bool:
    """Do as many of the largest as may be read at once pass, the last byte of each behind the rest of all?"""
    with ExitStack() as stack:
        senders = [sized(running) for _ in range(AT_ONCE)]
        for sender in senders:
            stack.callback(sender.socket.close)
            send(sender, LARGEST[:-1])
        for sender in senders:
            send(sender, LARGEST[-1:])
        return [sender.answer()[0] for sender in senders] == [204] * AT_ONCE


def test_many_large_bodies_have_bounded_memory_together_and_hold_up_nothing_small(running: Running) -> None:
    http = Http(running)
    assert http.get("whoami")["name"] == "guest"
    before = peak_bytes(running)
    with ExitStack() as stack:
        refused = fill(stack, running, SENDERS)
        for sender in refused:
            status, said = sender.answer()
            assert (status, b"Retry-After: 5" in said) == (503, True)
        assert http.raw("GET", "/health/ready").status == 200
        assert http.raw("GET", "/metrics").status == 200
        login = json.dumps({"user": "guest", "password": "guest"})
        assert http.raw("POST", "/page/login", login, Content_Type="application/json").status == 200
        assert http.call("POST", "definitions", body={"x": "x" * (SMALL_BODY_BYTES_MAX - 20)}).status == 204
        reply = http.call("POST", "definitions", body={"x": "x" * (BODY_BYTES_MAX // 4)})
        assert (reply.status, "all together have at most" in reply.json["reason"]) == (503, True)
        assert peak_bytes(running) - before < BODIES_BYTES_MAX + (SENDERS + AT_ONCE) * CONNECTION_BYTES
    wait_until(lambda: all_fit(running), "the whole budget is there again")


def test_who_does_not_say_the_size_takes_what_has_come(running: Running) -> None:
    def chunked(size: int) -> Sender:
        sender = Sender(running, "Transfer-Encoding: chunked")
        body = b'{"x": "' + b"x" * (size - 9) + b'"}'
        for at in range(0, size, 1 << 20):
            part = body[at : at + (1 << 20)]
            send(sender, b"%x\r\n%b\r\n" % (len(part), part))
        send(sender, b"0\r\n\r\n")
        return sender

    with ExitStack() as stack:
        fill(stack, running, AT_ONCE)
        wait_until(lambda: chunked(BODY_BYTES_MAX // 4).answer()[0] == 503, "both are read")
        assert chunked(SMALL_BODY_BYTES_MAX).answer()[0] == 204
    wait_until(lambda: chunked(BODY_BYTES_MAX).answer()[0] == 204, "there is room")
    assert chunked(BODY_BYTES_MAX + 1).answer()[0] == 413
    assert sized(running, BODY_BYTES_MAX + 1).answer()[0] == 413
    wait_until(lambda: all_fit(running), "the whole budget is there again")


def test_who_sits_beside_the_data_needs_no_room_among_others(running: Running, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_bytes(LARGEST)
    command = [sys.executable, "-m", "vibemq.cli", "ctl", "import_definitions", str(file)]
    with ExitStack() as stack:
        fill(stack, running, AT_ONCE + 1)
        command += ["--data-dir", str(tmp_path / "data")]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr


def test_who_goes_before_the_body_ends_leaves_no_error_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path / "data", workers=1) as running:
        for path, login in (("/api/definitions", LOGIN), ("/page/login", "Content-Type: application/json")):
            sender = Sender(running, "Expect: 100-continue", "Content-Length: 100", path=path, login=login)
            assert sender.answer()[0] == 100  # now its body is waited for
            sender.socket.close()
        wait_until(lambda: all_fit(running), "the admin process is well")
    assert "ERROR" not in capfd.readouterr().err


def test_no_body_is_unpacked(running: Running) -> None:
    login = gzip.compress(json.dumps({"user": "guest", "password": "guest"}).encode())
    http = Http(running)
    for path in ("/page/login", "/api/definitions"):
        headers = {"Content_Type": "application/json", "Content_Encoding": "gzip"}
        reply = http.raw("POST", path, login, **headers)
        assert (reply.status, "not unpacked" in reply.json["reason"]) == (415, True)
