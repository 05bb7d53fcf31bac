# SPDX-License-Identifier: Apache-2.0
"""Nothing confirmed is dropped by default, and what drops says so: in the log, in counters and in lists."""

import json
import re

import pytest
from peers.queues import Command, QueuePeer, Refused, wait_until
from running import broker, written

from vibemq.client import connect as connect_client
from vibemq.storage.metadata import Metadata

OLD_DEFAULT = 10_000
DROP_OLDEST, DROP_NEWEST, REDIRECT_TO_DLQ = 0, 1, 3


def test_a_queue_made_by_being_used_keeps_everything(connect, name):
    publisher = connect()
    publisher.publish_all(name, range(OLD_DEFAULT + 2_000))
    publisher.await_counts(name, OLD_DEFAULT + 2_000)
    assert publisher.info(name)["maxSize"] == 0


def test_a_queue_that_our_client_makes_has_no_limit_and_one_that_says_a_limit_has_it(single, name):
    with connect_client(f"vibemq://{single.host}:{single.native_port}") as client:
        client.create_queue(name, attempts_max=5)
        client.declare_queue(name + ".declared", dead_letter=True)
        client.create_queue(name + ".limited", max_messages=7)
        limits = [
            client.queue_info(queue).options.max_messages for queue in (name, name + ".declared", name + ".limited")
        ]
        assert limits == [0, 0, 7]


def test_a_net_client_that_declares_its_default_keeps_it(connect, name):
    peer = connect()
    # As its release 1.8 sends it.
    peer.create(
        name, mode=0, maxQueueSize=OLD_DEFAULT, enableDeadLetterQueue=False, overflowStrategy=0, maxRetryAttempts=3
    )
    assert peer.info(name)["maxSize"] == OLD_DEFAULT


def test_a_dead_letter_queue_made_by_the_broker_keeps_everything(connect, name):
    publisher = connect()
    publisher.create(name, maxQueueSize=2, overflowStrategy=REDIRECT_TO_DLQ, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(12))
    publisher.await_counts(name + ".dlq", 10)
    assert publisher.info(name + ".dlq")["maxSize"] == 0
    assert publisher.info(name + ".dlq")["droppedCount"] == 0


def lose_by_drop_oldest(peer, name):
    peer.create(name, maxQueueSize=2, overflowStrategy=DROP_OLDEST)
    peer.publish_all(name, range(12))


def lose_by_drop_newest(peer, name):
    peer.create(name, maxQueueSize=2, overflowStrategy=DROP_NEWEST)
    for number in range(5):
        try:
            peer.publish(name, number)
        except Refused as refused:
            assert refused.code == "QUEUE_FULL"


def lose_by_age(peer, name):
    peer.create(name, messageTtl=1)
    peer.publish_all(name, range(4))


def lose_by_attempts(peer, name):
    peer.create(name, maxRetryAttempts=1)
    peer.subscribe(name)
    peer.publish(name, 1)
    peer.nack(peer.delivery())


LOSSES = {
    "drop_oldest": (lose_by_drop_oldest, 10, 0, "it is full (max_messages 2), and drops the oldest"),
    "drop_newest": (
        lose_by_drop_newest,
        0,
        3,
        "it is full (max_messages 2), and refuses new messages (drop_newest)",
    ),
    "ttl": (lose_by_age, 4, 0, "older than its time to live of 1 ms, and are dropped"),
    "attempts": (lose_by_attempts, 1, 0, "message 0 was delivered once and not acknowledged, and is dropped"),
}


@pytest.mark.parametrize("how", LOSSES)
def test_what_is_lost_is_counted_for_good_and_said_in_the_log(tmp_path, capfd, how):
    lose, dropped, refused, said = LOSSES[how]

    def losses(peer):
        info = peer.info("q")
        return info["droppedCount"], info["refusedCount"]

    with broker(tmp_path / "data", workers=1) as running, QueuePeer(running) as peer:
        lose(peer, "q")
        wait_until(lambda: losses(peer) == (dropped, refused), "counted")
    lines = [line for line in capfd.readouterr().err.splitlines() if "queue q:" in line]
    assert said in lines[0]
    assert len(lines) <= 2, "once, and at the end how many more"
    counts = [re.search(r"\((\d+) (?:times\)|more in)", line) for line in lines]
    assert sum(int(count[1]) if count else 1 for count in counts) == dropped + refused
    with broker(tmp_path / "data", workers=1) as running, QueuePeer(running) as peer:
        assert losses(peer) == (dropped, refused)


def test_a_queue_made_anew_under_its_name_says_for_itself_what_fails(tmp_path, capfd):
    data = tmp_path / "data"
    with broker(data, workers=1) as running, QueuePeer(running) as peer:
        peer.create("q.dlq")
        metadata = Metadata(str(data / "meta.db"))
        with open(f"{metadata.find_stream('/', 'q.dlq').directory}/control", "r+b") as file:
            file.seek(4)  # the version, which is not known then
            file.write(b"\xff\xff\xff\xff")
        metadata.close()
        for times in (1, 2):
            peer.create("q", maxRetryAttempts=1, enableDeadLetterQueue=True)
            peer.publish("q", times)
            peer.subscribe("q")
            peer.nack(peer.delivery())

            def is_said(times=times):
                return written(capfd).count("queue q: its dead-letter queue q.dlq cannot be opened") == times

            wait_until(is_said, "the second is not taken for the first")
            peer.delete("q")


def test_what_is_purged_is_not_lost(connect, name):
    peer = connect()
    peer.create(name)
    peer.publish_all(name, range(3))
    assert json.loads(peer.ask(Command.PURGE_QUEUE, queue=name).payload) == {"purged": 3}
    peer.await_counts(name, 0)
    assert peer.info(name)["droppedCount"] == 0
