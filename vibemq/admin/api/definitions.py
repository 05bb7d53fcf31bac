# SPDX-License-Identifier: Apache-2.0
"""What is set up as one JSON document, to be taken to another broker: everything but messages and stored offsets.

Beside RabbitMQ's keys there are our own, which it passes over: ``queue_grants``, and of a stream ``durability``, of a
queue ``queue_options``, of a user ``superuser`` and ``verifier``.  Hashes of passwords (and verifiers, which are as
telling) go to superusers only; to other administrators ``left_out`` and ``information`` say whose are missing.

An import adds and changes, and deletes nothing.  It is no transaction: what comes before an error stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import vibemq
from vibemq.access.passwords import exported_hash
from vibemq.access.permissions import Operation, check_pattern, operation_named
from vibemq.access.users import GUEST
from vibemq.admin.api import accounts, streams
from vibemq.admin.api.calls import NO_CONTENT, Answer, Call, Refused, bad_request, text
from vibemq.admin.api.service import Api
from vibemq.errors import UserError


def export(api: Api, call: Call) -> Any:
    """Of one vhost no users and no rights."""
    vhost = api.vhost_of(call)
    here = Call(call.caller, {} if vhost is None else {"vhost": vhost})
    left_out: dict[str, Any] = {}
    document = {
        "product_name": "VibeMQ",
        "product_version": vibemq.__version__,
        "rabbitmq_version": api.config.streams.product_version,
        "policies": accounts.list_policies(api, here),
        "queues": [streams.definition(each) for each in api.metadata.streams() if vhost in (None, each.vhost)],
        "exchanges": [_cut(exchange, _EXCHANGE) for exchange in streams.list_exchanges(api, here)],
        "bindings": [_cut(binding, _BINDING) for binding in streams.list_bindings(api, here)],
    }
    if vhost is None:
        users = accounts.list_users(api, here)
        if accounts.may_everything(api, call.caller):
            users = [_with_secrets(api, user) for user in users]
        else:
            left_out["passwords_of"] = [user["name"] for user in users if user["name"] != GUEST]
        document |= {
            "users": users,
            "vhosts": [_cut(found, _VHOST) for found in accounts.list_vhosts(api, here)],
            "permissions": accounts.list_permissions(api, here),
            "queue_grants": [
                {
                    "user": name,
                    "queue_pattern": entry.pattern,
                    "operations": [Operation(number).name for number in entry.operations],
                }
                for name in sorted(api.metadata.permission_counts())
                for entry in api.metadata.permissions(name)
            ],
        }
    return {**document, "left_out": left_out, "information": _information(left_out)}


def _with_secrets(api: Api, user: dict[str, Any]) -> dict[str, Any]:
    record = api.metadata.find_user(user["name"])
    if record is None:  # guest
        return user
    password_hash, hashing = exported_hash(record.password_hash)
    return {
        **user,
        "password_hash": password_hash,
        "hashing_algorithm": hashing,
        "verifier": record.verifier,
        "superuser": record.is_superuser,
    }


def _information(left_out: dict[str, Any]) -> list[str]:
    """What is left out, in words, for whoever looks into the document."""
    how = {
        "passwords_of": "left out: passwords, of users ({}), which superusers get only; "
        "set them with `vibemq ctl change_password`",
    }
    return [how[kind].format(len(found)) for kind, found in left_out.items() if found]


def _put_user(api: Api, call: Call) -> Answer:
    is_superuser = call.body.get("superuser", False)
    if not isinstance(is_superuser, bool):
        raise bad_request(f"superuser must be true or false, but is {is_superuser!r}")
    if is_superuser and not accounts.may_everything(api, call.caller):
        raise Refused(403, "forbidden", "only a superuser, or `vibemq ctl` beside the data, may make superusers")
    answer = accounts.put_user(api, call)
    if is_superuser and call.path["user"] != GUEST:
        api.metadata.set_superuser(call.path["user"], True)
        api.accounts_changed()
    return answer


def _put_grant(api: Api, call: Call) -> Answer:
    pattern, names = text(call, "queue_pattern"), call.body.get("operations")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("operations must be a list of names")
    operations = {name: operation_named(name) for name in names}
    unknown = [name for name, operation in operations.items() if operation is None]
    if unknown:
        raise bad_request(
            f"there is no operation {unknown[0]!r}; known are {', '.join(known.name for known in Operation)}"
        )
    check_pattern(pattern)
    api.metadata.grant(call.path["user"], pattern, [found for found in operations.values() if found is not None])
    api.accounts_changed()
    return NO_CONTENT


_EXCHANGE = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
_BINDING = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")
_VHOST = ("name", "description", "tags")


def _cut(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


#: What is imported, in this order, because later kinds need earlier ones: the kind, the function that PUTs one,
#: and which field of an entry is which part of its path.
_KINDS: tuple[tuple[str, Callable[[Any, Call], Answer], dict[str, str]], ...] = (
    ("vhosts", accounts.put_vhost, {"vhost": "name"}),
    ("users", _put_user, {"user": "name"}),
    ("permissions", accounts.put_permission, {"vhost": "vhost", "user": "user"}),
    ("queue_grants", _put_grant, {"user": "user"}),
    ("policies", accounts.put_policy, {"vhost": "vhost", "name": "name"}),
    ("queues", streams.put_definition, {"vhost": "vhost", "name": "name"}),
    ("exchanges", streams.put_exchange, {"vhost": "vhost", "exchange": "name"}),
    ("bindings", streams.post_binding, {"vhost": "vhost", "exchange": "source", "name": "destination"}),
)


def import_(api: Api, call: Call) -> Answer:
    vhost = call.path.get("vhost")
    for kind, put, fields in _KINDS:
        entries = call.body.get(kind, [])
        if not isinstance(entries, list):
            raise bad_request(f"{kind} must be a list")
        if vhost is not None and "vhost" not in fields:
            continue
        for entry in entries:
            if not isinstance(entry, dict):
                raise bad_request(f"{kind} must be a list of objects")
            full = entry if vhost is None else {**entry, "vhost": vhost}
            path = {part: full.get(field) for part, field in fields.items()}
            missing = [fields[part] for part, value in path.items() if not isinstance(value, str)]
            if missing:
                raise bad_request(f"{kind}: an entry has no {missing[0]}")
            try:
                put(api, Call(call.caller, {part: str(value) for part, value in path.items()}, {}, full))
            except (Refused, UserError) as refused:
                named = ", ".join(f"{field} {full.get(field)!r}" for field in fields.values())
                status, error = (
                    (refused.status, refused.error) if isinstance(refused, Refused) else (400, "bad_request")
                )
                raise Refused(status, error, f"{kind}, {named}: {refused}") from None
    return NO_CONTENT
