# SPDX-License-Identifier: Apache-2.0
"""Connections, publishers, consumers and groups over HTTP, of all workers; and connections closed by force."""

import json

from http_caller import Http, wait_until
from peers.streams import GUEST, Peer, connected

from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key

SAC = {"single-active-consumer": "true", "name": "app"}


def name_of(peer):
    """As tools know a connection."""
    return " -> ".join(f"{host}:{port}" for host, port in (peer.socket.getsockname(), peer.socket.getpeername()))


# ---- listing ----


def test_connections_of_every_worker_are_shown_as_rabbitmq_shows_them(http, peers):
    shown = {connection["name"]: connection for connection in http.get("connections")}
    for peer in peers:
        one = shown[name_of(peer)]
        assert (one["user"], one["vhost"], one["protocol"], one["state"]) == ("guest", "/", "stream", "running")
        assert (one["peer_host"], one["peer_port"]) == peer.socket.getsockname()
        assert (one["host"], one["port"]) == peer.socket.getpeername()
        assert one["client_properties"] == {"product": "raw"}
        assert one["node"] == "rabbit@localhost"
        assert (one["auth_mechanism"], one["ssl"], one["frame_max"], one["timeout"]) == ("PLAIN", False, 1_048_576, 0)
        assert http.get("connections", one["name"]) == http.get("stream", "connections", "/", one["name"]) == one
        assert one["name"] in [each["name"] for each in http.get("stream", "connections", "/")]
    assert http.status("GET", "connections", "nothing") == 404
    assert http.status("GET", "stream", "connections", "nowhere") == 404


def test_the_name_that_a_client_gives_itself_is_shown(http, managed):
    with Peer(managed) as peer:
        peer.ask(Key.PEER_PROPERTIES, properties={"connection_name": "billing"})
        peer.ask(Key.SASL_HANDSHAKE)
        peer.ask(Key.SASL_AUTHENTICATE, mechanism="PLAIN", data=GUEST)
        peer.expect(Key.TUNE)
        peer.send(codec.encode_request(Key.TUNE, frame_max=0, heartbeat=0))
        peer.ask(Key.OPEN, virtual_host="/")
        assert http.get("connections", name_of(peer))["user_provided_name"] == "billing"


def test_connections_that_come_and_go_are_seen_within_a_second(http, managed):
    with connected(managed) as peer:
        wait_until(lambda: http.status("GET", "connections", name_of(peer)) == 200, "the connection")
        name = name_of(peer)
    wait_until(lambda: http.status("GET", "connections", name) == 404, "its end")


def test_publishers_and_consumers_of_every_worker_are_counted(http, peers, stream):
    for number, peer in enumerate(peers):
        peer.declare(stream, number, reference=f"ref-{number}")
        peer.publish([(1, b"a"), (2, b"b")], number)
        assert peer.confirmed(2, number) == [1, 2]
    for number, peer in enumerate(peers):
        peer.subscribe(stream, number, credit=50, properties={"name": f"app-{number}"})
        seen = 0
        while seen < 2 * len(peers):
            seen += peer.chunk(number).records
    publishers = {one["reference"]: one for one in http.get("stream", "publishers", "/", stream)}
    for number, peer in enumerate(peers):
        one = publishers[f"ref-{number}"]
        assert (one["publisher_id"], one["published"], one["confirmed"], one["errored"]) == (number, 2, 2, 0)
        assert one["queue"] == {"name": stream, "vhost": "/"}
        assert one["connection_details"]["name"] == name_of(peer)
        assert one in http.get("stream", "connections", "/", name_of(peer), "publishers")
    consumers = [one for one in http.get("stream", "consumers", "/") if one["queue"]["name"] == stream]
    assert sorted(one["subscription_id"] for one in consumers) == list(range(len(peers)))
    for one in consumers:
        assert (one["consumed"], one["offset_lag"], one["active"], one["activity_status"]) == (
            2 * len(peers),
            0,
            True,
            "up",
        )
        assert one["properties"] == {"name": f"app-{one['subscription_id']}"}
    tags = {one["consumer_tag"] for one in http.get("consumers", "/") if one["queue"]["name"] == stream}
    assert tags == {f"stream.subid-{number}" for number in range(len(peers))}
    assert http.get("queues", "/", stream)["consumers"] == len(peers)
    assert {each["name"]: each["consumers"] for each in http.get("queues", "/")}[stream] == len(peers)
    assert peers[0].code(Key.UNSUBSCRIBE, subscription_id=0) == Code.OK
    assert http.get("queues", "/", stream)["consumers"] == len(peers) - 1


