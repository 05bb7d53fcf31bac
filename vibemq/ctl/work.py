# SPDX-License-Identifier: Apache-2.0
"""What each command of `vibemq ctl` does: a function of an ``Order`` that returns rows, text, one object or nothing.

Each asks the management API and gives its answers RabbitMQ's names; what is refused becomes ``Refused`` with the
exit code and the words of RabbitMQ's tools.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from vibemq.ctl.link import Failed, Link
from vibemq.terminal import ask_password

#: What a super stream's partitions may be given, as options of `add_super_stream`.
STREAM_ARGUMENTS = ("max-length-bytes", "max-age", "stream-max-segment-size-bytes", "queue-leader-locator",
                    "initial-cluster-size")  # fmt: skip

PARTITIONS_DEFAULT = 3

#: Exit codes as RabbitMQ's tools have them (sysexits.h).
USAGE, DATA, NO_USER, UNAVAILABLE, SOFTWARE = 64, 65, 67, 69, 70


STANDARD_OUTPUT = "-"  # and standard input, where a file is read


class Refused(Exception):
    """The command failed; ``code`` is the exit code."""

    def __init__(self, code: int, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Order:
    """What was typed: ``words`` by the names in the command's usage, and the options."""

    link: Link
    words: Mapping[str, str]
    more: tuple[str, ...] = ()  # columns, tags
    vhost: str = "/"
    options: Mapping[str, Any] = field(default_factory=dict)


#: For an HTTP status: the exit code, what is said, perhaps a hint.
Codes = Mapping[int, tuple[int, str] | tuple[int, str, str]]


def _refusing(order: Order, codes: Codes, ask: Callable[[], Any]) -> Any:
    """``ask()``, with RabbitMQ's exit codes and words for what is refused."""
    try:
        return ask()
    except Failed as failed:
        code, reason, *hint = codes.get(failed.status, (SOFTWARE if failed.status == 500 else UNAVAILABLE, ""))
        if str(failed) == "vhost_not_found":
            reason, hint = f"Virtual host {order.vhost} does not exist", ["`vibemq ctl list_vhosts` lists all"]
        raise Refused(code, reason or str(failed), *hint) from failed


# ---- users ----


def add_user(order: Order) -> Any:
    name, password = order.words["username"], _password(order)
    body = {"password": password, "tags": ""} if password else {"password_hash": "", "tags": ""}
    exists = (SOFTWARE, f'User "{name}" already exists')
    _refusing(order, {409: exists}, lambda: order.link.ask("POST", "users", name, body=body, makes_data=True))
    return "Done. Don't forget to grant the user permissions to some virtual hosts! See 'vibemq ctl set_permissions'."


def _password(order: Order) -> str:
    """As a word on the line it may be empty, for a user without one; but there everybody on the machine can read it."""
    if "password" in order.words:
        return order.words["password"]
    asked = ask_password(order.words["username"], from_stdin=not sys.stdin.isatty(), twice=True)
    if not asked:
        raise Refused(USAGE, "a password is needed, as a word or on standard input")
    return asked


def delete_user(order: Order) -> Any:
    name = order.words["username"]
    _refusing(order, _no_user(name), lambda: order.link.ask("DELETE", "users", name))


def change_password(order: Order) -> Any:
    name, body = order.words["username"], {"password": _password(order)}
    _refusing(order, _no_user(name), lambda: order.link.ask("PUT", "users", name, "password", body=body))


def clear_password(order: Order) -> Any:
    name = order.words["username"]
    _refusing(order, _no_user(name), lambda: order.link.ask("DELETE", "users", name, "password"))


def set_user_tags(order: Order) -> Any:
    name, body = order.words["username"], {"tags": list(order.more)}
    _refusing(order, _no_user(name), lambda: order.link.ask("PUT", "users", name, "tags", body=body))


def list_users(order: Order) -> Any:
    return [{"user": user["name"], "tags": user["tags"]} for user in order.link.get("users")]


def _no_user(name: str) -> dict[int, tuple[int, str]]:
    return {404: (NO_USER, f'User "{name}" does not exist')}


# ---- virtual hosts ----


def add_vhost(order: Order) -> Any:
    body = {"description": order.options["description"] or "", "tags": order.options["tags"] or ""}
    _refusing(order, {}, lambda: order.link.ask("PUT", "vhosts", order.words["vhost"], body=body, makes_data=True))


def delete_vhost(order: Order) -> Any:
    name = order.words["vhost"]
    missing = (DATA, f"Virtual host '{name}' does not exist")
    _refusing(order, {404: missing}, lambda: order.link.ask("DELETE", "vhosts", name))


def list_vhosts(order: Order) -> Any:
    return order.link.get("vhosts")


# ---- permissions ----


