# SPDX-License-Identifier: Apache-2.0
"""At a start: every stream usable or named, leftovers removed only where nothing is lost."""

import fcntl
import os
import shutil
import signal
import struct
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import running
from other_boot import OTHER_BOOT, boot_of, write_in_another_boot

import vibemq.storage.log as logs
from vibemq.broker.disk import PIECE_BYTES, Reserve
from vibemq.client._streams import read_message, write_message
from vibemq.client.streams import StreamsConnection
from vibemq.errors import StorageError
from vibemq.server import recovery
from vibemq.server.processes import fork
from vibemq.storage.metadata import Metadata
from vibemq.storage.offsets import StoredOffsets

EPOCH_AT = slice(40, 44)  # in the control page


@pytest.fixture
def metadata(tmp_path):
    (tmp_path / "streams").mkdir()
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def create(metadata, name, **arguments):
    return metadata.create_stream("/", name, arguments, "os", 100, prepare=lambda record: logs.create(record.directory))


def recover(metadata):
    return recovery.Recovery(metadata, 500_000_000, 67_108_864, reserve=reserve_of(metadata)).before_serving()


def reserve_of(metadata):
    return Reserve(os.path.dirname(metadata.path), 4 * PIECE_BYTES)


def test_streams_of_this_boot_are_usable_as_they_are(metadata, caplog):
    records = [create(metadata, f"s{n}") for n in range(3)]
    with caplog.at_level("INFO"):
        assert recover(metadata) == 3
    assert caplog.text == ""
    for record in records:
        logs.Log(record.directory).close()


def test_files_that_are_rebuilt_in_every_stream_as_after_an_upgrade_are_a_few_lines_with_a_count(metadata, caplog):
    for number in range(20):
        os.unlink(os.path.join(create(metadata, f"s{number:02}").directory, "tracking"))
    assert recover(metadata) == 20
    said = [
        record.getMessage() for record in caplog.records if "it is rebuilt from the segments" in record.getMessage()
    ]
    assert len(said) == recovery.REBUILT_NAMED_MAX + 2
    assert "stream 's00': " in said[0] and "(16 more in the last" in said[-1]


def test_a_missing_directory_is_an_error_in_the_log_and_an_empty_stream(metadata, caplog):
    record = create(metadata, "orders")
    shutil.rmtree(record.directory)
    assert recover(metadata) == 1
    assert f"stream 'orders': its directory {record.directory} is missing" in caplog.text
    held = logs.Log(record.directory)
    assert held.stats().next_offset == 0
    held.close()


def test_one_bad_stream_does_not_keep_the_others_from_starting(metadata, monkeypatch, caplog):
    records = {create(metadata, name).directory: name for name in ("good", "bad", "fine")}
    real = logs.recover

    def fails_for_one(directory, **options):
        if records[directory] == "bad":
            raise StorageError("ERR_IO", "input/output error at byte 4096")
        return real(directory, **options)

    monkeypatch.setattr(recovery.logs, "recover", fails_for_one)
    assert recover(metadata) == 2
    assert "stream 'bad'" in caplog.text
    assert "input/output error at byte 4096" in caplog.text


def test_logs_are_recovered_several_at_a_time_and_told_of_in_their_order(metadata, monkeypatch, caplog):
    names = {create(metadata, f"s{n:02}").directory: f"s{n:02}" for n in range(2 * recovery.RECOVERIES_AT_A_TIME)}
    all_there = threading.Barrier(recovery.RECOVERIES_AT_A_TIME, timeout=60)

    def meets_the_others(directory, **options):
        all_there.wait()
        raise StorageError("ERR_IO", f"cannot read {names[directory]}")

    before = threading.active_count()
    monkeypatch.setattr(recovery.logs, "recover", meets_the_others)
    assert recover(metadata) == 0
    said = [record.getMessage().rpartition(" ")[2] for record in caplog.records]
    assert said == sorted(names.values())
    assert threading.active_count() == before, "workers are forked from here"


