# SPDX-License-Identifier: Apache-2.0
"""What others have left: decisions of killed workers, staging that nobody will decide, and the bounds of it all."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import uuid
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace

import pytest
from admin.http_caller import Http
from other_boot import begin_in_another_boot
from running import ENVIRONMENT, broker, wait_until
from staging import amqp, begun, entries, rows, staged

import vibemq.client
import vibemq.storage.log as logs
from vibemq.access.users import add_user
from vibemq.broker.staged import EPHEMERAL_KEPT_S
from vibemq.broker.transactions import Run, Transactions
from vibemq.client.streams import StreamsConnection
from vibemq.config import Config, Server
from vibemq.errors import ConnectionClosed, RequestFailed, StorageError, StreamNotFound
from vibemq.protocols.streams.spec import Code
from vibemq.protocols.streams.spec import TransactionState as State
from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata
from vibemq.storage.transactions import STAGING, Application

RUN = Run("/", "app", "run", "guest", "test", False, True)

LONG_AGO_MS = 1_740_000_000_000  # February of 2025: a log that was begun before that year has no known age
TRACKING_CHECK_AT = 60  # of magic and version (csrc/log/FORMAT.md)


@contextmanager
def transactions(folder) -> Iterator[Transactions]:
    """As a worker has them, in this process."""
    with closing(Metadata(metadata_path(str(folder)))) as metadata:
        table = SimpleNamespace(metadata=metadata, tell=lambda workers, slot: None)
        yield Transactions(Config(server=Server(data_dir=str(folder))), table, lambda *_: None)


def decide(folder, targets: list[str], part: tuple[str, int]) -> None:
    """What a worker has done that is killed behind its decision."""
    with transactions(folder) as mine, mine.decisions.locked():
        assert mine._decide(RUN, 0, targets, [part], []) is not None


def connected(served) -> StreamsConnection:
    return StreamsConnection.connect(served.host, served.port)


def test_a_decision_that_was_left_is_appended_within_seconds_and_when_the_broker_starts(tmp_path):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client:
        client.create("one")
        decide(folder, ["one"], staged(client, "app", 0, ("one", [b"a", b"b"])))
        wait_until(lambda: rows(client, "one") == [b"a", b"b"], "the decision to be appended")
        client.create("two")
        part = staged(client, "other", 0, ("two", [b"c"]))
    with transactions(folder) as mine, mine.decisions.locked():
        assert mine._decide(RUN._replace(application="other"), 0, ["two"], [part], []) is not None
    with broker(folder) as served, connected(served) as client:
        wait_until(lambda: rows(client, "two") == [b"c"], "the decision to be appended")
        assert rows(client, "one") == [b"a", b"b"]
        assert client.commit_transactions("other", 0, "run", ["two"], [part]) == (State.ALREADY, 1, "")


def test_the_next_commit_finishes_what_was_left_of_another(tmp_path):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client:
        client.create("one")
        mine = staged(client, "mine", 0, ("one", [b"second"]))
        decide(folder, ["one"], staged(client, "app", 0, ("one", [b"first"])))
        assert client.commit_transactions("mine", 0, "run", ["one"], [mine]).state == State.OK
        assert rows(client, "one") == [b"first", b"second"]


def test_a_target_that_is_deleted_after_the_decision_costs_only_its_own_rows(tmp_path):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client:
        client.create("one")
        client.create("two")
        part = staged(client, "app", 0, ("one", [b"lost"]), ("two", [b"kept"]))
    with transactions(folder) as mine, mine.decisions.locked():
        decision = mine._decide(RUN, 0, ["one", "two"], [part], [])
        record = mine.metadata.delete_stream("/", "one")
        with closing(logs.Log(record.directory)) as log:
            log.mark_deleted()
        assert mine.decisions.finish(decision) == 2
        assert mine.metadata.decisions() == []
    with broker(folder) as served, connected(served) as client:
        assert rows(client, "two") == [b"kept"]


def test_a_target_that_cannot_be_used_waits_and_keeps_nobody_else_waiting(tmp_path):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client:
        for name in ("bad", "good"):
            client.create(name)
        parts = [staged(client, "app", 0, ("bad", [b"1"]), ("good", [b"2"]))]
        parts += [staged(client, name, 0, (target, [b"3"])) for name, target in (("b", "bad"), ("c", "good"))]
    with transactions(folder) as mine:
        bad = mine.metadata.find_stream("/", "bad").directory
        with mine.decisions.locked():
            mine._decide(RUN, 0, ["bad", "good"], parts[:1], [])
        with open(f"{bad}/tracking", "r+b") as file:  # a newer version's, with its check
            known = file.read(TRACKING_CHECK_AT + 4)
            magic, version = struct.unpack_from("=II", known)
            newer = struct.pack("=II", magic, version + 1) + known[8:TRACKING_CHECK_AT]
            newer += struct.pack("=I", zlib.crc32(struct.pack(">II", magic, version + 1)))
            file.seek(0)
            file.write(newer)
        asked = RUN._replace(application="app")
        waits = mine.commit(asked, 0, ["bad", "good"], parts[:1], is_last=False)
        assert (waits.state.name, "bad" in waits.holder or "version" in waits.holder) == ("FULL", True)
        blocked = mine.commit(RUN._replace(application="b"), 0, ["bad"], parts[1:2], is_last=False)
        assert (blocked.state.name, "bad" in blocked.holder) == ("FULL", True)
        assert mine.commit(RUN._replace(application="c"), 0, ["good"], parts[2:], is_last=False).state.name == "OK"
        with open(f"{bad}/tracking", "r+b") as file:
            file.write(known)
        assert mine.commit(RUN._replace(application="b"), 0, ["bad"], parts[1:2], is_last=False).state.name == "OK"
    with broker(folder) as served, connected(served) as client:
        assert (rows(client, "bad"), rows(client, "good")) == ([b"1", b"3"], [b"2", b"3"])


def test_orphans_go_and_what_may_still_be_decided_stays(tmp_path):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client:
        client.create("one")
        client.create("two")
        fresh = staged(client, "fresh", 0, ("one", [b"fresh"]))
        old = staged(client, "old", 0, ("one", [b"old"]))
        held = begun(client, "held", 0, "one")
        with sqlite3.connect(metadata_path(str(folder))) as db:
            db.execute("UPDATE applications SET is_ephemeral = 1, seen_ms = ? WHERE name = 'old'", (EPHEMERAL_KEPT_S,))
        db.close()
        with transactions(folder) as mine:
            for name in (old[0], held.name):
                begin_in_another_boot(mine.metadata.find_stream(STAGING, name).directory, LONG_AGO_MS)
            mine.staged.look()
            assert sorted(record.name for record in mine.metadata.staging()) == sorted([fresh[0], held.name])
            assert sorted(known.name for known in mine.metadata.applications()) == ["fresh", "held"]
        held.close()
        with transactions(folder) as mine:
            mine.staged.look()
            assert [record.name for record in mine.metadata.staging()] == [fresh[0]]
        assert client.commit_transactions("fresh", 0, "run", ["one"], [fresh]).state == State.OK


def test_what_is_staged_survives_a_restart_of_the_broker(tmp_path):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client:
        client.create("one")
        name, _ = staged(client, "app", 0, ("one", [b"before"]))
    with broker(folder) as served, connected(served) as client:
        with begun(client, "app", 0, "one", name=name) as again:
            assert again.sequence == 1
            again.stage(0, entries(b"after"))
        assert client.commit_transactions("app", 0, "run", ["one"], [(name, 2)]).rows == 2
        assert rows(client, "one") == [b"before", b"after"]


def test_too_much_that_is_staged_is_refused_until_there_is_room(tmp_path):
    little = "transactions.staged_size_max_bytes=1000000"
    with broker(tmp_path / "data", "--set", little) as served, connected(served) as client:
        client.create("one")
        staging = begun(client, "app", 0, "one")
        with pytest.raises(RequestFailed) as refused:
            for _ in range(10_000):  # it is looked at after some 64 MiB
                staging.stage(0, entries(bytes(900_000)))
        assert refused.value.code == Code.PRECONDITION_FAILED
        full = client.begin_transaction(uuid.uuid4().hex, "app", 0, "run", ["one"])
        assert (full.state, "of at most 1000000" in full.holder) == (State.FULL, True)
        page = Http(served).call("GET", "metrics").text
        found = re.findall(r'^vibemq_limits_refused_total{process="worker .*"} (\S+)$', page, re.M)
        assert sum(map(float, found)) >= 2, "both refusals are counted"
        client.abort_transactions("app", "run")
        wait_until(
            lambda: client.begin_transaction(uuid.uuid4().hex, "app", 0, "run", ["one"]).state == State.OK, "room"
        )


def test_one_user_leaves_room_for_others_to_stage(tmp_path):
    folder, little = tmp_path / "data", "transactions.staged_size_max_bytes=40000000"
    with broker(folder, "--set", little) as served, connected(served) as client:
        with closing(Metadata(metadata_path(str(folder)))) as metadata:
            add_user(metadata, "other", "correct horse", is_superuser=True)
        client.create("one")
        staging = begun(client, "app", 0, "one")
        for _ in range(35):
            staging.stage(0, entries(bytes(900_000)))
        staging.flush()
        name = uuid.uuid4().hex

        def more() -> tuple[State, str]:
            with client.begin_transaction(name, "again", 0, "run", ["one"]) as answer:
                return answer.state, answer.holder

        wait_until(lambda: more()[0] == State.FULL, "what is staged to be measured")
        assert "by user 'guest', of at most 30000000" in more()[1]
        with StreamsConnection.connect(served.host, served.port, user="other", password="correct horse") as other:
            begun(other, "theirs", 0, "one")


def test_a_queue_with_a_time_to_live_lets_committed_rows_expire_though_nobody_uses_it(tmp_path):
    with (
        broker(tmp_path / "data") as served,
        connected(served) as client,
        vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as native,
    ):
        native.create_queue("short", message_ttl_ms=50)
        part = staged(client, "app", 0, ("short", [amqp(b"1")]))
        assert client.commit_transactions("app", 0, "run", ["short"], [part]).rows == 1
        wait_until(lambda: native.queue_info("short").messages == 0, "the message to expire")


def test_operators_see_transactions_and_no_staging_streams(tmp_path):
    folder = tmp_path / "data"

    def ctl(*words: str) -> list[dict]:
        command = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(folder), *words, "--formatter", "json"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True).stdout)

    with broker(folder) as served, connected(served) as client:
        client.create("one")
        part = staged(client, "app", 3, ("one", [b"a"]))
        client.commit_transactions("app", 3, "run", ["one"], [part])
        begun(client, "app", 4, "one").stage(0, entries(b"b"))
        (shown,) = ctl("list_transactions", "application", "run", "version", "open_transactions", "staged_bytes")
        assert shown.pop("staged_bytes") > 0
        assert shown == {"application": "app", "run": "run", "version": 3, "open_transactions": 1}
        assert [each["name"] for each in ctl("list_queues")] == ["one"]
        assert ctl("list_stream_publishers") == []
        assert [each["name"] for each in ctl("list_stream_tracking", "one")] == []
        kinds = [sys.executable, "-m", "vibemq.cli", "log", "list", "--data-dir", str(folder), "--json"]
        found = json.loads(subprocess.run(kinds, capture_output=True, text=True, env=ENVIRONMENT, check=True).stdout)
        assert sorted(each["kind"] for each in found) == ["staged", "stream"]
        client.delete("one")
        with pytest.raises(StreamNotFound):
            client.begin_transaction(uuid.uuid4().hex, "app", 5, "run", ["one"])


def test_workers_that_are_killed_while_they_append_leave_each_row_once_and_in_order(tmp_path):
    with broker(tmp_path / "data") as served:
        with connected(served) as client:
            client.create("one")
            with begun(client, "app", 0, "one") as staging:
                for block in range(300):
                    staging.stage(0, entries(*(b"%d %d %s" % (block, i, bytes(200)) for i in range(1000))))
        watcher = connected(served)
        committer = connected(served)

        def commit() -> None:
            with suppress(ConnectionClosed):
                committer.commit_transactions("app", 0, "run", ["one"], [(staging.name, 300)], timeout_s=60)

        thread = threading.Thread(target=commit)
        thread.start()
        with suppress(ConnectionClosed):
            while thread.is_alive() and watcher.next_offset("one") == 0:
                continue
        for pid in served.worker_pids():
            os.kill(pid, signal.SIGKILL)
        thread.join()

        def done() -> bool:
            try:
                with connected(served) as again:
                    found = again.commit_transactions("app", 0, "run", ["one"], [(staging.name, 300)], timeout_s=60)
            except (ConnectionClosed, OSError):  # no worker is there yet
                return False
            assert found.state in (State.OK, State.ALREADY) and found.rows == 300_000
            return True

        wait_until(done, "the commit to be done")
        with connected(served) as client:
            for number, row in enumerate(rows(client, "one")):
                assert row.startswith(b"%d %d " % divmod(number, 1000)), (number, row[:20])
            assert number == 299_999


def test_what_is_decided_behind_the_back_of_who_throws_away_stays(tmp_path):
    """Housekeeping, or an abort, has listed what is staged and now comes to it."""
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client, transactions(folder) as mine:
        client.create("one")
        part = staged(client, "app", 0, ("one", [b"a", b"b"]))
        with mine.decisions.locked():  # so that the broker does not finish it meanwhile
            (listed,) = mine.metadata.staging()
            assert mine._decide(RUN, 0, ["one"], [part], []) is not None
            mine.decisions.remove(listed)
            assert mine.metadata.staging() == [listed]
        wait_until(lambda: rows(client, "one") == [b"a", b"b"], "the decision to be appended")


def test_what_is_being_thrown_away_cannot_be_decided_any_more(tmp_path):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client, transactions(folder) as mine:
        client.create("one")
        part = staged(client, "app", 0, ("one", [b"a"]))
        (listed,) = mine.metadata.staging()
        assert mine.metadata.condemn_staging(listed)
        assert mine.commit(RUN, 0, ["one"], [part], is_last=False).state.name == "CHANGED"
        assert rows(client, "one") == []


def test_a_begin_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    with broker(folder) as served, connected(served) as client, transactions(folder) as mine:
        client.create("one")
        there = set(os.listdir(folder / "streams"))

        def full(draft):
            raise StorageError("ERR_DISK_FULL", "no room")

        monkeypatch.setattr(mine.metadata, "add_staging", full)
        with pytest.raises(StorageError):
            mine.begin(RUN, uuid.uuid4().hex, 0, ["one"])
        assert set(os.listdir(folder / "streams")) == there


def test_who_needs_room_for_an_application_gives_up_one_of_ones_own(tmp_path):
    with closing(Metadata(str(tmp_path / "meta.db"))) as metadata:
        with metadata.writing():
            for name, user, decided_ms in (("theirs", "other", 1), ("new", "me", 9), ("old", "me", 5)):
                metadata.put_application(Application("/", name, user, "", "", 0, (), 0, 0, decided_ms, user == "other"))
        assert metadata.application_to_forget("me", 4) is None
        assert metadata.application_to_forget("me", 3).name == "old"
        with metadata.writing():
            metadata.add_decision(metadata.application("/", "old"), 1, False, [], [])
        assert metadata.application_to_forget("me", 3).name == "new"
