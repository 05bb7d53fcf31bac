# SPDX-License-Identifier: Apache-2.0
"""Members of a fan-out of durability `remote` get their copies after a lost machine."""

from contextlib import ExitStack

import pytest
from peers.queues import Command, QueuePeer, payloads, wait_until
from running import broker
from test_lost_machine import flags, lost

pytest.importorskip("obstore", reason="needs the extra remote")

FAN_OUT_WITH_ACK = 1


def subscribe(peer, name=""):
    headers = {"vibemq-subscriber": name, "vibemq-subscriber-ttl": "3600"} if name else {}
    peer.ask(Command.SUBSCRIBE, queue="q", headers=headers)


@pytest.mark.parametrize("name", ["billing", ""])
def test_a_copy_that_only_another_member_acknowledged_comes_again(tmp_path, name):
    with lost(tmp_path / "data", tmp_path / "bucket", "machine") as running:
        first, second = QueuePeer(running), QueuePeer(running)
        first.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(first)
        subscribe(second, name)
        first.await_subscribers("q", 2)
        first.publish_all("q", range(3))
        found = second.take(3)
        first.ack(*first.take(3))
        second.ack(found[0])
        for peer in (first, second):
            peer.ping()
        first.publish_all("q", ["later", "last"])  # when it is confirmed the store knows of those acknowledgements
        first.ack(*first.take(1))
    with broker(tmp_path / "data", *flags(tmp_path / "bucket")) as running, ExitStack() as stack:
        owed, back = {1, 2, "later", "last"}, []  # 0 may come again: its acknowledgement need not be in the store
        for each in [name] if name else ["", ""]:  # without names it is not known which of the two is back first
            back.append(stack.enter_context(QueuePeer(running)))
            subscribe(back[-1], each)

        def has_come() -> bool:
            for peer in back:
                owed.difference_update(payloads(peer.rest()))
            return not owed

        wait_until(has_come, "each message that is owed")


def test_a_name_that_was_away_gets_messages_that_no_member_acknowledged_though_another_returns_first(tmp_path):
    with lost(tmp_path / "data", tmp_path / "bucket", "machine") as running:
        first, second = QueuePeer(running), QueuePeer(running)
        first.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(first, "early")
        subscribe(second, "late")
        first.await_subscribers("q", 2)
        second.close()
        first.publish_all("q", range(3))
        first.take(3)
    with broker(tmp_path / "data", *flags(tmp_path / "bucket")) as running, QueuePeer(running) as back:
        for name in ("early", "late"):
            subscribe(back, name)
            assert payloads(back.take(3)) == [0, 1, 2]
            back.unsubscribe("q")
