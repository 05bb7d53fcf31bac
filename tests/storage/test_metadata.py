# SPDX-License-Identifier: Apache-2.0
"""Streams in SQLite: what is unique, what is reused, what survives, who may share it."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from running import ENVIRONMENT

from vibemq.errors import LimitExceeded, StorageError, StreamExists, StreamNotFound
from vibemq.storage import metadata as module
from vibemq.storage.metadata import Metadata


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def create(metadata, name, **changes):
    options = {"arguments": {}, "durability": "os", "streams_max": 65536, **changes}
    return metadata.create_stream("/", name, **options)


def test_a_stream_is_found_as_it_was_created(metadata, tmp_path):
    made = create(metadata, "orders", arguments={"max-age": "1h", "x": "ü"}, durability="disk")
    assert metadata.find_stream("/", "orders") == made
    assert made.arguments == {"max-age": "1h", "x": "ü"}
    assert made.directory == str(tmp_path / "streams" / made.incarnation)
    assert len(made.incarnation) == 16
    assert metadata.find_stream("/other", "orders") is None
    assert metadata.find_stream("/", "Orders") is None


def test_a_second_stream_of_the_name_is_refused_with_the_first(metadata):
    made = create(metadata, "orders")
    with pytest.raises(StreamExists) as raised:
        create(metadata, "orders", arguments={"max-age": "1h"})
    assert raised.value.record == made


def test_the_lowest_free_slot_is_used_again(metadata):
    assert [create(metadata, f"s{n}").slot for n in range(5)] == [0, 1, 2, 3, 4]
    for name in ("s3", "s1"):
        metadata.delete_stream("/", name)
    assert [create(metadata, name).slot for name in ("a", "b", "c")] == [1, 3, 5]
    metadata.delete_stream("/", "s0")
    assert create(metadata, "d").slot == 0


def test_a_stream_made_again_has_another_directory(metadata):
    first = create(metadata, "orders")
    assert metadata.delete_stream("/", "orders") == first
    assert create(metadata, "orders").incarnation != first.incarnation


def test_deleting_what_is_not_there(metadata):
    with pytest.raises(StreamNotFound, match="no stream 'orders' in vhost '/'"):
        metadata.delete_stream("/", "orders")


def test_the_limit_says_what_to_do(metadata):
    create(metadata, "one", streams_max=1)
    with pytest.raises(LimitExceeded, match=r"cannot create stream 'two'.*2, at most 1") as raised:
        create(metadata, "two", streams_max=1)
    assert "store.streams_max" in raised.value.hint


def test_what_prepare_refuses_is_not_recorded(metadata):
    seen = []

    def prepare(record):
        seen.append(record)
        raise StorageError("ERR_DISK_FULL", "no space")

    with pytest.raises(StorageError, match="no space"):
        create(metadata, "orders", prepare=prepare)
    assert metadata.find_stream("/", "orders") is None
    assert create(metadata, "orders").slot == seen[0].slot


def test_all_streams_come_in_pages_by_slot(metadata, monkeypatch):
    for n in range(module.PAGE_ROWS + 3):
        create(metadata, f"s{n}")
    assert [record.slot for record in metadata.streams()] == list(range(module.PAGE_ROWS + 3))


def test_a_stream_is_made_in_as_many_steps_with_thousands_of_others_as_with_few(metadata, tmp_path):
    steps = 0

    def count():
        nonlocal steps
        steps += 1
        return 0

    def steps_of(name):
        nonlocal steps
        with metadata._reading() as db:
            db.set_progress_handler(count, 10)
            steps = 0
            create(metadata, name)
            db.set_progress_handler(None, 0)
        return steps

    for number in range(50):
        create(metadata, f"few-{number}")
    few = steps_of("one more than few")
    partitions = [(f"many-{number}", str(number)) for number in range(5000)]
    other = Metadata(str(tmp_path / "meta.db"))  # of another process, which has taken all these slots
    other.create_super_stream("/", "many", partitions, {}, "os", 65536, lambda record: None)
    other.close()
    create(metadata, "behind them")
    assert steps_of("one more than many") < 2 * few


def test_a_limit_below_the_slots_in_use_counts_streams(metadata):
    for name in "abc":
        create(metadata, name)
    metadata.delete_stream("/", "a")
    assert create(metadata, "d", streams_max=3).slot == 0
    with pytest.raises(LimitExceeded):
        create(metadata, "e", streams_max=3)


def test_many_processes_create_without_sharing_a_slot(metadata, tmp_path):
    def work(worker):
        mine = Metadata(str(tmp_path / "meta.db"))
        for n in range(25):
            create(mine, f"w{worker}-{n}", durability=("os", "disk")[n % 2])

    metadata.users()  # the schema exists
    metadata.close()
    processes = [multiprocessing.get_context("fork").Process(target=work, args=(n,)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert [record.slot for record in metadata.streams()] == list(range(100))


def test_a_process_killed_in_the_middle_of_a_creation_leaves_nothing(metadata, tmp_path):
    def work():
        create(Metadata(str(tmp_path / "meta.db")), "orders", prepare=lambda _: os.kill(os.getpid(), signal.SIGKILL))

    metadata.users()
    metadata.close()
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert metadata.find_stream("/", "orders") is None
    assert create(metadata, "orders").slot == 0


def test_a_connection_from_before_a_fork_is_refused(metadata):
    create(metadata, "orders")
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            metadata.find_stream("/", "orders")
        except RuntimeError as problem:
            os.write(writes, str(problem).encode())
        finally:
            os._exit(0)  # without closing the connection that is not ours
    os.close(writes)
    os.waitpid(pid, 0)
    with os.fdopen(reads) as file:
        assert "opened before a fork" in file.read()
    assert metadata.find_stream("/", "orders")


def test_each_thread_has_its_own_connection(metadata):
    create(metadata, "orders")
    found = []
    thread = threading.Thread(target=lambda: (found.append(metadata.find_stream("/", "orders")), metadata.close()))
    thread.start()
    thread.join()
    assert found == [metadata.find_stream("/", "orders")]


def test_a_disk_stream_is_synced_and_others_are_not(metadata):
    metadata.users()
    levels = []
    db = metadata._connection()
    for durability in ("os", "disk"):
        create(
            metadata,
            durability,
            durability=durability,
            prepare=lambda _: levels.append(db.execute("PRAGMA synchronous").fetchone()[0]),
        )
    normal, full = 1, 2
    assert levels == [normal, full]
    assert db.execute("PRAGMA synchronous").fetchone()[0] == normal


def test_other_accounts_cannot_read_the_file(metadata, tmp_path):
    old = os.umask(0)
    try:
        metadata.add_user("bob", "hash")
    finally:
        os.umask(old)
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("meta.db*"))


def test_a_newer_schema_is_refused_with_a_sentence(metadata, tmp_path):
    metadata.users()
    metadata.close()
    with sqlite3.connect(tmp_path / "meta.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StorageError, match="schema version 99") as raised:
        metadata.users()
    assert "newer VibeMQ" in raised.value.hint


def test_a_file_that_is_no_database_is_an_error_with_its_path(tmp_path):
    (tmp_path / "meta.db").write_text("this is not a database, however long one reads in it" * 100)
    with pytest.raises(StorageError, match=r"meta\.db: ") as raised:
        Metadata(str(tmp_path / "meta.db")).users()
    assert raised.value.code == "ERR_CORRUPT"


def test_migrations_run_in_order_from_any_version(tmp_path, monkeypatch):
    path = str(tmp_path / "meta.db")
    old = Metadata(path)
    old.add_user("bob", "hash")
    old.close()
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, "CREATE TABLE extra (x INTEGER);"))
    new = Metadata(path)
    assert [user.name for user in new.users()] == ["bob"]
    assert new._connection().execute("SELECT COUNT(*) FROM extra").fetchone() == (0,)
    new.close()


def test_threads_and_processes_that_come_and_go_lose_nothing_of_each_other(tmp_path):
    # A connection opened in one thread must not drop the locks that another thread's connection holds:
    # another process would then take itself for the last one and remove the journal beneath it.
    path = str(tmp_path / "meta.db")
    metadata = Metadata(path)
    visitor = "from vibemq.storage.metadata import Metadata\n"
    visitor += "for _ in range(40):\n m = Metadata(%r); list(m.streams()); m.close()"

    def create_and_delete(number):
        for turn in range(60):
            metadata.create_stream("/", f"s-{number}-{turn}", {}, "os", 65536)
        for turn in range(60):
            metadata.delete_stream("/", f"s-{number}-{turn}")
        metadata.close()

    visitors = [subprocess.Popen([sys.executable, "-c", visitor % path], env=ENVIRONMENT) for _ in range(2)]
    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(create_and_delete, number) for number in range(12)]:
            done.result()
    assert [process.wait(60) for process in visitors] == [0, 0]
    assert list(Metadata(path).streams()) == []