def set_permissions(order: Order) -> Any:
    name = order.words["username"]
    body = {right: order.words[word] for right, word in (("configure", "conf"), ("write", "write"), ("read", "read"))}
    if order.vhost not in vhost_names(order):
        raise Refused(UNAVAILABLE, f"Virtual host {order.vhost} does not exist")
    if not any(user["name"] == name for user in order.link.get("users")):
        raise Refused(NO_USER, f"User {name} does not exist")
    _refusing(order, {}, lambda: order.link.ask("PUT", "permissions", order.vhost, name, body=body))


def clear_permissions(order: Order) -> Any:
    name = order.words["username"]
    if order.vhost not in vhost_names(order):
        raise Refused(UNAVAILABLE, f"Virtual host {order.vhost} does not exist")
    if not any(user["name"] == name for user in order.link.get("users")):
        raise Refused(NO_USER, f"User {name} does not exist")
    try:
        order.link.ask("DELETE", "permissions", order.vhost, name)
    except Failed as failed:
        if failed.status != 404:  # there were none: as good as cleared
            raise Refused(UNAVAILABLE, str(failed)) from failed


def list_permissions(order: Order) -> Any:
    missing = (UNAVAILABLE, f"Virtual host {order.vhost} does not exist")
    return _refusing(order, {404: missing}, lambda: order.link.get("vhosts", order.vhost, "permissions"))


def list_user_permissions(order: Order) -> Any:
    name = order.words["username"]
    return _refusing(order, _no_user(name), lambda: order.link.get("users", name, "permissions"))


def vhost_names(order: Order) -> list[str]:
    return [vhost["name"] for vhost in order.link.get("vhosts")]


# ---- policies ----


def set_policy(order: Order) -> Any:
    try:
        definition = json.loads(order.words["definition"])
    except ValueError:
        raise Refused(UNAVAILABLE, "JSON decoding error: the definition is not valid JSON") from None
    body = {
        "pattern": order.words["pattern"],
        "definition": definition,
        "priority": order.options["priority"],
        "apply-to": order.options["apply_to"],
    }
    where = ("policies", order.vhost, order.words["name"])
    _refusing(order, {}, lambda: order.link.ask("PUT", *where, body=body, makes_data=True))


def clear_policy(order: Order) -> Any:
    missing = (UNAVAILABLE, "Parameter does not exist")
    _refusing(order, {404: missing}, lambda: order.link.ask("DELETE", "policies", order.vhost, order.words["name"]))


def list_policies(order: Order) -> Any:
    found = _refusing(order, {}, lambda: order.link.get("policies", order.vhost))
    return [{**policy, "definition": json.dumps(policy["definition"], separators=(",", ":"))} for policy in found]


# ---- connections, publishers, consumers ----


def close_connection(order: Order) -> Any:
    name = order.words["connection"]
    missing = (UNAVAILABLE, f"Connection {name} does not exist")
    reason = order.words["explanation"]
    _refusing(
        order, {404: missing}, lambda: order.link.ask("DELETE", "connections", name, reason=reason, needs_broker=True)
    )


def list_connections(order: Order) -> Any:
    return order.link.get("connections", needs_broker=True)


def list_stream_connections(order: Order) -> Any:
    found = order.link.get("stream", "connections", needs_broker=True)
    subscriptions = [each["connection_details"]["name"] for each in order.link.get("stream", "consumers")]
    return [
        {
            **connection,
            "conn_name": connection["name"],
            "pid": connection["name"],  # as connection_pid of its publishers and consumers
            "heartbeat": connection["timeout"],
            "connection_state": connection["state"],
            "subscriptions": subscriptions.count(connection["name"]),
        }
        for connection in found
    ]


def list_stream_publishers(order: Order) -> Any:
    found = _refusing(order, {}, lambda: order.link.get("stream", "publishers", order.vhost, needs_broker=True))
    return [
        {
            "connection_pid": one["connection_details"]["name"],
            "publisher_id": one["publisher_id"],
            "stream": one["queue"]["name"],
            "reference": one["reference"],
            "messages_published": one["published"],
            "messages_confirmed": one["confirmed"],
            "messages_errored": one["errored"],
        }
        for one in found
    ]


def list_stream_consumers(order: Order) -> Any:
    found = _refusing(order, {}, lambda: order.link.get("stream", "consumers", order.vhost, needs_broker=True))
    return [
        {
            **one,
            "connection_pid": one["connection_details"]["name"],
            "stream": one["queue"]["name"],
            "messages_consumed": one["consumed"],
        }
        for one in found
    ]


def list_stream_groups(order: Order) -> Any:
    return _refusing(order, {}, lambda: order.link.get("stream", "groups", order.vhost, needs_broker=True))


