# SPDX-License-Identifier: Apache-2.0
"""The commands of `vibemq ctl` for the broker, definitions, users, virtual hosts, permissions and policies."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import click

from vibemq.cli.ctl_order import (
    DATA,
    NO_USER,
    SOFTWARE,
    STANDARD_OUTPUT,
    UNAVAILABLE,
    USAGE,
    Codes,
    Order,
    Refused,
    command,
)
from vibemq.cli.data import Failed
from vibemq.cli.terminal import ask_password

# ---- the broker ----

#: Of each alarm: what of a node says that it is in effect, and its name.
_ALARMS = {"disk": ("disk_free_alarm", "Free disk space alarm"), "memory": ("mem_alarm", "Memory alarm")}


@command("", "Status of node ...")
def status(order: Order) -> Any:
    """Shows what runs and how it is."""
    (node,) = order.get("nodes", needs_broker=True)
    overview = order.get("overview")
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
        "alarms": [name for name, (key, _) in _ALARMS.items() if node[key]],
        "memory_used": node["mem_used"],
        "memory_limit": node["mem_limit"],
        "disk_free": node["disk_free"],
        "disk_free_limit": node["disk_free_limit"],
        "workers": node["workers"],
        "listeners": overview["listeners"],
        "totals": {
            "connection_count": overview["object_totals"]["connections"],
            "queue_count": overview["object_totals"]["queues"],
            "virtual_host_count": len(order.get("vhosts")),
        },
    }


@command("", "Will ping the broker ...")
def ping(order: Order) -> Any:
    """Checks that the broker and all its workers answer.

    An alarm is no reason to fail, nor is maintenance.
    """
    try:
        order.data.ask("GET", "health", "checks", "ready-to-serve-clients", needs_broker=True)
    except Failed as failed:
        if "maintenance" not in str(failed):
            raise Refused(UNAVAILABLE, str(failed)) from failed
    return "Ping succeeded"


def _alarms(order: Order) -> tuple[list[str], str]:
    """Those in effect, in words; and what to say where there are none."""
    (node,) = order.get("nodes", needs_broker=True)
    found = [f"{said} on node {node['name']}" for key, said in _ALARMS.values() if node[key]]
    return found, f"Node {node['name']} reported no alarms, local or clusterwide"


@command("", "Asking node for any known resource alarm ...")
def alarms(order: Order) -> Any:
    """Shows alarms that are in effect."""
    found, none = _alarms(order)
    return "\n".join(found) or none


@command("", "Asking node for any known resource alarm ...")
def check_alarms(order: Order) -> Any:
    """Fails where an alarm is in effect."""
    found, none = _alarms(order)
    if found:
        raise Refused(UNAVAILABLE, "\n".join(found), "`vibemq ctl status` shows what is free and what is needed")
    return none


@command("", "Asking node for any local resource alarm ...")
def check_local_alarms(order: Order) -> Any:
    """As check_alarms: there is one node."""
    return check_alarms(order)


@command("", "Will put node into maintenance mode ...")
def drain(order: Order) -> Any:
    """Maintenance: refuses newcomers and sends everybody away, until revive or the next start."""
    order.ask("PUT", "maintenance", needs_broker=True)
    return "Nobody is let in from now on, and all are asked to leave. `vibemq ctl revive` ends that."


@command("", "Will revive node ...")
def revive(order: Order) -> Any:
    """Ends maintenance."""
    order.ask("DELETE", "maintenance", needs_broker=True)
    return "Everybody is let in again."


# ---- definitions ----


@command("<file>", "Exporting definitions in JSON to {file} ...")
def export_definitions(order: Order) -> Any:
    """Writes what is set up as JSON, - is standard output; with the hashes of passwords.

    What the document leaves out goes to standard error, so that - writes nothing but the document.
    """
    document = order.get("definitions")
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


@command("[<file>]", "Importing definitions in JSON ...")
def import_definitions(order: Order) -> Any:
    """Adds what such a file has, or standard input; it deletes nothing."""
    name = order.words.get("file", STANDARD_OUTPUT)
    try:
        document = json.loads(sys.stdin.read() if name == STANDARD_OUTPUT else Path(name).read_text(encoding="utf-8"))
    except OSError as problem:
        raise Refused(DATA, f"cannot read {name}: {problem.strerror}") from None
    except ValueError:
        raise Refused(DATA, "JSON decoding error: the definitions are not valid JSON") from None
    if not isinstance(document, dict):
        raise Refused(DATA, "the definitions are no JSON object")
    order.ask("POST", "definitions", body=document, needs_broker=True)


# ---- users ----


@command("<username> [<password>]", 'Adding user "{username}" ...')
def add_user(order: Order) -> Any:
    """Makes a user, who may do nothing yet; the password as with change_password."""
    name, password = order.words["username"], _password(order)
    body = {"password": password, "tags": ""} if password else {"password_hash": "", "tags": ""}
    exists = {409: (SOFTWARE, f'User "{name}" already exists')}
    order.ask("POST", "users", name, body=body, makes_data=True, codes=exists)
    return "Done. Don't forget to grant the user permissions to some virtual hosts! See 'vibemq ctl set_permissions'."


def _password(order: Order) -> str:
    """As a word on the line it may be empty, for a user without one; but there everybody on the machine can read it."""
    if "password" in order.words:
        return order.words["password"]
    asked = ask_password(order.words["username"], from_stdin=not sys.stdin.isatty(), twice=True)
    if not asked:
        raise Refused(USAGE, "a password is needed, as a word or on standard input")
    return asked


def _no_user(order: Order) -> Codes:
    return {404: (NO_USER, f'User "{order.words["username"]}" does not exist')}


@command("<username>", 'Deleting user "{username}" ...')
def delete_user(order: Order) -> Any:
    """Deletes a user."""
    order.ask("DELETE", "users", order.words["username"], codes=_no_user(order))


@command("<username> [<password>]", 'Changing password for user "{username}" ...')
def change_password(order: Order) -> Any:
    """Changes a user's password, which is asked for or read from standard input where it is not given."""
    body = {"password": _password(order)}
    order.ask("PUT", "users", order.words["username"], "password", body=body, codes=_no_user(order))


