# SPDX-License-Identifier: Apache-2.0
"""How the management page measures: what it asks of workers, what rates it makes of it, what it remembers."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import vibemq.admin.page.sampler as sampling
from vibemq.admin.api.calls import ADMINISTRATOR, Call, Caller, Refused
from vibemq.admin.api.service import Api
from vibemq.admin.page import live, live_streams
from vibemq.admin.page.rings import POINT_S, POINTS, STREAMS_MAX, History
from vibemq.admin.page.sampler import LIVE_S, Sample, Sampler, Seen
from vibemq.config import Config
from vibemq.storage.figures import LogFigures
from vibemq.storage.ledger import QueueStats
from vibemq.storage.metadata import Metadata

EVERYTHING = Caller("ada", ADMINISTRATOR, ("administrator",))


class CountedWorkers:
    """Two of them; how often each kind of question was asked."""

    def __init__(self):
        self.asked = Counter()
        self.delivered = {1: 0, 2: 0}  # by process
        self.sessions_found = []

    def __len__(self):
        return 2

    def statuses(self):
        self.asked["status"] += 1
        return [{"worker": pid, "pid": pid, "connections": 3, "delivered": n} for pid, n in self.delivered.items()]

    def sessions(self):
        self.asked["sessions"] += 1
        yield from self.sessions_found

    def readers(self):
        self.asked["readers"] += 1
        return Counter()


@pytest.fixture
def logs(monkeypatch):
    """What the control pages say: next offsets, by directory."""
    found = {}
    monkeypatch.setattr(sampling, "log_figures", lambda directory: found.get(directory))
    return found


@pytest.fixture
def api(tmp_path):
    metadata = Metadata(str(tmp_path / "meta.db"))
    api = Api(Config(), metadata, CountedWorkers(), "rabbit@here", {}, 0)
    api.sampler = Sampler(api)
    yield api
    metadata.close()


def made(api, name):
    return api.metadata.create_stream("/", name, {}, "os", 100, lambda record: None)


def at(offset, generation=1):
    return LogFigures(0, offset, offset, 0, offset, generation)


def other(api, do):
    """Somebody else's change of the database."""
    theirs = Metadata(api.metadata.path)
    do(SimpleNamespace(metadata=theirs))
    theirs.close()


def test_however_many_look_workers_are_asked_for_one(api):
    api.sampler.start()
    call = Call(EVERYTHING, {}, {})
    began_s = time.monotonic()

    def look(_):
        for view in (live.overview, live.node, live.connections, live_streams.list_streams):
            view(api, call)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(look, range(400)))
    took_s = time.monotonic() - began_s
    api.sampler.close()
    asked = api.workers.asked
    assert asked["status"] <= 2 + took_s / (LIVE_S * 0.5)
    assert max(asked["sessions"], asked["readers"]) <= 1 + took_s / (LIVE_S * 0.9)
    assert set(asked) == {"status", "sessions", "readers"}


def test_while_nobody_looks_only_the_short_question_is_asked(api):
    for second in range(10):
        api.sampler.look(1000.0 + second * POINT_S)
    assert api.workers.asked == {"status": 10}


def test_rates_are_messages_by_time_and_nothing_is_invented(api, logs):
    old = made(api, "old")
    logs[old.directory] = at(1000)
    api.sampler.look(100.0)
    assert api.sampler.sample.totals["published"] == 0  # what was there before was not published now
    logs[old.directory] = at(1050)
    api.workers.delivered = {1: 40, 2: 0}
    api.sampler.look(105.0)
    assert api.sampler.sample.totals["published"] == 10
    assert api.sampler.sample.totals["delivered"] == 8
    assert api.sampler.sample.streams[old.incarnation].published_rate == 10
    other(api, lambda theirs: made(theirs, "new"))
    new = api.metadata.find_stream("/", "new")
    logs[new.directory] = at(25)
    api.workers.delivered = {7: 10, 2: 0}  # the first was killed, and another has its seat
    api.sampler.look(110.0)
    assert api.sampler.sample.totals["published"] == 5
    assert api.sampler.sample.totals["delivered"] == 2
    del logs[old.directory]  # being deleted, or not to be read
    for at_s, damaged in ((115.0, 0), (116.0, 1)):
        api.sampler.look(at_s)
        assert (api.sampler.sample.damaged, api.sampler.sample.totals["published"]) == (damaged, 0)
    logs[old.directory] = at(1200)
    api.sampler.look(120.0)
    assert api.sampler.sample.totals["published"] == 0  # nobody knows when that was
    times = api.sampler.broker_history(0)
    assert times["series"]["published"] == [10, 5, 0, 0] and times["end"] == 4


