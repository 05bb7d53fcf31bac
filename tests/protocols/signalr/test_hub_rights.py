# SPDX-License-Identifier: Apache-2.0
"""What users of the hub may do: permissions as of the other doors, and what ends when they are taken away."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.signalr import HubPeer, fresh
from running import Running, broker

from vibemq.access.permissions import Operation
from vibemq.access.users import add_user
from vibemq.storage.metadata import Metadata

PASSWORD = "a password of hers"
BASIC = "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode()


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[Metadata]:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    found = Metadata(str(folder / "meta.db"))
    add_user(found, "ada", PASSWORD, is_superuser=False)
    found.grant("ada", "mine-*", list(Operation))
    found.set_permissions("/", "ada", "^mine-", "^mine-", "^mine-")
    yield found
    found.close()


@pytest.fixture
def ada(metadata: Metadata, tmp_path: Path) -> Iterator[HubPeer]:
    with broker(tmp_path / "data", workers=1) as running, connected(running) as peer:
        yield peer


def connected(running: Running) -> HubPeer:
    return HubPeer(running, Authorization=BASIC)


def test_what_a_user_may_is_done_and_the_rest_refused(ada: HubPeer) -> None:
    mine, other = "mine-" + fresh(), fresh()
    ada.ask("CreateQueue", mine)
    ada.ask("CreateQueue", mine + "s", {"type": "stream"})
    ada.ask("Publish", mine + "s", 1)
    assert ada.ask("Publish", mine, 1)["offset"] == 0
    refused = "User 'ada' lacks the permission {} for '" + other + "'; ask an administrator."
    for method, right, *more in (
        ("CreateQueue", "CreateQueue"),
        ("Publish", "Publish", 1),
        ("PublishBatch", "Publish", [1]),
        ("QueueInfo", "GetQueueInfo"),
        ("PurgeQueue", "PurgeQueue"),
        ("DeleteQueue", "DeleteQueue"),
        ("Receive", "Subscribe"),
        ("SubscribePush", "Subscribe"),
    ):
        assert ada.refusal(method, other, *more).endswith("NOT_AUTHORIZED: " + refused.format(right))
    error = ada.refusal("CreateQueue", other, {"type": "stream"})
    assert error.endswith("NOT_AUTHORIZED: " + refused.format("configure"))
    assert [info["name"] for info in ada.ask("ListQueues")] == [mine, mine + "s"]


def test_a_subscription_ends_with_its_right(ada: HubPeer, metadata: Metadata) -> None:
    mine = "mine-" + fresh()
    id = ada.stream("Subscribe", mine)
    ada.notify("Publish", mine, 1)
    ada.items(id, 1)
    metadata.grant("ada", "mine-*", [Operation.Publish])
    end = ada.stream_end(id)
    assert "NOT_AUTHORIZED" in str(end.error)


def test_a_user_that_is_deleted_is_sent_off(ada: HubPeer, metadata: Metadata) -> None:
    ada.ask("ServerInfo")
    metadata.delete_user("ada")
    end = ada.closed()
    assert end is not None
    assert "deleted" in str(end.error)
    assert (end.allow_reconnect, ada.close_code) == (False, 1000)
