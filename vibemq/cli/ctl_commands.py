# SPDX-License-Identifier: Apache-2.0
"""The commands of `vibemq ctl`: what each takes, asks and says, as rabbitmqctl and rabbitmq-streams do.

Most are one request to the management API and the columns of its answer; the others have a function of an ``Order``.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections import Counter
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import click

from vibemq.admin.api.calls import LEVELS
from vibemq.cli import ctl_remote, ctl_top
from vibemq.cli.ctl_orders import DATA, NO_USER, SOFTWARE, UNAVAILABLE, USAGE, Codes, Command, Order, Refused
from vibemq.cli.data import Failed
from vibemq.cli.terminal import ask_password

STANDARD_OUTPUT = "-"  # and standard input, where a file is read
#: What a super stream's partitions may be given, as options of `add_super_stream`.
STREAM_ARGUMENTS = "max-length-bytes max-age stream-max-segment-size-bytes queue-leader-locator initial-cluster-size"
PARTITIONS_DEFAULT = 3
BOXES = "pretty_table"

_NO_USER: Codes = {404: (NO_USER, 'User "{name}" does not exist')}
_NO_STREAM: Codes = {404: (UNAVAILABLE, "There is no stream or queue {name} in virtual host {vhost}",
                           "`vibemq ctl list_queues` lists those that are there")}  # fmt: skip


def _json_of(text: str, otherwise: Refused) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise otherwise from None


# ---- the broker ----

#: How long a rolling restart is waited for; it goes on all the same.
RESTARTS_S_MAX, RESTARTS_LOOK_S = 3600.0, 0.2
#: Of each alarm: what of a node says that it is in effect, and its name.
_ALARMS = {"disk": ("disk_free_alarm", "Free disk space alarm"), "memory": ("mem_alarm", "Memory alarm")}


#: Of parts of a status whose names do not say it, for people.
UNITS = {
    "uptime": "seconds",
    **dict.fromkeys(("memory_used", "memory_limit", "disk_free", "disk_free_limit"), "bytes"),
}


def status(order: Order) -> Any:
    (node,) = order.ask("GET /nodes", needs_broker=True)
    overview = order.ask("GET /overview")
    store = ctl_remote.asked(order)
    return {
        "pid": int(node["os_pid"]),
        "os": node["os"],
        "uptime": node["uptime"] // 1000,
        "is_under_maintenance": node["being_drained"],
        **{key: overview[key] for key in ("product_name", "product_version", "rabbitmq_version")},
        "node": node["name"],
        "data_directory": node["db_dir"],
        **({} if store is None else {"object_store": ctl_remote.in_words(store)}),
        "alarms": [name for name, (key, _) in _ALARMS.items() if node[key]],
        "stalled_file_calls": [
            f"{call['process']}: {call['call']} has taken {call['seconds']:g} s" for call in node["stalled_file_calls"]
        ],
        "memory_used": node["mem_used"],
        "memory_limit": node["mem_limit"],
        **{key: node[key] for key in ("disk_free", "disk_free_limit", "workers")},
        "listeners": overview["listeners"],
        "totals": {
            "connection_count": overview["object_totals"]["connections"],
            "queue_count": overview["object_totals"]["queues"],
            "virtual_host_count": len(order.ask("GET /vhosts")),
        },
    }


def ping(order: Order) -> Any:
    """An alarm is no reason to fail, nor is maintenance."""
    try:
        order.data.ask("GET", "/health/checks/ready-to-serve-clients", needs_broker=True)
    except Failed as failed:
        if "maintenance" not in str(failed):
            raise Refused(UNAVAILABLE, str(failed)) from failed
    return "Ping succeeded"


def alarms(order: Order, may_be: bool = True) -> Any:
    """Those in effect, in words, which is what it fails with unless they ``may_be``."""
    (node,) = order.ask("GET /nodes", needs_broker=True)
    found = "\n".join(f"{said} on node {node['name']}" for key, said in _ALARMS.values() if node[key])
    if found and not may_be:
        raise Refused(UNAVAILABLE, found, "`vibemq ctl status` shows what is free and what is needed")
    return found or f"Node {node['name']} reported no alarms, local or clusterwide"


check_alarms = partial(alarms, may_be=False)


# ---- definitions ----


def restart_workers(order: Order) -> Any:
    number = order.ask("POST /workers/restarts", needs_broker=True)["number"]
    deadline_s = time.monotonic() + RESTARTS_S_MAX
    while order.ask("GET /workers/restarts", needs_broker=True)["done"] < number:
        if time.monotonic() >= deadline_s:
            raise Refused(UNAVAILABLE, "workers are still being replaced", "the broker's log says what they wait for")
        time.sleep(RESTARTS_LOOK_S)
    return "All workers have been replaced."


def export_definitions(order: Order) -> Any:
    """What the document leaves out goes to standard error, so that - writes nothing but the document."""
    document = order.ask("GET /definitions")
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
    invalid = Refused(DATA, "JSON decoding error: the definitions are not valid JSON")
    try:
        text = sys.stdin.read() if name == STANDARD_OUTPUT else Path(name).read_text(encoding="utf-8")
    except OSError as problem:
        raise Refused(DATA, f"cannot read {name}: {problem.strerror}") from None
    except ValueError:
        raise invalid from None
    document = _json_of(text, invalid)
    if not isinstance(document, dict):
        raise Refused(DATA, "the definitions are no JSON object")
    order.ask("POST /definitions", body=document, needs_broker=True)


# ---- users ----


def _password(order: Order) -> str:
    """As a word on the line it may be empty, for a user without one; but there everybody on the machine can read it."""
    if "password" in order.words:
        return order.words["password"]
    asked = ask_password(order.words["username"], from_stdin=not sys.stdin.isatty(), twice=True)
    if not asked:
        raise Refused(USAGE, "a password is needed, as a word or on standard input")
    return asked


def _new_user(order: Order) -> dict[str, Any]:
    password = _password(order)
    return {"password": password, "tags": ""} if password else {"password_hash": "", "tags": ""}


def _tags(order: Order) -> dict[str, Any]:
    """One of the user's own is taken, as RabbitMQ takes it; what looks like one of ours misspelt is said."""
    for tag in order.more:
        near = [] if tag in LEVELS else get_close_matches(tag, LEVELS, 1)
        if near:
            click.echo(f"vibemq: the tag '{tag}' lets nobody use anything; is {near[0]} meant?", err=True)
    return {"tags": list(order.more)}


