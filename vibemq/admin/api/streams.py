# SPDX-License-Identifier: Apache-2.0
"""Streams ("queues" to RabbitMQ's tools) over the management API.

Making and deleting is the catalog's, as at every door: workers are told the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from vibemq.admin.api.calls import Call, bad_request, flag, mapping, not_found, optional_text
from vibemq.admin.api.counts import NOTHING, Counts, counts_of
from vibemq.admin.api.service import Api
from vibemq.broker.arguments import stream_arguments
from vibemq.broker.catalog import checked_name
from vibemq.broker.options import CHANGEABLE, DeliveryMode, Overflow, altered, options_of, stored_options
from vibemq.errors import StorageError, StreamExists, StreamNotFound, UserError
from vibemq.storage.apply import REFERENCE as TRANSACTIONS
from vibemq.storage.log import Log
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.policies import QUEUE_KEYS, check_key, options_said
from vibemq.storage.records import ExchangeRecord, StreamRecord

STREAM_TYPE = "stream"
#: RabbitMQ's kinds of queues, which are one here; the first is for those that do not say it.
QUEUE_TYPES = ("classic", "quorum")


def list_queues(api: Api, call: Call) -> Any:
    """All, those of a vhost, or one, as the path says."""
    if "name" in call.path:
        return _queue(api, find(api, call), api.workers.readers())
    found, readers = api.seen(call, api.metadata.streams()), api.workers.readers()
    return [_queue(api, record, readers) for record in found]


def put_queue(api: Api, call: Call, durability: str | None = None) -> bool:
    """A queue, or a stream where x-queue-type says so; ``durability`` is what it has whose arguments do not say it."""
    vhost, given = call.path["vhost"], mapping(call, "arguments")
    kind = given.get("x-queue-type", QUEUE_TYPES[0])
    if kind != STREAM_TYPE and kind not in QUEUE_TYPES:
        raise bad_request(f"x-queue-type is {kind!r}: {', '.join(QUEUE_TYPES)} or {STREAM_TYPE} is needed")
    if not flag(call, "durable", True) or flag(call, "auto_delete", False) or flag(call, "exclusive", False):
        raise bad_request("queues and streams are durable, and neither auto_delete nor exclusive")
    if kind != STREAM_TYPE:
        return _put_plain_queue(api, call, durability)
    name, arguments = checked_name(call.path["name"]), protocol_arguments(given)
    said = arguments if durability is None else {"durability": durability, **arguments}
    wanted = replace(stream_arguments(said, api.config.store), given=arguments)
    api.require_rights(call, vhost, configure=[name])
    try:
        api.catalog.create_stream(vhost, name, wanted, by=call.caller.author)
    except StreamExists as problem:
        record = problem.record
        if not isinstance(record, StreamRecord) or record.queue is not None:
            raise
        if wanted.same_as(record.arguments, record.durability, api.config.store):
            return False
        raise bad_request(_difference(record, wanted.given)) from None
    return True


def _put_plain_queue(api: Api, call: Call, durability: str | None) -> bool:
    """A queue as RabbitMQ's tools declare it: its arguments are the keys of policies for queues."""
    vhost, name = call.path["vhost"], checked_name(call.path["name"])
    arguments = {key.removeprefix("x-"): value for key, value in mapping(call, "arguments").items()}
    arguments.pop("queue-type", None)
    for key, value in arguments.items():
        if key not in QUEUE_KEYS:
            needed = ", ".join(f"x-{key}" for key in QUEUE_KEYS)
            raise bad_request(
                f"x-{key} is no argument of a queue: {needed} are; a stream needs x-queue-type {STREAM_TYPE}"
            )
        try:
            check_key(key, value)
        except UserError as problem:
            raise bad_request(f"x-{problem}") from None
    wanted = options_said(name, arguments) | ({} if durability is None else {"durability": durability})
    api.require_rights(call, vhost, configure=[name])
    try:
        api.catalog.create_queue(vhost, name, wanted, by=call.caller.author, may_convert=False)
    except StreamExists:
        record = api.metadata.find_stream(vhost, name)
        if record is None or record.queue is None:
            raise bad_request(f"'{name}' in vhost '{vhost}' is there as a stream, not a queue") from None
        _require_same(record, wanted, wanted)
        return False
    return True