def test_a_recovery_that_meets_a_full_disk_gets_the_reserve(metadata, monkeypatch, caplog):
    create(metadata, "orders")
    reserve = reserve_of(metadata)
    assert reserve.fill()
    real, sizes = logs.recover, []

    def finds_no_room_at_first(directory, **options):
        sizes.append(reserve.size_bytes)
        if len(sizes) < 3:
            raise StorageError("ERR_DISK_FULL", "no space left on the device")
        return real(directory, **options)

    monkeypatch.setattr(recovery.logs, "recover", finds_no_room_at_first)
    assert recover(metadata) == 1
    assert sizes == [2 * PIECE_BYTES, PIECE_BYTES, 0]
    assert "cannot be used" not in caplog.text


def test_what_was_cut_is_logged_with_file_and_position(metadata, monkeypatch, caplog):
    create(metadata, "orders")
    cuts = (logs.Cut("0.segment", 8192, 808, "0.segment.8192.1.quarantine"), logs.Cut("9.segment", 0, 70, "9.kept"))
    report = logs.RecoveryReport(True, 9, 9000, cuts, 12, 9000)
    monkeypatch.setattr(recovery.logs, "recover", lambda directory, **options: report)
    recover(metadata)
    assert "stream 'orders': 0.segment was cut at byte 8192" in caplog.text
    assert "the 808 bytes cut off are kept in 0.segment.8192.1.quarantine" in caplog.text
    assert "9.segment, 70 bytes, cannot be read or lies behind what was lost; it is kept as 9.kept" in caplog.text
    assert "12 cuts in all, 9000 bytes" in caplog.text


def test_a_torn_tail_is_kept_in_quarantine_and_the_log_says_where(metadata, caplog):
    record = create(metadata, "orders")
    segment = os.path.join(record.directory, f"{0:020}.segment")
    write_in_another_boot(record.directory)
    with open(segment, "ab") as file:
        file.write(b"torn")
    recover(metadata)
    kept = f"{segment}.64.1.quarantine"
    assert f"stream 'orders': {segment} was cut at byte 64" in caplog.text
    assert f"the 4 bytes cut off are kept in {kept}" in caplog.text
    with open(kept, "rb") as file:
        assert file.read() == b"torn"
    assert os.path.getsize(segment) == logs.SEGMENT_HEADER_BYTES


def test_what_cannot_be_recovered_cannot_be_opened_either_and_says_why(metadata, monkeypatch):
    record = create(metadata, "orders")
    monkeypatch.setattr(logs, "_refused", {})

    def fails(directory, **options):
        raise StorageError("ERR_DISK_FULL", "no room to keep what is cut off")

    monkeypatch.setattr(recovery.logs, "recover", fails)
    recover(metadata)
    for use in (logs.Log, StoredOffsets, logs.housekeep):
        with pytest.raises(StorageError, match="no room to keep what is cut off"):
            use(record.directory)


def test_a_directory_of_a_newer_version_that_no_stream_owns_is_kept(metadata, tmp_path, caplog):
    orphan = tmp_path / "streams" / "0123456789abcdef"
    logs.create(str(orphan))
    with open(orphan / "tracking", "r+b") as file:
        magic, version = struct.unpack("=II", file.read(8))
        file.seek(4)
        file.write(struct.pack("=I", version + 1))
        file.seek(60)  # the check of both
        file.write(struct.pack("=I", zlib.crc32(struct.pack(">II", magic, version + 1))))
    recover(metadata)
    assert orphan.exists()
    assert "it is kept" in caplog.text


@pytest.mark.parametrize(
    ("end", "expected"), [(0, {}), (1, {b"a": 0, b"b": 0, b"c": 0}), (7, {b"a": 0, b"b": 6, b"c": 6})]
)
def test_stored_offsets_that_outlived_their_messages_are_set_back(metadata, monkeypatch, caplog, end, expected):
    """Else a consumer went on behind messages that get those offsets now, and never saw them."""
    record = create(metadata, "orders")
    stored = StoredOffsets(record.directory)
    for reference, offset in ((b"a", 0), (b"b", 7), (b"c", 2**64 - 1)):
        stored.store(reference, offset)
    report = logs.RecoveryReport(True, 9, 9000, next_offset=end)
    monkeypatch.setattr(recovery.logs, "recover", lambda directory, **options: report)
    recover(metadata)
    assert StoredOffsets(record.directory).all() == expected
    assert f": 'c' had stored offset {2**64 - 1}, and messages end before {end}" in caplog.text


