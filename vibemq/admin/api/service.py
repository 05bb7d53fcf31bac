# SPDX-License-Identifier: Apache-2.0
"""The management API without HTTP: finds the route, checks who asks, calls its function, words the errors.

The routes are one table (routes.py); their functions get this ``Api`` and the ``Call``.  They block, so each call
runs in a thread.  ``vibemq ctl`` uses the same functions: through the socket of the admin process, or
with an ``Api`` of its own where no broker runs (``Workers([])``: there are no connections then).
"""

from __future__ import annotations

import logging
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from vibemq.access.rights import Rights, VhostRights
from vibemq.admin.api.calls import (
    ADMINISTRATOR,
    MANAGEMENT,
    MONITORING,
    Answer,
    Call,
    Caller,
    Refused,
    bad_request,
    not_authorised,
)
from vibemq.admin.api.shown import Columns
from vibemq.admin.workers import NoAnswer, Workers
from vibemq.broker.alarms import Conditions
from vibemq.broker.arguments import BadArgument
from vibemq.broker.catalog import Catalog, Deleted
from vibemq.config import Config
from vibemq.errors import (
    ExchangeExists,
    ExchangeNotFound,
    LimitExceeded,
    StreamExists,
    StreamNotFound,
    UserError,
    UserExists,
    UserNotFound,
    VhostNotFound,
    VibeMQError,
)
from vibemq.storage.metadata import Metadata

Handler = Callable[["Api", Call], Any]

log = logging.getLogger("vibemq.admin")

#: What an error of ours is in HTTP: the first that fits.
_STATUS: tuple[tuple[type[VibeMQError], int, str], ...] = (
    (UserNotFound, 404, "not_found"),
    (VhostNotFound, 404, "not_found"),
    (StreamNotFound, 404, "not_found"),
    (ExchangeNotFound, 404, "not_found"),
    (UserExists, 409, "conflict"),
    (StreamExists, 400, "bad_request"),
    (ExchangeExists, 400, "bad_request"),
    (LimitExceeded, 400, "bad_request"),
    (UserError, 400, "bad_request"),
    (NoAnswer, 503, "unavailable"),
)


class _Table:
    """What the catalog needs of a worker's table of streams, from outside of the workers."""

    def __init__(self, metadata: Metadata, workers: Workers) -> None:
        self.metadata = metadata
        self._workers = workers
        self.helpers = self  # nobody waits for this thread: it may as well do the work itself

    def tell(self, workers: int, slot: int) -> None:
        if workers and len(self._workers):
            self._workers.ask_any("tell", workers=workers, slot=slot)

    def restart(self, virtual_host: str, name: str) -> None:
        self._workers.ask_any("restart", vhost=virtual_host, name=name)

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        done(work(), None)


