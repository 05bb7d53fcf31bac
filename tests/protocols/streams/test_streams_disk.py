# SPDX-License-Identifier: Apache-2.0
"""A disk that is nearly full: who publishes has to wait, who consumes goes on, and so do all when there is room again.

How much is free is what the test says.
"""

from pathlib import Path

import pytest
from full_disk import ToldFree
from peers.streams import connected, managed
from running import Running, broker, wait_until

from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key, OffsetType

NEEDED = 1_000_000
MUCH, LITTLE = str(NEEDED), str(NEEDED - 1)


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldFree:
    return ToldFree(tmp_path, monkeypatch, MUCH)


@pytest.fixture
def limited(free: ToldFree, tmp_path: Path):
    with broker(tmp_path / "data", "--set", f"store.disk_free_min_bytes={NEEDED}", workers=1) as running:
        yield running


def until_declared(running: Running, code: int) -> None:
    """Each time on a connection of its own: one that has a publisher may not be read any more."""

    def answered() -> bool:
        with connected(running) as probe:
            return probe.code(Key.DECLARE_PUBLISHER, publisher_id=0, reference="", stream="s") == code

    wait_until(answered, f"a publisher is answered with {code}")


def test_who_publishes_is_not_read_until_there_is_room_again(limited: Running, free: ToldFree):
    with connected(limited) as publisher, connected(limited) as consumer, connected(limited) as other:
        publisher.create("s")
        publisher.declare("s")
        publisher.publish([(1, b"before")])
        assert publisher.confirmed(1) == [1]
        free.say(LITTLE)
        until_declared(limited, Code.PRECONDITION_FAILED)
        publisher.publish([(2, b"while")])
        consumer.subscribe("s", credit=10)
        assert consumer.chunk().data.endswith(b"before")
        for _ in range(100):
            other.ask(Key.METADATA, streams=[])
        assert not publisher.has_frame(), "it was read"
        assert not consumer.has_frame()
        free.say(MUCH)
        assert publisher.confirmed(1) == [2]
        assert consumer.chunk().data.endswith(b"while")
        until_declared(limited, Code.OK)


def test_who_has_lost_its_publishers_is_read_again(limited: Running, free: ToldFree):
    with connected(limited) as publisher, connected(limited) as other:
        publisher.create("s")
        publisher.declare("s")
        free.say(LITTLE)
        until_declared(limited, Code.PRECONDITION_FAILED)
        assert other.code(Key.DELETE, stream="s") == Code.OK, "that makes room"
        publisher.expect(Key.METADATA_UPDATE)
        publisher.ask(Key.METADATA, streams=[])


def test_a_publisher_that_has_to_wait_is_not_taken_for_dead(limited: Running, free: ToldFree):
    with connected(limited, heartbeat=1) as publisher:
        publisher.create("s")
        publisher.declare("s")
        free.say(LITTLE)
        until_declared(limited, Code.PRECONDITION_FAILED)
        for _ in range(8):  # one each second or half second: after three it would have been closed
            publisher.expect(Key.HEARTBEAT)
        free.say(MUCH)
        publisher.publish([(1, b"alive")])
        assert publisher.confirmed(1) == [1]


def test_a_single_active_consumer_that_publishes_is_not_ended_for_an_answer_nobody_reads(
    tmp_path: Path, free: ToldFree
):
    flags = ("--set", f"store.disk_free_min_bytes={NEEDED}", "--set", "streams.request_timeout_s=3")
    with broker(tmp_path / "data", *flags, workers=1) as running, connected(running, heartbeat=1) as both:
        both.create("s")
        both.store("s", [b"x"])
        both.declare("s", 1)
        group = {"single-active-consumer": "true", "name": "group"}
        both.subscribe("s", credit=10, properties=group)
        question = both.expect(Key.CONSUMER_UPDATE).correlation_id
        free.say(LITTLE)
        until_declared(running, Code.PRECONDITION_FAILED)
        both.send(codec.encode_response(Key.CONSUMER_UPDATE, question, Code.OK, offset_type=OffsetType.NONE))
        for _ in range(8):  # one each second or half second: longer than it has for its answer
            both.expect(Key.HEARTBEAT)
        free.say(MUCH)
        assert both.until(Key.DELIVER)[1].chunk.data.endswith(b"x")


def test_a_disk_that_is_full_at_the_start_takes_no_publishers(free: ToldFree, tmp_path: Path):
    free.say("0")
    with (
        broker(tmp_path / "data", "--set", f"store.disk_free_min_bytes={NEEDED}") as running,
        connected(running) as peer,
    ):
        peer.create("s")
        until_declared(running, Code.PRECONDITION_FAILED)
        free.say(MUCH)
        until_declared(running, Code.OK)


def test_a_memory_alarm_lets_publishers_be_declared_and_reads_them_no_further(tmp_path: Path):
    flags = ("--set", "store.memory_high_watermark_bytes=1")
    with (
        broker(tmp_path / "data", *flags, workers=1) as running,
        connected(running) as publisher,
        connected(running) as other,
    ):
        wait_until(lambda: managed(running, "nodes")[0]["mem_alarm"], "the memory alarm")
        publisher.create("s")
        publisher.declare("s")
        publisher.publish([(1, b"waits")])
        for _ in range(100):
            other.ask(Key.METADATA, streams=[])
        assert not publisher.has_frame(), "it was read"


def test_a_full_disk_holds_nobody_where_nothing_need_be_free(free: ToldFree, tmp_path: Path):
    free.say("0")
    with broker(tmp_path / "data", "--set", "store.disk_free_min_bytes=0") as running, connected(running) as peer:
        peer.create("s")
        peer.store("s", [b"x"])