# ---- permissions ----


def set_permissions(order: Order) -> Any:
    _require_both(order)
    body = {right: order.words[word] for right, word in (("configure", "conf"), ("write", "write"), ("read", "read"))}
    order.ask("PUT /permissions/{vhost}/{username}", body=body)


def clear_permissions(order: Order) -> Any:
    _require_both(order)
    none = "there are none"
    try:
        order.ask("DELETE /permissions/{vhost}/{username}", codes={404: (UNAVAILABLE, none), 500: (UNAVAILABLE, "")})
    except Refused as refused:
        if str(refused) != none:  # which is as good as cleared
            raise


def _require_both(order: Order) -> None:
    """The virtual host and the user are there."""
    vhost, name = order.options["vhost"], order.words["username"]
    if vhost not in (found["name"] for found in order.ask("GET /vhosts")):
        raise Refused(UNAVAILABLE, f"Virtual host {vhost} does not exist")
    if name not in (found["name"] for found in order.ask("GET /users")):
        raise Refused(NO_USER, f"User {name} does not exist")


# ---- policies ----


def _policy(order: Order) -> dict[str, Any]:
    invalid = Refused(UNAVAILABLE, "JSON decoding error: the definition is not valid JSON")
    return {
        "pattern": order.words["pattern"],
        "definition": _json_of(order.words["definition"], invalid),
        "priority": order.options["priority"],
        "apply-to": order.options["apply_to"],
    }


def list_policies(order: Order) -> Any:
    found = order.ask("GET /policies/{vhost}")
    return [{**policy, "definition": json.dumps(policy["definition"], separators=(",", ":"))} for policy in found]


# ---- limits ----


def _limits(order: Order) -> dict[str, Any]:
    invalid = Refused(DATA, 'the limits are no JSON object; an example is {"max-connections": 10, "publish-rate": 500}')
    limits = _json_of(order.words["definition"], invalid)
    if not isinstance(limits, dict):
        raise invalid
    return limits


