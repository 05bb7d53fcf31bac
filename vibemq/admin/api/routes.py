# SPDX-License-Identifier: Apache-2.0
"""Every request of the management API: what it needs to be allowed, and the function that answers it.

Below the prefix /api; parts of a path are percent-encoded, so a vhost "/" is %2F; what stands in [] may be left out.
Most are RabbitMQ's, with its names and status codes.  What RabbitMQ has and this table has not, is answered by 404;
but what its tools ask for and cannot be had is answered with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from vibemq.admin.api import (
    accounts,
    connections,
    definitions,
    health,
    limits,
    lines,
    messages,
    metrics,
    overview,
    remote,
    routing,
    streams,
    top,
    transactions,
)
from vibemq.admin.api.calls import ADMINISTRATOR, MANAGEMENT, MONITORING, NOBODY, Call, Refused, bad_request, not_found
from vibemq.admin.api.service import Api
from vibemq.admin.page import live, live_streams
from vibemq.storage.limits import USER, VHOST

#: Gives the body of a GET; of the others True where it has made what was not there; or a whole Answer.
Handler = Callable[[Api, Call], Any]

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
    ("GET", "/health/live", NOBODY, health.live),
    ("GET", "/health/ready", NOBODY, health.ready),
    ("GET", "/healthchecks/node", MONITORING, health.alarms("resource alarm(s) in effect: {}")),
    ("GET", "/aliveness-test/{vhost}", MANAGEMENT, health.alarms("resource alarm(s) in effect: {}")),
    ("GET", "/metrics", MONITORING, metrics.metrics),
    ("GET", "/metrics/detailed", MONITORING, metrics.detailed),
    ("GET", "/top", MONITORING, top.top),
    ("GET", "/definitions[/{vhost}]", ADMINISTRATOR, definitions.export),
    ("POST", "/definitions[/{vhost}]", ADMINISTRATOR, definitions.import_),
    # ---- connections ----
    ("GET", "/connections", MANAGEMENT, connections.list_connections),
    ("GET", "/connections/{connection}", MANAGEMENT, connections.get_connection),
    ("DELETE", "/connections/{connection}", MANAGEMENT, connections.delete_connection),
    ("GET", "/vhosts/{vhost}/connections", MANAGEMENT, connections.list_connections),
    ("GET", "/consumers[/{vhost}]", MANAGEMENT, connections.list_consumers),
    # ---- what there is none of ----
    ("GET", "/channels", MANAGEMENT, overview.nothing),
    ("GET", "/vhosts/{vhost}/channels", MANAGEMENT, overview.nothing),
    ("GET", "/connections/{connection}/channels", MANAGEMENT, connections.list_channels),
    ("GET", "/operator-policies[/{vhost}]", MANAGEMENT, overview.nothing),
    ("GET", "/shovels[/{vhost}]", MONITORING, overview.nothing),
    ("GET", "/federation-links[/{vhost}]", MONITORING, overview.nothing),
    ("GET", "/parameters[/{component}[/{vhost}]]", MANAGEMENT, overview.nothing),
    ("GET", "/global-parameters", MANAGEMENT, overview.nothing),
    ("GET", "/feature-flags", ADMINISTRATOR, overview.nothing),
    ("GET", "/deprecated-features[/used]", ADMINISTRATOR, overview.nothing),
    ("GET", "/topic-permissions", ADMINISTRATOR, overview.nothing),
    ("GET", "/topic-permissions/{vhost}/{user}", ADMINISTRATOR, overview.nothing),
    ("GET", "/users/{user}/topic-permissions", ADMINISTRATOR, accounts.list_topic_permissions),
    ("GET", "/vhosts/{vhost}/topic-permissions", ADMINISTRATOR, overview.nothing),
    # ---- the stream plugin's ----
    ("GET", "/stream/connections[/{vhost}[/{connection}]]", MANAGEMENT, connections.list_stream_connections),
    ("DELETE", _CONNECTION, MANAGEMENT, connections.delete_stream_connection),
    ("GET", _CONNECTION + "/consumers", MANAGEMENT, connections.list_stream_consumers),
    ("GET", _CONNECTION + "/publishers", MANAGEMENT, connections.list_publishers),
    ("GET", "/stream/consumers[/{vhost}]", MANAGEMENT, connections.list_stream_consumers),
    ("GET", "/stream/publishers[/{vhost}[/{name}]]", MANAGEMENT, connections.list_publishers),
    ("PUT", "/stream/super-streams/{vhost}/{name}", MANAGEMENT, routing.put_super_stream),
    ("GET", "/stream/{vhost}/{name}/tracking", MANAGEMENT, streams.tracking),
    # ---- of our own ----
    ("PUT", "/maintenance", ADMINISTRATOR, health.set_drained(True)),
    ("DELETE", "/maintenance", ADMINISTRATOR, health.set_drained(False)),
    ("POST", "/workers/restarts", ADMINISTRATOR, health.restart_workers),
    ("GET", "/workers/restarts", ADMINISTRATOR, health.restarts),
    ("DELETE", "/stream/super-streams/{vhost}/{name}", MANAGEMENT, routing.delete_super_stream),
    ("GET", "/stream/groups[/{vhost}]", MANAGEMENT, connections.list_groups),
    ("GET", "/stream/transactions[/{vhost}]", MANAGEMENT, transactions.list_transactions),
    ("GET", "/remote/status", MONITORING, remote.status),
    ("GET", "/stream/{vhost}/{name}/status", MANAGEMENT, streams.status),
    ("POST", "/stream/{vhost}/{name}/restart", MANAGEMENT, streams.restart),
    ("GET", "/stream/{vhost}/{name}/messages", MANAGEMENT, messages.look),
    ("POST", "/stream/{vhost}/{name}/messages", MANAGEMENT, messages.publish_one),
    ("POST", "/stream/{vhost}/{name}/lines", NOBODY, lines.publish_lines),
    ("POST", "/queues/{vhost}/{name}/lines", NOBODY, lines.publish_lines),
    ("PUT", "/queues/{vhost}/{name}/definition", MANAGEMENT, streams.put_definition),
    ("POST", "/changes", ADMINISTRATOR, accounts.log_change),
    ("PUT", "/queues/{vhost}/{name}/options", MANAGEMENT, streams.put_queue_options),
    ("POST", "/users/{user}", ADMINISTRATOR, accounts.add_user),
    ("PUT", "/users/{user}/password", ADMINISTRATOR, accounts.put_password),
    ("DELETE", "/users/{user}/password", ADMINISTRATOR, accounts.delete_password),
    ("PUT", "/users/{user}/tags", ADMINISTRATOR, accounts.put_tags),
    ("PUT", "/user-limits/{user}", ADMINISTRATOR, limits.put_all(USER, instead=False)),
    ("DELETE", "/user-limits/{user}", ADMINISTRATOR, limits.delete_all(USER)),
    ("PUT", "/vhost-limits/{vhost}", ADMINISTRATOR, limits.put_all(VHOST, instead=True)),
    ("DELETE", "/vhost-limits/{vhost}", ADMINISTRATOR, limits.delete_all(VHOST)),
    # ---- of our own: what changes while one looks, for the management page ----
    ("GET", "/live/overview", MANAGEMENT, live.overview),
    ("GET", "/live/node", MONITORING, live.node),
    ("GET", "/live/connections", MANAGEMENT, live.connections),
    ("GET", "/live/spark", MANAGEMENT, live.spark),
    ("GET", "/live/streams", MANAGEMENT, live_streams.list_streams),
    ("GET", "/live/streams/{vhost}/{name}", MANAGEMENT, live_streams.one_stream),
    # ---- streams, exchanges, bindings ----
    ("GET", "/queues[/{vhost}[/{name}]]", MANAGEMENT, streams.list_queues),
    ("PUT", "/queues/{vhost}/{name}", MANAGEMENT, streams.put_queue),
    ("DELETE", "/queues/{vhost}/{name}", MANAGEMENT, streams.delete_queue),
    ("DELETE", "/queues/{vhost}/{name}/contents", MANAGEMENT, streams.purge_queue),
    ("POST", "/queues/{vhost}/{name}/get", MANAGEMENT, messages.get_messages),
    ("POST", "/exchanges/{vhost}/{exchange}/publish", MANAGEMENT, messages.publish),
    ("GET", "/queues/{vhost}/{name}/bindings", MANAGEMENT, routing.list_bindings),
    ("GET", "/exchanges[/{vhost}[/{exchange}]]", MANAGEMENT, routing.list_exchanges),
    ("PUT", "/exchanges/{vhost}/{exchange}", MANAGEMENT, routing.put_exchange),
    ("DELETE", "/exchanges/{vhost}/{exchange}", MANAGEMENT, routing.delete_exchange),
    ("GET", "/exchanges/{vhost}/{exchange}/bindings/source", MANAGEMENT, routing.list_bindings),
    ("GET", "/bindings[/{vhost}]", MANAGEMENT, routing.list_bindings),
    ("GET", "/bindings/{vhost}/e/{exchange}/q/{name}", MANAGEMENT, routing.list_bindings),
    ("POST", "/bindings/{vhost}/e/{exchange}/q/{name}", MANAGEMENT, routing.post_binding),
    ("DELETE", "/bindings/{vhost}/e/{exchange}/q/{name}/{properties}", MANAGEMENT, routing.delete_binding),
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
    ("GET", "/user-limits[/{user}]", ADMINISTRATOR, limits.listing(USER)),
    ("PUT", "/user-limits/{user}/{limit}", ADMINISTRATOR, limits.put_one(USER)),
    ("DELETE", "/user-limits/{user}/{limit}", ADMINISTRATOR, limits.delete_one(USER)),
    ("GET", "/vhost-limits[/{vhost}]", ADMINISTRATOR, limits.listing(VHOST)),
    ("PUT", "/vhost-limits/{vhost}/{limit}", ADMINISTRATOR, limits.put_one(VHOST)),
    ("DELETE", "/vhost-limits/{vhost}/{limit}", ADMINISTRATOR, limits.delete_one(VHOST)),
)


def find(method: str, path: str) -> tuple[int, Handler, dict[str, str]]:
    """The level, the function and the named parts of the path.  Raises Refused."""
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


def takes_upload(method: str, path: str) -> bool:
    """Return whether the body of such a request is no object of JSON."""
    try:
        return find(method, path)[1] is lines.publish_lines
    except Refused:
        return False


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