@command("<username>", 'Clearing password for user "{username}" ...')
def clear_password(order: Order) -> Any:
    """Takes a user's password away, who comes in by a certificate only from then on."""
    order.ask("DELETE", "users", order.words["username"], "password", codes=_no_user(order))


@command("<username> [<tag> ...]", 'Setting tags for user "{username}" to [{more}] ...')
def set_user_tags(order: Order) -> Any:
    """Sets a user's tags, which say what of the management API it may use."""
    body = {"tags": list(order.more)}
    order.ask("PUT", "users", order.words["username"], "tags", body=body, codes=_no_user(order))


@command("", "Listing users ...", columns="user tags")
def list_users(order: Order) -> Any:
    """Lists users and their tags."""
    return [{"user": user["name"], "tags": user["tags"]} for user in order.get("users")]


# ---- virtual hosts ----


@command("<vhost>", 'Adding vhost "{vhost}" ...', options="description tags")
def add_vhost(order: Order) -> Any:
    """Makes a virtual host."""
    body = {name: order.options[name] or "" for name in ("description", "tags")}
    order.ask("PUT", "vhosts", order.words["vhost"], body=body, makes_data=True)


@command("<vhost>", 'Deleting vhost "{vhost}" ...')
def delete_vhost(order: Order) -> Any:
    """Deletes a virtual host and all that is in it."""
    name = order.words["vhost"]
    order.ask("DELETE", "vhosts", name, codes={404: (DATA, f"Virtual host '{name}' does not exist")})


@command(
    "[<column> ...]",
    "Listing vhosts ...",
    columns="name",
    also="description tags tracing default_queue_type cluster_state",
)
def list_vhosts(order: Order) -> Any:
    """Lists virtual hosts."""
    return order.get("vhosts")


# ---- permissions ----


@command("<username> <conf> <write> <read>", 'Setting permissions for user "{username}" in vhost "{vhost}" ...')
def set_permissions(order: Order) -> Any:
    """Lets a user configure, write and read what these regular expressions match."""
    _require_both(order)
    body = {right: order.words[word] for right, word in (("configure", "conf"), ("write", "write"), ("read", "read"))}
    order.ask("PUT", "permissions", order.vhost, order.words["username"], body=body)


@command("<username>", 'Clearing permissions for user "{username}" in vhost "{vhost}" ...')
def clear_permissions(order: Order) -> Any:
    """Takes all permissions in a virtual host from a user."""
    _require_both(order)
    try:
        order.data.ask("DELETE", "permissions", order.vhost, order.words["username"])
    except Failed as failed:
        if failed.status != 404:  # there were none: as good as cleared
            raise Refused(UNAVAILABLE, str(failed)) from failed


def _require_both(order: Order) -> None:
    """The virtual host and the user are there."""
    if order.vhost not in (vhost["name"] for vhost in order.get("vhosts")):
        raise Refused(UNAVAILABLE, f"Virtual host {order.vhost} does not exist")
    name = order.words["username"]
    if not any(user["name"] == name for user in order.get("users")):
        raise Refused(NO_USER, f"User {name} does not exist")


@command("", 'Listing permissions for vhost "{vhost}" ...', columns="user configure write read")
def list_permissions(order: Order) -> Any:
    """Lists the permissions in a virtual host."""
    missing = {404: (UNAVAILABLE, f"Virtual host {order.vhost} does not exist")}
    return order.get("vhosts", order.vhost, "permissions", codes=missing)


@command("<username>", 'Listing permissions for user "{username}" ...', columns="vhost configure write read")
def list_user_permissions(order: Order) -> Any:
    """Lists a user's permissions in all virtual hosts."""
    return order.get("users", order.words["username"], "permissions", codes=_no_user(order))


# ---- policies ----


@command(
    "<name> <pattern> <definition>",
    'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
    'for vhost "{vhost}" ...',
    options="priority apply-to",
)
def set_policy(order: Order) -> Any:
    """Sets a policy for the streams and queues that the pattern matches; the definition is JSON."""
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
    order.ask("PUT", "policies", order.vhost, order.words["name"], body=body, makes_data=True)


@command("<name>", 'Clearing policy "{name}" on vhost "{vhost}" ...')
def clear_policy(order: Order) -> Any:
    """Removes a policy."""
    missing = {404: (UNAVAILABLE, "Parameter does not exist")}
    order.ask("DELETE", "policies", order.vhost, order.words["name"], codes=missing)


@command("", 'Listing policies for vhost "{vhost}" ...', columns="vhost name pattern apply-to definition priority")
def list_policies(order: Order) -> Any:
    """Lists the policies of a virtual host."""
    found = order.get("policies", order.vhost)
    return [{**policy, "definition": json.dumps(policy["definition"], separators=(",", ":"))} for policy in found]
