# SPDX-License-Identifier: Apache-2.0
"""The audit log: who changed what of streams, queues, users, rights, policies and limits, from where, by which door.

Each event is a line of JSON, with the time in UTC: `at`, `what`, `name`, `user`, `from`, `door` (`native`, `streams`,
`signalr`, `micromsg2`, `admin`; `ctl`, `files` without a broker, `broker` by itself), and what else there is to say.
It says what was done, never what was only tried, and no password, hash or token is ever
given to it.  Lines are appended by all processes, each in one write under the file's lock; when a line would make the
file larger than `audit.size_max_bytes` it becomes NAME.1, that one NAME.2, and so on, and what is older than
`audit.files_max` files is gone.  Whatever writes it may block, so it is called in helper threads only.

A change stays done where its line cannot be written: the line is in the ordinary log then, which also says why.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from vibemq.once_a_minute import OnceAMinute

if TYPE_CHECKING:
    from vibemq.broker.client import Client
    from vibemq.config import Audit

FILE = "audit.log"  # in the data directory, unless the option says otherwise
#: Of one value: names of streams have 255 bytes at most, definitions of policies may be long.
VALUE_CHARACTERS_MAX = 1000
LINE_BYTES_MAX = 8192  # a line that is longer says so instead of its details

logger = logging.getLogger(__name__)
audit_logger = logging.getLogger("vibemq.audit")
failing = OnceAMinute(logger, logging.ERROR)


class Author(NamedTuple):
    """Who changes something: a user, "" for nobody in particular, and where it comes from."""

    user: str
    peer: str
    door: str


#: The broker itself, as for the queue of another one's dead letters.
BROKER = Author("", "", "broker")


def author(client: Client) -> Author:
    """Of what a client asks for."""
    owner = client.owner
    return Author(client.user, owner.peer, owner.door.name)


class AuditLog:
    """As one process sees it; for any thread."""

    def __init__(self, options: Audit, data_dir: str, *, clock: Callable[[Any], datetime] = datetime.now) -> None:
        self._to, self._clock = options.to, clock
        self._path = os.path.join(data_dir, options.file or FILE)
        self._size_max, self._files_max = options.size_max_bytes, options.files_max

    def say(self, by: Author, what: str, name: str, **details: Any) -> None:
        """What was done, and to what of which name."""
        if self._to == "none":
            return
        at = self._clock(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = {"at": at, "what": what, "name": name, "user": by.user, "from": by.peer, "door": by.door}
        more = {key: _cut(value) for key, value in details.items() if value not in (None, "", {}, [])}
        line = json.dumps(event | more)
        if len(line) > LINE_BYTES_MAX:
            line = json.dumps({key: _cut(value) for key, value in event.items()} | {"details": "too long"})
        if self._to == "log":
            audit_logger.info("%s", line)
            return
        try:
            self._append(f"{line}\n".encode())
        except OSError as problem:
            failing.say("write", "the audit log %s cannot be written: %s", self._path, problem.strerror)
            audit_logger.warning("%s", line)

    def _append(self, line: bytes) -> None:
        while True:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                found = os.fstat(fd)
                if not _is_at(found, self._path):  # another process was quicker and has moved it
                    continue
                if not found.st_size and not os.geteuid():  # or the account that serves could not go on with it
                    folder = os.stat(os.path.dirname(self._path))
                    os.fchown(fd, folder.st_uid, folder.st_gid)
                if not found.st_size or found.st_size + len(line) <= self._size_max:
                    if os.write(fd, line) < len(line):  # the disk is full; half a line would spoil the next one
                        os.ftruncate(fd, found.st_size)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
                    return
                self._move_on()
            finally:
                os.close(fd)

    def _move_on(self) -> None:
        """With the lock of the newest file."""
        for number in range(self._files_max - 1, 0, -1):
            older = f"{self._path}.{number}"
            newer = self._path if number == 1 else f"{self._path}.{number - 1}"
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)
        if self._files_max == 1:
            os.unlink(self._path)


def _is_at(found: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(found, os.stat(path))
    except FileNotFoundError:
        return False


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return value
    return f"{text[:VALUE_CHARACTERS_MAX]}..."