def list_stream_group_consumers(order: Order) -> Any:
    stream, reference = order.options["stream"], order.options["reference"]
    if not stream or not reference:
        raise Refused(USAGE, "both --stream and --reference are needed")
    for group in list_stream_groups(order):
        if (group["stream"], group["reference"]) == (stream, reference):
            return group["members"]
    raise Refused(UNAVAILABLE, f"there is no group {reference} of stream {stream} in vhost {order.vhost}")


# ---- streams ----


def add_super_stream(order: Order) -> Any:
    name, options = order.words["name"], order.options
    # What was given as 0 or nothing is refused by the broker; it does not count as not given.
    keys = options["routing_keys"] if options["binding_keys"] is None else options["binding_keys"]
    count = options["partitions"]
    if keys is not None and count is not None:
        raise Refused(USAGE, "Specify --partitions or --binding-keys, not both.")
    arguments = {
        f"x-{argument}": options[argument.replace("-", "_")]
        for argument in STREAM_ARGUMENTS
        if options[argument.replace("-", "_")] is not None
    }
    body: dict[str, Any] = {"arguments": arguments}
    body |= {"partitions": PARTITIONS_DEFAULT if count is None else count} if keys is None else {"binding-keys": keys}
    where = ("stream", "super-streams", order.vhost, name)
    if any(
        exchange["name"] == name for exchange in _refusing(order, {}, lambda: order.link.get("exchanges", order.vhost))
    ):
        raise Refused(SOFTWARE, f"there is already an exchange named {name}")
    _refusing(order, {400: (SOFTWARE, "")}, lambda: order.link.ask("PUT", *where, body=body, needs_broker=True))
    return f"Super stream {name} has been created"


def delete_super_stream(order: Order) -> Any:
    name = order.words["name"]
    hint = "`vibemq ctl list_exchanges` lists those that are there"
    missing = (SOFTWARE, f"There is no super stream {name} in virtual host {order.vhost}", hint)
    where = ("stream", "super-streams", order.vhost, name)
    _refusing(order, {404: missing}, lambda: order.link.ask("DELETE", *where, needs_broker=True))
    return f"Super stream {name} has been deleted"


def _no_stream(order: Order, name: str) -> Codes:
    hint = "`vibemq ctl list_queues` lists those that are there"
    return {404: (UNAVAILABLE, f"There is no stream or queue {name} in virtual host {order.vhost}", hint)}


def stream_status(order: Order) -> Any:
    where = ("stream", order.vhost, order.words["stream"], "status")
    return _refusing(order, _no_stream(order, order.words["stream"]), lambda: order.link.get(*where, needs_broker=True))


def list_stream_tracking(order: Order) -> Any:
    """``lag``: of a stored offset, how many messages come after it; a publisher's id has none."""
    name = order.words["stream"]
    missing = _no_stream(order, name)
    where = ("stream", order.vhost, name)
    found = _refusing(order, missing, lambda: order.link.get(*where, "tracking", needs_broker=True))
    (status, *_) = _refusing(order, missing, lambda: order.link.get(*where, "status", needs_broker=True))
    end = status["offset"]
    offsets = [
        {"type": "offset", "name": reference, "tracking_value": at, "lag": max(0, end - at)}
        for reference, at in sorted(found["offsets"].items())
    ]
    writers = [{"type": "writer", "name": each, "tracking_value": at} for each, at in sorted(found["writers"].items())]
    return offsets + writers


def restart_stream(order: Order) -> Any:
    where = ("stream", order.vhost, order.words["stream"], "restart")
    _refusing(
        order, _no_stream(order, order.words["stream"]), lambda: order.link.ask("POST", *where, needs_broker=True)
    )


def delete_queue(order: Order) -> Any:
    where = ("queues", order.vhost, order.words["queue"])
    missing = _no_stream(order, order.words["queue"])
    found = _refusing(order, missing, lambda: order.link.get(*where))
    _refusing(order, missing, lambda: order.link.ask("DELETE", *where, needs_broker=True))
    return f"Queue was successfully deleted with {found['messages_ready']} ready messages"


def alter_queue(order: Order) -> Any:
    name = order.words["queue"]
    try:
        options = json.loads(order.words["options"])
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise Refused(
            DATA, 'the options are no JSON object; an example is {"max_messages": 5000, "message_ttl_ms": null}'
        )
    where = ("queues", order.vhost, name, "options")
    missing = _no_stream(order, name)
    _refusing(order, missing, lambda: order.link.ask("PUT", *where, body=options))


def list_queues(order: Order) -> Any:
    return _refusing(order, {}, lambda: order.link.get("queues", order.vhost))


def list_exchanges(order: Order) -> Any:
    return _refusing(order, {}, lambda: order.link.get("exchanges", order.vhost))


