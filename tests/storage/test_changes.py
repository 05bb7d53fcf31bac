# SPDX-License-Identifier: Apache-2.0
"""Metadata that belongs to a bucket: what is published, done to another database, is the same there."""

import json
import random
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count

import pytest

from vibemq.errors import MetadataRace, StorageError, UserExists, VibeMQError
from vibemq.storage import metadata as module
from vibemq.storage.changes import LOCAL, NumberTaken
from vibemq.storage.metadata import Metadata, restore
from vibemq.storage.transactions import Application, staging_arguments

CLUSTER = "00112233445566ff"
OWN = {"remote", "row_sums", "synced"}  # tables that no broker publishes


class Bucket(dict):
    """The meta/ objects, as JSON, as that is what lies there."""

    def publish(self, number, changes):
        body = json.dumps({"changes": changes})
        if (there := self.setdefault(number, body)) is not body:
            raise NumberTaken(number, json.loads(there))
        return 0

    def broker(self, path, name="a") -> Metadata:
        found = Metadata(str(path))
        found.bind(CLUSTER, name)
        found.publish = self.publish
        return found

    def catch_up(self, metadata):
        while metadata.binding().number + 1 in self:
            number = metadata.binding().number + 1
            assert metadata.apply(number, json.loads(self[number])["changes"])


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def paths(tmp_path) -> Iterator:
    def path():
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return directory / "meta.db"

    numbers = count()
    return iter(path, None)


@pytest.fixture
def pair(bucket, paths):
    """A bound database, and one of the same past that only applies."""
    first = Metadata(str(next(paths)))
    first.bind(CLUSTER, "a")
    snapshot = str(next(paths))
    first.snapshot_to(snapshot)
    first.publish = bucket.publish
    second = str(next(paths))
    restore(snapshot, second)
    other = Metadata(second)
    yield first, other
    first.close()
    other.close()


def dump(metadata) -> dict:
    """Every row of every table, but for what is this machine's alone."""
    with closing(sqlite3.connect(metadata.path)) as db:
        db.row_factory = sqlite3.Row
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: [dict(row) for row in db.execute(f"SELECT * FROM {name}")] for name in names if name not in OWN}
        for name, columns in LOCAL.items():
            found[name] = [{key: row[key] for key in row if key not in columns} for row in found[name]]
        return {name: sorted(rows, key=str) for name, rows in found.items()}


def stream(metadata, name, vhost="/", **more):
    return metadata.create_stream(vhost, name, {}, more.pop("durability", "os"), 1000, **more)


def application(name, version=-1, seen_ms=1, vhost="/"):
    return Application(vhost, name, "bob", "run", "peer", seen_ms, (), version, 0, 0, False)


def put(metadata, record):
    with metadata.writing():
        metadata.put_application(record)


# ---- what is done here is done there ----


