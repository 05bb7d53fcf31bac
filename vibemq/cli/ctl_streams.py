# SPDX-License-Identifier: Apache-2.0
"""The commands of `vibemq ctl` for connections, streams, queues and super streams."""

from __future__ import annotations

import json
from typing import Any

from vibemq.cli.ctl_order import DATA, SOFTWARE, UNAVAILABLE, USAGE, Codes, Order, Refused, command

#: What a super stream's partitions may be given, as options of `add_super_stream`.
STREAM_ARGUMENTS = "max-length-bytes max-age stream-max-segment-size-bytes queue-leader-locator initial-cluster-size"
PARTITIONS_DEFAULT = 3
_BOXES = "pretty_table"
_CONNECTION_COLUMNS = (
    "auth_mechanism client_properties conn_name connected_at connection_state frame_max heartbeat host node "
    "peer_host peer_port pid port ssl subscriptions user vhost"
)
_CONSUMER_COLUMNS = (
    "connection_pid subscription_id stream messages_consumed offset offset_lag credits active activity_status "
    "properties"
)
_PUBLISHER_COLUMNS = (
    "connection_pid publisher_id stream reference messages_published messages_confirmed messages_errored"
)
_QUEUE_COLUMNS = (
    "messages_ready messages_unacknowledged messages_dropped messages_refused consumers type arguments options "
    "policy state durable auto_delete exclusive vhost first_offset next_offset message_bytes segments"
)

# ---- connections, publishers, consumers ----


@command("<connection> <explanation>", "Closing connection {connection}, reason: {explanation}...")
def close_connection(order: Order) -> Any:
    """Drops a connection, which is named as list_stream_connections shows it."""
    name = order.words["connection"]
    missing = {404: (UNAVAILABLE, f"Connection {name} does not exist")}
    reason = order.words["explanation"]
    order.ask("DELETE", "connections", name, reason=reason, needs_broker=True, codes=missing)


@command(
    "[<column> ...]",
    "Listing connections ...",
    columns="user peer_host peer_port state",
    also="name vhost protocol host port node ssl connected_at client_properties",
)
def list_connections(order: Order) -> Any:
    """Lists the connections of all doors."""
    return order.get("connections", needs_broker=True)


@command(
    "[<column> ...]", "Listing stream connections ...", columns="conn_name", also=_CONNECTION_COLUMNS, formatter=_BOXES
)
def list_stream_connections(order: Order) -> Any:
    """Lists stream connections."""
    found = order.get("stream", "connections", needs_broker=True)
    subscriptions = [each["connection_details"]["name"] for each in order.get("stream", "consumers")]
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


@command("[<column> ...]", "Listing stream publishers ...", columns=_PUBLISHER_COLUMNS, formatter=_BOXES)
def list_stream_publishers(order: Order) -> Any:
    """Lists all stream publishers for a vhost."""
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
        for one in order.get("stream", "publishers", order.vhost, needs_broker=True)
    ]


@command("[<column> ...]", "Listing stream consumers ...", columns=_CONSUMER_COLUMNS, formatter=_BOXES)
def list_stream_consumers(order: Order) -> Any:
    """Lists all stream consumers for a vhost."""
    return [
        {
            **one,
            "connection_pid": one["connection_details"]["name"],
            "stream": one["queue"]["name"],
            "messages_consumed": one["consumed"],
        }
        for one in order.get("stream", "consumers", order.vhost, needs_broker=True)
    ]


@command(
    "[<column> ...]",
    "Listing stream groups ...",
    columns="stream reference partition_index consumers",
    formatter=_BOXES,
)
def list_stream_groups(order: Order) -> Any:
    """Lists groups of single active consumers for a vhost."""
    return order.get("stream", "groups", order.vhost, needs_broker=True)


@command(
    "[<column> ...]",
    "Listing group consumers ...",
    columns="subscription_id connection_name state",
    also="node",
    formatter=_BOXES,
    options="stream reference",
)
def list_stream_group_consumers(order: Order) -> Any:
    """Lists the consumers of one group (--stream, --reference)."""
    stream, reference = order.options["stream"], order.options["reference"]
    if not stream or not reference:
        raise Refused(USAGE, "both --stream and --reference are needed")
    for group in list_stream_groups(order):
        if (group["stream"], group["reference"]) == (stream, reference):
            return group["members"]
    raise Refused(UNAVAILABLE, f"there is no group {reference} of stream {stream} in vhost {order.vhost}")


# ---- super streams ----


@command("<name>", "Adding a super stream ...", options=f"partitions binding-keys routing-keys {STREAM_ARGUMENTS}")
def add_super_stream(order: Order) -> Any:
    """Makes a super stream, with --partitions or --binding-keys."""
    name, options = order.words["name"], order.options
    # What was given as 0 or nothing is refused by the broker; it does not count as not given.
    keys = options["routing_keys"] if options["binding_keys"] is None else options["binding_keys"]
    count = options["partitions"]
    if keys is not None and count is not None:
        raise Refused(USAGE, "Specify --partitions or --binding-keys, not both.")
    given = {argument: options[argument.replace("-", "_")] for argument in STREAM_ARGUMENTS.split()}
    body: dict[str, Any] = {"arguments": {f"x-{name}": value for name, value in given.items() if value is not None}}
    body |= {"partitions": PARTITIONS_DEFAULT if count is None else count} if keys is None else {"binding-keys": keys}
    if any(exchange["name"] == name for exchange in order.get("exchanges", order.vhost)):
        raise Refused(SOFTWARE, f"there is already an exchange named {name}")
    where = ("stream", "super-streams", order.vhost, name)
    order.ask("PUT", *where, body=body, needs_broker=True, codes={400: (SOFTWARE, "")})
    return f"Super stream {name} has been created"


