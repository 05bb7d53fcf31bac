# SPDX-License-Identifier: Apache-2.0
"""What operators see of native connections: who they are, by the management API; what was refused to them, in the log.

Here somebody has a password, so connections have names.
"""

import base64
import contextlib
import http.client
import json
import re
import time
from urllib.parse import quote

import pytest
from peers.native import NativePeer
from running import broker

from vibemq.once_a_minute import LINES_MAX
from vibemq.protocols.native.spec import Command

ROOT, PASSWORD = "vibemq", "the superuser's password"
CREATE, GRANT = 50, 53


@contextlib.contextmanager
def served(folder):
    """A broker, and a connection to it of a user who may publish to and subscribe to the queues orders*."""
    with broker(folder / "data", "--set", f"native.superuser_password={PASSWORD}", workers=1) as running:
        with NativePeer(running) as root:
            root.connect(authUsername=ROOT, authPassword=PASSWORD)
            root.admin(CREATE, username="shop", password="pw")
            root.admin(GRANT, username="shop", queuePattern="orders*", operations=["Publish", "Subscribe"])
            root.send(Command.DISCONNECT)
            assert root.rest() == []
        with NativePeer(running) as peer:
            peer.connect(authUsername="shop", authPassword="pw", clientVersion="till/7")
            yield running, peer


@pytest.fixture
def guarded(tmp_path):
    with served(tmp_path) as (running, peer):
        yield running, peer


def get(running, *parts):
    """What the management API says to the superuser."""
    connection = http.client.HTTPConnection(running.host, running.admin_port, timeout=30)
    login = base64.b64encode(f"{ROOT}:{PASSWORD}".encode()).decode()
    path = "/api" + "".join(f"/{quote(part, safe='')}" for part in parts)
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {login}"})
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return json.loads(text)
    finally:
        connection.close()


# ---- connections ----


def test_a_connection_shows_who_it_is_and_whence_and_since_when(guarded):
    running, shop = guarded
    (one,) = get(running, "connections")
    assert (one["user"], one["vhost"], one["protocol"], one["state"]) == ("shop", "/", "native", "running")
    assert (one["peer_host"], one["peer_port"]) == shop.socket.getsockname()
    assert (one["host"], one["port"]) == shop.socket.getpeername()
    assert one["client_properties"] == {"version": "till/7"}
    assert 0 < one["connected_at"] <= time.time() * 1000
    assert not one["ssl"]


def test_a_version_that_is_no_text_keeps_nobody_from_looking(guarded):
    running, shop = guarded
    frame = shop.frame(
        Command.CONNECT, headers={"authUsername": "shop", "authPassword": "pw", "clientVersion": "tillX"}
    )
    shop.write(frame.replace(b"tillX", b"till\xff"))
    shop.expect(Command.CONNECT_ACK)
    (one,) = get(running, "connections")
    assert one["client_properties"] == {"version": "till?"}


def test_a_connection_that_has_not_logged_in_is_shown_without_a_name(guarded):
    running, _ = guarded
    with NativePeer(running) as peer:
        peer.ping()
        shown = {one["peer_port"]: one["user"] for one in get(running, "connections")}
        assert shown[peer.socket.getsockname()[1]] == ""


def test_subscriptions_count_as_readers_of_their_queue(guarded):
    running, shop = guarded
    shop.publish("orders")
    shop.subscribe("orders", prefetch="7")
    shop.deliver(ack=False)
    (status,) = get(running, "stream", "/", "orders", "status")
    assert status["readers"] == 1


def test_a_subscription_is_a_consumer_with_its_prefetch_and_what_it_has_not_acknowledged(guarded):
    running, shop = guarded
    for _ in range(3):
        shop.publish("orders")
    shop.subscribe("orders", prefetch="2")
    shop.delivers(2, ack=False)
    (one,) = get(running, "consumers")
    assert one["queue"] == {"name": "orders", "vhost": "/"}
    assert (one["consumer_tag"], one["channel_details"]["user"]) == ("native.subid-0", "shop")
    assert (one["ack_required"], one["prefetch_count"], one["messages_unacknowledged"]) == (True, 2, 2)
    assert one["active"]


# ---- refusals; the log is whole once the broker has stopped ----


def refusals(log):
    return re.findall(r"user 'shop' lacks the permission .*", log)


def test_what_a_user_may_not_do_is_in_the_log_once_for_each_queue(tmp_path, capfd):
    with served(tmp_path) as (_, shop):
        for _ in range(3):
            assert shop.refused(Command.PUBLISH, queue="bills", payload=b"{}") == "NOT_AUTHORIZED"
            assert shop.refused(Command.SUBSCRIBE, queue="bills") == "NOT_AUTHORIZED"
            assert shop.refused(Command.DELETE_QUEUE, queue="orders") == "NOT_AUTHORIZED"
    found = refusals(capfd.readouterr().err)
    assert [line for line in found if not line.endswith("said once a minute)")] == [
        "user 'shop' lacks the permission Publish for 'bills'",
        "user 'shop' lacks the permission Subscribe for 'bills'",
        "user 'shop' lacks the permission DeleteQueue for 'orders'",
    ]


def test_a_flood_of_refusals_is_a_bounded_number_of_lines(tmp_path, capfd):
    with served(tmp_path) as (_, shop):
        for number in range(LINES_MAX + 10):
            assert shop.refused(Command.PUBLISH, queue=f"bills-{number}", payload=b"{}") == "NOT_AUTHORIZED"
    found = refusals(capfd.readouterr().err)
    assert len(found) == LINES_MAX + 1
    assert "10 such events of 10 others" in found[-1]
