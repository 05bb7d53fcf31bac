# SPDX-License-Identifier: Apache-2.0
"""What a request has changed, as the audit log says it (broker.audit)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from vibemq.broker.audit import AuditLog, Author
from vibemq.config import Audit
from vibemq.storage.limits import LEAST

#: What of a request's body is shown: what it changes, and nothing that could be a secret.
SHOWN = ("tags", "configure", "write", "read", "pattern", "definition", "priority", "apply-to", "arguments",
         "partitions", "description", "value", "users", *LEAST)  # fmt: skip
FILES = "files"  # the door of who needs none
ACCOUNTS_CHANGED = "accounts.changed"
#: By what a path begins with.
_OF = {
    "users": "user",
    "vhosts": "virtual_host",
    "permissions": "permissions",
    "policies": "policy",
    "queues": "queue",
    "exchanges": "exchange",
    "bindings": "binding",
    "user-limits": "user_limits",
    "vhost-limits": "vhost_limits",
    "definitions": "definitions",
    "maintenance": "maintenance",
    "connections": "connection",
    "stream": "stream",
    "remote": "remote",
}
_DONE = {"PUT": "set", "POST": "added", "DELETE": "deleted"}
#: What ends a path that changes something else than its name says, and what it does; None: no setting.
_ENDS = {
    "contents": "queue.purged", "options": "queue.altered", "password": "user.password", "tags": "user.tags",
    "restart": "stream.restarted", "get": None, "publish": None, "messages": None, "lines": None,
}  # fmt: skip


def told(body: Mapping[str, Any]) -> dict[str, Any]:
    """What of a request's body may be shown: users of a definitions file have hashes of their passwords with them."""
    found = {name: body[name] for name in SHOWN if name in body}
    if isinstance(users := found.get("users"), list):
        found["users"] = [user.get("name") if isinstance(user, dict) else user for user in users]
    elif users is not None:
        del found["users"]
    return found


def audit(log: AuditLog, by: Author, method: str, path: str, body: Mapping[str, Any]) -> None:
    """A request that was done, with its path below the prefix; reading changes nothing.  May block."""
    parts = [unquote(part, errors="replace") for part in path.strip("/").split("/")]
    if method in ("GET", "HEAD", "OPTIONS"):
        return
    of = _OF.get(parts[0], parts[0])
    what: str | None = f"{of}.{_DONE.get(method, method.lower())}"
    if len(parts) > 2 and parts[-1] in _ENDS:
        what = _ENDS[parts[-1]]
        if what is not None and method == "DELETE" and what.startswith("user."):
            what = f"{what}_deleted"
    if what is None:
        return
    log.say(by, what, "/".join(parts[1:]), request=f"{method} {path}", **{"body": told(body)})


def audit_files(options: Audit, data_dir: str, method: str, path: str, body: Mapping[str, Any]) -> None:
    """The same, by whoever works on the files while no broker runs."""
    audit(AuditLog(options, data_dir), Author("", "", FILES), method, path, body)


def audit_accounts(options: Audit, data_dir: str, by: str, told: str) -> None:
    """Of `vibemq users`, in its words, while no broker runs."""
    AuditLog(options, data_dir).say(Author(by, "", FILES), ACCOUNTS_CHANGED, told)