def operations(metadata, rng: random.Random) -> dict:
    """One of each, with names of a small world, so that they meet; what cannot be raises."""
    name, vhost = rng.choice("abcd"), rng.choice(("/", "shop", "bank"))
    user, key = rng.choice(("bob", "eve", "ünd\x01")), rng.choice(("k", 'q"', "ö"))

    def staging():
        arguments = staging_arguments(vhost, name, rng.randrange(3), "run", ["aa"])
        draft = metadata.draft_staging(f"t{name}", arguments, rng.choice(("os", "remote")))
        with metadata.writing():
            metadata.put_application(application(name, vhost=vhost, seen_ms=rng.randrange(99)))
            metadata.add_staging(draft)

    def decide():
        known = metadata.application(vhost, name) or application(name, vhost=vhost)
        with metadata.writing(synced=True):
            metadata.put_application(known)
            metadata.add_decision(known, rng.randrange(9), True, [[name, "aa", 1]], [["t", "bb", 2]])

    def of_decision(what):
        return [what(decision) for decision in metadata.decisions()[:1]]

    def of_staging(what):
        return [what(record) for record in metadata.staging()[:1]]

    def forget():
        if goes := metadata.application(vhost, name):
            with metadata.writing():
                metadata.forget_application(goes)

    def supers():
        parts = [(f"{name}-{n}", str(n)) for n in range(3)]
        metadata.create_super_stream(vhost, f"super{name}", parts, {}, "remote", 1000, lambda record: None)

    return {
        "stream": lambda: stream(metadata, name, vhost, durability=rng.choice(("os", "disk", "remote"))),
        "queue": lambda: stream(metadata, name, vhost, queue={"max_messages": rng.randrange(9)}),
        "super": supers,
        "delete": lambda: metadata.delete_stream(vhost, name),
        "set queue": lambda: metadata.set_queue(vhost, name, {"prefetch": 3}),
        "alter": lambda: metadata.alter_queue(vhost, name, lambda had: {**had, "prefetch": rng.randrange(9)}),
        "own": lambda: metadata.own_all("a", rng.randrange(9)),
        "user": lambda: metadata.add_user(user, "hash"),
        "superuser": lambda: metadata.add_first_superuser(user, "hash", "proof"),
        "put user": lambda: metadata.put_user(user, ("x",), rng.choice((None, "other"))),
        "tags": lambda: metadata.set_tags(user, ("y", str(rng.random()))),
        "password": lambda: metadata.change_password(user, "new", "proof"),
        "is super": lambda: metadata.set_superuser(user, rng.random() < 0.5),
        "delete user": lambda: metadata.delete_user(user, superusers_too=rng.random() < 0.5),
        "grant": lambda: metadata.grant(user, name, [rng.randrange(5)]),
        "revoke": lambda: metadata.revoke(user, name),
        "guest": lambda: metadata.set_guest_removed(rng.random() < 0.5),
        "guest's": lambda: stream(metadata, name, vhost, user="guest"),
        "limits": lambda: metadata.set_limits(
            "user", rng.choice((user, "guest")), {"max-queues": rng.randrange(-1, 9)}
        ),
        "vhost": lambda: metadata.add_vhost(vhost, "what", (name,)),
        "delete vhost": lambda: metadata.delete_vhost(vhost),
        "vhost right": lambda: metadata.set_permissions(vhost, user, ".*", name, ""),
        "no vhost right": lambda: metadata.clear_permissions(vhost, user),
        "exchange": lambda: metadata.add_exchange(vhost, name, {"x-super-stream": True}),
        "delete exchange": lambda: metadata.delete_exchange(vhost, name),
        "bind": lambda: metadata.add_binding(vhost, name, rng.choice("abcd"), key, {"n": 1}),
        "unbind": lambda: metadata.delete_binding(vhost, name, rng.choice("abcd"), key, {"n": 1}),
        "policy": lambda: metadata.set_policy(vhost, name, ".*", {"max-age": "1h"}, rng.randrange(3)),
        "no policy": lambda: metadata.clear_policy(vhost, name),
        "staging": staging,
        "decide": decide,
        "settle": lambda: of_decision(lambda made: metadata.settle_targets(made, [[name, "", 1]])),
        "end": lambda: of_decision(lambda made: metadata.end_decision(made, 5)),
        "condemn": lambda: of_staging(metadata.condemn_staging),
        "forget staging": lambda: of_staging(metadata.forget_staging),
        "forget": forget,
    }


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_done_is_the_same_in_a_database_that_applies_it(pair, bucket, seed):
    first, other = pair
    rng, done = random.Random(seed), set()
    for _ in range(400):
        name, work = rng.choice(list(operations(first, rng).items()))
        with suppress(VibeMQError):
            work()
            done.add(name)
        if rng.random() < 0.05:
            bucket.catch_up(other)
            assert dump(other) == dump(first)
    first.add_vhost("empty", "", ())  # and what seldom meets the names that it needs
    first.add_user("own", "hash")
    first.set_permissions("empty", "own", "", "", "")
    first.add_exchange("empty", "x", {})
    first.set_policy("empty", "p", ".*", {"max-age": "1h"})
    stream(first, "s", "empty")
    first.add_binding("empty", "x", "s", "k", {})
    first.delete_stream("empty", "s")
    first.delete_vhost("empty")
    bucket.catch_up(other)
    assert dump(other) == dump(first)
    assert other.binding() == first.binding() and len(bucket) == first.binding().number > 100
    assert len(done) > 30


