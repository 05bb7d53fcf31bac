# SPDX-License-Identifier: Apache-2.0
"""The table of the commands of `vibemq ctl`: words, options and columns as in rabbitmqctl and rabbitmq-streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vibemq.ctl import work
from vibemq.ctl.work import Order


@dataclass(frozen=True, slots=True)
class Command:
    run: Callable[[Order], Any]
    usage: str  # words in <>, perhaps [<one>] that may be missing, [<column> ...] for more at the end
    about: str
    banner: str = ""  # may name words, {vhost} and options
    columns: tuple[str, ...] = ()  # shown unless others are asked for
    also: tuple[str, ...] = ()  # which may be asked for as well
    formatter: str = "table"
    options: tuple[str, ...] = ()  # of its own

    @property
    def words(self) -> list[str]:
        return [word.strip("<>") for word in self.usage.split() if word.startswith("<") and word.endswith(">")]

    @property
    def optional_words(self) -> list[str]:
        return [word.strip("[]<>") for word in self.usage.split() if word.startswith("[<") and word.endswith(">]")]

    @property
    def takes_more(self) -> bool:
        return "..." in self.usage


_CONNECTION_COLUMNS = ("auth_mechanism", "client_properties", "conn_name", "connected_at", "connection_state",
                       "frame_max", "heartbeat", "host", "node", "peer_host", "peer_port", "pid", "port", "ssl",
                       "subscriptions", "user", "vhost")  # fmt: skip
_CONSUMER_COLUMNS = ("connection_pid", "subscription_id", "stream", "messages_consumed", "offset", "offset_lag",
                     "credits", "active", "activity_status", "properties")  # fmt: skip
_PUBLISHER_COLUMNS = ("connection_pid", "publisher_id", "stream", "reference", "messages_published",
                      "messages_confirmed", "messages_errored")  # fmt: skip
_STATUS_COLUMNS = ("role", "node", "offset", "committed_offset", "first_offset", "readers", "segments")
_QUEUE_COLUMNS = ("messages_ready", "messages_unacknowledged", "messages_dropped", "messages_refused", "consumers",
                  "type", "arguments", "options", "policy", "state",
                  "durable", "auto_delete", "exclusive", "vhost", "first_offset", "next_offset", "message_bytes",
                  "segments")  # fmt: skip
_BINDING_COLUMNS = ("source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments")
_SUPER_STREAM_OPTIONS = ("partitions", "binding-keys", "routing-keys", *work.STREAM_ARGUMENTS)
_BOXES = "pretty_table"

COMMANDS: dict[str, Command] = {
    # ---- the broker ----
    "status": Command(work.status, "", "Shows what runs and how it is.", "Status of node ..."),
    "ping": Command(work.ping, "", "Checks that the broker and all its workers answer.", "Will ping the broker ..."),
    "alarms": Command(
        work.alarms, "", "Shows alarms that are in effect.", "Asking node for any known resource alarm ..."
    ),
    "check_alarms": Command(
        work.check_alarms, "", "Fails where an alarm is in effect.", "Asking node for any known resource alarm ..."
    ),
    "check_local_alarms": Command(
        work.check_alarms, "", "As check_alarms: there is one node.", "Asking node for any local resource alarm ..."
    ),
    "drain": Command(
        work.drain,
        "",
        "Maintenance: refuses newcomers and sends everybody away, until revive or the next start.",
        "Will put node into maintenance mode ...",
    ),
    "revive": Command(work.revive, "", "Ends maintenance.", "Will revive node ..."),
    # ---- definitions ----
    "export_definitions": Command(
        work.export_definitions,
        "<file>",
        "Writes what is set up as JSON, - is standard output; with the hashes of passwords.",
        "Exporting definitions in JSON to {file} ...",
    ),
    "import_definitions": Command(
        work.import_definitions,
        "[<file>]",
        "Adds what such a file has, or standard input; it deletes nothing.",
        "Importing definitions in JSON ...",
    ),
    # ---- users ----
    "add_user": Command(
        work.add_user,
        "<username> [<password>]",
        "Makes a user, who may do nothing yet; the password as with change_password.",
        'Adding user "{username}" ...',
    ),
    "delete_user": Command(work.delete_user, "<username>", "Deletes a user.", 'Deleting user "{username}" ...'),
    "change_password": Command(
        work.change_password,
        "<username> [<password>]",
        "Changes a user's password, which is asked for or read from standard input where it is not given.",
        'Changing password for user "{username}" ...',
    ),
    "clear_password": Command(
        work.clear_password,
        "<username>",
        "Takes a user's password away, who comes in by a certificate only from then on.",
        'Clearing password for user "{username}" ...',
    ),
    "set_user_tags": Command(
        work.set_user_tags,
        "<username> [<tag> ...]",
        "Sets a user's tags, which say what of the management API it may use.",
        'Setting tags for user "{username}" to [{more}] ...',
    ),
    "list_users": Command(work.list_users, "", "Lists users and their tags.", "Listing users ...", ("user", "tags")),
    # ---- virtual hosts ----
    "add_vhost": Command(
        work.add_vhost,
        "<vhost>",
        "Makes a virtual host.",
        'Adding vhost "{vhost}" ...',
        options=("description", "tags"),
    ),
    "delete_vhost": Command(
        work.delete_vhost, "<vhost>", "Deletes a virtual host and all that is in it.", 'Deleting vhost "{vhost}" ...'
    ),
    "list_vhosts": Command(
        work.list_vhosts,
        "[<column> ...]",
        "Lists virtual hosts.",
        "Listing vhosts ...",
        ("name",),
        ("description", "tags", "tracing", "default_queue_type", "cluster_state"),
    ),
    # ---- permissions ----
    "set_permissions": Command(
        work.set_permissions,
        "<username> <conf> <write> <read>",
        "Lets a user configure, write and read what these regular expressions match.",
        'Setting permissions for user "{username}" in vhost "{vhost}" ...',
    ),
    "clear_permissions": Command(
        work.clear_permissions,
        "<username>",
        "Takes all permissions in a virtual host from a user.",
        'Clearing permissions for user "{username}" in vhost "{vhost}" ...',
    ),
    "list_permissions": Command(
        work.list_permissions,
        "",
        "Lists the permissions in a virtual host.",
        'Listing permissions for vhost "{vhost}" ...',
        ("user", "configure", "write", "read"),
    ),
    "list_user_permissions": Command(
        work.list_user_permissions,
        "<username>",
        "Lists a user's permissions in all virtual hosts.",
        'Listing permissions for user "{username}" ...',
        ("vhost", "configure", "write", "read"),
    ),
    # ---- policies ----
    "set_policy": Command(
        work.set_policy,
        "<name> <pattern> <definition>",
        "Sets a policy for the streams and queues that the pattern matches; the definition is JSON.",
        'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
        'for vhost "{vhost}" ...',
        options=("priority", "apply-to"),
    ),
    "clear_policy": Command(
        work.clear_policy, "<name>", "Removes a policy.", 'Clearing policy "{name}" on vhost "{vhost}" ...'
    ),
    "list_policies": Command(
        work.list_policies,
        "",
        "Lists the policies of a virtual host.",
        'Listing policies for vhost "{vhost}" ...',
        ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
    ),
    # ---- connections ----
    "close_connection": Command(
        work.close_connection,
        "<connection> <explanation>",
        "Drops a connection, which is named as list_stream_connections shows it.",
        "Closing connection {connection}, reason: {explanation}...",
    ),
    "list_connections": Command(
        work.list_connections,
        "[<column> ...]",
        "Lists the connections of all doors.",
        "Listing connections ...",
        ("user", "peer_host", "peer_port", "state"),
        ("name", "vhost", "protocol", "host", "port", "node", "ssl", "connected_at", "client_properties"),
    ),
    "list_stream_connections": Command(
        work.list_stream_connections,
        "[<column> ...]",
        "Lists stream connections.",
        "Listing stream connections ...",
        ("conn_name",),
        _CONNECTION_COLUMNS,
        _BOXES,
    ),
    "list_stream_publishers": Command(
        work.list_stream_publishers,
        "[<column> ...]",
        "Lists all stream publishers for a vhost.",
        "Listing stream publishers ...",
        _PUBLISHER_COLUMNS,
        (),
        _BOXES,
    ),
    "list_stream_consumers": Command(
        work.list_stream_consumers,
        "[<column> ...]",
        "Lists all stream consumers for a vhost.",
        "Listing stream consumers ...",
        _CONSUMER_COLUMNS,
        (),
        _BOXES,
    ),
    "list_stream_groups": Command(
        work.list_stream_groups,
        "[<column> ...]",
        "Lists groups of single active consumers for a vhost.",
        "Listing stream groups ...",
        ("stream", "reference", "partition_index", "consumers"),
        (),
        _BOXES,
    ),
    "list_stream_group_consumers": Command(
        work.list_stream_group_consumers,
        "[<column> ...]",
        "Lists the consumers of one group (--stream, --reference).",
        "Listing group consumers ...",
        ("subscription_id", "connection_name", "state"),
        ("node",),
        _BOXES,
        ("stream", "reference"),
    ),
    # ---- streams ----
    "add_super_stream": Command(
        work.add_super_stream,
        "<name>",
        "Makes a super stream, with --partitions or --binding-keys.",
        "Adding a super stream ...",
        options=_SUPER_STREAM_OPTIONS,
    ),
    "delete_super_stream": Command(
        work.delete_super_stream, "<name>", "Deletes a super stream.", "Deleting a super stream ..."
    ),
    "stream_status": Command(
        work.stream_status,
        "<stream>",
        "Displays the status of a stream.",
        "Status of stream {stream} ...",
        _STATUS_COLUMNS,
        (),
        _BOXES,
    ),
    "list_stream_tracking": Command(
        work.list_stream_tracking,
        "<stream>",
        "Lists the offsets that consumers of a stream have stored, with their lag, and its publishers' last ids.",
        "Listing tracking information for stream {stream} on vhost {vhost} ...",
        ("type", "name", "tracking_value", "lag"),
        (),
        _BOXES,
    ),
    "restart_stream": Command(
        work.restart_stream,
        "<stream>",
        "Restarts a stream: all who use it are told that they have lost it, and come back.",
        "Restarting stream {stream} in vhost {vhost} ...",
    ),
    "delete_queue": Command(
        work.delete_queue, "<queue>", "Deletes a stream or a queue.", "Deleting queue '{queue}' on vhost '{vhost}' ..."
    ),
    "alter_queue": Command(
        work.alter_queue,
        "<queue> <options>",
        "Changes options of a queue, as a JSON object; null gives one back to the configuration.",
        "Changing options of queue '{queue}' on vhost '{vhost}' ...",
    ),
    "list_queues": Command(
        work.list_queues,
        "[<column> ...]",
        "Lists streams and queues.",
        "Listing queues for vhost {vhost} ...",
        ("name", "messages"),
        _QUEUE_COLUMNS,
    ),
    "list_exchanges": Command(
        work.list_exchanges,
        "[<column> ...]",
        "Lists exchanges: super streams have one each.",
        "Listing exchanges for vhost {vhost} ...",
        ("name", "type"),
        ("durable", "auto_delete", "internal", "arguments"),
    ),
    "list_bindings": Command(
        work.list_bindings,
        "[<column> ...]",
        "Lists bindings: the partitions of super streams.",
        "Listing bindings for vhost {vhost}...",
        _BINDING_COLUMNS,
    ),
}