@command("<name>", "Deleting a super stream ...")
def delete_super_stream(order: Order) -> Any:
    """Deletes a super stream."""
    name = order.words["name"]
    hint = "`vibemq ctl list_exchanges` lists those that are there"
    missing = {404: (SOFTWARE, f"There is no super stream {name} in virtual host {order.vhost}", hint)}
    order.ask("DELETE", "stream", "super-streams", order.vhost, name, needs_broker=True, codes=missing)
    return f"Super stream {name} has been deleted"


# ---- streams and queues ----


def _no_stream(order: Order, name: str) -> Codes:
    hint = "`vibemq ctl list_queues` lists those that are there"
    return {404: (UNAVAILABLE, f"There is no stream or queue {name} in virtual host {order.vhost}", hint)}


def _of_stream(order: Order, method: str, what: str) -> Any:
    name = order.words["stream"]
    return order.ask(method, "stream", order.vhost, name, what, needs_broker=True, codes=_no_stream(order, name))


@command(
    "<stream>",
    "Status of stream {stream} ...",
    columns="role node offset committed_offset first_offset readers segments",
    formatter=_BOXES,
)
def stream_status(order: Order) -> Any:
    """Displays the status of a stream."""
    return _of_stream(order, "GET", "status")


@command(
    "<stream>",
    "Listing tracking information for stream {stream} on vhost {vhost} ...",
    columns="type name tracking_value lag",
    formatter=_BOXES,
)
def list_stream_tracking(order: Order) -> Any:
    """Lists the offsets that consumers of a stream have stored, with their lag, and its publishers' last ids.

    ``lag``: of a stored offset, how many messages come after it; a publisher's id has none.
    """
    found = _of_stream(order, "GET", "tracking")
    (status, *_) = _of_stream(order, "GET", "status")
    end = status["offset"]
    offsets = [
        {"type": "offset", "name": reference, "tracking_value": at, "lag": max(0, end - at)}
        for reference, at in sorted(found["offsets"].items())
    ]
    writers = [{"type": "writer", "name": each, "tracking_value": at} for each, at in sorted(found["writers"].items())]
    return offsets + writers


@command("<stream>", "Restarting stream {stream} in vhost {vhost} ...")
def restart_stream(order: Order) -> Any:
    """Restarts a stream: all who use it are told that they have lost it, and come back."""
    _of_stream(order, "POST", "restart")


@command("<queue>", "Deleting queue '{queue}' on vhost '{vhost}' ...")
def delete_queue(order: Order) -> Any:
    """Deletes a stream or a queue."""
    where = ("queues", order.vhost, order.words["queue"])
    missing = _no_stream(order, order.words["queue"])
    found = order.get(*where, codes=missing)
    order.ask("DELETE", *where, needs_broker=True, codes=missing)
    return f"Queue was successfully deleted with {found['messages_ready']} ready messages"


@command("<queue> <options>", "Changing options of queue '{queue}' on vhost '{vhost}' ...")
def alter_queue(order: Order) -> Any:
    """Changes options of a queue, as a JSON object; null gives one back to the configuration."""
    name = order.words["queue"]
    try:
        options = json.loads(order.words["options"])
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise Refused(
            DATA, 'the options are no JSON object; an example is {"max_messages": 5000, "message_ttl_ms": null}'
        )
    order.ask("PUT", "queues", order.vhost, name, "options", body=options, codes=_no_stream(order, name))


@command("[<column> ...]", "Listing queues for vhost {vhost} ...", columns="name messages", also=_QUEUE_COLUMNS)
def list_queues(order: Order) -> Any:
    """Lists streams and queues."""
    return order.get("queues", order.vhost)


@command(
    "[<column> ...]",
    "Listing exchanges for vhost {vhost} ...",
    columns="name type",
    also="durable auto_delete internal arguments",
)
def list_exchanges(order: Order) -> Any:
    """Lists exchanges: super streams have one each."""
    return order.get("exchanges", order.vhost)


@command(
    "[<column> ...]",
    "Listing bindings for vhost {vhost}...",
    columns="source_name source_kind destination_name destination_kind routing_key arguments",
)
def list_bindings(order: Order) -> Any:
    """Lists bindings: the partitions of super streams."""
    return [
        {
            "source_name": one["source"],
            "source_kind": "exchange",
            "destination_name": one["destination"],
            "destination_kind": one["destination_type"],
            "routing_key": one["routing_key"],
            "arguments": one["arguments"],
        }
        for one in order.get("bindings", order.vhost)
    ]
