# SPDX-License-Identifier: Apache-2.0
"""Users, virtual hosts and permissions over the management API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from vibemq.access import tool_users
from vibemq.access.scopes import TokenAccess
from vibemq.access.users import GUEST
from vibemq.admin.api import calls
from vibemq.admin.api.calls import Call, Caller, Refused, bad_request, chosen, not_found, text
from vibemq.admin.api.changes import ACCOUNTS_CHANGED, FILES
from vibemq.admin.api.service import Api, no_access
from vibemq.broker.audit import Author
from vibemq.errors import UserExists, UserNotFound, VhostNotFound
from vibemq.storage.limits import USER, VHOST
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import PolicyRecord, VhostPermission, VhostRecord

log = logging.getLogger("vibemq.admin")
_POLICIES = threading.Lock()  # held while one of them is changed and applied

# ---- who asks ----


def caller_of(api: Api, name: str) -> Caller:
    """The caller that a checked login makes."""
    if name == GUEST:
        return Caller(name, calls.ADMINISTRATOR, ("administrator",))
    user = api.metadata.find_user(name)
    return _tagged(name, () if user is None else tool_users.tags_of(user))


def caller_with(access: TokenAccess) -> Caller:
    """The same of a token."""
    return _tagged(access.user, access.tags, access)


def _tagged(name: str, tags: tuple[str, ...], access: TokenAccess | None = None) -> Caller:
    level = max((calls.LEVELS.get(tag, calls.NOBODY) for tag in tags), default=calls.NOBODY)
    return Caller(name, level, tags, access)


def whoami(api: Api, call: Call) -> Any:
    return {"name": call.caller.name, "tags": list(call.caller.tags)}


def log_change(api: Api, call: Call) -> None:
    """What was changed in the files beside us, by `vibemq users`: for the log, and for the workers to look at once."""
    if call.caller is not calls.OWNER:
        raise Refused(403, "forbidden", "only `vibemq users`, beside the data, says what it has changed")
    log.info("%s, by %s", text(call, "change"), text(call, "by"))
    if api.audit is not None:
        api.audit.say(Author(text(call, "by"), "", FILES), ACCOUNTS_CHANGED, text(call, "change"))
    api.accounts_changed()


# ---- users ----


def list_users(api: Api, call: Call) -> Any:
    limits = {each.name: each.limits for each in api.metadata.limited(USER)}
    return chosen(call, "user", [_user(name, tags, limits.get(name)) for name, tags in _users(api)])


def list_users_without_permissions(api: Api, call: Call) -> Any:
    having = {entry.user for entry in tool_users.list_permissions(api.metadata, api.config.guest.allow_loopback)}
    return [_user(name, tags) for name, tags in _users(api) if name not in having]


def may_everything(api: Api, caller: Caller) -> bool:
    """Superusers, guest, and who may open the socket beside the data."""
    return caller is calls.OWNER or (caller.access is None and _is_superuser(api, caller.name))


def _is_superuser(api: Api, name: str) -> bool:
    found = api.metadata.find_user(name)
    return name == GUEST or (found is not None and found.is_superuser)


def _spare_superusers(api: Api, call: Call) -> None:
    """The tag administrator is less than a superuser, and must not become one by way of a password.  Raises Refused."""
    name = call.path["user"]
    if _is_superuser(api, name) and not may_everything(api, call.caller):
        raise Refused(403, "forbidden", f"only a superuser, or `vibemq ctl` beside the data, may change user {name!r}")


def put_user(api: Api, call: Call) -> bool:
    """``tags`` are always needed.  A new user without ``password`` or ``password_hash`` cannot log in with one."""
    _spare_superusers(api, call)
    if "tags" not in call.body:
        raise bad_request("tags_not_present")
    name = call.path["user"]
    secret = {field: calls.optional_text(call, field) for field in ("password", "password_hash")}
    if not any(secret.values()) and not _is_there(api, name):
        secret = {"password_hash": ""}
    hashing, verifier = (calls.optional_text(call, field) or "" for field in ("hashing_algorithm", "verifier"))
    tags = tags_of(call.body["tags"])
    anew = tool_users.put_user(api.metadata, name, tags, **secret, hashing=hashing, verifier=verifier)
    api.accounts_changed()
    return anew


def add_user(api: Api, call: Call) -> bool:
    """As PUT, but the user must be new: of our own, for `vibemq ctl add_user`."""
    if _is_there(api, call.path["user"]):
        raise UserExists(f'User "{call.path["user"]}" already exists')
    return put_user(api, call)


def changing_user(change: Callable[[Metadata, str, Call], None]) -> Callable[[Api, Call], None]:
    """What changes the user of the path."""

    def put(api: Api, call: Call) -> None:
        _spare_superusers(api, call)
        change(api.metadata, call.path["user"], call)
        api.accounts_changed()

    return put


put_password = changing_user(lambda data, name, call: tool_users.change_password(data, name, text(call, "password")))
delete_password = changing_user(lambda data, name, call: tool_users.clear_password(data, name))
put_tags = changing_user(lambda data, name, call: tool_users.set_tags(data, name, tags_of(call.body.get("tags", ""))))


def delete_user(api: Api, call: Call) -> None:
    _spare_superusers(api, call)
    name = call.path["user"]
    if not _is_there(api, name):
        raise not_found()
    tool_users.delete_user(api.metadata, name)
    api.accounts_changed()
    api.close_sessions(f"user {name} was deleted", user=name)


def delete_users(api: Api, call: Call) -> None:
    for name in calls.texts(call.body.get("users"), "users must be a list of names"):
        delete_user(api, Call(call.caller, {"user": name}))


def tags_of(given: Any) -> tuple[str, ...]:
    """As tools send them: text with commas, or a list."""
    found = given.split(",") if isinstance(given, str) else given
    names = calls.texts(found, "tags must be text with commas, or a list of texts")
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def _users(api: Api) -> list[tuple[str, tuple[str, ...]]]:
    return tool_users.list_users(api.metadata, api.config.guest.allow_loopback)


def _is_there(api: Api, name: str) -> bool:
    return any(name == known for known, _ in _users(api))


def _user(name: str, tags: tuple[str, ...], limits: dict[str, int] | None = None) -> dict[str, Any]:
    """Without the hash: nobody needs it to manage users."""
    return {"name": name, "tags": list(tags), "limits": limits or {}}


# ---- virtual hosts ----


def list_vhosts(api: Api, call: Call) -> Any:
    seen = [vhost for vhost in api.metadata.vhosts() if api.sees(call.caller, vhost.name)]
    limits = {each.name: each.limits for each in api.metadata.limited(VHOST)}
    return chosen(call, "vhost", [_vhost(api, vhost, limits.get(vhost.name)) for vhost in seen])


def put_vhost(api: Api, call: Call) -> bool:
    anew = api.metadata.add_vhost(call.path["vhost"], text(call, "description", ""), tags_of(call.body.get("tags", "")))
    api.accounts_changed()
    return anew


def delete_vhost(api: Api, call: Call) -> None:
    name = call.path["vhost"]
    try:
        gone = api.catalog.delete_vhost(name)
    except VhostNotFound:
        raise not_found() from None
    api.streams_deleted(gone)
    api.accounts_changed()
    api.close_sessions(f"vhost {name} was deleted", vhost=name)


def _vhost(api: Api, vhost: VhostRecord, limits: dict[str, int] | None) -> dict[str, Any]:
    about = {"description": vhost.description, "tags": list(vhost.tags)}
    state = {"default_queue_type": "stream", "tracing": False, "cluster_state": {api.node: "running"}}
    return {"name": vhost.name, **about, "metadata": about, "limits": limits or {}, **state}


# ---- permissions ----


def list_permissions(api: Api, call: Call) -> Any:
    """Of one vhost, of one user, or all, as the path says."""
    vhost, user = call.path.get("vhost"), call.path.get("user")
    if vhost is not None and not api.metadata.has_vhost(vhost):
        raise not_found()
    if user is not None and not _is_there(api, user):
        raise not_found()
    return [asdict(entry) for entry in _permissions(api, vhost, user)]


def list_topic_permissions(api: Api, call: Call) -> Any:
    """There are none.  Raises Refused where there is no such user."""
    if not _is_there(api, call.path["user"]):
        raise not_found()
    return []


def get_permission(api: Api, call: Call) -> Any:
    return asdict(calls.only(_permissions(api, call.path["vhost"], call.path["user"])))


def put_permission(api: Api, call: Call) -> bool:
    patterns = [text(call, name) for name in ("configure", "write", "read")]
    try:
        anew = tool_users.set_permissions(api.metadata, call.path["vhost"], call.path["user"], *patterns)
    except (VhostNotFound, UserNotFound):
        raise bad_request("vhost_or_user_not_found") from None
    api.accounts_changed()
    return anew


def delete_permission(api: Api, call: Call) -> None:
    try:
        was_there = tool_users.clear_permissions(api.metadata, call.path["vhost"], call.path["user"])
    except (VhostNotFound, UserNotFound):
        was_there = False
    if not was_there:
        raise not_found()
    api.accounts_changed()


def _permissions(api: Api, vhost: str | None, user: str | None) -> list[VhostPermission]:
    return tool_users.list_permissions(api.metadata, api.config.guest.allow_loopback, vhost, user)


# ---- policies ----


def list_policies(api: Api, call: Call) -> Any:
    return chosen(call, "name", [_policy(policy) for policy in api.seen(call, api.metadata.policies())])


def put_policy(api: Api, call: Call) -> bool:
    _require_policymaker(api, call)
    priority = call.body.get("priority", 0)
    with _changing_policies(api):
        pattern, where = text(call, "pattern"), text(call, "apply-to", "all")
        definition = calls.mapping(call, "definition")
        return api.metadata.set_policy(call.path["vhost"], call.path["name"], pattern, definition, priority, where)


def delete_policy(api: Api, call: Call) -> None:
    _require_policymaker(api, call)
    with _changing_policies(api):
        was_there = api.metadata.clear_policy(call.path["vhost"], call.path["name"])
    if not was_there:
        raise not_found()


@contextmanager
def _changing_policies(api: Api) -> Iterator[None]:
    """What is changed counts at once; one change after the other, or an earlier one could be applied last."""
    with _POLICIES:
        before = api.metadata.held_policies()
        yield
        api.catalog.apply_policies(before)
        api.accounts_changed()  # workers look at their queues


def _require_policymaker(api: Api, call: Call) -> None:
    api.require(call.caller, call.path["vhost"])
    if not call.caller.makes_policies:
        raise no_access(call.caller, call.path["vhost"])


def _policy(policy: PolicyRecord) -> dict[str, Any]:
    shown = asdict(policy)
    return {"apply-to": shown.pop("apply_to"), **shown}