def test_stored_offsets_of_this_boot_stay_as_they_are(metadata):
    record = create(metadata, "orders")
    StoredOffsets(record.directory).store(b"a", 7)
    recover(metadata)
    assert StoredOffsets(record.directory).all() == {b"a": 7}


def test_the_streams_own_limits_reach_the_log(metadata, monkeypatch):
    create(metadata, "orders", **{"max-age": "1h", "stream-max-segment-size-bytes": "5000"})
    seen = []
    report = logs.RecoveryReport(False, 0, 0)
    monkeypatch.setattr(recovery.logs, "recover", lambda directory, once, **options: (seen.append(options), report)[1])
    recover(metadata)
    limits = {"segment_bytes_max": 5000, "retention_bytes_max": 0, "retention_age_ms_max": 3_600_000}
    limits |= {"local_bytes_max": 0, "local_age_ms_max": 0}
    assert seen == [
        {**limits, "durability": "os", "filter_size_bytes": 16, "chunk_messages_max": 2048, "read_unconfirmed": False}
    ]


def test_a_log_whose_creation_was_interrupted_is_removed(metadata, tmp_path):
    orphan = tmp_path / "streams" / "0123456789abcdef"
    logs.create(str(orphan))
    recover(metadata)
    assert not orphan.exists()


@pytest.mark.parametrize("left", [[], ["tracking"], ["00000000000000000000.segment", "tracking"]])
def test_a_directory_of_which_a_kill_left_only_parts_is_removed(metadata, tmp_path, left):
    """The control page is made last and removed last."""
    orphan = tmp_path / "streams" / "0123456789abcdef"
    logs.create(str(orphan))
    for name in os.listdir(orphan):
        if name not in left:
            (orphan / name).unlink()
    recover(metadata)
    assert not orphan.exists()


@pytest.mark.parametrize("segment", ["00000000000000000000.segment", "00000000000000000009.segment"])
def test_a_directory_without_a_control_page_is_kept_where_it_may_hold_messages(metadata, tmp_path, caplog, segment):
    orphan = tmp_path / "streams" / "0123456789abcdef"
    logs.create(str(orphan))
    (orphan / "control").unlink()
    with open(orphan / segment, "ab") as file:
        file.write(b"x")
    recover(metadata)
    assert (orphan / segment).exists()
    assert "it is kept" in caplog.text


def test_an_empty_log_of_another_boot_that_no_stream_owns_is_removed(metadata, monkeypatch, tmp_path):
    orphan = tmp_path / "streams" / "0123456789abcdef"
    logs.create(str(orphan))

    def stale(directory):
        raise StorageError("ERR_STALE", "written in another boot")

    monkeypatch.setattr(recovery.logs, "Log", stale)
    recover(metadata)
    assert not orphan.exists()


def test_a_log_whose_deletion_was_interrupted_is_removed(metadata):
    record = create(metadata, "orders")
    held = logs.Log(record.directory)
    held.mark_deleted()
    held.close()
    metadata.delete_stream("/", "orders")
    recover(metadata)
    assert not os.path.exists(record.directory)


def test_a_log_with_messages_that_no_stream_owns_is_kept_and_named(metadata, monkeypatch, tmp_path, caplog):
    """As after the loss of meta.db: what was confirmed must still be there for whoever restores it."""
    orphan = tmp_path / "streams" / "0123456789abcdef"
    logs.create(str(orphan))
    held = SimpleNamespace(stats=lambda: SimpleNamespace(next_offset=7), close=lambda: None)
    monkeypatch.setattr(recovery.logs, "Log", lambda directory: held)
    recover(metadata)
    assert orphan.exists()
    assert f"{orphan} belongs to no stream; it is kept" in caplog.text


