# SPDX-License-Identifier: Apache-2.0
"""Restarting one stream: everybody who uses it is told, on every worker, and it is there again at once."""

import base64
import urllib.request

from peers.streams import connected, on_every_worker
from running import broker

from vibemq.protocols.streams.spec import Code, Key


def restart(running, name):
    """As `vibemq ctl restart_stream` and tools do."""
    request = urllib.request.Request(
        f"http://{running.host}:{running.admin_port}/api/stream/%2F/{name}/restart",
        method="POST",
        headers={"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 204


def test_everybody_on_every_worker_is_told_once_and_the_stream_goes_on(tmp_path):
    peers = []
    with broker(tmp_path, workers=3) as running:
        users = list(on_every_worker(running, peers))
        users[0].create("s")
        users[0].create("other")
        users[0].store("s", [b"m"] * 3)
        for user in users:
            user.declare("s")
            user.subscribe("s", credit=10)
            assert user.chunk().chunk_id == 0
            user.declare("other", 1)
        restart(running, "s")
        for user in users:
            assert user.expect(Key.METADATA_UPDATE).stream == "s"
            user.publish([(1, b"lost")])
            assert [error.code for error in user.expect(Key.PUBLISH_ERROR).errors] == [Code.PUBLISHER_DOES_NOT_EXIST]
            assert user.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.SUBSCRIPTION_ID_DOES_NOT_EXIST
        for number, user in enumerate(users):
            user.declare("s")
            user.publish([(1, b"m")])
            assert user.confirmed(1) == [1]
            assert user.ask(Key.STREAM_STATS, stream="s").statistics["committed_offset"] == 3 + number
            user.publish([(1, b"m")], 1)  # the other stream's publishers have noticed nothing
            assert user.confirmed(1, 1) == [1]
        with connected(running) as late:
            late.subscribe("s", credit=10)
            assert late.chunk().chunk_id == 0
    for peer in peers:
        peer.socket.close()
