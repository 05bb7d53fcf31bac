# SPDX-License-Identifier: Apache-2.0
"""A publisher may go on behind the sequence that it is told: no power cut takes back a message up to there."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from held_disk import HeldDisk
from other_boot import write_in_another_boot
from peers.streams import Peer, connected
from running import broker
from test_confirmed import DISK, expect_nothing, killed, log_of, read_all

from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, Key
from vibemq.storage.log import dump

QUESTIONS_MAX = 256  # that wait, of a connection
ANSWER = Key.QUERY_PUBLISHER_SEQUENCE | RESPONSE_BIT


def ask(peer: Peer, stream: str, reference: str = "me") -> None:
    """Send the question; its answer may have to wait."""
    peer.send(peer.command(Key.QUERY_PUBLISHER_SEQUENCE, reference=reference, stream=stream))


def told(peer: Peer) -> tuple[int, int]:
    answer = peer.expect(ANSWER)
    return answer.code, answer.sequence


def test_the_sequence_of_a_publisher_is_told_when_all_of_it_is_confirmed(tmp_path: Path, disk: HeldDisk):
    with broker(tmp_path / "data", *DISK, through=disk.through) as running, connected(running) as publisher:
        publisher.create("s")
        publisher.create("gone")
        publisher.declare("s", reference="me")
        publisher.declare("s", 1, reference="another")
        publisher.publish([(1, b"one")])
        assert publisher.confirmed(1) == [1]
        disk.hold()
        publisher.publish([(2, b"two")], 1)
        disk.wait_until_held()
        with connected(running) as again, connected(running) as left, connected(running) as deleting:
            ask(again, "s")
            assert told(again) == (Code.OK, 1), "another's message is not its own"
            publisher.publish([(2, b"two"), (3, b"three")])
            ask(publisher, "s")
            expect_nothing(publisher)
            ask(again, "s")
            ask(left, "s")
            expect_nothing(again, left)
            left.socket.close()  # while its question waits
            again.declare("s", reference="me")
            again.publish([(3, b"three"), (4, b"four")])
            expect_nothing(again)
            ask(again, "s", "nobody")
            assert told(again) == (Code.OK, 0)
            deleting.declare("gone", reference="me")
            deleting.publish([(1, b"never")])
            ask(deleting, "gone")
            expect_nothing(deleting)
            publisher.send(publisher.command(Key.DELETE, stream="gone"))
            frames: dict[int, list[Any]] = {}
            while not {Key.PUBLISH_ERROR, ANSWER} <= frames.keys():  # the users of a stream are told in any order
                frame = deleting.next_frame()
                frames.setdefault(frame.key, []).append(frame.decoded())
            assert frames[Key.PUBLISH_ERROR][0].errors == [(1, Code.STREAM_NOT_AVAILABLE)]
            assert frames[ANSWER][0].code == Code.STREAM_DOES_NOT_EXIST
            publisher.expect(Key.DELETE | RESPONSE_BIT)
            disk.release()
            assert publisher.confirmed(1, 1) == [2]
            assert publisher.confirmed(2) == [2, 3]
            assert told(publisher) == (Code.OK, 3)
            assert told(again) == (Code.OK, 3)
            assert again.confirmed(1) == [4] and again.confirmed(1) == [3]
            ask(again, "s")
            assert told(again) == (Code.OK, 4)


def test_a_connection_with_256_waiting_questions_is_not_read_until_they_are_answered(tmp_path: Path, disk: HeldDisk):
    data = tmp_path / "data"
    with broker(data, *DISK, workers=1, through=disk.through) as running, connected(running) as publisher:
        publisher.create("s")
        publisher.declare("s", reference="me")
        disk.hold()
        publisher.publish([(1, b"one")])
        disk.wait_until_held()
        with connected(running) as asking:
            question = asking.command(Key.QUERY_PUBLISHER_SEQUENCE, reference="me", stream="s")
            asking.send(question * QUESTIONS_MAX, asking.command(Key.METADATA, streams=[]))
            expect_nothing(publisher)  # and the broker has read what it reads of the other one
            assert not asking.has_frame()
            disk.release()
            assert [told(asking) for _ in range(QUESTIONS_MAX)] == [(Code.OK, 1)] * QUESTIONS_MAX
            asking.expect(Key.METADATA | RESPONSE_BIT)
        assert publisher.confirmed(1) == [1]


def test_a_publisher_that_goes_on_behind_its_sequence_loses_nothing_in_a_power_cut(tmp_path: Path, disk: HeldDisk):
    with killed(tmp_path / "data", disk) as running, ExitStack() as stack:
        publisher, again = stack.enter_context(connected(running)), stack.enter_context(connected(running))
        publisher.create("s")
        publisher.declare("s", reference="me")
        publisher.publish([(1, b"one")])
        assert publisher.confirmed(1) == [1]
        disk.hold()
        publisher.publish([(2, b"two"), (3, b"three")])
        disk.wait_until_held()
        ask(again, "s")
        expect_nothing(again)
    disk.release()
    lose_tail(log_of(tmp_path / "data"))
    with broker(tmp_path / "data", *DISK) as running, connected(running) as publisher:
        ask(publisher, "s")
        assert told(publisher) == (Code.OK, 1)
        publisher.declare("s", reference="me")
        publisher.publish([(2, b"two"), (3, b"three")])
        assert publisher.confirmed(2) == [2, 3]
        assert read_all(running, "s") == [b"one", b"two", b"three"]


def lose_tail(directory: str) -> None:
    """As a power cut: what no sync has covered is gone."""
    lines: list[str] = []
    dump(os.path.join(directory, "control"), False, 0, lines.append)
    found = re.search(r"durable: segment (\d+) up to byte (\d+)", "\n".join(lines))
    assert found is not None
    segment = Path(directory, f"{int(found[1]):020}.segment")
    assert segment.stat().st_size > int(found[2])
    os.truncate(segment, int(found[2]))
    write_in_another_boot(directory)


def test_a_duplicate_of_a_message_whose_sync_fails_is_refused(tmp_path: Path, disk: HeldDisk):
    with broker(tmp_path / "data", *DISK, workers=1, through=disk.through) as running, ExitStack() as stack:
        publisher, again = stack.enter_context(connected(running)), stack.enter_context(connected(running))
        publisher.create("s")
        publisher.declare("s", reference="me")
        publisher.declare("s", 1, reference="another")
        publisher.publish([(1, b"one")])
        assert publisher.confirmed(1) == [1]
        disk.hold()
        publisher.publish([(2, b"two")])
        disk.wait_until_held()
        again.declare("s", reference="me")
        again.publish([(2, b"two")])
        ask(again, "s")
        expect_nothing(again)
        disk.fail()
        assert publisher.expect(Key.PUBLISH_ERROR).errors == [(2, Code.INTERNAL_ERROR)]
        disk.mend()
        publisher.publish([(1, b"kept")], 1)
        assert publisher.confirmed(1, 1) == [1]
        frames = [again.next_frame(), again.next_frame()]
        assert {frame.key for frame in frames} == {Key.PUBLISH_ERROR, ANSWER}
        assert next(frame for frame in frames if frame.key == ANSWER).decoded().code == Code.INTERNAL_ERROR
        assert read_all(running, "s") == [b"one", b"kept"]
        ask(again, "s")
        assert told(again)[0] == Code.INTERNAL_ERROR
        publisher.publish([(3, b"three")])
        assert publisher.confirmed(1) == [3]
        ask(again, "s")
        assert told(again) == (Code.OK, 3)