def test_what_streams_retain_is_no_backlog_of_queues(api, logs, monkeypatch):
    stream, queue = made(api, "s"), api.metadata.create_stream("/", "q", {}, "os", 100, lambda record: None, {})
    logs[stream.directory], logs[queue.directory] = at(70), at(50)
    waiting = QueueStats(5, 2, *[0] * (len(QueueStats._fields) - 2))
    monkeypatch.setattr(sampling, "queue_stats", lambda directory, next_offset: waiting)
    api.sampler.look(1.0)
    totals = api.sampler.sample.totals
    assert (totals["ready"], totals["unacked"], totals["retained"]) == (5, 2, 70)


def test_a_stream_that_is_used_has_a_history_and_one_that_is_looked_at_gets_one(api, logs):
    busy, idle = made(api, "busy"), made(api, "idle")
    for second in range(4):
        logs[busy.directory], logs[idle.directory] = at(second * 50), at(7)
        api.sampler.look(100.0 + second * POINT_S)
    assert api.sampler.stream_history(busy.incarnation, 0)["series"]["published"] == [10, 10, 10]
    assert api.sampler.stream_history(idle.incarnation, 0)["series"]["ready"] == [None, None, None]
    logs[busy.directory] = at(150)
    api.sampler.look(130.0)
    assert api.sampler.stream_history(idle.incarnation, 0)["series"]["ready"] == [None, None, None, 7]
    assert api.sampler.stream_history(busy.incarnation, 3)["series"]["ready"] == [150]


def test_history_is_an_hour_and_of_so_many_streams_however_long_it_goes_on():
    history = History(("published",), ("published",))
    for point in range(POINTS + 100):
        used = {"published": 1.0, "delivered": 0, "acked": 0}
        history.put(point * POINT_S, {"published": point}, {f"s{point}": used})
    found = history.broker_since(0)
    assert found["end"] == POINTS + 100
    assert len(found["times"]) == POINTS and found["times"][-1] == (POINTS + 99) * POINT_S
    assert found["series"]["published"] == list(range(100, POINTS + 100))
    assert len(history.remembered) == STREAMS_MAX
    assert f"s{POINTS + 99}" in history.remembered and "s0" not in history.remembered
    assert history.broker_since(POINTS + 98)["series"]["published"] == [POINTS + 98, POINTS + 99]
    assert history.broker_since(10**9)["times"] == []


# ---- ten thousand ----


@pytest.fixture
def many(api):
    """Ten thousand streams as the last look has found them."""
    streams = {}
    for number in range(10_000):
        record = SimpleNamespace(
            vhost="/", name=f"stream-{number:05}", incarnation=f"{number:016x}", durability="os", queue=None
        )
        streams[record.incarnation] = Seen(record, at(number), segments=1, published_rate=float(number % 100))
    api.sampler.sample = Sample(1.0, 1, streams)
    return api


def rows(api, **query):
    return live_streams.list_streams(api, Call(EVERYTHING, {}, query))


def test_ten_thousand_streams_are_sorted_filtered_and_cut_here(many):
    found = rows(many)
    assert (found["total"], found["found"], found["pages"], len(found["rows"])) == (10_000, 10_000, 200, 50)
    assert found["rows"][0]["name"] == "stream-00000"
    found = rows(many, sort="published", sort_reverse="true", page="2", page_size="100")
    assert {row["published"] for row in found["rows"]} == {98.0}
    assert [row["name"] for row in found["rows"]] == sorted(row["name"] for row in found["rows"])
    found = rows(many, name="STREAM-0012", page="9")
    assert (found["found"], found["page"]) == (10, 1)  # behind the last page it is the last
    assert rows(many, name="^stream-.*99$", use_regex="true")["found"] == 100
    assert rows(many, kind="queue")["found"] == 0
    for wrong in ({"sort": "colour"}, {"page_size": "501"}, {"page": "0"}, {"kind": "exchange"}):
        with pytest.raises(Refused):
            rows(many, **wrong)


def test_what_is_not_known_yet_comes_last_whichever_way_it_is_sorted(many):
    seen = many.sampler.sample.streams
    for number, one in enumerate(seen.values()):
        one.segments = None if number % 2 else 1
    for reverse in ("false", "true"):
        found = rows(many, sort="size_bytes", sort_reverse=reverse, page="200")
        assert {row["size_bytes"] for row in found["rows"]} == {None}