def list_bindings(order: Order) -> Any:
    found = _refusing(order, {}, lambda: order.link.get("bindings", order.vhost))
    return [
        {
            "source_name": one["source"],
            "source_kind": "exchange",
            "destination_name": one["destination"],
            "destination_kind": one["destination_type"],
            "routing_key": one["routing_key"],
            "arguments": one["arguments"],
        }
        for one in found
    ]


# ---- definitions ----


def export_definitions(order: Order) -> Any:
    """What the document leaves out goes to standard error, so that ``-`` writes nothing but the document."""
    document = order.link.get("definitions")
    text, name = json.dumps(document, indent=2) + "\n", order.words["file"]
    if name == STANDARD_OUTPUT:
        click.echo(text, nl=False)
    else:
        try:
            _write_private(name, text)
        except OSError as problem:
            raise Refused(DATA, f"cannot write {name}: {problem.strerror}") from None
    for information in document["information"]:
        click.echo(f"vibemq: {information}", err=True)


def _write_private(name: str, text: str) -> None:
    """For this account's eyes only, whatever the umask: hashes of passwords are in it."""
    with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), 0o600)  # refused for a file of another account, which stays as it is
            file.truncate(0)
        file.write(text)


def import_definitions(order: Order) -> Any:
    name = order.words.get("file", STANDARD_OUTPUT)
    try:
        document = json.loads(sys.stdin.read() if name == STANDARD_OUTPUT else Path(name).read_text(encoding="utf-8"))
    except OSError as problem:
        raise Refused(DATA, f"cannot read {name}: {problem.strerror}") from None
    except ValueError:
        raise Refused(DATA, "JSON decoding error: the definitions are not valid JSON") from None
    if not isinstance(document, dict):
        raise Refused(DATA, "the definitions are no JSON object")
    _refusing(order, {}, lambda: order.link.ask("POST", "definitions", body=document, needs_broker=True))


# ---- the broker ----


_ALARMS = {"disk": "disk_free_alarm", "memory": "mem_alarm"}
_ALARM_WORDS = {"disk": "Free disk space alarm", "memory": "Memory alarm"}


def status(order: Order) -> Any:
    (node,) = _refusing(order, {}, lambda: order.link.get("nodes", needs_broker=True))
    overview = order.link.get("overview")
    return {
        "pid": int(node["os_pid"]),
        "os": node["os"],
        "uptime": node["uptime"] // 1000,
        "is_under_maintenance": node["being_drained"],
        "product_name": overview["product_name"],
        "product_version": overview["product_version"],
        "rabbitmq_version": overview["rabbitmq_version"],
        "node": node["name"],
        "data_directory": node["db_dir"],
        "alarms": [name for name, key in _ALARMS.items() if node[key]],
        "memory_used": node["mem_used"],
        "memory_limit": node["mem_limit"],
        "disk_free": node["disk_free"],
        "disk_free_limit": node["disk_free_limit"],
        "workers": node["workers"],
        "listeners": overview["listeners"],
        "totals": {
            "connection_count": overview["object_totals"]["connections"],
            "queue_count": overview["object_totals"]["queues"],
            "virtual_host_count": len(order.link.get("vhosts")),
        },
    }


def ping(order: Order) -> Any:
    """An alarm is no reason to fail, nor is maintenance: it answers."""
    try:
        order.link.get("health", "checks", "ready-to-serve-clients", needs_broker=True)
    except Failed as failed:
        if "maintenance" not in str(failed):
            raise Refused(UNAVAILABLE, str(failed)) from failed
    return "Ping succeeded"


def _alarms(order: Order) -> tuple[str, list[str]]:
    """The node, and its alarms in words."""
    (node,) = _refusing(order, {}, lambda: order.link.get("nodes", needs_broker=True))
    return node["name"], [f"{_ALARM_WORDS[name]} on node {node['name']}" for name, key in _ALARMS.items() if node[key]]


def _no_alarms(node: str) -> str:
    return f"Node {node} reported no alarms, local or clusterwide"


def alarms(order: Order) -> Any:
    node, found = _alarms(order)
    return "\n".join(found) or _no_alarms(node)


def check_alarms(order: Order) -> Any:
    """As alarms, and fails where there are any."""
    node, found = _alarms(order)
    if found:
        raise Refused(UNAVAILABLE, "\n".join(found), "`vibemq ctl status` shows what is free and what is needed")
    return _no_alarms(node)


def drain(order: Order) -> Any:
    _refusing(order, {}, lambda: order.link.ask("PUT", "maintenance", needs_broker=True))
    return "Nobody is let in from now on, and all are asked to leave. `vibemq ctl revive` ends that."


def revive(order: Order) -> Any:
    _refusing(order, {}, lambda: order.link.ask("DELETE", "maintenance", needs_broker=True))
    return "Everybody is let in again."
