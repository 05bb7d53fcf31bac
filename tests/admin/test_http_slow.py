# SPDX-License-Identifier: Apache-2.0
"""Callers of the management API that connect and say nothing, or come in masses, do no harm."""

import asyncio
import json
import socket
import threading
from types import SimpleNamespace

import pytest
from http_caller import DEADLINE_S

from vibemq.access.users import Authenticator as RealAuthenticator
from vibemq.access.users import Verdict
from vibemq.admin import http
from vibemq.admin.api.calls import Answer
from vibemq.config import Admin, Server
from vibemq.storage.metadata import Metadata


class Api:
    config = SimpleNamespace(streams=SimpleNamespace(login_failure_delay_s=0.2), admin=Admin(), server=Server())
    metadata = None


class Authenticator:
    def is_token(self, _):
        return False

    def check_cached(self, *_):
        return Verdict.REFUSED


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Runs a test against the address of a server, in one loop with it."""
    monkeypatch.setattr(http, "handle", lambda *_: Answer(200, {"status": "ok"}))

    def run(test, api=None, authenticator=None):
        async def serve_and_test():
            server = http.Server(api or Api(), authenticator or Authenticator())
            over_tcp = socket.create_server(("127.0.0.1", 0))
            with socket.socket(socket.AF_UNIX) as over_unix:
                over_unix.bind(str(tmp_path / "ctl.sock"))
                over_unix.listen()
                await server.listen(over_tcp, over_unix)
                try:
                    await test(*over_tcp.getsockname())
                finally:
                    await server.close()

        asyncio.run(serve_and_test())

    return run


async def health(reader, writer):
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return await reader.readline()


def test_who_says_nothing_is_dropped_and_who_asks_is_kept(served, monkeypatch):
    monkeypatch.setattr(http, "FIRST_REQUEST_S", 0.2)

    async def test(host, port):
        asking = await asyncio.open_connection(host, port)
        assert await health(*asking) == b"HTTP/1.1 200 OK\r\n"
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /hea")
        assert await reader.read() == b""
        await asking[0].readuntil(b"}")
        assert await health(*asking) == b"HTTP/1.1 200 OK\r\n"

    served(test)


OK = b"HTTP/1.1 200 OK\r\n"


def test_beyond_the_limit_the_oldest_connection_that_asks_nothing_makes_room(served, monkeypatch):
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)

    async def test(host, port):
        half_open = await asyncio.open_connection(host, port)
        half_open[1].write(b"GET /hea")
        answered = await asyncio.open_connection(host, port)
        assert await health(*answered) == OK
        newcomer = await asyncio.open_connection(host, port)
        assert await health(*newcomer) == OK
        assert await ended(half_open)
        assert await health(*await asyncio.open_connection(host, port)) == OK
        await answered[0].readuntil(b"}")
        assert await ended(answered)

    served(test)


def test_beyond_the_limit_nobody_is_let_in_while_all_are_being_answered(served, monkeypatch):
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)
    asked, over = threading.Event(), threading.Event()

    def slow(*_):
        asked.set()
        assert over.wait(DEADLINE_S)
        return Answer(200, {"status": "ok"})

    async def test(host, port):
        monkeypatch.setattr(http, "handle", slow)
        kept = [asyncio.create_task(health(*await asyncio.open_connection(host, port))) for _ in range(2)]
        await asyncio.to_thread(asked.wait, DEADLINE_S)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /health HTTP/1.1\r\n")
        assert await ended((reader, writer))
        over.set()
        assert await asyncio.gather(*kept) == [OK, OK]

    served(test)


async def ended(connection):
    try:
        return await connection[0].read() == b""
    except ConnectionResetError:
        return True


async def wrong_password(reader, writer):
    writer.write(b"GET /api/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic dTpw\r\n\r\n")
    return await reader.readline()


def test_a_wrong_password_is_told_late_and_holds_up_nobody(served, monkeypatch):
    async def test(host, port):
        asleep, over, really_sleep = asyncio.Event(), asyncio.Event(), asyncio.sleep

        async def sleep(seconds):  # other parts of the server call it as well
            if seconds != Api.config.streams.login_failure_delay_s:
                return await really_sleep(seconds)
            asleep.set()
            await over.wait()
            return None

        monkeypatch.setattr(http.asyncio, "sleep", sleep)
        guessing = asyncio.create_task(wrong_password(*await asyncio.open_connection(host, port)))
        await asleep.wait()
        assert await health(*await asyncio.open_connection(host, port)) == b"HTTP/1.1 200 OK\r\n"
        assert not guessing.done()
        over.set()
        assert await guessing == b"HTTP/1.1 401 Unauthorized\r\n"

    served(test)


def test_only_so_many_wrong_passwords_wait_for_their_answer(served, monkeypatch):
    monkeypatch.setattr(http, "FAILED_LOGINS_MAX", 2)

    async def test(host, port):
        connections = [await asyncio.open_connection(host, port) for _ in range(3)]
        answers = await asyncio.gather(*(wrong_password(*connection) for connection in connections))
        assert sorted(answers) == [b"HTTP/1.1 401 Unauthorized\r\n"] * 2 + [b"HTTP/1.1 429 Too Many Requests\r\n"]

    served(test)


GUEST_LOGIN = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q="
PAGE_LOGIN = json.dumps({"user": "guest", "password": "guest"})
#: What is asked, with its headers and body, and the paths that wait while it must be answered.
PROMPT = (
    ("GET /health/live HTTP/1.1", "", "", ("/overview", "/healthchecks/node", "/health/ready", "/metrics")),
    ("GET /health/ready HTTP/1.1", "", "", ("/overview", "/healthchecks/node", "/metrics")),
    ("GET /metrics HTTP/1.1", GUEST_LOGIN, "", ("/overview", "/healthchecks/node")),
    ("POST /page/login HTTP/1.1", "Content-Type: application/json", PAGE_LOGIN, ("/overview", "/metrics")),
)
WAITS = {
    "/overview": ("GET /api/overview HTTP/1.1", GUEST_LOGIN),
    "/healthchecks/node": ("GET /health HTTP/1.1", ""),
    "/health/ready": ("GET /health/ready HTTP/1.1", ""),
    "/metrics": ("GET /metrics HTTP/1.1", GUEST_LOGIN),
}


async def ask(connection, line, headers="", body=""):
    reader, writer = connection
    sent = [line, "Host: localhost", f"Content-Length: {len(body)}", *([headers] if headers else ()), "", body]
    writer.write("\r\n".join(sent).encode())
    return await reader.readline()


@pytest.mark.parametrize(("line", "headers", "body", "waiting"), PROMPT, ids=[each[0].split()[1] for each in PROMPT])
def test_it_is_answered_while_requests_hold_every_thread_that_they_may(
    served, tmp_path, monkeypatch, line, headers, body, waiting
):
    over, held = threading.Event(), threading.Semaphore(0)

    def handle(api, method, path, *_):
        if path in waiting:
            held.release()
            over.wait()
        return Answer(200, {"status": "ok"})

    monkeypatch.setattr(http, "handle", handle)
    api = Api()
    api.metadata, api.audit = Metadata(str(tmp_path / "meta.db")), None

    async def test(host, port):
        try:
            asked = []
            for path in waiting:
                connections = [await asyncio.open_connection(host, port) for _ in range(2 * http.THREADS_MAX)]
                asked += [asyncio.create_task(ask(connection, *WAITS[path])) for connection in connections]
            for _ in range(http.THREADS_MAX):
                await asyncio.to_thread(held.acquire)
            asking = ask(await asyncio.open_connection(host, port), line, headers, body)
            assert await asyncio.wait_for(asking, DEADLINE_S) == b"HTTP/1.1 200 OK\r\n"
            assert not any(task.done() for task in asked)
        finally:
            over.set()
        assert set(await asyncio.gather(*asked)) == {b"HTTP/1.1 200 OK\r\n"}

    served(test, api, RealAuthenticator(api.metadata, guest_allowed=True))