def _require_same(record: StreamRecord, wanted: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raises Refused where one of these options of a queue that is there is another."""
    had = record.queue or {}
    if different := [option for option in options if had.get(option) != wanted.get(option)]:
        raise bad_request(
            f"queue '{record.name}' in vhost '{record.vhost}' is there with another {', '.join(different)}"
        )


def put_definition(api: Api, call: Call) -> bool:
    """A stream, or a queue with our own options, as ``definition`` describes it."""
    options = call.body.get("queue_options")
    durability = optional_text(call, "durability")
    if options is None:
        return put_queue(api, call, durability)
    vhost = call.path["vhost"]
    name, wanted = checked_name(call.path["name"]), stored_options(mapping(call, "queue_options"))
    api.require_rights(call, vhost, configure=[name])
    was_stream = wanted.pop("keep", False)
    there = api.metadata.find_stream(vhost, name)
    if there is not None and there.queue is None and not was_stream:
        raise bad_request(f"'{name}' in vhost '{vhost}' is there as a stream, not a queue")
    if was_stream and (there is None or there.queue is None):  # whose retention it still has
        arguments = {**mapping(call, "arguments"), "x-queue-type": STREAM_TYPE}
        put_queue(api, replace(call, body={**call.body, "arguments": arguments}), durability)
    try:
        api.catalog.create_queue(vhost, name, wanted, by=call.caller.author)
    except StreamExists as problem:
        record = problem.record
        if not isinstance(record, StreamRecord) or record.queue is None:
            raise
        _require_same(record, wanted, sorted((record.queue.keys() | wanted.keys()) - {"keep"}))
        return False
    return True


def definition(record: StreamRecord) -> dict[str, Any]:
    """All that it takes to make a stream or queue anew; a queue has the arguments that it had as a stream."""
    arguments = tool_arguments(record.arguments)
    made = {**basics(record), "arguments": arguments, "durability": record.durability}
    if record.queue is None:
        return made
    named = {"type": "classic", "arguments": {**arguments, "x-queue-type": "classic"}}
    return {**made, **named, "queue_options": record.queue}


def basics(record: StreamRecord | ExchangeRecord) -> dict[str, Any]:
    return {"name": record.name, "vhost": record.vhost, "durable": True, "auto_delete": False}


def delete_queue(api: Api, call: Call) -> None:
    record = find(api, call)
    api.require_rights(call, record.vhost, configure=[record.name])
    if call.query.get("if-empty") == "true" and counts_of(record).messages:
        raise bad_request(f"queue '{record.name}' in vhost '{record.vhost}' is not empty")
    if call.query.get("if-unused") == "true" and _consumers_of(record, counts_of(record), api.workers.readers()):
        raise bad_request(f"queue '{record.name}' in vhost '{record.vhost}' is in use")
    try:
        gone = api.catalog.delete(record.vhost, record.name)
    except StreamNotFound:
        raise not_found() from None
    api.streams_deleted([gone])


def put_queue_options(api: Api, call: Call) -> None:
    """Of our own: options of a queue, by the names that its row shows; null gives one back to the configuration."""
    record = find(api, call)
    if record.queue is None:
        raise bad_request(f"'{record.name}' is a stream, and has no options of a queue; policies change its retention")
    if not call.body:
        raise bad_request(f"no option to change was given; there are {', '.join(CHANGEABLE)}")
    changes = dict(call.body)
    for option, words in (("overflow", Overflow), ("mode", DeliveryMode)):
        word = str(changes.get(option)).upper().replace("-", "_")
        if word in words.__members__:
            changes[option] = int(words[word])
    letters = []
    if changes.get("dead_letter") or changes.get("dead_letter_queue"):
        options = options_of(altered(record.name, record.queue, changes), api.config.queues)
        letters = [options.dead_letter_name(record.name)]
    api.require_rights(call, record.vhost, configure=[record.name], write=letters)
    api.catalog.alter_queue(record.vhost, record.name, changes)
    api.accounts_changed()


def purge_queue(api: Api, call: Call) -> None:
    record = find(api, call)
    if record.queue is None:
        raise bad_request(f"'{record.name}' is a stream, which cannot be purged: delete it and make it anew")
    api.require_rights(call, record.vhost, read=[record.name])
    api.workers.ask_any("purge", vhost=record.vhost, name=record.name)


def restart(api: Api, call: Call) -> None:
    """Of our own: publishers and consumers of the stream are told that they have lost it, and may come back at once."""
    record = find(api, call)
    api.require_rights(call, record.vhost, configure=[record.name])
    api.catalog.restart(record.vhost, record.name)


def status(api: Api, call: Call) -> Any:
    """Of our own, with the columns of `rabbitmq-streams stream_status`: one row, because there is one copy."""
    record = find(api, call)
    stats = counts_of(record).log
    readers = sum(
        (session["vhost"], each["stream"]) == (record.vhost, record.name)
        for session in api.workers.sessions()
        for each in session.get("subscriptions", ())
    )
    shown = {"role": "writer", "node": api.node, "readers": readers, "segments": stats.segment_count}
    offset, committed = stats.next_offset - 1, stats.confirmed_offset - 1
    return [{**shown, "first_offset": stats.first_offset, "offset": offset, "committed_offset": committed}]


def tracking(api: Api, call: Call) -> Any:
    """Stored offsets, and the last publishing id of each publisher reference."""
    record, kind = find(api, call), call.query.get("type", "all")
    if kind not in ("all", "offset", "writer"):
        raise bad_request(f"type is {kind!r}: offset or writer is needed")
    found: dict[str, Any] = {}
    if kind in ("all", "offset"):
        with closing(StoredOffsets(record.directory)) as offsets:
            found["offsets"] = {reference.decode(errors="replace"): at for reference, at in offsets.all().items()}
    if kind in ("all", "writer"):
        with closing(Log(record.directory)) as log:
            writers = log.publisher_sequences().items()
            found["writers"] = {name: sequence for name, sequence in writers if name != TRANSACTIONS}
    return found


def find(api: Api, call: Call) -> StreamRecord:
    """The stream of the path.  Raises Refused."""
    vhost, name = call.path["vhost"], call.path["name"]
    api.require_seen(call.caller, vhost)
    record = api.metadata.find_stream(vhost, name)
    if record is None:
        raise not_found()
    return record


def protocol_arguments(given: dict[str, Any]) -> dict[str, str]:
    """As the protocol has them: text, without the prefix."""
    bad = [name for name, value in given.items() if isinstance(value, bool | dict | list | float) or value is None]
    if bad:
        raise bad_request(f"arguments {', '.join(bad)}: text or whole numbers are needed")
    return {name.removeprefix("x-"): str(value) for name, value in given.items() if name != "x-queue-type"}


def tool_arguments(arguments: dict[str, str]) -> dict[str, Any]:
    """As tools have them: with the prefix, sizes as numbers."""
    shown = {f"x-{name}": int(value) if value.isdigit() else value for name, value in arguments.items()}
    return {"x-queue-type": STREAM_TYPE, **shown}


def _difference(record: StreamRecord, wanted: dict[str, str]) -> str:
    had, asked = tool_arguments(record.arguments), tool_arguments(wanted)
    name = next((name for name in sorted(had | asked) if had.get(name) != asked.get(name)), "")
    return (
        f"inequivalent arg '{name}' for queue '{record.name}' in vhost '{record.vhost}': "
        f"received {_quoted(asked.get(name))} but current is {_quoted(had.get(name))}"
    )


def _quoted(value: object) -> str:
    return "none" if value is None else f"'{value}'"


def _consumers_of(record: StreamRecord, counts: Counts, readers: Counter[tuple[str, str]]) -> int:
    return readers[record.vhost, record.name] if counts.queue is None else counts.queue.consumers


def _queue(api: Api, record: StreamRecord, readers: Counter[tuple[str, str]]) -> dict[str, Any]:
    state, counts = "running", NOTHING
    try:
        counts = counts_of(record)
    except StorageError:  # the log says why, and the others are wanted all the same
        state = "down"
    applied = api.metadata.policy_of(record.vhost, record.name, is_queue=record.queue is not None)
    kind = STREAM_TYPE if record.queue is None else "classic"
    return {
        **basics(record),
        "exclusive": False,
        **dict.fromkeys(("node", "leader"), api.node),
        **{key: [api.node] for key in ("members", "online")},
        "state": state,
        **dict.fromkeys(("type", "types"), kind),
        "durability": record.durability,
        "messages": counts.messages,
        "messages_ready": counts.ready,
        "messages_unacknowledged": counts.unacknowledged,
        **{f"messages_{name}": getattr(counts.queue, name, 0) for name in ("dropped", "refused")},
        "members_away": getattr(counts.queue, "away", 0),
        "message_stats": _message_stats(api, record, counts),
        "consumers": _consumers_of(record, counts, readers),
        "message_bytes": counts.log.size_bytes,
        "segments": counts.log.segment_count,
        "first_offset": counts.log.first_offset,
        "next_offset": counts.log.next_offset,
        "confirmed_offset": counts.log.confirmed_offset,
        "arguments": tool_arguments(record.arguments) if record.queue is None else {},
        "options": {} if record.queue is None else _options(api, record),
        "policy": None if applied is None else applied.name,
        "effective_policy_definition": {} if applied is None else applied.definition,
        "operator_policy": None,
    }


def _message_stats(api: Api, record: StreamRecord, counts: Counts) -> dict[str, Any]:
    """Totals since it was made, and rates of the last seconds.  What readers of a plain stream got is not counted."""
    seen = None if api.sampler is None else api.sampler.sample.streams.get(record.incarnation)
    stats = _counter("publish", counts.log.next_offset, 0.0 if seen is None else seen.published_rate)
    if counts.queue is None:
        return stats
    for name in ("deliver_get", "deliver"):
        stats |= _counter(name, counts.queue.delivered, 0.0 if seen is None else seen.delivered_rate)
    stats |= _counter("ack", counts.queue.acked, 0.0 if seen is None else seen.acked_rate)
    return {**stats, "redeliver": counts.queue.redelivered}


def _counter(name: str, count: int, rate: float) -> dict[str, Any]:
    return {name: count, f"{name}_details": {"rate": round(rate, 3)}}


def _options(api: Api, record: StreamRecord) -> dict[str, Any]:
    """Those that hold for a queue: its own, over the configuration's and under a policy's."""
    queue = options_of(api.metadata.effective_options(record), api.config.queues)
    shown = {name: getattr(queue, name) for name in CHANGEABLE}
    return {"mode": queue.mode.name.lower(), **shown, "overflow": queue.overflow.name.lower()}
