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
from vibemq.access.permissions import check_pattern, operation_names, operations_named
from vibemq.access.users import GUEST
from vibemq.admin.api import accounts, limits, routing, streams
from vibemq.admin.api.calls import Call, Refused, bad_request, text, texts
from vibemq.admin.api.service import Api
from vibemq.broker.arguments import BadArgument
from vibemq.errors import UserError
from vibemq.storage.limits import USER, VHOST


def export(api: Api, call: Call) -> Any:
    """Of one vhost no users and no rights."""
    vhost = api.vhost_of(call)
    here = Call(call.caller, {} if vhost is None else {"vhost": vhost})
    left_out: dict[str, Any] = {}
    information: list[str] = []
    document = {
        "product_name": "VibeMQ",
        "product_version": vibemq.__version__,
        "rabbitmq_version": api.config.streams.product_version,
        "policies": accounts.list_policies(api, here),
        "queues": [streams.definition(each) for each in api.metadata.streams() if vhost in (None, each.vhost)],
        "exchanges": [_cut(exchange, _EXCHANGE) for exchange in routing.list_exchanges(api, here)],
        "bindings": [_cut(binding, _BINDING) for binding in routing.list_bindings(api, here)],
    }
    if vhost is None:
        users = accounts.list_users(api, here)
        if accounts.may_everything(api, call.caller):
            users = [_with_secrets(api, user) for user in users]
        else:
            names = left_out["passwords_of"] = [user["name"] for user in users if user["name"] != GUEST]
            if names:
                said = f"left out: passwords, of users ({len(names)}), which superusers get only"
                information.append(f"{said}; set them with `vibemq ctl change_password`")
        document |= {
            "users": users,
            "vhosts": [_cut(found, _VHOST) for found in accounts.list_vhosts(api, here)],
            "permissions": accounts.list_permissions(api, here),
            "queue_grants": [
                {"user": name, "queue_pattern": entry.pattern, "operations": operation_names(entry.operations)}
                for name in sorted(api.metadata.permission_counts())
                for entry in api.metadata.permissions(name)
            ],
        }
    return {**document, "left_out": left_out, "information": information}


def _with_secrets(api: Api, user: dict[str, Any]) -> dict[str, Any]:
    record = api.metadata.find_user(user["name"])
    if record is None:  # guest
        return user
    password_hash, hashing = exported_hash(record.password_hash)
    secrets = {"password_hash": password_hash, "hashing_algorithm": hashing, "verifier": record.verifier}
    return {**user, **secrets, "superuser": record.is_superuser}


def _put_user(api: Api, call: Call) -> None:
    is_superuser = call.body.get("superuser", False)
    if not isinstance(is_superuser, bool):
        raise bad_request(f"superuser must be true or false, but is {is_superuser!r}")
    if is_superuser and not accounts.may_everything(api, call.caller):
        raise Refused(403, "forbidden", "only a superuser, or `vibemq ctl` beside the data, may make superusers")
    accounts.put_user(api, call)
    if is_superuser and call.path["user"] != GUEST:
        api.metadata.set_superuser(call.path["user"], True)
        api.accounts_changed()
    limits.put_known(api, USER, call.path["user"], call.body.get("limits"))


def _put_vhost(api: Api, call: Call) -> None:
    accounts.put_vhost(api, call)
    limits.put_known(api, VHOST, call.path["vhost"], call.body.get("limits"))


def _put_parameter(api: Api, call: Call) -> None:
    """RabbitMQ keeps the limits of virtual hosts there; what else it has there is nothing here."""
    if call.path["component"] == "vhost-limits":
        limits.put_known(api, VHOST, call.path["vhost"], call.body.get("value"))


def _put_grant(api: Api, call: Call) -> None:
    pattern = text(call, "queue_pattern")
    operations = operations_named(texts(call.body.get("operations"), "operations must be a list of names"))
    check_pattern(pattern)
    api.metadata.grant(call.path["user"], pattern, operations)
    api.accounts_changed()


_EXCHANGE = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
_BINDING = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")
_VHOST = ("name", "description", "tags", "limits")


def _cut(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


#: What is imported, in this order, because later kinds need earlier ones: the kind, the function that PUTs one,
#: and which field of an entry is which part of its path.
_KINDS: tuple[tuple[str, Callable[[Any, Call], object], dict[str, str]], ...] = (
    ("vhosts", _put_vhost, {"vhost": "name"}),
    ("users", _put_user, {"user": "name"}),
    ("permissions", accounts.put_permission, {"vhost": "vhost", "user": "user"}),
    ("queue_grants", _put_grant, {"user": "user"}),
    ("parameters", _put_parameter, {"vhost": "vhost", "component": "component"}),
    ("policies", accounts.put_policy, {"vhost": "vhost", "name": "name"}),
    ("queues", streams.put_definition, {"vhost": "vhost", "name": "name"}),
    ("exchanges", routing.put_exchange, {"vhost": "vhost", "exchange": "name"}),
    ("bindings", routing.post_binding, {"vhost": "vhost", "exchange": "source", "name": "destination"}),
)


def import_(api: Api, call: Call) -> None:
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
            except (Refused, UserError, BadArgument) as refused:
                named = ", ".join(f"{field} {full.get(field)!r}" for field in fields.values())
                known = refused if isinstance(refused, Refused) else bad_request("")
                raise Refused(known.status, known.error, f"{kind}, {named}: {refused}") from None