def test_cascades_are_done_once(pair, bucket):
    first, other = pair
    first.add_vhost("shop", "", ())
    first.add_exchange("shop", "x", {})
    stream(first, "s", "shop")
    first.add_binding("shop", "x", "s", "k", {})
    first.delete_stream("shop", "s")
    tables = sorted(change[1] for change in json.loads(bucket[len(bucket)])["changes"])
    assert tables == ["bindings", "streams"]
    bucket.catch_up(other)
    assert dump(other) == dump(first) and not other.bindings()


def test_a_key_goes_as_it_is(pair, bucket):
    first, other = pair
    key = bytes(range(32))
    with first._writing(synced=True) as db:
        db.execute("UPDATE accounts SET token_key = ?", (key,))
    bucket.catch_up(other)
    assert other.token_key() == key


def test_new_streams_are_this_brokers_and_others_are_when_it_is_said(bucket, paths):
    path = next(paths)
    metadata = Metadata(str(path))
    stream(metadata, "before")
    metadata.bind(CLUSTER, "a")
    metadata.publish = bucket.publish
    stream(metadata, "since", durability="remote")

    def owners():
        return metadata._rows("SELECT name, owner, owner_epoch FROM streams ORDER BY slot")

    assert owners() == [("before", "", 0), ("since", "a", 0)]
    assert metadata.own_all("a", 3) == 1
    assert owners() == [("before", "a", 3), ("since", "a", 0)]


# ---- what is published, and what is not ----


def test_what_changes_nothing_costs_nothing(pair, bucket):
    first, _ = pair
    first.add_exchange("/", "x", {})
    put(first, application("app"))
    had = len(bucket)
    first.add_exchange("/", "x", {})
    put(first, application("app", seen_ms=99))  # the sight of a run
    with pytest.raises(StorageError, match="no"):
        stream(first, "s", prepare=_refuse)
    assert len(bucket) == had
    assert first.application("/", "app").seen_ms == 99
    put(first, application("app", version=1))
    assert len(bucket) == had + 1


def _refuse(record):
    raise StorageError("ERR_DISK_FULL", "no")


def test_without_a_bucket_nothing_watches(paths):
    metadata = Metadata(str(next(paths)))
    metadata.publish = None
    stream(metadata, "s")
    assert metadata.binding() is None
    assert metadata._rows("SELECT * FROM temp.sqlite_master WHERE name NOT LIKE 'row_sums%'") == []
    with pytest.raises(StorageError, match="belongs to no bucket"):
        metadata.apply(1, [])


def test_where_nobody_publishes_only_reading_works(bucket, paths):
    path = next(paths)
    stream(bucket.broker(path), "s")
    stopped = Metadata(str(path))
    assert stopped.find_stream("/", "s")
    with pytest.raises(StorageError, match=f"belongs to the bucket of cluster {CLUSTER}.*running broker") as raised:
        stopped.add_user("bob", "hash")
    assert "start the broker" in raised.value.hint
    assert not stopped.users() and len(bucket) == 1


def test_who_had_it_open_before_it_was_bound_publishes_too(bucket, paths):
    path = str(next(paths))
    early = Metadata(path)
    early.publish = bucket.publish
    stream(early, "before")
    binder = Metadata(path)
    binder.bind(CLUSTER, "a")
    stream(early, "s")
    assert len(bucket) == 1


