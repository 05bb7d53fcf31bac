# SPDX-License-Identifier: Apache-2.0
"""Every request of the management API: what it needs to be allowed, and the function that answers it.

``handle`` finds the route, checks who asks, calls the function with the ``Api`` and the ``Call``, and words the errors.
All that blocks, so each request runs in a thread.

Below the prefix /api; parts of a path are percent-encoded, so a vhost "/" is %2F; what stands in [] may be left out.
Most are RabbitMQ's, with its names and status codes.  What RabbitMQ has and this table has not, is answered by 404;
but what its tools ask for and cannot be had is answered with a reason.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from vibemq import errors
from vibemq.admin.api import accounts, connections, definitions, health, overview, remote, streams, transactions
from vibemq.admin.api.calls import (
    ADMINISTRATOR,
    MANAGEMENT,
    MONITORING,
    NOBODY,
    Answer,
    Call,
    Caller,
    Refused,
    bad_request,
    not_authorised,
    not_found,
)
from vibemq.admin.api.service import Api
from vibemq.admin.api.shown import shown
from vibemq.admin.workers import NoAnswer
from vibemq.broker.arguments import BadArgument

#: Gives the body of a GET; of the others True where it has made what was not there; or a whole Answer.
Handler = Callable[[Api, Call], Any]

log = logging.getLogger("vibemq.admin")

_CONNECTION = "/stream/connections/{vhost}/{connection}"

ROUTES: tuple[tuple[str, str, int, Handler], ...] = (
    # ---- the broker ----
    ("GET", "/overview", MANAGEMENT, overview.overview),
    ("GET", "/cluster-name", MANAGEMENT, overview.cluster_name),
    ("GET", "/nodes[/{node}]", MONITORING, overview.nodes),
    ("GET", "/whoami", MANAGEMENT, accounts.whoami),
    ("GET", "/auth", NOBODY, overview.auth),
    ("GET", "/health/checks/alarms", MONITORING, health.alarms("There are alarms in effect in the cluster")),
    ("GET", "/health/checks/local-alarms", MONITORING, health.alarms("There are alarms in effect on the node")),
    ("GET", "/health/checks/is-in-service", MONITORING, health.in_service),
    ("GET", "/health/checks/ready-to-serve-clients", MONITORING, health.ready_to_serve_clients),
    ("GET", "/health/checks/port-listener/{port}", MONITORING, health.port_listener),
    ("GET", "/health/checks/protocol-listener/{protocol}", MONITORING, health.protocol_listener),
    ("GET", "/health/checks/virtual-hosts", MONITORING, health.virtual_hosts),
    ("GET", "/health/checks/node-is-quorum-critical", MONITORING, health.quorum),
    ("GET", "/healthchecks/node", MONITORING, health.node),
    ("GET", "/aliveness-test/{vhost}", MANAGEMENT, health.node),
    ("GET", "/metrics", MONITORING, overview.metrics),
    ("GET", "/definitions[/{vhost}]", ADMINISTRATOR, definitions.export),
    ("POST", "/definitions[/{vhost}]", ADMINISTRATOR, definitions.import_),
    # ---- connections ----
    ("GET", "/connections", MANAGEMENT, connections.list_connections),
    ("GET", "/connections/{connection}", MANAGEMENT, connections.get_connection),
    ("DELETE", "/connections/{connection}", MANAGEMENT, connections.delete_connection),
    ("GET", "/vhosts/{vhost}/connections", MANAGEMENT, connections.list_connections),
    ("GET", "/consumers[/{vhost}]", MANAGEMENT, connections.list_consumers),
    # ---- the stream plugin's ----
    ("GET", "/stream/connections[/{vhost}[/{connection}]]", MANAGEMENT, connections.list_stream_connections),
    ("DELETE", _CONNECTION, MANAGEMENT, connections.delete_stream_connection),
    ("GET", _CONNECTION + "/consumers", MANAGEMENT, connections.list_stream_consumers),
    ("GET", _CONNECTION + "/publishers", MANAGEMENT, connections.list_publishers),
    ("GET", "/stream/consumers[/{vhost}]", MANAGEMENT, connections.list_stream_consumers),
    ("GET", "/stream/publishers[/{vhost}[/{name}]]", MANAGEMENT, connections.list_publishers),
    ("PUT", "/stream/super-streams/{vhost}/{name}", MANAGEMENT, streams.put_super_stream),
    ("GET", "/stream/{vhost}/{name}/tracking", MANAGEMENT, streams.tracking),
    # ---- of our own ----
    ("PUT", "/maintenance", ADMINISTRATOR, health.set_drained(True)),
    ("DELETE", "/maintenance", ADMINISTRATOR, health.set_drained(False)),
    ("DELETE", "/stream/super-streams/{vhost}/{name}", MANAGEMENT, streams.delete_super_stream),
    ("GET", "/stream/groups[/{vhost}]", MANAGEMENT, connections.list_groups),
    ("GET", "/stream/transactions[/{vhost}]", MANAGEMENT, transactions.list_transactions),
    ("GET", "/remote/status", MONITORING, remote.status),
    ("GET", "/stream/{vhost}/{name}/status", MANAGEMENT, streams.status),
    ("POST", "/stream/{vhost}/{name}/restart", MANAGEMENT, streams.restart),
    ("POST", "/changes", ADMINISTRATOR, accounts.log_change),
    ("PUT", "/queues/{vhost}/{name}/options", MANAGEMENT, streams.put_queue_options),
    ("POST", "/users/{user}", ADMINISTRATOR, accounts.add_user),
    ("PUT", "/users/{user}/password", ADMINISTRATOR, accounts.put_password),
    ("DELETE", "/users/{user}/password", ADMINISTRATOR, accounts.delete_password),
    ("PUT", "/users/{user}/tags", ADMINISTRATOR, accounts.put_tags),
    # ---- streams, exchanges, bindings ----
    ("GET", "/queues[/{vhost}[/{name}]]", MANAGEMENT, streams.list_queues),
    ("PUT", "/queues/{vhost}/{name}", MANAGEMENT, streams.put_queue),
    ("DELETE", "/queues/{vhost}/{name}", MANAGEMENT, streams.delete_queue),
    ("DELETE", "/queues/{vhost}/{name}/contents", MANAGEMENT, streams.purge_queue),
    ("POST", "/queues/{vhost}/{name}/get", MANAGEMENT, streams.get_messages),
    ("POST", "/exchanges/{vhost}/{exchange}/publish", MANAGEMENT, streams.publish),
    ("GET", "/queues/{vhost}/{name}/bindings", MANAGEMENT, streams.list_bindings),
    ("GET", "/exchanges[/{vhost}[/{exchange}]]", MANAGEMENT, streams.list_exchanges),
    ("PUT", "/exchanges/{vhost}/{exchange}", MANAGEMENT, streams.put_exchange),
    ("DELETE", "/exchanges/{vhost}/{exchange}", MANAGEMENT, streams.delete_exchange),
    ("GET", "/exchanges/{vhost}/{exchange}/bindings/source", MANAGEMENT, streams.list_bindings),
    ("GET", "/bindings[/{vhost}]", MANAGEMENT, streams.list_bindings),
    ("GET", "/bindings/{vhost}/e/{exchange}/q/{name}", MANAGEMENT, streams.list_bindings),
    ("POST", "/bindings/{vhost}/e/{exchange}/q/{name}", MANAGEMENT, streams.post_binding),
    ("DELETE", "/bindings/{vhost}/e/{exchange}/q/{name}/{properties}", MANAGEMENT, streams.delete_binding),
    # ---- vhosts, users, permissions, policies ----
    ("GET", "/vhosts[/{vhost}]", MANAGEMENT, accounts.list_vhosts),
    ("PUT", "/vhosts/{vhost}", ADMINISTRATOR, accounts.put_vhost),
    ("DELETE", "/vhosts/{vhost}", ADMINISTRATOR, accounts.delete_vhost),
    ("GET", "/vhosts/{vhost}/permissions", ADMINISTRATOR, accounts.list_permissions),
    ("GET", "/users[/{user}]", ADMINISTRATOR, accounts.list_users),
    ("GET", "/users/without-permissions", ADMINISTRATOR, accounts.list_users_without_permissions),
    ("POST", "/users/bulk-delete", ADMINISTRATOR, accounts.delete_users),
    ("PUT", "/users/{user}", ADMINISTRATOR, accounts.put_user),
    ("DELETE", "/users/{user}", ADMINISTRATOR, accounts.delete_user),
    ("GET", "/users/{user}/permissions", ADMINISTRATOR, accounts.list_permissions),
    ("GET", "/permissions", ADMINISTRATOR, accounts.list_permissions),
    ("GET", "/permissions/{vhost}/{user}", ADMINISTRATOR, accounts.get_permission),
    ("PUT", "/permissions/{vhost}/{user}", ADMINISTRATOR, accounts.put_permission),
    ("DELETE", "/permissions/{vhost}/{user}", ADMINISTRATOR, accounts.delete_permission),
    ("GET", "/policies[/{vhost}[/{name}]]", MANAGEMENT, accounts.list_policies),
    ("PUT", "/policies/{vhost}/{name}", MANAGEMENT, accounts.put_policy),
    ("DELETE", "/policies/{vhost}/{name}", MANAGEMENT, accounts.delete_policy),
)

#: What an error of ours is in HTTP: the first that fits.
_STATUS: tuple[tuple[tuple[type[errors.VibeMQError], ...], int, str], ...] = (
    ((errors.UserNotFound, errors.VhostNotFound, errors.StreamNotFound, errors.ExchangeNotFound), 404, "not_found"),
    ((errors.UserExists,), 409, "conflict"),
    ((errors.StreamExists, errors.ExchangeExists, errors.LimitExceeded, errors.UserError), 400, "bad_request"),
    ((NoAnswer,), 503, "unavailable"),
)


def handle(
    api: Api, method: str, path: str, caller: Caller, query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None, reason: str = "",
) -> Answer:  # fmt: skip
    """``path`` as it came, percent-encoded, without the prefix; may be called from several threads."""
    query = query or {}
    try:
        level, handler, names = _find(method, path)
        if caller.level < level:
            raise not_authorised(_missing_tag(caller, level))
        answer = handler(api, Call(caller, names, query, body or {}, reason))
        if isinstance(answer, Answer):
            return answer
        if method == "GET":
            return Answer(200, shown(answer, query))
        return Answer(201 if answer else 204)
    except Refused as refused:
        return refused.answer
    except BadArgument as problem:
        return bad_request(str(problem)).answer
    except errors.VibeMQError as problem:
        for kinds, status, error in _STATUS:
            if isinstance(problem, kinds):
                return Refused(status, error, str(problem)).answer
        log.error("%s %s: %s", method, path, problem)
        return Refused(500, "internal_error", str(problem)).answer


def _find(method: str, path: str) -> tuple[int, Handler, dict[str, str]]:
    others = []
    for pattern, route_method, level, handler in _COMPILED:
        match = pattern.fullmatch(path.rstrip("/"))
        if match is None:
            continue
        if route_method == method:
            return level, handler, _decoded(match.groupdict())
        others.append(route_method)
    if others:
        raise Refused(405, "method_not_allowed", f"{path} takes {', '.join(others)}")
    raise not_found()


def _missing_tag(caller: Caller, level: int) -> str:
    """RabbitMQ's words for what the caller is not, and how it may become that."""
    tag = {MANAGEMENT: "management", MONITORING: "monitoring"}.get(level, "administrator")
    said = "Not administrator user" if level == ADMINISTRATOR else "User not authorised"
    command = shlex.join(["vibemq", "ctl", "set_user_tags", caller.name, *caller.tags, tag])
    return f"{said}: it has no tag '{tag}', which `{command}` gives"


def _decoded(parts: Mapping[str, str | None]) -> dict[str, str]:
    """Strictly, so that no two paths mean the same name.  Raises Refused."""
    try:
        return {name: unquote(value, errors="strict") for name, value in parts.items() if value is not None}
    except UnicodeDecodeError:
        raise bad_request("the path is not valid UTF-8") from None


def _pattern(path: str) -> re.Pattern[str]:
    optional = path.replace("[", "(?:").replace("]", ")?")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", optional))


# A word in a path goes before a part that may be anything.
_COMPILED = tuple(
    (_pattern(path), method, level, handler)
    for method, path, level, handler in sorted(ROUTES, key=lambda route: route[1].count("{"))
)