def test_metrics_are_in_prometheus_format(http, managed, stream):
    with connected(managed) as peer:
        peer.store(stream, [b"x"] * 3)
        text = http.raw("GET", "/metrics").text
    assert f'vibemq_stream_messages{{vhost="/",stream="{stream}"}} 3\n' in text
    for line in text.splitlines():
        name = line.split("{")[0].split()[2 if line.startswith("#") else 0]
        assert name.startswith("vibemq_"), line
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0
    assert http.raw("GET", "/metrics", Authorization="").status == 401


# ---- groups ----


def test_groups_over_several_workers_show_who_is_active(http, peers, stream):
    for number, peer in enumerate(peers):
        peer.subscribe(stream, number, properties=SAC)
    first = peers[0].expect(Key.CONSUMER_UPDATE)
    peers[0].send(codec.encode_response(Key.CONSUMER_UPDATE, first.correlation_id, Code.OK, offset_type=0))
    (group,) = [group for group in http.get("stream", "groups", "/") if group["stream"] == stream]
    assert (group["reference"], group["partition_index"], group["consumers"]) == ("app", -1, len(peers))
    members = [(each["connection_name"], each["subscription_id"], each["state"]) for each in group["members"]]
    states = ["active", *["waiting"] * (len(peers) - 1)]
    assert members == [(name_of(peer), n, state) for (n, peer), state in zip(enumerate(peers), states, strict=True)]
    shown = {one["subscription_id"]: one for one in http.get("stream", "consumers") if one["queue"]["name"] == stream}
    assert [shown[number]["activity_status"] for number in range(len(peers))] == ["single_active", *states[1:]]
    assert [shown[number]["active"] for number in range(len(peers))] == [True, *[False] * (len(peers) - 1)]


# ---- closing by force ----


def test_a_connection_closed_by_force_just_ends_and_leaves_the_others(http, peers):
    victim, *others = peers
    assert http.status("DELETE", "connections", name_of(victim), X_Reason="because") == 204
    assert victim.rest() == b""  # no Close frame
    assert http.status("DELETE", "connections", name_of(victim)) == 404
    for peer in others:
        assert peer.ask(Key.METADATA, streams=[]).brokers
        assert http.status("DELETE", "stream", "connections", "/", name_of(peer)) == 204
        assert peer.rest() == b""


def test_a_user_closes_only_its_own_connections(http, managed, name):
    http.status("PUT", "users", name, body={"password": "pw", "tags": "management"})
    http.status("PUT", "permissions", "/", name, body={"configure": "", "write": "", "read": ""})
    who = Http(managed, name, "pw")
    with connected(managed) as other, connected(managed, data=f"\0{name}\0pw".encode()) as own:
        assert [each["name"] for each in who.get("connections")] == [name_of(own)]
        assert who.status("DELETE", "connections", name_of(other)) == 401
        assert who.status("DELETE", "connections", name_of(own)) == 204
        assert own.rest() == b""
    http.status("DELETE", "users", name)


def test_monitoring_sees_the_connections_of_others_and_closes_none(http, managed, name):
    http.status("PUT", "users", name, body={"password": "pw", "tags": "monitoring"})
    http.status("PUT", "permissions", "/", name, body={"configure": "", "write": "", "read": ""})
    who = Http(managed, name, "pw")
    with connected(managed) as other:
        assert who.status("GET", "connections", name_of(other)) == 200
        assert who.status("DELETE", "connections", name_of(other)) == 401
        assert who.status("DELETE", "stream", "connections", "/", name_of(other)) == 401
        assert other.ask(Key.METADATA, streams=[]).brokers
    http.status("DELETE", "users", name)


def test_overview_counts_what_there_is(http, managed, stream):
    with connected(managed) as peer:
        peer.subscribe(stream)
        shown = http.get("overview")
    assert shown["object_totals"]["connections"] >= 1 and shown["object_totals"]["consumers"] >= 1
    assert shown["object_totals"]["queues"] >= 1
    assert {"protocol": "stream", "ip_address": managed.host, "port": managed.port, "node": shown["node"]} in shown[
        "listeners"
    ]
    assert json.dumps(http.get("nodes"))
    assert http.get("nodes", shown["node"])["name"] == shown["node"]
    assert http.status("GET", "nodes", "other@host") == 404