def test_a_database_is_of_one_cluster(paths):
    metadata = Metadata(str(next(paths)))
    metadata.bind(CLUSTER, "a")
    metadata.bind(CLUSTER, "b")
    assert metadata.binding() == (CLUSTER, "b", 0, 0)
    with pytest.raises(StorageError, match=f"bucket of cluster {CLUSTER}, and not of ffff"):
        metadata.bind("ffff", "a")


# ---- in order, once ----


def test_changes_are_applied_in_order_and_once(pair, bucket):
    first, other = pair
    assert first.add_first_superuser("bob", "hash") is True
    assert first.add_first_superuser("eve", "hash") is False  # asked at each start, and no change
    stream(first, "t")
    changes = {number: json.loads(body)["changes"] for number, body in bucket.items()}
    with pytest.raises(StorageError, match="change 1 of the metadata is needed next, and there is 2"):
        other.apply(2, changes[2])
    assert other.apply(1, changes[1]) is True
    assert other.apply(1, changes[1]) is False
    assert other.apply(2, changes[2]) is True
    assert dump(other) == dump(first)


def test_what_was_published_and_not_committed_comes_back(bucket, paths):
    class Killed(BaseException):
        pass

    def publish(number, changes):
        bucket.publish(number, changes)
        raise Killed

    metadata = bucket.broker(next(paths))
    metadata.publish = publish
    with pytest.raises(Killed):
        metadata.add_user("bob", "hash")
    assert metadata.binding().number == 0 and not metadata.users() and len(bucket) == 1
    bucket.catch_up(metadata)
    assert metadata.binding().number == 1 and metadata.users()
    # And without: whoever publishes next notices.
    with pytest.raises(Killed):
        metadata.add_user("eve", "hash")
    metadata.publish = bucket.publish
    with pytest.raises(UserExists):
        metadata.add_user("eve", "hash")


def test_a_commit_that_fails_here_after_it_was_published_is_made_good(bucket, paths, monkeypatch):
    metadata = bucket.broker(next(paths))
    real, failing = metadata._publish, []

    def publish(db):
        made = real(db)
        db.execute("ROLLBACK")  # as SQLite does of itself on a full disk
        failing.append(made)
        return made

    monkeypatch.setattr(metadata, "_publish", publish)
    metadata.add_user("bob", "hash")
    assert failing and [user.name for user in metadata.users()] == ["bob"] and metadata.binding().number == 1


def test_what_another_broker_did_first_is_applied_and_the_request_looked_at_again(pair, bucket):
    first, other = pair
    other.publish = bucket.publish
    first.add_user("bob", "hash")
    first.add_user("eve", "hash")
    assert other.add_user("ann", "hash") is False  # bob was first; lost twice, and done
    bucket.catch_up(first)
    assert dump(first) == dump(other) and len(bucket) == 3
    first.put_user("ann", ("x",), None)
    with pytest.raises(UserExists):
        first.add_user("ann", "hash")
    with pytest.raises(MetadataRace, match="at the same moment"):  # what makes files is not done again by itself
        stream(other, "s")
    stream(other, "s")
    assert other.find_user("ann").tags == ("x",)