class Api:
    """One for each process; ``handle`` may be called from several threads."""

    def __init__(
        self,
        config: Config,
        metadata: Metadata,
        workers: Workers,
        node: str,
        addresses: Mapping[str, str],
        started_ms: int,
        conditions: Conditions | None = None,
    ) -> None:
        """``conditions``: None where no broker runs."""
        from vibemq.admin.api.routes import ROUTES

        self.config = config
        self.metadata = metadata
        self.workers = workers
        self.node = node
        self.addresses = addresses
        self.started_ms = started_ms
        self.conditions = conditions
        self.catalog = Catalog(config, _Table(metadata, workers))  # type: ignore[arg-type]
        self._rights = Rights(metadata, config.guest.allow_loopback)
        self._rights_lock = threading.Lock()
        # A word in a path goes before a part that may be anything.
        routes = sorted(ROUTES, key=lambda route: route[1].count("{"))
        self._routes = [(_pattern(path), method, level, handler) for method, path, level, handler in routes]

    def handle(
        self,
        method: str,
        path: str,
        caller: Caller,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> Answer:
        """``path`` as it came, percent-encoded, without the prefix."""
        query = query or {}
        try:
            level, handler, names = self._find(method, path)
            if caller.level < level:
                raise not_authorised(_missing_tag(caller, level))
            answer = handler(self, Call(caller, names, query, body or {}, reason))
            if isinstance(answer, Answer):
                return answer
            return Answer(200, Columns(query).of(answer) if method == "GET" else answer)
        except Refused as refused:
            return Answer(refused.status, {"error": refused.error, "reason": refused.reason})
        except BadArgument as problem:
            return Answer(400, {"error": "bad_request", "reason": str(problem)})
        except VibeMQError as problem:
            for kind, status, error in _STATUS:
                if isinstance(problem, kind):
                    return Answer(status, {"error": error, "reason": str(problem)})
            log.error("%s %s: %s", method, path, problem)
            return Answer(500, {"error": "internal_error", "reason": str(problem)})

    def _find(self, method: str, path: str) -> tuple[int, Handler, dict[str, str]]:
        others = []
        for pattern, route_method, level, handler in self._routes:
            match = pattern.fullmatch(path.rstrip("/"))
            if match is None:
                continue
            if route_method == method:
                return level, handler, _decoded(match.groupdict())
            others.append(route_method)
        if others:
            raise Refused(405, "method_not_allowed", f"{path} takes {', '.join(others)}")
        raise Refused(404, "Object Not Found", "Not Found")

    # ---- what the functions of routes need ----

    def rights(self, caller: Caller, vhost: str) -> VhostRights | None:
        """What the caller may do there with streams; None: nothing, or there is no such vhost."""
        if caller.level >= ADMINISTRATOR:
            return VhostRights(caller.name, vhost, is_superuser=True) if self.metadata.has_vhost(vhost) else None
        with self._rights_lock:  # made for one thread
            return self._rights.of(caller.name, vhost)

    def sees(self, caller: Caller, vhost: str) -> bool:
        return caller.level >= MONITORING or self.rights(caller, vhost) is not None

    def require_seen(self, caller: Caller, vhost: str) -> None:
        """The caller may look at what is in this vhost.  Raises Refused."""
        if not self.metadata.has_vhost(vhost):
            raise Refused(404, "not_found", "vhost_not_found")
        if not self.sees(caller, vhost):
            raise _no_access(caller, vhost)

    def require(self, caller: Caller, vhost: str, *, level: int = MANAGEMENT) -> VhostRights:
        """The rights of a caller who may use this vhost.  Raises Refused."""
        self.require_seen(caller, vhost)
        found = self.rights(caller, vhost)
        if found is None or caller.level < level:
            raise _no_access(caller, vhost)
        return found

    def require_rights(
        self,
        call: Call,
        vhost: str,
        *,
        configure: Sequence[str] = (),
        write: Sequence[str] = (),
        read: Sequence[str] = (),
    ) -> None:
        """The caller may do this with what has these names.  Raises Refused."""
        rights = self.require(call.caller, vhost)
        needed = (
            ("configure", rights.configure, configure),
            ("write", rights.write, write),
            ("read", rights.read, read),
        )
        for right, may, names in needed:
            for name in names:
                if not may(name):
                    raise not_authorised(
                        f"{right} access to '{name}' in vhost '{vhost}' refused for user '{call.caller.name}'"
                    )

    def accounts_changed(self) -> None:
        """Users, vhosts or permissions: the workers need not wait for their next look."""
        if len(self.workers):
            try:
                self.workers.ask_any("access_changed")
            except NoAnswer as problem:
                log.warning("workers learn of a changed right within a second only: %s", problem)

    def sessions(self, caller: Caller) -> Iterator[dict[str, Any]]:
        """The connections that the caller may see."""
        for session in self.workers.sessions():
            if caller.level >= MONITORING or session.get("user") == caller.name:
                yield session

    def close_sessions(self, reason: str, **wanted: str) -> None:
        """Drop every connection that has all of these properties, where workers answer."""
        for session in list(self.workers.sessions()):
            if all(session.get(name) == value for name, value in wanted.items()):
                try:
                    self.workers.close(session, reason)
                except NoAnswer as problem:  # what was asked for is done all the same
                    log.warning("%s is not closed: %s", session["name"], problem)

    def streams_deleted(self, gone: list[Deleted]) -> None:
        for one in gone:
            self.catalog.deleted(one)


def _missing_tag(caller: Caller, level: int) -> str:
    """RabbitMQ's words for what the caller is not, and how it may become that."""
    tag = {MANAGEMENT: "management", MONITORING: "monitoring"}.get(level, "administrator")
    said = "Not administrator user" if level == ADMINISTRATOR else "User not authorised"
    command = shlex.join(["vibemq", "ctl", "set_user_tags", caller.name, *caller.tags, tag])
    return f"{said}: it has no tag '{tag}', which `{command}` gives"


def _no_access(caller: Caller, vhost: str) -> Refused:
    return not_authorised(f"access to vhost '{vhost}' refused for user '{caller.name}'")


def _decoded(parts: Mapping[str, str]) -> dict[str, str]:
    """Strictly, so that no two paths mean the same name.  Raises Refused."""
    try:
        return {name: unquote(value, errors="strict") for name, value in parts.items()}
    except UnicodeDecodeError:
        raise bad_request("the path is not valid UTF-8") from None


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
