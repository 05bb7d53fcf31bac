# SPDX-License-Identifier: Apache-2.0
"""Every request of the management API: what it needs to be allowed, and the function that answers it.

Below the prefix /api; parts of a path are percent-encoded, so a vhost "/" is %2F.  Most are RabbitMQ's,
with its names and status codes.  What RabbitMQ has and this table has not, is answered by 404;
but what its tools ask for and cannot be had is answered with a reason.
"""

from __future__ import annotations

from vibemq.admin.api import accounts, connections, definitions, health, overview, streams
from vibemq.admin.api.calls import ADMINISTRATOR, MANAGEMENT, MONITORING, NOBODY
from vibemq.admin.api.service import Handler

_CONNECTION = "/stream/connections/{vhost}/{connection}"

ROUTES: tuple[tuple[str, str, int, Handler], ...] = (
    # ---- the broker ----
    ("GET", "/overview", MANAGEMENT, overview.overview),
    ("GET", "/cluster-name", MANAGEMENT, overview.cluster_name),
    ("GET", "/nodes", MONITORING, overview.nodes),
    ("GET", "/nodes/{node}", MONITORING, overview.get_node),
    ("GET", "/whoami", MANAGEMENT, accounts.whoami),
    ("GET", "/auth", NOBODY, overview.auth),
    ("GET", "/health/checks/alarms", MONITORING, health.alarms),
    ("GET", "/health/checks/local-alarms", MONITORING, health.local_alarms),
    ("GET", "/health/checks/is-in-service", MONITORING, health.in_service),
    ("GET", "/health/checks/ready-to-serve-clients", MONITORING, health.ready_to_serve_clients),
    ("GET", "/health/checks/port-listener/{port}", MONITORING, health.port_listener),
    ("GET", "/health/checks/protocol-listener/{protocol}", MONITORING, health.protocol_listener),
    ("GET", "/health/checks/virtual-hosts", MONITORING, health.virtual_hosts),
    ("GET", "/health/checks/node-is-quorum-critical", MONITORING, health.quorum),
    ("GET", "/healthchecks/node", MONITORING, health.node),
    ("GET", "/aliveness-test/{vhost}", MANAGEMENT, health.node),
    ("GET", "/metrics", MONITORING, overview.metrics),
    ("GET", "/definitions", ADMINISTRATOR, definitions.export),
    ("POST", "/definitions", ADMINISTRATOR, definitions.import_),
    ("GET", "/definitions/{vhost}", ADMINISTRATOR, definitions.export),
    ("POST", "/definitions/{vhost}", ADMINISTRATOR, definitions.import_),
    # ---- connections ----
    ("GET", "/connections", MANAGEMENT, connections.list_connections),
    ("GET", "/connections/{connection}", MANAGEMENT, connections.get_connection),
    ("DELETE", "/connections/{connection}", MANAGEMENT, connections.delete_connection),
    ("GET", "/vhosts/{vhost}/connections", MANAGEMENT, connections.list_connections),
    ("GET", "/consumers", MANAGEMENT, connections.list_consumers),
    ("GET", "/consumers/{vhost}", MANAGEMENT, connections.list_consumers),
    # ---- the stream plugin's ----
    ("GET", "/stream/connections", MANAGEMENT, connections.list_stream_connections),
    ("GET", "/stream/connections/{vhost}", MANAGEMENT, connections.list_stream_connections),
    ("GET", _CONNECTION, MANAGEMENT, connections.get_stream_connection),
    ("DELETE", _CONNECTION, MANAGEMENT, connections.delete_stream_connection),
    ("GET", _CONNECTION + "/consumers", MANAGEMENT, connections.list_stream_consumers),
    ("GET", _CONNECTION + "/publishers", MANAGEMENT, connections.list_publishers),
    ("GET", "/stream/consumers", MANAGEMENT, connections.list_stream_consumers),
    ("GET", "/stream/consumers/{vhost}", MANAGEMENT, connections.list_stream_consumers),
    ("GET", "/stream/publishers", MANAGEMENT, connections.list_publishers),
    ("GET", "/stream/publishers/{vhost}", MANAGEMENT, connections.list_publishers),
    ("GET", "/stream/publishers/{vhost}/{name}", MANAGEMENT, connections.list_publishers),
    ("PUT", "/stream/super-streams/{vhost}/{name}", MANAGEMENT, streams.put_super_stream),
    ("GET", "/stream/{vhost}/{name}/tracking", MANAGEMENT, streams.tracking),
    # ---- of our own ----
    ("PUT", "/maintenance", ADMINISTRATOR, health.drain),
    ("DELETE", "/maintenance", ADMINISTRATOR, health.revive),
    ("DELETE", "/stream/super-streams/{vhost}/{name}", MANAGEMENT, streams.delete_super_stream),
    ("GET", "/stream/groups", MANAGEMENT, connections.list_groups),
    ("GET", "/stream/groups/{vhost}", MANAGEMENT, connections.list_groups),
    ("GET", "/stream/{vhost}/{name}/status", MANAGEMENT, streams.status),
    ("POST", "/stream/{vhost}/{name}/restart", MANAGEMENT, streams.restart),
    ("POST", "/changes", ADMINISTRATOR, accounts.log_change),
    ("PUT", "/queues/{vhost}/{name}/options", MANAGEMENT, streams.put_queue_options),
    ("POST", "/users/{user}", ADMINISTRATOR, accounts.add_user),
    ("PUT", "/users/{user}/password", ADMINISTRATOR, accounts.put_password),
    ("DELETE", "/users/{user}/password", ADMINISTRATOR, accounts.delete_password),
    ("PUT", "/users/{user}/tags", ADMINISTRATOR, accounts.put_tags),
    # ---- streams, exchanges, bindings ----
    ("GET", "/queues", MANAGEMENT, streams.list_queues),
    ("GET", "/queues/{vhost}", MANAGEMENT, streams.list_queues),
    ("GET", "/queues/{vhost}/{name}", MANAGEMENT, streams.get_queue),
    ("PUT", "/queues/{vhost}/{name}", MANAGEMENT, streams.put_queue),
    ("DELETE", "/queues/{vhost}/{name}", MANAGEMENT, streams.delete_queue),
    ("DELETE", "/queues/{vhost}/{name}/contents", MANAGEMENT, streams.purge_queue),
    ("POST", "/queues/{vhost}/{name}/get", MANAGEMENT, streams.get_messages),
    ("POST", "/exchanges/{vhost}/{exchange}/publish", MANAGEMENT, streams.publish),
    ("GET", "/queues/{vhost}/{name}/bindings", MANAGEMENT, streams.list_bindings),
    ("GET", "/exchanges", MANAGEMENT, streams.list_exchanges),
    ("GET", "/exchanges/{vhost}", MANAGEMENT, streams.list_exchanges),
    ("GET", "/exchanges/{vhost}/{exchange}", MANAGEMENT, streams.get_exchange),
    ("PUT", "/exchanges/{vhost}/{exchange}", MANAGEMENT, streams.put_exchange),
    ("DELETE", "/exchanges/{vhost}/{exchange}", MANAGEMENT, streams.delete_exchange),
    ("GET", "/exchanges/{vhost}/{exchange}/bindings/source", MANAGEMENT, streams.list_bindings),
    ("GET", "/bindings", MANAGEMENT, streams.list_bindings),
    ("GET", "/bindings/{vhost}", MANAGEMENT, streams.list_bindings),
    ("GET", "/bindings/{vhost}/e/{exchange}/q/{name}", MANAGEMENT, streams.list_bindings),
    ("POST", "/bindings/{vhost}/e/{exchange}/q/{name}", MANAGEMENT, streams.post_binding),
    ("DELETE", "/bindings/{vhost}/e/{exchange}/q/{name}/{properties}", MANAGEMENT, streams.delete_binding),
    # ---- vhosts, users, permissions, policies ----
    ("GET", "/vhosts", MANAGEMENT, accounts.list_vhosts),
    ("GET", "/vhosts/{vhost}", MANAGEMENT, accounts.get_vhost),
    ("PUT", "/vhosts/{vhost}", ADMINISTRATOR, accounts.put_vhost),
    ("DELETE", "/vhosts/{vhost}", ADMINISTRATOR, accounts.delete_vhost),
    ("GET", "/vhosts/{vhost}/permissions", ADMINISTRATOR, accounts.list_permissions),
    ("GET", "/users", ADMINISTRATOR, accounts.list_users),
    ("GET", "/users/without-permissions", ADMINISTRATOR, accounts.list_users_without_permissions),
    ("POST", "/users/bulk-delete", ADMINISTRATOR, accounts.delete_users),
    ("GET", "/users/{user}", ADMINISTRATOR, accounts.get_user),
    ("PUT", "/users/{user}", ADMINISTRATOR, accounts.put_user),
    ("DELETE", "/users/{user}", ADMINISTRATOR, accounts.delete_user),
    ("GET", "/users/{user}/permissions", ADMINISTRATOR, accounts.list_permissions),
    ("GET", "/permissions", ADMINISTRATOR, accounts.list_permissions),
    ("GET", "/permissions/{vhost}/{user}", ADMINISTRATOR, accounts.get_permission),
    ("PUT", "/permissions/{vhost}/{user}", ADMINISTRATOR, accounts.put_permission),
    ("DELETE", "/permissions/{vhost}/{user}", ADMINISTRATOR, accounts.delete_permission),
    ("GET", "/policies", MANAGEMENT, accounts.list_policies),
    ("GET", "/policies/{vhost}", MANAGEMENT, accounts.list_policies),
    ("GET", "/policies/{vhost}/{name}", MANAGEMENT, accounts.get_policy),
    ("PUT", "/policies/{vhost}/{name}", MANAGEMENT, accounts.put_policy),
    ("DELETE", "/policies/{vhost}/{name}", MANAGEMENT, accounts.delete_policy),
)