def test_brokers_that_write_at_once_have_one_history(pair, bucket):
    def write(metadata, name):
        for n in range(30):
            while True:
                with suppress(MetadataRace):
                    metadata.add_user(f"{name}{n}", "hash", is_superuser=False)
                    break
        metadata.close()

    pair[1].publish = bucket.publish
    threads = [threading.Thread(target=write, args=of) for of in zip((*pair, *pair), "abcd", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for metadata in pair:
        bucket.catch_up(metadata)
    assert dump(pair[0]) == dump(pair[1]) and len(pair[0].users()) == len(bucket) == 120


def test_what_the_store_refuses_is_not_committed(bucket, paths):
    metadata = bucket.broker(next(paths))

    def away(number, changes):
        raise StorageError("ERR_IO", "the store is away")

    metadata.publish = away
    with pytest.raises(StorageError, match="away"):
        metadata.add_user("bob", "hash")
    assert not metadata.users()
    metadata.publish = bucket.publish
    metadata.add_user("eve", "hash")
    assert len(json.loads(bucket[1])["changes"]) == 2  # nothing is left of the first


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (None, "a list is needed"),
        (["x"], "no change of a row"),
        ([["insert", "nothing", {"x": 1}]], "table 'nothing', which this VibeMQ does not know"),
        ([["insert", "remote", {"cluster": "x"}]], "does not know"),
        ([["update", "users", {"name": "bob"}, {"shoes": 1}]], "column 'shoes' of table 'users'"),
        ([["update", "users", {"name": "bob"}, {"tags": "[]"}]], "another past"),
        ([["insert", "users", {"name": "bob"}]], "another past"),
        ([["update", "accounts", {"rowid": 1}, {"token_key": "zz"}]], "hex digits"),
        ([["update", "users", {"name": []}, {"tags": "[]"}]], "no value of a column"),
        ([["update", "accounts", {"rowid": 1}, {"changes": 2**70}]], "another past"),
        ([["delete", "users", {}]], "no change of a row"),
    ],
)
def test_what_cannot_be_applied_is_refused_whole(pair, changes, said):
    _, other = pair
    before = dump(other)
    more = [["update", "accounts", {"rowid": 1}, {"changes": 7}], *changes] if changes else changes
    with pytest.raises(StorageError, match=said):
        other.apply(1, more)
    assert dump(other) == before and other.binding().number == 0


# ---- snapshots ----


def test_a_snapshot_is_of_one_moment_while_others_write(bucket, paths):
    path = next(paths)
    metadata = bucket.broker(path)
    is_over = threading.Event()

    def write():
        mine = Metadata(str(path))
        mine.publish = bucket.publish
        for number in count():
            stream(mine, f"s{number}")
            if is_over.is_set():
                mine.close()
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        snapshots = [str(next(paths)) for _ in range(5)]
        for snapshot in snapshots:
            metadata.snapshot_to(snapshot)
    finally:
        is_over.set()
        writer.join()
    for snapshot in snapshots:
        target = next(paths)
        restore(snapshot, str(target))
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        found = Metadata(str(target))
        assert len(list(found.streams())) == found.binding().number
        bucket.catch_up(found)
        assert dump(found) == dump(metadata)
        found.close()


def test_a_restore_refuses_what_it_cannot_use(bucket, paths, tmp_path):
    metadata = bucket.broker(next(paths))
    snapshot = str(next(paths))
    metadata.snapshot_to(snapshot)
    with pytest.raises(StorageError, match="File exists"):
        metadata.snapshot_to(snapshot)
    with pytest.raises(StorageError, match="not written over"):
        restore(snapshot, metadata.path)
    target = next(paths)
    target.with_name("meta.db-wal").touch()
    with pytest.raises(StorageError, match=r"meta\.db-wal is there already"):
        restore(snapshot, str(target))
    with closing(sqlite3.connect(snapshot)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="schema version 99") as raised:
        restore(snapshot, str(next(paths)))
    assert "newer" in raised.value.hint
    (tmp_path / "rubbish").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="no snapshot"):
        restore(str(tmp_path / "rubbish"), str(next(paths)))
    unbound = Metadata(str(next(paths)))
    unbound.users()
    snapshot = str(next(paths))
    unbound.snapshot_to(snapshot)
    with pytest.raises(StorageError, match="belongs to no bucket"):
        restore(snapshot, str(next(paths)))


# ---- other versions ----