def test_a_log_whose_page_says_nothing_of_its_messages_is_kept(metadata, tmp_path, caplog):
    """As in a copy, where the page may be of an earlier instant than the segments."""
    directory = tmp_path / "streams" / ("ab" * 8)
    logs.create(str(directory))
    with open(directory / f"{0:020}.segment", "ab") as file:
        file.write(b"a chunk")
    recover(metadata)
    assert directory.exists()
    assert f"{directory} belongs to no stream; it is kept" in caplog.text


def test_what_is_no_log_is_left_alone(metadata, tmp_path):
    (tmp_path / "streams" / "notes.txt").write_text("mine")
    recover(metadata)
    assert (tmp_path / "streams" / "notes.txt").exists()


def test_limits_are_those_of_the_policies_and_a_queues_segments_those_of_queues(metadata, monkeypatch):
    create(metadata, "orders", **{"max-age": "7D"})
    metadata.set_policy("/", "short", "", {"max-age": "1h"})
    metadata.set_policy("/", "shorter", "^or", {"max-age": "2h"}, 1)

    def prepare(record):
        logs.create(record.directory)

    metadata.create_stream("/", "jobs", {}, "os", 100, prepare=prepare, queue={})
    metadata.create_stream("/", "both", {}, "os", 100, prepare=prepare)
    metadata.set_queue("/", "both", {"keep": True})
    names = {record.directory: record.name for record in metadata.streams()}
    seen, shared = {}, []
    real = logs.recover

    def spy(directory, once, **options):
        shared.append(once)
        seen[names[directory]] = options["retention_age_ms_max"] // 3_600_000, options["segment_bytes_max"]
        return real(directory, once=once, **options)

    monkeypatch.setattr(recovery.logs, "recover", spy)
    assert recover(metadata) == 3
    assert isinstance(shared[0], logs.SyncOnce) and shared == [shared[0]] * 3
    assert seen == {"orders": (2, 500_000_000), "jobs": (0, 67_108_864), "both": (0, 500_000_000)}


# ---- what is left for later ----


@pytest.fixture
def left(metadata, monkeypatch):
    """A start that had no time for its logs, all of another boot."""
    monkeypatch.setattr(logs, "_left", set())
    monkeypatch.setattr(logs, "_refused", {})
    for n in range(40):
        create(metadata, f"s{n:02}", **{"stream-filter-size-bytes": "32"})
    for record in metadata.streams():
        write_in_another_boot(record.directory)
    found = recovery.Recovery(metadata, 500_000_000, 67_108_864, reserve=reserve_of(metadata))
    assert found.before_serving(-1) == 0
    assert list(found.left) == [record.directory for record in metadata.streams()]
    return found


def beside(left):
    """The process that looks at the rest; its pid."""
    pid = os.getpid()
    return fork("recovery", lambda: None, lambda: left.beside_the_work(pid))


def epoch_of(directory):
    return int.from_bytes(Path(directory, "control").read_bytes()[EPOCH_AT], sys.byteorder)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_queues_transactions_and_missing_directories_are_never_left(metadata, monkeypatch, caplog):
    monkeypatch.setattr(logs, "_left", set())

    def prepare(record):
        logs.create(record.directory)

    metadata.create_stream("/", "jobs", {}, "os", 100, prepare=prepare, queue={})
    metadata.create_stream("/", "far", {}, "remote", 100, prepare=prepare)
    staged = metadata.draft_staging("staged", {}, "os")
    prepare(staged)
    metadata.add_staging(staged)
    shutil.rmtree(create(metadata, "lost").directory)
    plain = create(metadata, "orders")
    for record in metadata.logs():
        if record.name != "lost":
            write_in_another_boot(record.directory)
    found = recovery.Recovery(metadata, 500_000_000, 67_108_864, reserve=reserve_of(metadata))
    with caplog.at_level("INFO"):
        assert found.before_serving(-1) == 4
    assert list(found.left) == [plain.directory]
    assert "recovered 3 streams" in caplog.text
    assert "1 streams more are looked at beside the work, and each when it is first used" in caplog.text


