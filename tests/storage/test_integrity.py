# SPDX-License-Identifier: Apache-2.0
"""Damage of meta.db, its write-ahead log and its check is named at the start; no answered change is undone."""

import os
import random
import shutil
import sqlite3
import struct

import pytest

from vibemq.errors import StorageError
from vibemq.storage import integrity, wal
from vibemq.storage.metadata import Metadata

BOOT, OTHER_BOOT = "this boot", "another boot"
FRAME_BYTES = 24 + 4096


def change(metadata: Metadata) -> None:
    """Make some answered changes of each kind."""
    for number in range(8):
        metadata.add_user(f"user{number}", f"$scrypt$hash-of-{number}", is_superuser=number == 0)
        metadata.grant(f"user{number}", f"orders.{number}.*", [0, 1])
        metadata.create_stream("/", f"stream{number}", {"max-age": f"{number}h"}, "os", 100, queue={"max_messages": 9})
        metadata.set_permissions("/", f"user{number}", "", f"^own{number}$", ".*")
    metadata.revoke("user3", "orders.3.*")


def rights(metadata: Metadata) -> tuple:
    users = metadata.users()
    return users, metadata.vhost_permissions(), [metadata.permissions(user.name) for user in users]


def content(metadata: Metadata) -> tuple:
    return rights(metadata), [(record.name, record.arguments, record.queue) for record in metadata.streams()]


@pytest.fixture
def killed(tmp_path):
    """Return a directory as processes leave it that are killed in the boot in which they wrote, and its content."""
    live = tmp_path / "live"
    live.mkdir()
    metadata = Metadata(str(live / "meta.db"))
    metadata.begin_serving(BOOT)
    change(metadata)
    shutil.copytree(live, tmp_path / "killed")
    was = content(metadata)
    metadata.close()
    assert (tmp_path / "killed" / "meta.db-wal").stat().st_size > 20 * FRAME_BYTES
    return tmp_path / "killed", was


@pytest.fixture
def stopped(tmp_path):
    """A directory after an orderly stop, and its content."""
    folder = tmp_path / "stopped"
    folder.mkdir()
    metadata = Metadata(str(folder / "meta.db"))
    metadata.begin_serving(BOOT)
    change(metadata)
    was = content(metadata)
    assert metadata.rest()
    return folder, was


def started(folder, boot: str) -> Metadata:
    """Check and open as the supervisor and the commands do.  Raises StorageError."""
    metadata = Metadata(str(folder / "meta.db"))
    try:
        metadata.require_whole(boot)
        metadata.require_access()
    except StorageError:
        metadata.close()
        raise
    return metadata


