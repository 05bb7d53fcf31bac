# SPDX-License-Identifier: Apache-2.0
"""Super streams, and the exchanges and bindings that they are made of, over the management API."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from typing import Any

from vibemq.admin.api.calls import Call, bad_request, chosen, mapping, not_found, optional_text, text
from vibemq.admin.api.service import Api
from vibemq.admin.api.streams import basics, protocol_arguments
from vibemq.broker.catalog import checked_name
from vibemq.errors import ExchangeNotFound, StreamExists
from vibemq.storage.names import NO_ADDRESS
from vibemq.storage.records import BindingRecord, ExchangeRecord

# ---- super streams ----


def put_super_stream(api: Api, call: Call) -> bool:
    vhost, name = call.path["vhost"], call.path["name"]
    keys = optional_text(call, "binding-keys")
    if keys is None:
        count = call.body.get("partitions")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise bad_request(f"partitions is {count!r}: a whole number from 1 on is needed, or binding-keys")
        most = api.config.streams.super_stream_partitions_max
        if count > most:
            raise bad_request(f"partitions is {count}: at most {most} are allowed")
        wanted = [str(number) for number in range(count)]
    else:
        wanted = [key.strip() for key in keys.split(",") if key.strip()]
    partitions = [f"{name}-{key}" for key in wanted]
    api.require_rights(call, vhost, configure=[name, *partitions], read=[name], write=partitions)
    arguments = protocol_arguments(mapping(call, "arguments"))
    try:
        api.catalog.create_super_stream(vhost, name, partitions, wanted, arguments, by=call.caller.author)
    except StreamExists:
        if api.metadata.partitions(vhost, name) == partitions:
            return False
        raise
    return True


def delete_super_stream(api: Api, call: Call) -> None:
    """Of our own: RabbitMQ deletes exchange and queues one by one."""
    vhost, name = call.path["vhost"], call.path["name"]
    partitions = api.metadata.partitions(vhost, name) or []
    api.require_rights(call, vhost, configure=[name, *partitions], read=[name], write=partitions)
    try:
        api.streams_deleted(api.catalog.delete_super_stream(vhost, name))
    except ExchangeNotFound:
        raise not_found() from None


# ---- exchanges and bindings ----


def list_exchanges(api: Api, call: Call) -> Any:
    found = api.seen(call, api.metadata.exchanges())
    more = {"type": "direct", "internal": False}
    return chosen(call, "exchange", [{**basics(each), **more, "arguments": each.arguments} for each in found])


def put_exchange(api: Api, call: Call) -> bool:
    vhost, name = call.path["vhost"], checked_name(call.path["exchange"])
    kind = text(call, "type", "direct")
    if kind != "direct":
        raise bad_request(f"the type is {kind!r}: only direct exchanges are made, for super streams")
    api.require_rights(call, vhost, configure=[name])
    return api.metadata.add_exchange(vhost, name, mapping(call, "arguments"))


def delete_exchange(api: Api, call: Call) -> None:
    found = _find_exchange(api, call)
    api.require_rights(call, found.vhost, configure=[found.name])
    api.metadata.delete_exchange(found.vhost, found.name)


def list_bindings(api: Api, call: Call) -> Any:
    """All, or those of a vhost, an exchange, a stream, as the path says."""
    exchange, stream = call.path.get("exchange"), call.path.get("name")
    found = api.seen(call, api.metadata.bindings(call.path.get("vhost"), exchange))
    return [_binding(each) for each in found if stream in (None, each.stream)]


def post_binding(api: Api, call: Call) -> bool:
    vhost, exchange, stream = (call.path[part] for part in ("vhost", "exchange", "name"))
    api.require_rights(call, vhost, write=[stream], read=[exchange])
    api.metadata.add_binding(vhost, exchange, stream, text(call, "routing_key", ""), mapping(call, "arguments"))
    return True


def delete_binding(api: Api, call: Call) -> None:
    vhost, exchange, stream = (call.path[part] for part in ("vhost", "exchange", "name"))
    api.require_rights(call, vhost, write=[stream], read=[exchange])
    for found in api.metadata.bindings(vhost, exchange):
        if found.stream == stream and _properties_key(found) == call.path["properties"]:
            api.metadata.delete_binding(vhost, exchange, stream, found.routing_key, found.arguments)
            return
    raise not_found()


def _find_exchange(api: Api, call: Call) -> ExchangeRecord:
    api.require_seen(call.caller, call.path["vhost"])
    found = api.metadata.find_exchange(call.path["vhost"], call.path["exchange"])
    if found is None:
        raise not_found()
    return found


def _binding(found: BindingRecord) -> dict[str, Any]:
    shown = asdict(found)
    shown |= {"source": shown.pop("exchange"), "destination": shown.pop("stream"), "destination_type": "queue"}
    return {**shown, "properties_key": _properties_key(found)}


def _properties_key(found: BindingRecord) -> str:
    """Names one of several bindings of a stream, in a path: the key, and what stands for the arguments."""
    if not found.arguments and found.routing_key not in NO_ADDRESS:
        return found.routing_key or "~"
    digest = hashlib.blake2b(json.dumps(found.arguments, sort_keys=True).encode(), digest_size=6).digest()
    return f"{found.routing_key}~{base64.urlsafe_b64encode(digest).decode()}"