@pytest.mark.parametrize("use", [logs.Log, StoredOffsets, logs.housekeep])
def test_a_log_that_was_left_is_recovered_by_whoever_uses_it(left, use):
    directory, other, *_ = left.left
    use(directory)
    held = logs.Log(directory)
    assert held.filter_size_bytes == 32
    assert boot_of(directory) != OTHER_BOOT
    assert boot_of(other) == OTHER_BOOT
    held.close()


def test_all_that_were_left_are_recovered_by_a_process_beside_the_work(left):
    assert exit_code(beside(left)) == 0
    assert OTHER_BOOT not in {boot_of(directory) for directory in left.left}


def test_a_log_that_many_want_at_once_is_recovered_once(left):
    """A second recovery would take the page from under who appends already."""

    def uses_all():
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                list(pool.map(lambda directory: logs.Log(directory).close(), left.left))
        return 0

    epochs = {directory: epoch_of(directory) for directory in left.left}
    pids = [beside(left), *(fork("worker", lambda: None, uses_all) for _ in range(3))]
    assert [exit_code(pid) for pid in pids] == [0] * 4
    assert {directory: epoch_of(directory) for directory in left.left} == {
        directory: epoch + 1 for directory, epoch in epochs.items()
    }


def test_a_log_with_much_to_check_cannot_be_used_until_the_process_was_there(left, monkeypatch):
    directory = next(iter(left.left))
    with open(os.path.join(directory, f"{0:020}.segment"), "ab") as file:
        file.write(bytes(1000))
    monkeypatch.setattr(recovery, "CHECKED_ON_USE_BYTES_MAX", 999)
    with pytest.raises(StorageError, match="is being checked") as refused:
        logs.Log(directory)
    assert refused.value.code == "ERR_STALE"
    assert "try again" in refused.value.hint
    assert exit_code(beside(left)) == 0
    logs.Log(directory).close()


def test_a_stream_that_is_deleted_meanwhile_is_no_error(left, monkeypatch):
    monkeypatch.setattr(recovery.log, "error", lambda *_: os._exit(9))
    directory = next(iter(left.left))
    held = logs.Log(directory)
    held.mark_deleted()
    held.close()
    assert exit_code(beside(left)) == 0
    logs.remove(directory)
    assert exit_code(beside(left)) == 0


@pytest.mark.parametrize("is_used", [True, False])
def test_stored_offsets_of_a_log_that_was_left_are_set_back_too(left, is_used):
    directory = next(iter(left.left))
    monkeyed, logs._left = logs._left, set()
    stored = StoredOffsets(directory)
    logs._left = monkeyed
    stored.store(b"a", 7)
    if is_used:
        logs.Log(directory).close()
    else:
        assert exit_code(beside(left)) == 0
    assert StoredOffsets(directory).all() == {}


def test_limits_that_were_changed_since_stay_as_they_are_whoever_looks_later(left):
    directory = next(iter(left.left))
    at_the_start = set(logs._left)
    logs.set_limits(directory, filter_size_bytes=64)
    logs._left.update(at_the_start)  # as in a process that has not used it
    held = logs.Log(directory)
    assert held.filter_size_bytes == 64
    assert exit_code(beside(left)) == 0
    assert held.filter_size_bytes == 64
    held.close()


def test_a_log_that_was_left_and_cannot_be_recovered_says_why_and_is_tried_again(left, monkeypatch):
    def fails(directory, **options):
        raise StorageError("ERR_IO", "input/output error at byte 4096")

    directory = next(iter(left.left))
    with monkeypatch.context() as patched:
        patched.setattr(recovery.logs, "recover", fails)
        assert exit_code(beside(left)) == 0
        patched.setattr(recovery, "CHECKED_ON_USE_BYTES_MAX", -1)  # as if that took long
        with pytest.raises(StorageError, match="could not be checked"):
            logs.Log(directory)
        patched.setattr(recovery, "CHECKED_ON_USE_BYTES_MAX", 999)
        for _ in range(2):
            with pytest.raises(StorageError, match="input/output error at byte 4096"):
                logs.Log(directory)
    logs.Log(directory).close()


