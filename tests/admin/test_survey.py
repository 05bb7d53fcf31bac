# SPDX-License-Identifier: Apache-2.0
"""The survey of all streams: bounded in time, and its sums only ever grow."""

from vibemq.admin.api import survey as module
from vibemq.admin.api.calls import Answer
from vibemq.admin.api.counts import Counts
from vibemq.admin.api.readiness import KNOWN_S, Readiness
from vibemq.admin.api.survey import LOOK_S_MAX, Entry, Survey
from vibemq.storage.ledger import QueueStats
from vibemq.storage.log import LogStats

PRICE_S = 0.03


class Record:
    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation


class World:
    """Queues with as many acknowledgements as `acked` says, each of which costs PRICE_S to look at."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = 0.0
        self.acked: dict[str, int] = {}
        self.looked: list[str] = []
        monkeypatch.setattr(module, "look_at", self.look_at)
        self.survey = Survey(lambda: self.now_s)

    def look_at(self, record: Record, offsets_max: int) -> Entry:
        self.now_s += PRICE_S
        self.looked.append(record.incarnation)
        queue = QueueStats(0, 0, 0, 0, 0, self.acked[record.incarnation], *[0] * 10)
        return Entry(record, Counts(LogStats(0, 0, 0, -1, 0, 0), queue))

    def look(self) -> list[Entry]:
        self.looked.clear()
        return self.survey.look([Record(name) for name in self.acked])


def test_the_first_look_sees_all_and_later_ones_as_many_as_there_is_time_for_in_turn(monkeypatch):
    world = World(monkeypatch)
    fitting = int(LOOK_S_MAX // PRICE_S) + 1  # the one that the time ends in is looked at, too
    world.acked = {f"{number:03}": 0 for number in range(3 * fitting)}
    assert len(world.look()) == len(world.looked) == 3 * fitting
    seen = []
    for _ in range(3):
        assert len(world.look()) == 3 * fitting, "the others are known as they were"
        assert len(world.looked) == fitting
        seen += world.looked
    assert sorted(seen) == sorted(world.acked), "each had its turn"


def test_what_is_new_is_seen_at_once(monkeypatch):
    world = World(monkeypatch)
    world.acked = {f"{number:03}": 0 for number in range(100)}
    world.look()
    world.acked["new"] = 0
    assert len(world.look()) == 101 and "new" in world.looked


def test_sums_begin_with_nothing_and_do_not_fall_when_a_queue_goes(monkeypatch):
    world = World(monkeypatch)
    world.acked = {"old": 1000, "other": 5}
    world.look()
    assert world.survey.totals["acked"] == 0, "what came before this process is no growth"
    world.acked = {"old": 1007, "other": 5, "made since": 3}
    world.look()
    assert world.survey.totals["acked"] == 10
    del world.acked["old"]
    world.look()
    assert world.survey.totals["acked"] == 10


def test_however_many_ask_whether_it_is_ready_workers_are_asked_once_a_while():
    now_s, asked = 0.0, []
    readiness = Readiness(lambda: now_s)

    def find() -> Answer:
        asked.append(now_s)
        return Answer(200 if len(asked) == 1 else 503)

    assert [readiness.of(find).status for _ in range(2)] == [200, 200]
    now_s = KNOWN_S
    assert [readiness.of(find).status for _ in range(2)] == [503, 503]
    assert asked == [0.0, KNOWN_S]
