# SPDX-License-Identifier: Apache-2.0
"""What operators see of hub connections, through the management API."""

import base64
import json
import urllib.request

from peers.http import RS, HttpPeer
from running import Running


def asked(running: Running, path: str) -> list[dict]:
    request = urllib.request.Request(f"http://127.0.0.1:{running.admin_port}/api/{path}")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: list[dict] = json.load(answer)
    return found


def test_a_hub_connection_is_listed_with_what_it_publishes_and_subscribes(served: Running, peer: HttpPeer) -> None:
    peer.upgrade().handshake()
    publish = {"type": 1, "invocationId": "1", "target": "Publish", "arguments": ["seen-by-operators", {"a": 1}]}
    subscribe = {
        "type": 4,
        "invocationId": "2",
        "target": "Subscribe",
        "arguments": ["seen-by-operators", {"ack": "manual", "prefetch": 7}],
    }
    for message in (publish, subscribe):
        peer.put(json.dumps(message).encode() + RS)
        peer.next_frame()
    host, port = peer.socket.getsockname()
    (shown,) = [each for each in asked(served, "connections") if each["peer_port"] == port]
    assert (shown["peer_host"], shown["protocol"], shown["state"]) == (host, "SignalR", "running")
    (queue,) = [each for each in asked(served, "queues") if each["name"] == "seen-by-operators"]
    assert queue["consumers"] == 1