def clear_user_limits(order: Order) -> Any:
    every = order.words["limit"] == "all"
    order.ask("DELETE /user-limits/{username}" + ("" if every else "/{limit}"), codes=_NO_USER)


def list_user_limits(order: Order) -> Any:
    """Of all users, or of --user."""
    one = order.options["user"] is not None
    found = order.ask("GET /user-limits" + ("/{user}" if one else ""), codes=_NO_USER)
    return [{**each, "limits": json.dumps(each["value"], separators=(",", ":"))} for each in found]


def list_vhost_limits(order: Order) -> Any:
    """Of all virtual hosts; with --vhost only of one, which "/" is as well."""
    found = order.ask("GET /vhost-limits")
    vhost = order.options["vhost"]
    chosen = [each for each in found if vhost in ("/", each["vhost"])]
    return [{**each, "limits": json.dumps(each["value"], separators=(",", ":"))} for each in chosen]


# ---- connections, publishers, consumers ----


def list_stream_connections(order: Order) -> Any:
    found = order.ask("GET /stream/connections", needs_broker=True)
    subscriptions = Counter(each["connection_details"]["name"] for each in order.ask("GET /stream/consumers"))
    return [{**connection, "subscriptions": subscriptions[connection["name"]]} for connection in found]


def list_stream_group_consumers(order: Order) -> Any:
    stream, reference = order.options["stream"], order.options["reference"]
    if not stream or not reference:
        raise Refused(USAGE, "both --stream and --reference are needed")
    for group in order.ask("GET /stream/groups/{vhost}", needs_broker=True):
        if (group["stream"], group["reference"]) == (stream, reference):
            return group["members"]
    raise Refused(UNAVAILABLE, f"there is no group {reference} of stream {stream} in vhost {order.options['vhost']}")


# ---- super streams ----


def add_super_stream(order: Order) -> Any:
    name, options = order.words["name"], order.options
    # What was given as 0 or nothing is refused by the broker; it does not count as not given.
    keys = options["routing_keys"] if options["binding_keys"] is None else options["binding_keys"]
    count = options["partitions"]
    if keys is not None and count is not None:
        raise Refused(USAGE, "Specify --partitions or --binding-keys, not both.")
    given = {argument: options[argument.replace("-", "_")] for argument in STREAM_ARGUMENTS.split()}
    body: dict[str, Any] = {"arguments": {f"x-{name}": value for name, value in given.items() if value is not None}}
    body |= {"partitions": PARTITIONS_DEFAULT if count is None else count} if keys is None else {"binding-keys": keys}
    if any(exchange["name"] == name for exchange in order.ask("GET /exchanges/{vhost}")):
        raise Refused(SOFTWARE, f"there is already an exchange named {name}")
    where = "PUT /stream/super-streams/{vhost}/{name}"
    order.ask(where, body=body, needs_broker=True, codes={400: (SOFTWARE, "")})
    return f"Super stream {name} has been created"


# ---- streams and queues ----


def list_stream_tracking(order: Order) -> Any:
    """``lag``: of a stored offset, how many messages come after it; a publisher's id has none."""
    found = order.ask("GET /stream/{vhost}/{stream}/tracking", needs_broker=True, codes=_NO_STREAM)
    (state, *_) = order.ask("GET /stream/{vhost}/{stream}/status", needs_broker=True, codes=_NO_STREAM)
    offsets = [
        {"type": "offset", "name": reference, "tracking_value": at, "lag": max(0, state["offset"] - at)}
        for reference, at in sorted(found["offsets"].items())
    ]
    writers = [{"type": "writer", "name": each, "tracking_value": at} for each, at in sorted(found["writers"].items())]
    return offsets + writers


def delete_queue(order: Order) -> Any:
    found = order.ask("GET /queues/{vhost}/{queue}", codes=_NO_STREAM)
    order.ask("DELETE /queues/{vhost}/{queue}", needs_broker=True, codes=_NO_STREAM)
    return f"Queue was successfully deleted with {found['messages_ready']} ready messages"


def _options(order: Order) -> dict[str, Any]:
    invalid = Refused(
        DATA, 'the options are no JSON object; an example is {"max_messages": 5000, "message_ttl_ms": null}'
    )
    options = _json_of(order.words["options"], invalid)
    if not isinstance(options, dict):
        raise invalid
    return options


