# SPDX-License-Identifier: Apache-2.0
"""Connections, publishers, consumers and groups over the management API, as the workers describe them now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vibemq.admin.api.calls import ADMINISTRATOR, MONITORING, Call, not_authorised, not_found, only
from vibemq.admin.api.service import Api

STREAM_PROTOCOL = "stream"
#: What doors and listeners speak, by their names, where that is not the name itself.
PROTOCOLS = {
    "streams": STREAM_PROTOCOL,
    "streams-tls": "stream/ssl",
    "signalr": "SignalR",
    "signalr-tls": "SignalR/ssl",
    "micromsg2": "MicroMsg2",
    "micromsg2-tls": "MicroMsg2/ssl",
    "native-tls": "native/ssl",
    "admin": "http",
    "admin-tls": "https",
}
CLOSED_BY = "Closed via management plugin"
#: What `single_active` and the others are for a consumer that is in no group.
ACTIVE_ALONE = "up"


# ---- connections ----


def list_connections(api: Api, call: Call) -> Any:
    return [_connection(api, session) for session in _sessions(api, call)]


def get_connection(api: Api, call: Call) -> Any:
    return _connection(api, _find(api, call))


def list_channels(api: Api, call: Call) -> Any:
    """Channels belong to AMQP 0.9.1.  Raises Refused where there is no such connection."""
    _find(api, call)
    return []


def delete_connection(api: Api, call: Call) -> None:
    """Drops the socket without a Close, as RabbitMQ does; clients reconnect."""
    session = _find(api, call)
    _require_theirs(call, session, ADMINISTRATOR)  # monitoring looks at others' connections, and no more
    if not api.workers.close(session, call.reason or f"{CLOSED_BY} by {call.caller.name}"):
        raise not_found()


def list_stream_connections(api: Api, call: Call) -> Any:
    found = [_connection(api, session) for session in _stream_sessions(api, call)]
    return only(found) if "connection" in call.path else found


def delete_stream_connection(api: Api, call: Call) -> None:
    _stream_sessions(api, call)  # where it is one
    delete_connection(api, call)


def _sessions(api: Api, call: Call) -> Iterator[dict[str, Any]]:
    """Those that the caller may see, in the vhost of the path if there is one."""
    vhost = api.vhost_of(call)
    for session in api.sessions(call.caller):
        if vhost in (None, session.get("vhost")):
            yield session


def _stream_sessions(api: Api, call: Call) -> list[dict[str, Any]]:
    """Those of streams; where the path names a connection, that one.  Raises Refused."""
    found = [session for session in _sessions(api, call) if protocol_of(session) == STREAM_PROTOCOL]
    if "connection" in call.path:
        return [only(session for session in found if session["name"] == call.path["connection"])]
    return found


def _find(api: Api, call: Call) -> dict[str, Any]:
    session = only(each for each in api.workers.sessions() if each["name"] == call.path["connection"])
    _require_theirs(call, session, MONITORING)
    return session


def _require_theirs(call: Call, session: dict[str, Any], level: int) -> None:
    """Raises Refused for the connection of somebody else, unless the caller has this level."""
    if call.caller.level < level and session.get("user") != call.caller.name:
        raise not_authorised("User not authorised to access object")


def protocol_of(session: dict[str, Any]) -> str:
    door = str(session.get("door", ""))
    return PROTOCOLS.get(door, door)


#: Of a session, where its worker says nothing else.
_UNSAID = {"user": "", "vhost": "", "state": "running", "peer_host": "", "peer_port": 0, "connected_at": 0,
           "client_properties": {}, "frame_max": 0}  # fmt: skip


def _connection(api: Api, session: dict[str, Any]) -> dict[str, Any]:
    shown = {name: session.get(name, otherwise) for name, otherwise in _UNSAID.items()}
    return {
        **shown,
        **{name: session[name] for name in ("name", "host", "port")},
        "user_who_performed_action": shown["user"],
        "protocol": protocol_of(session),
        "type": "network",
        "node": api.node,
        "auth_mechanism": session.get("mechanism", ""),
        "ssl": bool(session.get("is_tls", False)),
        "user_provided_name": shown["client_properties"].get("connection_name", ""),
        "timeout": session.get("heartbeat", 0),
        "channels": 0,
        "channel_max": 0,
    }


def _details(api: Api, session: dict[str, Any]) -> dict[str, Any]:
    named = ("name", "user", "node", "peer_host", "peer_port")
    return {name: value for name, value in _connection(api, session).items() if name in named}


# ---- publishers and consumers ----


def list_publishers(api: Api, call: Call) -> Any:
    """Of all vhosts, of one, of one of its streams, or of one connection, as the path says."""
    wanted = call.path.get("name")
    return [
        {
            **{key: publisher[key] for key in ("publisher_id", "reference", "published", "confirmed", "errored")},
            "queue": {"name": publisher["stream"], "vhost": session["vhost"]},
            "connection_details": _details(api, session),
        }
        for session in _stream_sessions(api, call)
        for publisher in session.get("publishers", ())
        if wanted in (None, publisher["stream"])
    ]


def list_stream_consumers(api: Api, call: Call) -> Any:
    told = ("subscription_id", "credits", "consumed", "offset", "offset_lag", "properties")
    return [
        {
            **{key: subscription[key] for key in told},
            **_consuming(session, subscription),
            "connection_details": _details(api, session),
        }
        for session in _stream_sessions(api, call)
        for subscription in session.get("subscriptions", ())
    ]


def list_consumers(api: Api, call: Call) -> Any:
    """The same as every kind of consumer is shown to RabbitMQ's tools."""
    return [
        _consumer(api, session, subscription)
        for session in _sessions(api, call)
        for subscription in session.get("subscriptions", ())
    ]


def _consuming(session: dict[str, Any], subscription: dict[str, Any]) -> dict[str, Any]:
    return {
        "queue": {"name": subscription["stream"], "vhost": session["vhost"]},
        "active": subscription.get("active", True),
        "activity_status": subscription.get("activity_status", ACTIVE_ALONE),
    }


def _consumer(api: Api, session: dict[str, Any], subscription: dict[str, Any]) -> dict[str, Any]:
    details = _details(api, session)
    return {
        **_consuming(session, subscription),
        "consumer_tag": f"{protocol_of(session)}.subid-{subscription['subscription_id']}",
        "channel_details": {**details, "connection_name": details["name"], "name": "", "number": 0},
        "arguments": subscription["properties"],
        "ack_required": "in_flight" in subscription,
        "exclusive": False,
        "prefetch_count": subscription.get("prefetch", 0),
        "messages_unacknowledged": subscription.get("in_flight", 0),
    }


# ---- single active consumer groups: of our own ----


def list_groups(api: Api, call: Call) -> Any:
    vhost = api.vhost_of(call)
    found = []
    for group in api.workers.ask_any("groups"):
        record = api.metadata.stream_at(group["slot"])
        if record is None or record.incarnation != group["incarnation"] or vhost not in (None, record.vhost):
            continue
        if api.sees(call.caller, record.vhost):
            found.append(
                {
                    "vhost": record.vhost,
                    "stream": record.name,
                    "reference": group["name"],
                    "partition_index": group["partition"],
                    "consumers": len(group["members"]),
                    "members": [_member(api, member) for member in group["members"]],
                }
            )
    return found


def _member(api: Api, member: dict[str, Any]) -> dict[str, Any]:
    connection, _, subscription_id = member["label"].rpartition(" #")
    return {
        "subscription_id": int(subscription_id) if subscription_id.isdigit() else None,
        "connection_name": connection,
        "node": api.node,
        "state": member["state"],
    }
