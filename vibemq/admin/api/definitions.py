# SPDX-License-Identifier: Apache-2.0
"""What is set up as one JSON document, to be taken to another broker.

Queues, grants of operations on them, and passwords are left out, and the document's ``left_out`` says which:
a restored broker without them should surprise nobody.

An import adds and changes, and deletes nothing.  It is no transaction: what comes before an error stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import vibemq
from vibemq.admin.api import accounts, streams
from vibemq.admin.api.calls import NO_CONTENT, Answer, Call, Refused, bad_request
from vibemq.admin.users import GUEST

if TYPE_CHECKING:
    from vibemq.admin.api.service import Api


def export(api: Api, call: Call) -> Any:
    """Without users' passwords: the hashes are for nobody's eyes.  Where it is imported, new users need one set."""
    vhost = call.path.get("vhost")
    path = {} if vhost is None else {"vhost": vhost}
    here = Call(call.caller, path)
    queues = streams.list_queues(api, here)
    left_out: dict[str, Any] = {"queues": [_cut(each, ("vhost", "name")) for each in queues if each["type"] != _STREAM]}
    document = {
        "product_name": "VibeMQ",
        "product_version": vibemq.__version__,
        "rabbitmq_version": api.config.streams.product_version,
        "policies": accounts.list_policies(api, here),
        "queues": [_cut(queue, _QUEUE) for queue in queues if queue["type"] == _STREAM],
        "exchanges": [_cut(exchange, _EXCHANGE) for exchange in streams.list_exchanges(api, here)],
        "bindings": [_cut(binding, _BINDING) for binding in streams.list_bindings(api, here)],
    }
    if vhost is None:
        users = accounts.list_users(api, here)
        document |= {
            "users": users,
            "vhosts": [_cut(found, _VHOST) for found in accounts.list_vhosts(api, here)],
            "permissions": accounts.list_permissions(api, here),
        }
        left_out["queue_grants_of"] = sorted(api.metadata.permission_counts())
        left_out["passwords_of"] = [user["name"] for user in users if user["name"] != GUEST]
    return {**document, "left_out": left_out, "information": _information(left_out)}


def _information(left_out: dict[str, Any]) -> list[str]:
    """What is left out, in words, for whoever looks into the document."""
    how = {
        "queues": "left out: queues ({}); make them anew with `vibemq queues create`",
        "queue_grants_of": "left out: grants on queues, of users ({}); give them anew with `vibemq users grant`",
        "passwords_of": "left out: passwords, of users ({}); set them with `vibemq ctl change_password`",
    }
    return [how[kind].format(len(found)) for kind, found in left_out.items() if found]


_STREAM = streams.STREAM_TYPE
_QUEUE = ("name", "vhost", "durable", "auto_delete", "arguments")
_EXCHANGE = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
_BINDING = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")
_VHOST = ("name", "description", "tags")


def _cut(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


#: What is imported, in this order, because later kinds need earlier ones: the kind, the function that PUTs one,
#: and which field of an entry is which part of its path.
_KINDS: tuple[tuple[str, Callable[[Any, Call], Answer], dict[str, str]], ...] = (
    ("vhosts", accounts.put_vhost, {"vhost": "name"}),
    ("users", accounts.put_user, {"user": "name"}),
    ("permissions", accounts.put_permission, {"vhost": "vhost", "user": "user"}),
    ("policies", accounts.put_policy, {"vhost": "vhost", "name": "name"}),
    ("queues", streams.put_queue, {"vhost": "vhost", "name": "name"}),
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
            except Refused as refused:
                named = ", ".join(f"{field} {full.get(field)!r}" for field in fields.values())
                raise Refused(refused.status, refused.error, f"{kind}, {named}: {refused.reason}") from None
    return NO_CONTENT