def list_bindings(order: Order) -> Any:
    return [{**one, "source_kind": "exchange"} for one in order.ask("GET /bindings/{vhost}")]


#: By name, in the order of the help.
COMMANDS = {command.name: command for command in (
    Command("status", "Shows what runs and how it is.", "Status of node ...", status),
    Command("top", "Shows rates, processes, and the busiest streams and queues, until Ctrl-C; in a pipe, once.",
            "Asking node for what it does ...", ctl_top.top, options="interval", needs_broker=True),
    Command("ping", "Checks that the broker and all its workers answer.", "Will ping the broker ...", ping),
    Command("alarms", "Shows alarms that are in effect.", "Asking node for any known resource alarm ...", alarms),
    Command("check_alarms", "Fails where an alarm is in effect.", "Asking node for any known resource alarm ...",
            check_alarms),
    Command("check_local_alarms", "As check_alarms: there is one node.", "Asking node for any local resource alarm ...",
            check_alarms),
    Command("remote_status", "Shows what the object store has, what waits for it, and what a month of it costs.",
            "Status of the object store of node ...", ctl_remote.remote_status,
            options="put-price get-price storage-price", needs_broker=True),
    Command("drain", "Maintenance: refuses newcomers and sends everybody away, until revive or the next start.",
            "Will put node into maintenance mode ...", "PUT /maintenance",
            says="Nobody is let in from now on, and all are asked to leave. `vibemq ctl revive` ends that.",
            needs_broker=True),
    Command("revive", "Ends maintenance.", "Will revive node ...", "DELETE /maintenance",
            says="Everybody is let in again.", needs_broker=True),
    Command("restart_workers", "Replaces the workers one after the other, while the doors stay open; waits for it.",
            "Restarting the workers of node ...", restart_workers, needs_broker=True),
    Command("export_definitions <file>",
            "Writes what is set up as JSON, - is standard output; with the hashes of passwords.",
            "Exporting definitions in JSON to {file} ...", export_definitions),
    Command("import_definitions [<file>]", "Adds what such a file has, or standard input; it deletes nothing.",
            "Importing definitions in JSON ...", import_definitions),
    Command("add_user <username> [<password>]",
            "Makes a user, who may do nothing yet; the password as with change_password.",
            'Adding user "{username}" ...', "POST /users/{username}",
            codes={409: (SOFTWARE, 'User "{name}" already exists')}, body=_new_user,
            says="Done. Don't forget to grant the user permissions to some virtual hosts! "
            "See 'vibemq ctl set_permissions'.", makes_data=True),
    Command("delete_user <username>", "Deletes a user.", 'Deleting user "{username}" ...', "DELETE /users/{username}",
            codes=_NO_USER),
    Command("change_password <username> [<password>]",
            "Changes a user's password, which is asked for or read from standard input where it is not given.",
            'Changing password for user "{username}" ...', "PUT /users/{username}/password", codes=_NO_USER,
            body=lambda order: {"password": _password(order)}),
    Command("clear_password <username>",
            "Takes a user's password away, who comes in by a certificate only from then on.",
            'Clearing password for user "{username}" ...', "DELETE /users/{username}/password", codes=_NO_USER),
    Command("set_user_tags <username> [<tag> ...]",
            "Sets a user's tags, which say what of the management API it may use.",
            'Setting tags for user "{username}" to [{more}] ...', "PUT /users/{username}/tags", codes=_NO_USER,
            body=_tags),
    Command("list_users", "Lists users and their tags.", "Listing users ...", "GET /users", columns="user=name tags"),
    Command("add_vhost <vhost>", "Makes a virtual host.", 'Adding vhost "{vhost}" ...', "PUT /vhosts/{vhost}",
            body=lambda order: {name: order.options[name] or "" for name in ("description", "tags")},
            options="description tags", makes_data=True),
    Command("delete_vhost <vhost>", "Deletes a virtual host and all that is in it.", 'Deleting vhost "{vhost}" ...',
            "DELETE /vhosts/{vhost}", codes={404: (DATA, "Virtual host '{vhost}' does not exist")}),
    Command("list_vhosts [<column> ...]", "Lists virtual hosts.", "Listing vhosts ...", "GET /vhosts", columns="name",
            also="description tags tracing default_queue_type cluster_state"),
    Command("set_permissions <username> <conf> <write> <read>",
            "Lets a user configure, write and read what these regular expressions match.",
            'Setting permissions for user "{username}" in vhost "{vhost}" ...', set_permissions),
    Command("clear_permissions <username>", "Takes all permissions in a virtual host from a user.",
            'Clearing permissions for user "{username}" in vhost "{vhost}" ...', clear_permissions),
    Command("list_permissions", "Lists the permissions in a virtual host.",
            'Listing permissions for vhost "{vhost}" ...', "GET /vhosts/{vhost}/permissions",
            codes={404: (UNAVAILABLE, "Virtual host {vhost} does not exist")}, columns="user configure write read"),
    Command("list_user_permissions <username>", "Lists a user's permissions in all virtual hosts.",
            'Listing permissions for user "{username}" ...', "GET /users/{username}/permissions", codes=_NO_USER,
            columns="vhost configure write read"),
    Command("set_policy <name> <pattern> <definition>",
            "Sets a policy for the streams and queues that the pattern matches; the definition is JSON.",
            'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
            'for vhost "{vhost}" ...', "PUT /policies/{vhost}/{name}", body=_policy, options="priority apply-to",
            makes_data=True),
    Command("clear_policy <name>", "Removes a policy.", 'Clearing policy "{name}" on vhost "{vhost}" ...',
            "DELETE /policies/{vhost}/{name}", codes={404: (UNAVAILABLE, "Parameter does not exist")}),
    Command("list_policies", "Lists the policies of a virtual host.", 'Listing policies for vhost "{vhost}" ...',
            list_policies, columns="vhost name pattern apply-to definition priority"),
    Command("set_user_limits <username> <definition>",
            "Limits a user: max-connections, max-queues, max-streams, publish-rate (messages/s), as JSON; -1 is none. "
            "Those of guest hold for who says to be guest, not for who gives no name.",
            'Setting limits "{definition}" for user "{username}" ...', "PUT /user-limits/{username}", codes=_NO_USER,
            body=_limits),
    Command("clear_user_limits <username> <limit>", "Removes one of a user's limits, or `all`.",
            'Clearing "{limit}" limit for user "{username}" ...', clear_user_limits),
    Command("list_user_limits", "Lists the limits of all users, or of --user.", "Listing limits for users ...",
            list_user_limits, columns="user limits", options="user"),
    Command("set_vhost_limits <definition>",
            "Limits a virtual host, as set_user_limits a user; what is not named is not limited any more.",
            'Setting vhost limits "{definition}" for vhost "{vhost}" ...', "PUT /vhost-limits/{vhost}", body=_limits),
    Command("clear_vhost_limits", "Removes the limits of a virtual host.",
            'Clearing vhost limits for vhost "{vhost}" ...', "DELETE /vhost-limits/{vhost}"),
    Command("list_vhost_limits", "Lists the limits of virtual hosts.", "Listing limits for vhosts ...",
            list_vhost_limits, columns="vhost limits"),
    Command("close_connection <connection> <explanation>",
            "Drops a connection, which is named as list_stream_connections shows it.",
            "Closing connection {connection}, reason: {explanation}...", "DELETE /connections/{connection}",
            codes={404: (UNAVAILABLE, "Connection {connection} does not exist")}, needs_broker=True),
    Command("list_connections [<column> ...]", "Lists the connections of all doors.", "Listing connections ...",
            "GET /connections", columns="user peer_host peer_port state",
            also="name vhost protocol host port node ssl connected_at client_properties", needs_broker=True),
    Command("list_stream_connections [<column> ...]", "Lists stream connections.", "Listing stream connections ...",
            list_stream_connections, columns="conn_name=name",
            also="auth_mechanism client_properties connected_at connection_state=state frame_max "
            "heartbeat=timeout host node peer_host peer_port pid=name port ssl subscriptions user vhost",
            formatter=BOXES),
    Command("list_stream_publishers [<column> ...]", "Lists all stream publishers for a vhost.",
            "Listing stream publishers ...", "GET /stream/publishers/{vhost}",
            columns="connection_pid=connection_details.name publisher_id stream=queue.name reference "
            "messages_published=published messages_confirmed=confirmed messages_errored=errored", formatter=BOXES,
            needs_broker=True),
    Command("list_stream_consumers [<column> ...]", "Lists all stream consumers for a vhost.",
            "Listing stream consumers ...", "GET /stream/consumers/{vhost}",
            columns="connection_pid=connection_details.name subscription_id stream=queue.name "
            "messages_consumed=consumed offset offset_lag credits active activity_status properties",
            formatter=BOXES, needs_broker=True),
    Command("list_stream_groups [<column> ...]", "Lists groups of single active consumers for a vhost.",
            "Listing stream groups ...", "GET /stream/groups/{vhost}",
            columns="stream reference partition_index consumers", formatter=BOXES, needs_broker=True),
    Command("list_stream_group_consumers [<column> ...]", "Lists the consumers of one group (--stream, --reference).",
            "Listing group consumers ...", list_stream_group_consumers, columns="subscription_id connection_name state",
            also="node", formatter=BOXES, options="stream reference"),
    Command("list_transactions [<column> ...]", "Lists the applications that write batches once, and what they stage.",
            "Listing transactions for vhost {vhost} ...", "GET /stream/transactions/{vhost}",
            columns="application run version open_transactions staged_bytes",
            also="vhost user peer seen_at messages decided_at is_waiting past_runs is_ephemeral"),
    Command("add_super_stream <name>", "Makes a super stream, with --partitions or --binding-keys.",
            "Adding a super stream ...", add_super_stream,
            options=f"partitions binding-keys routing-keys {STREAM_ARGUMENTS}"),
    Command("delete_super_stream <name>", "Deletes a super stream.", "Deleting a super stream ...",
            "DELETE /stream/super-streams/{vhost}/{name}",
            codes={404: (SOFTWARE, "There is no super stream {name} in virtual host {vhost}",
                         "`vibemq ctl list_exchanges` lists those that are there")},
            says="Super stream {name} has been deleted", needs_broker=True),
    Command("stream_status <stream>", "Displays the status of a stream.", "Status of stream {stream} ...",
            "GET /stream/{vhost}/{stream}/status", codes=_NO_STREAM,
            columns="role node offset committed_offset first_offset readers segments", formatter=BOXES,
            needs_broker=True),
    Command("list_stream_tracking <stream>",
            "Lists the offsets that consumers of a stream have stored, with their lag, and its publishers' last ids.",
            "Listing tracking information for stream {stream} on vhost {vhost} ...", list_stream_tracking,
            columns="type name tracking_value lag", formatter=BOXES),
    Command("restart_stream <stream>",
            "Restarts a stream: all who use it are told that they have lost it, and come back.",
            "Restarting stream {stream} in vhost {vhost} ...", "POST /stream/{vhost}/{stream}/restart",
            codes=_NO_STREAM, needs_broker=True),
    Command("delete_queue <queue>", "Deletes a stream or a queue.", "Deleting queue '{queue}' on vhost '{vhost}' ...",
            delete_queue),
    Command("alter_queue <queue> <options>",
            "Changes options of a queue, as a JSON object; null gives one back to the configuration.",
            "Changing options of queue '{queue}' on vhost '{vhost}' ...", "PUT /queues/{vhost}/{queue}/options",
            codes=_NO_STREAM, body=_options),
    Command("list_queues [<column> ...]", "Lists streams and queues.", "Listing queues for vhost {vhost} ...",
            "GET /queues/{vhost}", columns="name messages",
            also="messages_ready messages_unacknowledged messages_dropped messages_refused consumers type arguments "
            "options policy state durable durability auto_delete exclusive vhost first_offset next_offset "
            "message_bytes segments"),
    Command("list_exchanges [<column> ...]", "Lists exchanges: super streams have one each.",
            "Listing exchanges for vhost {vhost} ...", "GET /exchanges/{vhost}", columns="name type",
            also="durable auto_delete internal arguments"),
    Command("list_bindings [<column> ...]", "Lists bindings: the partitions of super streams.",
            "Listing bindings for vhost {vhost}...", list_bindings,
            columns="source_name=source source_kind destination_name=destination destination_kind=destination_type "
            "routing_key arguments"),
)}  # fmt: skip