def test_a_snapshot_and_changes_of_an_older_version_are_taken(bucket, paths, monkeypatch):
    metadata = bucket.broker(next(paths))
    stream(metadata, "s")
    snapshot, target = str(next(paths)), str(next(paths))
    metadata.snapshot_to(snapshot)
    stream(metadata, "t")
    metadata.delete_stream("/", "s")
    more = "ALTER TABLE streams ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'; CREATE TABLE extra (x INTEGER);"
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, more))
    restore(snapshot, target)
    newer = Metadata(target)
    bucket.catch_up(newer)
    assert newer._rows("SELECT name, colour FROM streams") == [("t", "blue")]
    newer.publish = bucket.publish
    with newer._writing(synced=False) as db:
        db.execute("INSERT INTO extra VALUES (1)")
        db.execute("UPDATE streams SET colour = 'red'")
    with pytest.raises(StorageError, match="does not know") as raised:
        bucket.catch_up(metadata)
    assert raised.value.code == "ERR_VERSION" and metadata.binding().number == 3


def test_a_database_of_before_buckets_keeps_all_it_has(paths, monkeypatch):
    path = str(next(paths))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        for script in module.MIGRATIONS[:7]:
            db.executescript(script)
        db.executescript("""
            INSERT INTO streams (slot, vhost, name, incarnation, durability, arguments, created_ms, queue, altered)
            VALUES (0, '/', 'a', 'aa', 'os', '{}', 1, NULL, 0), (5, '/', 'b', 'bb', 'disk', '{}', 2, '{}', 3);
            INSERT INTO users (name, password_hash, tags, created_ms) VALUES ('bob', 'hash', '[]', 4);
            INSERT INTO permissions VALUES (1, 'bob', '.*', '[1]', 5);
            INSERT INTO vhost_permissions VALUES ('/', 'bob', '', '', '.*');
            INSERT INTO exchanges VALUES ('/', 'x', '{}', 6);
            INSERT INTO bindings VALUES (1, '/', 'x', 'b', 'k', '{}', NULL);
            INSERT INTO policies VALUES ('/', 'p', '.*', '{}', 0, 'all');
            INSERT INTO applications VALUES ('/', 'app', 'bob', 'r', 'p', 1, '[]', 2, 3, 4, 0);
            INSERT INTO decisions VALUES (1, '/', 'app', 2, 1, '[]', '[]', 7);
            PRAGMA user_version = 7;
        """)
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert all(db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in names)
    metadata = Metadata(path)
    with closing(sqlite3.connect(path)) as db:
        before = dump(metadata)
        indexes = set(db.execute("SELECT name FROM sqlite_master WHERE type = 'index'"))
    metadata.users()
    added = {"owner": "", "owner_epoch": 0}
    built_in: dict[str, list] = {"built_in_limits": [], "built_in_creators": []}
    new: dict[str, list] = {"user_limits": [], "vhost_limits": [], "creators": [], **built_in}
    of_streams = [{**row, **added} for row in before["streams"]]
    of_applications = [{**row, "targets": "[]"} for row in before["applications"]]
    expected = {**before, **new, "streams": of_streams, "applications": of_applications}
    assert {name: [dict(sorted(row.items())) for row in rows] for name, rows in dump(metadata).items()} == {
        name: sorted((dict(sorted(row.items())) for row in rows), key=str) for name, rows in expected.items()
    }
    with closing(sqlite3.connect(path)) as db:
        assert indexes <= set(db.execute("SELECT name FROM sqlite_master WHERE type = 'index'"))
        assert not db.execute("PRAGMA foreign_key_check").fetchall()
    assert metadata.find_stream("/", "b").durability == "disk"
    stream(metadata, "c", durability="remote")
    for insert in (
        f"INSERT INTO streams (slot, vhost, name, incarnation, durability, arguments, created_ms) VALUES {row}"
        for row in (
            "(9, '/', 'z', 'zz', 'tape', '{}', 1)",  # CHECK
            "(9, '/', 'z', 'bb', 'os', '{}', 1)",  # UNIQUE
            "(9, '/', 'b', 'zz', 'os', '{}', 1)",
            "(70000, '/', 'z', 'zz', 'os', '{}', 1)",
        )
    ):
        with pytest.raises(StorageError), metadata._writing(synced=False) as db:
            db.execute(insert)
    metadata.delete_stream("/", "b")
    assert metadata.bindings() == []