def test_a_log_that_another_process_looks_at_for_long_is_not_waited_for(left, monkeypatch):
    monkeypatch.setattr(recovery, "OTHER_LOOKS_MAX_S", 0)
    directory = next(iter(left.left))
    fd = os.open(directory, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(StorageError, match="is being checked"):
        logs.Log(directory)
    os.close(fd)
    logs.Log(directory).close()


def test_the_process_beside_the_work_finishes_what_it_has_begun_when_it_is_asked_to_end(left, monkeypatch):
    ours, theirs = os.pipe()
    go, kept = os.pipe()
    real = logs.recover

    def waits(directory, **options):
        os.write(theirs, b"1")
        os.read(go, 1)
        return real(directory, **options)

    monkeypatch.setattr(recovery.logs, "recover", waits)
    monkeypatch.setattr(recovery, "RECOVERIES_AT_A_TIME", 1)
    monkeypatch.setattr(recovery, "LOGS_AT_ONCE", 1)
    pid = beside(left)
    os.read(ours, 1)
    os.kill(pid, signal.SIGTERM)  # from a service manager, to all at once
    os.kill(pid, recovery.END_SIGNAL)
    os.write(kept, b"1" * 40)
    assert exit_code(pid) == 0
    first, *_, last = left.left
    assert boot_of(first) != OTHER_BOOT
    assert boot_of(last) == OTHER_BOOT
    for fd in (ours, theirs, go, kept):
        os.close(fd)


def test_the_process_beside_the_work_breaks_off_what_takes_too_long_when_it_is_asked_to_end(left, monkeypatch):
    ours, theirs = os.pipe()

    def waits(directory, **options):
        os.write(theirs, b"1")
        signal.pause()

    monkeypatch.setattr(recovery.logs, "recover", waits)
    monkeypatch.setattr(recovery, "ENDS_WITHIN_S", 0.0)
    pid = beside(left)
    os.read(ours, 1)
    os.kill(pid, recovery.END_SIGNAL)
    assert exit_code(pid) == 0
    assert {boot_of(directory) for directory in left.left} == {OTHER_BOOT}
    os.close(ours)
    os.close(theirs)


def test_the_process_beside_the_work_ends_with_its_supervisor(left, monkeypatch):
    ours, theirs = os.pipe()

    def waits(directory, **options):
        os.write(theirs, b"begun")
        signal.pause()

    monkeypatch.setattr(recovery.logs, "recover", waits)

    def supervises():
        beside(left)
        os.read(ours, 5)
        return 0

    assert exit_code(fork("supervisor", lambda: None, supervises)) == 0
    os.close(theirs)  # the last but those of the process and what it has begun
    while os.read(ours, 100):
        continue
    os.close(ours)


@pytest.mark.parametrize("options", [[], ["--without-process"]])
def test_what_a_start_has_left_is_all_there_for_clients(tmp_path, monkeypatch, capfd, options):
    names = [f"s{n}" for n in range(4)]
    with running.broker(tmp_path) as server, StreamsConnection.connect(server.host, server.port) as connection:
        for name in names:
            connection.create(name)
            with connection.publisher(name, reference="r") as publisher:
                publisher.publish([write_message(f"{name} {n}".encode()) for n in range(100)])
    for directory in (tmp_path / "streams").iterdir():
        write_in_another_boot(directory)
    starts = [sys.executable, str(Path(__file__).with_name("leaving_broker.py")), *options]
    monkeypatch.setattr(running, "SERVE", [*starts, *running.SERVE[3:]])
    with running.broker(tmp_path) as server, StreamsConnection.connect(server.host, server.port) as connection:
        for name in names:
            with connection.publisher(name, reference="r") as publisher:
                assert publisher.publish([write_message(b"one more")]) == 101, "what was published under it is known"
            messages = (message for chunk in connection.read_chunks(name, 0) for _, message in chunk.messages())
            bodies = [read_message(message)[0] for message in messages]
            assert bodies == [*(f"{name} {n}".encode() for n in range(100)), b"one more"]
    assert "4 streams more are looked at beside the work" in running.written(capfd)
    assert "ERROR" not in running.written(capfd)
