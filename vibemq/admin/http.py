# SPDX-License-Identifier: Apache-2.0
"""HTTP around the management API: aiohttp speaks the protocol, each request runs in a thread, here is what is between.

Two doors.  Over TCP everybody says who they are, with HTTP Basic, with a provider's token as Bearer, or
with the cookie of the management page's login (admin/page/door.py), and what they may do is their tags'.  Over the Unix
socket in the data directory nobody is asked: only the account that owns the broker's files can open it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vibemq.access.scopes import TokenAccess
from vibemq.access.users import GUEST, Authenticator, Verdict, basic_login, bearer_token
from vibemq.admin.api.accounts import caller_of, caller_with
from vibemq.admin.api.answering import handle
from vibemq.admin.api.calls import NOBODY, OWNER, Answer, Caller, Refused, Upload, json_object, not_found, too_many
from vibemq.admin.api.changes import audit, told
from vibemq.admin.api.routes import takes_upload
from vibemq.admin.api.service import Api
from vibemq.admin.bodies import Bodies
from vibemq.admin.failures import Failures
from vibemq.admin.page.door import CSRF_HEADER, PageDoor
from vibemq.admin.secure import Secured, SecureServer
from vibemq.admin.where import is_loopback, is_this_machine
from vibemq.broker.audit import Author
from vibemq.broker.limits import count_refused
from vibemq.once_a_minute import OnceAMinute

PREFIX = "/api"
#: Requests of the API at once; the rest waits. One that waits for a confirm, a worker that hangs or the object store
#: holds its thread for seconds, so what must be answered meanwhile has threads of its own.
THREADS_MAX = 8
CTL_THREADS_MAX = 2  # `vibemq ctl` is how one looks what holds the others
METRICS_THREADS_MAX = 2
INGEST_THREADS_MAX = 4  # unpack lines; who waits for confirms holds none
ACCOUNT_THREADS_MAX = 2  # who somebody is: reads a row, and never waits for anybody
HEALTH_THREADS_MAX = 1  # for each path: what is asked there while workers hang waits for them
HASH_THREADS_MAX = 2  # a flood of logins may take this much of the machine
TOKEN_THREADS_MAX = 2  # they may wait for the provider's keys
SHUTDOWN_TIMEOUT_S = 1.0
STORING_S = 10.0  # at the end, for the confirms of lines
CONNECTIONS_MAX = 1024  # of each port: a flood of connections must leave descriptors for `vibemq ctl`
FILES_KEPT = 128  # descriptors for `vibemq ctl`, questions to workers and own files, if the limit of open files is low
FIRST_REQUEST_S = 10.0  # who connects and says nothing for so long makes room for others
LIMITED_STATUS = (413, 429)  # a body that is too large, and too many requests
FAILED_LOGINS_MAX = 512  # that wait for their answer: more than the hashing threads can refuse within a delay
REALM = "VibeMQ Management"
#: Nobody is asked who they are; a load balancer has no password.
PUBLIC_HEALTH = {"/health": "/healthchecks/node", "/health/live": "/health/live", "/health/ready": "/health/ready"}
_METRICS = ("/metrics", "/metrics/detailed")
_TEXT = "text/plain; version=0.0.4; charset=utf-8"  # the version of Prometheus's format, which is all text there is
CHANGES = "/changes"
_SHOWN_CHARACTERS_MAX = 500
_USER_SHOWN_MAX = 255

log = logging.getLogger("vibemq.admin")
faults = OnceAMinute(log, logging.ERROR)
refusing = OnceAMinute(log)  # anybody may fail to log in, and must not fill the disk with it
throttling = OnceAMinute(log)
crowded = OnceAMinute(log)
starved = OnceAMinute(log)
malformed = OnceAMinute(log, logging.INFO, event="peer_refused")


class Threads(ThreadPoolExecutor):
    """Threads of which one starts at once, so requests are answered also if further threads are refused."""

    def __init__(self, threads_max: int, name: str) -> None:
        super().__init__(threads_max, name)
        with suppress(RuntimeError):  # the first request tries again
            self.submit(_nothing)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()  # the running threads take the request
        except RuntimeError as problem:
            name = self._thread_name_prefix
            said = "a thread for %s was refused (%d run): %s; raise pids.max, `ulimit -u` or the limit of memory"
            starved.say(name, said, name, len(self._threads), problem)
            if not self._threads:
                raise


def _nothing() -> None:
    """Start a thread."""


class Server:
    """The doors of one admin process."""

    def __init__(self, api: Api, authenticator: Authenticator) -> None:
        self._api = api
        self._authenticator = authenticator
        self._threads = Threads(THREADS_MAX, "request")
        self._ctl_threads = Threads(CTL_THREADS_MAX, "ctl")
        self._metrics_threads = Threads(METRICS_THREADS_MAX, "metrics")
        self._ingest_threads = Threads(INGEST_THREADS_MAX, "ingest")
        self._account_threads = Threads(ACCOUNT_THREADS_MAX, "account")
        self._health_threads = {path: Threads(HEALTH_THREADS_MAX, "health") for path in PUBLIC_HEALTH}
        self._hash_threads = Threads(HASH_THREADS_MAX, "hash")
        self._token_threads = Threads(TOKEN_THREADS_MAX, "token")
        in_thread = partial(_in_thread, self._account_threads)
        self._page = PageDoor(api, authenticator, self._caller, self._failed_login, in_thread)
        self._bodies, self._ctl_bodies = Bodies(), Bodies()
        self._ingest_bodies = Bodies(api.config.admin.ingest_body_max_bytes)
        self._storing, self._all_stored = 0, asyncio.Event()  # requests whose lines workers store
        self._all_stored.set()
        self._runners: list[web.AppRunner] = []
        self._servers: list[asyncio.Server | SecureServer] = []
        self._failures = Failures()
        self._hashing = asyncio.Semaphore(HASH_THREADS_MAX)
        self._failed_logins = 0  # whose answers wait
        self._silent: dict[asyncio.BaseProtocol | None, asyncio.TimerHandle] = {}  # before their first request
        self._busy: set[asyncio.BaseProtocol] = set()  # connections with a request that is being answered
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max = min(CONNECTIONS_MAX, max((files_max - FILES_KEPT) // 2, 1))  # there are two ports

        logging.getLogger("aiohttp.server").addFilter(_keep_requests_out)

    async def listen(
        self,
        http: socket.socket | None,
        ctl: socket.socket,
        https: socket.socket | None = None,
        certificates: Secured | None = None,
    ) -> None:
        if http is not None:
            await self._serve(http, self._on_http, self._connections_max)
        if https is not None:
            await self._serve(https, self._on_http, self._connections_max, certificates)
        await self._serve(ctl, self._on_ctl, None)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        with suppress(TimeoutError):  # workers that end store what they have begun: who is not told so sends it again
            async with asyncio.timeout(min(STORING_S, self._api.config.server.shutdown_timeout_s / 2)):
                await self._all_stored.wait()
        for runner in self._runners:
            await runner.cleanup()
        kinds = self._threads, self._ctl_threads, self._metrics_threads, self._ingest_threads, self._account_threads
        for threads in (*kinds, *self._health_threads.values(), self._hash_threads, self._token_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _serve(
        self,
        listener: socket.socket,
        answer: Any,
        connections_max: int | None,
        certificates: Secured | None = None,
    ) -> None:
        def count_if_limited(status: int) -> None:
            if status in LIMITED_STATUS:
                count_refused()

        async def handler(request: web.Request) -> web.Response:
            if (timer := self._silent.pop(request.protocol, None)) is not None:
                timer.cancel()
            self._busy.add(request.protocol)
            try:
                packed = request.headers.get("Content-Encoding", "identity").lower() != "identity"
                if packed and not _takes_upload(request):
                    raise Refused(415, "unsupported_media_type", "bodies are not unpacked: send it as it is")
                response = _response(await answer(request))
                count_if_limited(response.status)
                return response
            except Refused as refused:
                response = _response(refused.answer)
                count_if_limited(response.status)
                if refused.error == "not_authorized" and CSRF_HEADER not in request.headers:
                    # Nobody has logged in; the page asks for that itself, and no browser should.
                    response.headers["WWW-Authenticate"] = f'Basic realm="{REALM}"'
                return response
            finally:
                self._busy.discard(request.protocol)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        # Nothing is unpacked here: a body of some bytes could become one of millions, also of who has not logged in.
        runner = web.AppRunner(application, access_log=None, auto_decompress=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
        await runner.setup()
        self._runners.append(runner)
        loop = asyncio.get_running_loop()

        server = runner.server
        assert server is not None

        def make_room() -> bool:
            said = "%d connections to the management API: the oldest idle one is closed for a new one"
            crowded.say("", said, connections_max)
            return self._close_oldest_idle(server.connections)

        def accept() -> asyncio.BaseProtocol:
            is_full = connections_max is not None and len(server.connections) >= connections_max
            if is_full and certificates is None and not make_room():
                count_refused()
                return _Refusal()
            protocol = server()
            self._silent[protocol] = loop.call_later(FIRST_REQUEST_S, self._drop_silent, protocol)
            return protocol

        if certificates is None or connections_max is None:
            self._servers.append(await loop.create_server(accept, sock=listener))
        else:
            limits = connections_max, FIRST_REQUEST_S
            rooms = partial(_count, server), make_room
            self._servers.append(SecureServer(listener, certificates, accept, *rooms, *limits))

    def _close_oldest_idle(self, connections: list[web.RequestHandler]) -> bool:
        """Close the oldest connection without a running request; False: there is none."""
        for protocol in connections:
            if protocol not in self._busy and protocol.transport is not None and not protocol.transport.is_closing():
                protocol.transport.abort()
                return True
        return False

    def _drop_silent(self, protocol: web.RequestHandler) -> None:
        del self._silent[protocol]
        protocol.force_close()

    async def _on_http(self, request: web.Request) -> Answer | web.Response:
        if _from_another_page(request):
            raise Refused(403, "forbidden", "asked by a page of another site")
        if (check := PUBLIC_HEALTH.get(request.rel_url.raw_path)) is not None:
            threads = self._health_threads[request.rel_url.raw_path]
            return cast(Answer, await _in_thread(threads, handle, self._api, "GET", check, OWNER))
        page = await self._page.answer(request)
        if page is not None:
            return page
        given = request.headers.get("Authorization", "")
        login = basic_login(given)
        if login is None and (token := bearer_token(given)) is not None:
            login = "", token
        caller = await (self._page.caller(request) if login is None else self._caller(request, *login))
        if caller is None:
            if login is not None:
                await self._failed_login()
            raise Refused(401, "not_authorized", "Login failed")
        return await self._answer(request, caller)

    async def _on_ctl(self, request: web.Request) -> Answer:
        return await self._answer(request, OWNER)

    async def _answer(self, request: web.Request, caller: Caller) -> Answer:
        path = request.rel_url.raw_path
        if path.startswith(f"{PREFIX}/"):
            path = path.removeprefix(PREFIX)
        elif path not in _METRICS:
            raise not_found(f"paths begin with {PREFIX}")
        if takes_upload(request.method, path):
            return await self._store(request, caller, path)
        if not request.can_read_body or caller.level <= NOBODY:  # who has no tag changes nothing
            return await self._handle(request, caller, path, b"")
        async with (self._ctl_bodies if caller is OWNER else self._bodies).read(request) as body:
            return await self._handle(request, caller, path, body)

    async def _store(self, request: web.Request, caller: Caller, path: str) -> Answer:
        """Lines of agents: not in the log and not audited, as messages of any protocol."""
        async with self._ingest_bodies.read(request) as body:
            header = request.headers.get
            upload = Upload(
                body,
                header("Content-Type", ""),
                header("Content-Encoding", ""),
                header("Publisher", ""),
                header("Sequence", ""),
            )
            begun = await self._handled(self._ingest_threads, request, path, caller, request.query, {}, "", upload)
        if begun.pending is None:
            return begun
        self._storing += 1
        self._all_stored.clear()
        try:
            return await begun.pending.answer()
        finally:
            self._storing -= 1
            if not self._storing:
                self._all_stored.set()

    async def _handled(self, threads: Executor, request: web.Request, path: str, *arguments: Any) -> Answer:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            return cast(Answer, await _in_thread(threads, handle, self._api, method, path, *arguments))
        except Exception as problem:  # a bug in this program; the process continues
            faults.say_fault(problem, "%s %s failed by an error of ours", request.method, path)
            return Answer(500, {"error": "internal_error", "reason": "the log of the broker says why"})

    async def _handle(self, request: web.Request, caller: Caller, path: str, raw: bytes | bytearray) -> Answer:
        threads = self._metrics_threads if path in _METRICS else self._threads
        threads = self._ctl_threads if caller is OWNER else threads
        in_thread = partial(_in_thread, threads)
        body = await in_thread(json_object, raw) if raw else {}
        method = "GET" if request.method == "HEAD" else request.method
        reason = request.headers.get("X-Reason", "")
        answer = await self._handled(threads, request, path, caller, request.query, body, reason)
        if method != "GET" and answer.status < 300 and path != CHANGES:  # which says itself who did what
            log.info("%s %s%s, by %s", method, path, _detail(body), caller.name or "vibemq ctl")
            if self._api.audit is not None:
                by = Author(caller.name, request.remote or "", "ctl" if caller is OWNER else "admin")
                await in_thread(audit, self._api.audit, by, method, path, body)
        return answer

    async def _caller(self, request: web.Request, user: str, password: str) -> Caller | None:
        """Raises Refused."""
        if user == GUEST and not is_this_machine(request):
            return None
        verdict = await self._verdict(str(request.remote), user, password)
        if isinstance(verdict, TokenAccess):
            return caller_with(verdict)
        if verdict is not Verdict.OK:
            said = "%s: login of user %.*r over HTTP refused"
            refusing.say(request.remote, said, request.remote, _USER_SHOWN_MAX, user)
            return None
        return cast(Caller, await _in_thread(self._account_threads, caller_of, self._api, user))

    async def _verdict(self, address: str, user: str, password: str) -> Verdict | TokenAccess:
        """Raises Refused where too many logins from there have failed; tokens are signed, and cannot be guessed."""
        login = (user, password, is_loopback(address))
        if self._authenticator.is_token(password):
            return cast(TokenAccess, await _in_thread(self._token_threads, self._authenticator.check, *login))
        self._require_may_try(address, user, password)
        verdict = await _in_thread(self._account_threads, self._authenticator.check_cached, *login)
        if verdict is None:
            async with self._hashing:
                self._require_may_try(address, user, password)  # of those that waited here some have failed
                verdict = await _in_thread(self._hash_threads, self._authenticator.check, *login)
        (self._failures.was_right if verdict is Verdict.OK else self._failures.failed)(address, user, password)
        return cast(Verdict, verdict)

    def _require_may_try(self, address: str, user: str, password: str) -> None:
        """Raises Refused."""
        if wait_s := self._failures.wait_s(address, user, password):
            refused = too_many("too many logins from your address have failed", wait_s)
            said = "%s: too many logins over HTTP have failed, refused for %d s"
            throttling.say(address, said, address, refused.retry_s)
            raise refused

    async def _failed_login(self) -> None:
        """Let time pass before a wrong password is called wrong.  Raises Refused: too many wait for that already."""
        delay_s = self._api.config.streams.login_failure_delay_s
        if self._failed_logins >= FAILED_LOGINS_MAX:
            raise too_many("too many logins fail at this moment", delay_s)
        self._failed_logins += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._failed_logins -= 1


def _count(server: web.Server) -> int:
    return len(server.connections)


async def _in_thread(threads: Executor, work: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)


def _keep_requests_out(record: logging.LogRecord) -> bool:
    """Filter the log of aiohttp: it repeats the bytes of a malformed request, and a password may be among them."""
    problem = record.exc_info[1] if record.exc_info else None
    if not isinstance(problem, HttpProcessingError):
        return True
    peer = record.args[0] if isinstance(record.args, tuple) and record.args else "unknown"
    said = "%s: a malformed HTTP request was refused: %s"
    malformed.say((peer, type(problem)), said, peer, type(problem).__name__)
    return False


class _Refusal(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _takes_upload(request: web.Request) -> bool:
    path = request.rel_url.raw_path
    return path.startswith(f"{PREFIX}/") and takes_upload(request.method, path.removeprefix(PREFIX))


def _from_another_page(request: web.Request) -> bool:
    """A browser says where a request comes from that changes something; no other site may use its logins."""
    origin = request.headers.get("Origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return False
    try:
        return urlsplit(origin).netloc != request.host
    except ValueError:  # nothing that a page of ours would have
        return True


def _detail(body: dict[str, Any]) -> str:
    shown = ", ".join(f"{name} {value!r}" for name, value in told(body).items())
    cut = shown if len(shown) <= _SHOWN_CHARACTERS_MAX else f"{shown[:_SHOWN_CHARACTERS_MAX]}..."
    return f" ({cut})" if cut else ""


def _response(answer: Answer | web.Response) -> web.Response:
    if isinstance(answer, web.Response):
        return answer
    if answer.body is None:
        return web.Response(status=answer.status)
    if isinstance(answer.body, str):
        return web.Response(status=answer.status, body=answer.body.encode(), headers={"Content-Type": _TEXT})
    text = json.dumps(answer.body, default=str)
    response = web.Response(status=answer.status, text=text, content_type="application/json", charset=None)
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Content-Type-Options"] = "nosniff"
    if answer.retry_s:
        response.headers["Retry-After"] = str(answer.retry_s)
    return response