def flip(path, at: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("boot", [BOOT, OTHER_BOOT])
def test_a_killed_broker_starts_with_every_change(killed, boot):
    folder, was = killed
    metadata = started(folder, boot)
    assert content(metadata) == was
    metadata.close()


def test_an_orderly_stop_leaves_one_file_and_its_digest_matches(stopped):
    folder, was = stopped
    assert sorted(path.name for path in folder.iterdir()) == ["meta.check", "meta.db"]
    metadata = started(folder, BOOT)
    assert content(metadata) == was
    metadata.close()


@pytest.mark.parametrize("boot", [BOOT, OTHER_BOOT])
def test_no_flipped_bit_of_the_log_undoes_a_change_silently(killed, tmp_path, boot):
    folder, _ = killed
    size = (folder / "meta.db-wal").stat().st_size
    dice = random.Random(10)
    places = [
        *range(32),
        *range(32, 56),
        1000,
        *(dice.randrange(size) for _ in range(40)),
        size - FRAME_BYTES + 5,
        size - 1,
    ]
    for at in places:
        bit = dice.randrange(8)
        copy = tmp_path / "damaged"
        shutil.copytree(folder, copy)
        flip(copy / "meta.db-wal", at, bit)
        before = {path.name: path.read_bytes() for path in copy.iterdir()}
        with pytest.raises(StorageError, match=r"meta\.db-wal is damaged") as refused:
            started(copy, boot)
        assert "backup" in refused.value.hint and "to accept" in refused.value.hint, (at, bit)
        assert {path.name: path.read_bytes() for path in copy.iterdir()} == before, (at, bit)
        if boot == OTHER_BOOT and at >= 32:
            assert "by one flipped bit" in str(refused.value), (at, bit)
        shutil.rmtree(copy)


def test_a_log_that_is_missing_or_cut_in_this_boot_is_named(killed):
    folder, _ = killed
    os.truncate(folder / "meta.db-wal", (folder / "meta.db-wal").stat().st_size - 10)
    with pytest.raises(StorageError, match="frames were committed"):
        started(folder, BOOT)
    os.unlink(folder / "meta.db-wal")
    with pytest.raises(StorageError, match="they are missing"):
        started(folder, BOOT)


@pytest.mark.parametrize("boot", [BOOT, OTHER_BOOT])
def test_accepting_the_loss_of_the_log_restores_no_revoked_right(killed, boot):
    folder, _ = killed
    for name in ("meta.db-wal", "meta.db-shm"):
        os.unlink(folder / name)
    with pytest.raises(StorageError, match="changes of users and permissions were answered, and only 0") as refused:
        started(folder, boot)
    assert f"move {folder}/meta.check to another folder" in refused.value.hint
    os.unlink(folder / "meta.check")
    metadata = started(folder, boot)
    assert metadata.users() == []
    metadata.close()


def test_the_remains_of_unsynced_changes_after_a_power_cut_are_no_damage(killed):
    folder, was = killed
    live = Metadata(str(folder / "meta.db"))
    live.create_stream("/", "unsynced", {}, "os", 100)
    frames = (folder / "meta.db-wal").stat().st_size // FRAME_BYTES
    live.create_stream("/", "behind", {}, "os", 100)
    copy = folder.with_name("cut")
    shutil.copytree(folder, copy)
    live.close()
    with open(copy / "meta.db-wal", "r+b") as file:  # written back in another order
        file.seek(32 + (frames - 1) * FRAME_BYTES)
        file.write(bytes(FRAME_BYTES))
    with pytest.raises(StorageError, match="frames were committed"):  # in the same boot this would be damage
        started(copy, BOOT)
    metadata = started(copy, OTHER_BOOT)
    assert rights(metadata) == was[0]
    metadata.close()


def test_frames_of_a_commit_that_was_killed_or_rolled_back_are_no_damage(killed):
    folder, was = killed
    path = folder / "meta.db-wal"
    log = path.read_bytes()
    shm = (folder / "meta.db-shm").read_bytes()
    committed = struct.unpack_from("=I", shm, 16)[0]
    assert 32 + committed * FRAME_BYTES == len(log)
    path.write_bytes(log + log[32 + FRAME_BYTES : 32 + 4 * FRAME_BYTES])  # with these salts, and wrong checksums
    metadata = started(folder, BOOT)
    assert content(metadata) == was
    metadata.close()


def test_no_flipped_bit_of_the_database_is_served_after_an_orderly_stop(stopped, tmp_path):
    folder, _ = stopped
    size = (folder / "meta.db").stat().st_size
    dice = random.Random(11)
    for _ in range(40):
        at, bit, copy = dice.randrange(size), dice.randrange(8), tmp_path / "damaged"
        shutil.copytree(folder, copy)
        flip(copy / "meta.db", at, bit)
        with pytest.raises(StorageError, match=r"meta\.db is damaged") as refused:
            started(copy, BOOT)
        assert "restore" in refused.value.hint, (at, bit)
        shutil.rmtree(copy)


def test_no_flipped_bit_of_the_database_gives_a_right_after_a_kill(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    metadata = Metadata(str(folder / "meta.db"))
    metadata.begin_serving(BOOT)
    change(metadata)
    was = rights(metadata)
    metadata.close()  # the log is carried over, and no digest of the whole file is kept
    raw = (folder / "meta.db").read_bytes()
    dice = random.Random(12)
    named = [raw.index(text) + 3 for text in (b"$scrypt$hash-of-3", b"orders.4.*", b"^own5$")]
    for at in [*named, *(dice.randrange(len(raw)) for _ in range(60))]:
        flip(folder / "meta.db", at, bit := dice.randrange(8))
        try:
            damaged = started(folder, OTHER_BOOT)
        except StorageError as problem:
            assert "meta.db" in str(problem) and problem.hint, (at, bit)
        else:
            assert at not in named
            assert rights(damaged) == was, (at, bit)
            damaged.close()
        (folder / "meta.db").write_bytes(raw)
        for name in ("meta.db-wal", "meta.db-shm"):
            (folder / name).unlink(missing_ok=True)


def test_a_directory_that_had_users_never_starts_as_if_it_had_none(stopped):
    folder, _ = stopped
    (folder / "meta.db").rename(folder / "away")
    with pytest.raises(StorageError, match=r"meta\.db is missing, and .*meta.check says"):
        started(folder, BOOT)
    Metadata(str(folder / "meta.db")).users()  # a database without any
    with pytest.raises(StorageError, match="later ones are lost; nobody is let in"):
        started(folder, BOOT)


def test_the_last_user_may_be_deleted_in_order(stopped):
    folder, _ = stopped
    metadata = started(folder, BOOT)
    for user in metadata.users():
        metadata.delete_user(user.name)
    assert metadata.rest()
    metadata = started(folder, BOOT)
    assert metadata.users() == []
    metadata.close()


def test_an_older_database_put_in_the_place_of_a_newer_is_refused(stopped):
    folder, _ = stopped
    shutil.copy(folder / "meta.db", folder / "older")
    metadata = started(folder, BOOT)
    metadata.revoke("user4", "orders.4.*")
    metadata.close()
    shutil.copy(folder / "older", folder / "meta.db")
    with pytest.raises(StorageError, match="later ones are lost"):
        started(folder, BOOT)


def test_a_database_of_a_version_without_a_check_is_accepted_once(stopped):
    folder, was = stopped
    os.unlink(folder / "meta.check")
    metadata = started(folder, BOOT)
    assert content(metadata) == was
    metadata.close()
    assert integrity.read(str(folder / "meta.db")).changes == 25


def test_a_commit_without_its_check_before_it_is_accepted(stopped, monkeypatch):
    folder, _ = stopped
    metadata = started(folder, BOOT)
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "note_access", lambda *_, **__: None)  # killed there
        metadata.revoke("user4", "orders.4.*")
    metadata.close()
    metadata = started(folder, BOOT)
    assert metadata.permissions("user4") == []
    metadata.close()
    flip(folder / "meta.db", (folder / "meta.db").read_bytes().index(b"orders.5.*"), 0)
    with pytest.raises(StorageError):
        started(folder, BOOT)


def test_one_flipped_bit_of_the_check_costs_nothing_and_is_named(stopped, caplog):
    folder, was = stopped
    for at in (0, 20, 100, 511, 512, 700, 1023):
        copy = folder.with_name("damaged")
        shutil.copytree(folder, copy)
        flip(copy / "meta.check", at, 2)
        metadata = started(copy, BOOT)
        assert content(metadata) == was
        metadata.close()
        if at < 511:
            assert f"{copy}/meta.check: copy 1 of 2 in it is damaged" in caplog.text
        shutil.rmtree(copy)
        caplog.clear()
    for at in (0, 512):
        flip(folder / "meta.check", at, 2)
    with pytest.raises(StorageError, match=r"meta\.check is damaged"):
        started(folder, BOOT)


def test_no_digest_is_kept_while_another_process_has_the_database_open(stopped):
    folder, _ = stopped
    other = sqlite3.connect(folder / "meta.db")
    other.execute("SELECT * FROM users").fetchall()
    metadata = started(folder, BOOT)
    metadata.revoke("user4", "orders.4.*")
    assert not metadata.rest()
    assert integrity.read(str(folder / "meta.db")).digest == ""
    other.close()


def test_any_byte_of_a_frame_is_found_where_one_bit_is_flipped(tmp_path):
    db = sqlite3.connect(tmp_path / "any.db", isolation_level=None)
    db.execute("PRAGMA page_size = 512")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (x)")
    db.execute("INSERT INTO t VALUES (1)")
    log = (tmp_path / "any.db-wal").read_bytes()
    frame = 32 + 24 + 512
    assert not wal.read_log(log).is_one_bit
    for at in range(32, frame):
        for bit in range(8):
            damaged = bytearray(log)
            damaged[at] ^= 1 << bit
            found = wal.read_log(bytes(damaged))
            assert (found.bad_frame, found.is_one_bit, found.committed) == (1, True, 0), (at, bit)
    lost = log[:32] + bytes(24 + 512) + log[frame:]
    assert (wal.read_log(lost).bad_frame, wal.read_log(lost).is_one_bit) == (1, False)
    assert wal.read_index((tmp_path / "any.db-shm").read_bytes()).frames == (len(log) - 32) // (24 + 512)
    db.close()


def test_a_flipped_bit_of_any_row_is_named_with_its_table_after_a_kill(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    metadata = Metadata(str(folder / "meta.db"))
    metadata.begin_serving(BOOT)
    change(metadata)
    metadata.set_policy("/", "short", "^orders", {"max-length": 1234567}, 3, "queues")
    metadata.add_exchange("/", "fan", {"x-super-stream": True, "colour": "amber"})
    metadata.close()
    raw = (folder / "meta.db").read_bytes()
    for text, named in (
        (b'"max_messages":', "streams"),
        (b'"max-age": "4h"', "streams"),
        (b"1234567", "policies"),
        (b"amber", "exchanges"),
    ):
        at = (raw.index(text) if text in raw else raw.index(text.replace(b" ", b""))) + 2
        flip(folder / "meta.db", at, 0)
        with pytest.raises(StorageError, match=f"rows of {named} are not as they were written") as refused:
            started(folder, OTHER_BOOT)
        moved = f"move {folder}/meta.check to another folder and start again"
        assert f"to accept all rows as they are now, {moved}" in refused.value.hint
        (folder / "meta.db").write_bytes(raw)
        for name in ("meta.db-wal", "meta.db-shm"):
            (folder / name).unlink(missing_ok=True)
    started(folder, OTHER_BOOT).close()


def test_rows_that_another_program_changed_are_accepted_once_the_check_is_removed(stopped):
    folder, _ = stopped
    with sqlite3.connect(folder / "meta.db") as db:
        db.execute("UPDATE streams SET arguments = '{}' WHERE name = 'stream3'")
    db.close()
    with pytest.raises(StorageError, match="its content has changed") as refused:
        started(folder, BOOT)
    assert f"move {folder}/meta.check to another folder and start again" in refused.value.hint
    os.unlink(folder / "meta.check")
    metadata = started(folder, BOOT)
    assert [each.arguments for each in metadata.streams() if each.name == "stream3"] == [{}]
    metadata.delete_stream("/", "stream4")
    metadata.close()
    started(folder, BOOT).close()


def test_sums_stay_right_over_every_kind_of_change(stopped):
    folder, _ = stopped
    metadata = started(folder, BOOT)
    metadata.delete_user("user5")  # with its permissions
    metadata.grant("user6", "orders.6.*", [1, 2])
    metadata.delete_stream("/", "stream1")
    metadata.add_vhost("shop")
    metadata.create_stream("shop", "cart", {}, "os", 100)
    metadata.set_policy("shop", "p", ".*", {"max-length": 5}, 0, "queues")
    metadata.delete_stream("shop", "cart")
    metadata.delete_vhost("shop")
    with pytest.raises(StorageError), metadata._writing(synced=False) as db:
        db.execute("UPDATE streams SET arguments = 'undone'")
        raise StorageError("ERR_IO", "in its middle")
    metadata.close()
    started(folder, OTHER_BOOT).close()


def test_several_flipped_bits_of_the_log_undo_no_synced_change_of_a_stream_after_another_boot(killed):
    folder, _ = killed
    live = Metadata(str(folder / "meta.db"))
    live.create_stream("/", "kept", {}, "disk", 100)
    at = (folder / "meta.db-wal").stat().st_size
    live.create_stream("/", "synced", {}, "disk", 100)
    copy = folder.with_name("damaged")
    shutil.copytree(folder, copy)
    live.close()
    for place in range(at + 100, at + 160, 9):
        flip(copy / "meta.db-wal", place, 3)
    with pytest.raises(StorageError, match="synced changes were answered, and only") as refused:
        started(copy, OTHER_BOOT)
    moved = f"move {copy}/meta.check to another folder"
    assert f"to accept streams, queues and all else as they are now, {moved}" in refused.value.hint
    os.unlink(copy / "meta.check")
    metadata = started(copy, OTHER_BOOT)
    assert {each.name for each in metadata.streams()} >= {"stream7", "kept"}
    metadata.close()


def test_a_change_of_a_stream_syncs_one_file_and_a_change_of_a_user_two(stopped, monkeypatch):
    folder, _ = stopped
    metadata = started(folder, BOOT)
    metadata.create_stream("/", "first", {}, "disk", 100)
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    metadata.create_stream("/", "second", {}, "disk", 100)  # SQLite's sync of its log is not Python's
    metadata.create_stream("/", "third", {}, "os", 100)
    assert synced == []
    metadata.add_user("carol", "hash")
    assert synced == [f"{folder}/meta.check"]
    metadata.close()
