# SPDX-License-Identifier: Apache-2.0
"""What the functions of the management API have in common: the database, the workers, and what a caller may do.

``vibemq ctl`` uses the same functions: through the socket of the admin process, or with an ``Api`` of its own where no
broker runs (``Workers([])``: there are no connections then).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from vibemq.access.rights import Rights, VhostRights
from vibemq.admin.api.calls import ADMINISTRATOR, MONITORING, Call, Caller, Refused, not_authorised
from vibemq.admin.api.readiness import Readiness
from vibemq.admin.api.survey import Survey
from vibemq.admin.unpacking import Room
from vibemq.admin.workers import NoAnswer, Workers
from vibemq.broker.alarms import Conditions
from vibemq.broker.audit import AuditLog
from vibemq.broker.catalog import Catalog, Deleted
from vibemq.config import Config
from vibemq.storage.calls import Calls
from vibemq.storage.metadata import Metadata
from vibemq.storage.meters import Meters

if TYPE_CHECKING:
    from vibemq.admin.page.sampler import Sampler

R = TypeVar("R", bound=Any)  # a record of the database that has a vhost

#: So many of the largest requests with lines fit into memory at once when they are unpacked.
UNPACKED_BODIES = 16

log = logging.getLogger("vibemq.admin")


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

    submit_remove = submit


class Api:
    """One for each process; may be used from several threads."""

    def __init__(
        self, config: Config, metadata: Metadata, workers: Workers, node: str, addresses: Mapping[str, str],
        started_ms: int, conditions: Conditions | None = None, meters: Mapping[str, Meters] | None = None,
        calls: Mapping[str, Calls] | None = None,
    ) -> None:  # fmt: skip
        """``conditions``: None where no broker runs; ``meters``: what each process counts, by its name; ``calls``: its
        file system calls."""
        self.calls = calls or {}
        self.config, self.metadata, self.workers, self.node = config, metadata, workers, node
        self.addresses, self.started_ms, self.conditions = addresses, started_ms, conditions
        self.meters, self.survey, self.readiness = meters or {}, Survey(), Readiness()
        self.audit: AuditLog | None = None  # of the admin process; who works on the files has one of their own
        self.unpacked = Room(UNPACKED_BODIES * config.admin.ingest_body_max_bytes)
        self.catalog = Catalog(config, _Table(metadata, workers))  # type: ignore[arg-type]
        self._rights = Rights(metadata, config.guest.allow_loopback)
        self._rights_lock = threading.Lock()
        #: Rates and their last hour (vibemq/admin/page/sampler.py); None where no admin process runs.
        self.sampler: Sampler | None = None

    def rights(self, caller: Caller, vhost: str) -> VhostRights | None:
        """What the caller may do there with streams; None: nothing, or there is no such vhost."""
        if caller.level >= ADMINISTRATOR:
            return VhostRights(caller.name, vhost, is_superuser=True) if self.metadata.has_vhost(vhost) else None
        if caller.access is not None:
            return caller.access.rights_in(vhost) if self.metadata.has_vhost(vhost) else None
        with self._rights_lock:  # made for one thread
            return self._rights.of(caller.name, vhost)

    def sees(self, caller: Caller, vhost: str) -> bool:
        return caller.level >= MONITORING or self.rights(caller, vhost) is not None

    def require_seen(self, caller: Caller, vhost: str) -> None:
        """The caller may look at what is in this vhost.  Raises Refused."""
        if not self.metadata.has_vhost(vhost):
            raise Refused(404, "not_found", "vhost_not_found")
        if not self.sees(caller, vhost):
            raise no_access(caller, vhost)

    def vhost_of(self, call: Call) -> str | None:
        """That of the path, which the caller may look into; None: the path is about all of them.  Raises Refused."""
        vhost = call.path.get("vhost")
        if vhost is not None:
            self.require_seen(call.caller, vhost)
        return vhost

    def seen(self, call: Call, records: Iterable[R]) -> list[R]:
        """Those in the vhost of the path, if it has one, that the caller may look at.  Raises Refused."""
        vhost = self.vhost_of(call)
        return [each for each in records if vhost in (None, each.vhost) and self.sees(call.caller, each.vhost)]

    def require(self, caller: Caller, vhost: str) -> VhostRights:
        """The rights of a caller who may use this vhost.  Raises Refused."""
        self.require_seen(caller, vhost)
        found = self.rights(caller, vhost)
        if found is None:
            raise no_access(caller, vhost)
        return found

    def require_rights(
        self, call: Call, vhost: str, *, configure: Sequence[str] = (), write: Sequence[str] = (),
        read: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """The caller may do this with what has these names.  Raises Refused."""
        rights = self.require(call.caller, vhost)
        for right, names in (("configure", configure), ("write", write), ("read", read)):
            for name in names:
                if not getattr(rights, right)(name):
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


def no_access(caller: Caller, vhost: str) -> Refused:
    return not_authorised(f"access to vhost '{vhost}' refused for user '{caller.name}'")
