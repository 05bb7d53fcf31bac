# SPDX-License-Identifier: Apache-2.0
"""Durability `remote` at every door of a broker that has no object store: a sentence, and nothing is made."""

import pytest
from door_clients import micromsg2_client, native_client, with_hub
from peers.streams import connected

from vibemq.protocols.streams.spec import Code, Key


def native(served, name):
    with native_client(served) as client:
        client.create_queue(name, durability="remote")


def signalr(served, name):
    with_hub(served, lambda hub: hub.invoke("CreateQueue", name, {"durability": "remote"}))


def signalr_stream(served, name):
    with_hub(served, lambda hub: hub.invoke("CreateQueue", name, {"type": "stream", "durability": "remote"}))


def micromsg2(served, name):
    with micromsg2_client(served) as client:
        client.command("create", destination=name, durability="remote")


@pytest.mark.parametrize("ask", [native, signalr, signalr_stream, micromsg2])
def test_a_queue_cannot_promise_what_there_is_not(served, name, ask):
    with pytest.raises(Exception, match=r"durability is 'remote', and this broker has no object store.*remote\.url"):
        ask(served, name)


def test_nor_can_a_stream(served, name):
    with connected(served) as peer:
        assert peer.code(Key.CREATE, stream=name, arguments={"durability": "remote"}) == Code.PRECONDITION_FAILED
        assert peer.code(Key.CREATE, stream=name, arguments={"durability": "tape"}) == Code.PRECONDITION_FAILED
        assert peer.code(Key.CREATE, stream=name, arguments={}) == Code.OK
