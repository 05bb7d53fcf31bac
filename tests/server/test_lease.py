# SPDX-License-Identifier: Apache-2.0
"""One directory, two brokers: the lease in the directory excludes the second one where the lock cannot."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from held_disk import COMPILER
from running import ENVIRONMENT, SERVE, broker, wait_until, written

import vibemq.client
from vibemq.errors import AlreadyRunning, SetupError
from vibemq.server import lease
from vibemq.server.datadir import is_served

BOOT = "a boot"


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[int]:
    """A descriptor of DATA/lock."""
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write(path: Path, change: dict[str, object], written: dict[str, object] | None = None) -> None:
    """Change the record's owner, or the last start that wrote."""
    record = lease.read(str(path))
    assert record is not None and record.owner is not None
    if written is not None:
        assert record.written is not None
        record = replace(record, written=replace(record.written, **written))
    lease._write(str(path), replace(record, owner=replace(record.owner, **change)), sync=False)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each start waited for a renewal; none does."""
    found: list[float] = []
    real = lease._wait_s

    def noted(*given: object) -> float:
        found.append(real(*given))  # type: ignore[arg-type]
        return 0.0

    monkeypatch.setattr(lease, "_wait_s", noted)
    return found


def test_a_start_after_an_orderly_stop_waits_for_nobody_and_believes_what_was_written(
    tmp_path: Path, locked: int, waits: list[float]
) -> None:
    first = lease.take(str(tmp_path), locked, BOOT)
    assert (first.believed, first.is_orderly, first.is_moved) == (0, False, False)
    first.begin()
    first.give_back(is_stopped=True)
    second = lease.take(str(tmp_path), locked, BOOT)
    assert (second.believed, second.is_orderly) == (first.generation, True)
    assert waits == []
    second.drop()
    third = lease.take(str(tmp_path), locked, BOOT)  # the second has written nothing
    assert (third.believed, third.is_orderly) == (first.generation, True)
    third.drop()
    assert waits == []
    third = lease.take(str(tmp_path), locked, "another boot")
    assert (third.believed, third.is_moved) == (0, False)


def test_after_a_kill_pages_are_believed_on_the_same_mount_only(
    tmp_path: Path, locked: int, waits: list[float]
) -> None:
    first = lease.take(str(tmp_path), locked, BOOT)
    first.begin()
    second = lease.take(str(tmp_path), locked, BOOT)
    assert (second.believed, second.is_orderly, second.is_moved) == (first.generation, False, False)
    for change in ({"device": 1}, {"inode": 1}, {"mount": 1}):
        first.begin()
        write(tmp_path, {}, change)
        moved = lease.take(str(tmp_path), locked, BOOT)
        assert (moved.believed, moved.is_moved) == (0, True)
        write(tmp_path, {}, {"is_stopped": True})  # then all of it was synced, and a new mount is as good
        assert lease.take(str(tmp_path), locked, BOOT).believed == first.generation


@pytest.mark.parametrize(
    ("owner", "waited_s"),
    [
        ({"pid": 1, "pid_namespace": 1}, 0.0),  # a container that was started again: the lock was its, and is ours
        ({"pid": "ended"}, 0.0),
        ({"pid": "ended", "device": 1}, lease.ORPHANS_WAIT_S),  # its workers may still finish
        ({"pid": os.getppid(), "pid_began": "its"}, lease.FOREIGN_WAIT_S),  # a preload, or a copy of its directory
        ({"pid": 1, "pid_namespace": 1, "device": 1}, lease.FOREIGN_WAIT_S),
        ({"pid": 1, "boot": "another"}, 0.0),  # of a local file system: the machine was started anew
    ],
)
def test_a_start_waits_only_where_nothing_shows_that_the_owner_is_dead(
    tmp_path: Path, locked: int, waits: list[float], owner: dict[str, object], waited_s: float
) -> None:
    lease.take(str(tmp_path), locked, BOOT).begin()
    if owner["pid"] == "ended":
        owner = {**owner, "pid": ended_process()}
    if owner.get("pid_began") == "its":
        owner = {**owner, "pid_began": lease._began(os.getppid())}
    write(tmp_path, owner)
    lease.take(str(tmp_path), locked, BOOT)
    assert waits == [waited_s]


def test_on_a_file_system_that_other_machines_may_have_mounted_a_lease_of_another_boot_is_waited_for(
    tmp_path: Path, locked: int, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_file_system", lambda _: "nfs4")
    lease.take(str(tmp_path), locked, "another boot")
    lease.take(str(tmp_path), locked, BOOT)
    assert waits == [lease.FOREIGN_WAIT_S]


def test_a_start_that_waits_is_refused_when_the_owner_renews_its_lease(
    tmp_path: Path, locked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    monkeypatch.setattr(lease, "_wait_s", lambda *_: 60.0)
    first = lease.take(str(tmp_path), locked, BOOT)
    first.begin()
    first.keep(lambda: None)
    with pytest.raises(AlreadyRunning, match="reaches it through another mount"):
        lease.take(str(tmp_path), locked, BOOT)
    first.give_back(is_stopped=False)
    lease.take(str(tmp_path), locked, BOOT)


def test_a_start_that_waits_goes_on_when_the_owner_gives_its_lease_back(
    tmp_path: Path, locked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SETTLE_S", 0.0)
    monkeypatch.setattr(lease, "_wait_s", lambda *_: 60.0)
    first = lease.take(str(tmp_path), locked, BOOT)
    first.begin()
    looks: list[float] = []

    def give_back(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            first.give_back(is_stopped=True)

    monkeypatch.setattr(lease.time, "sleep", give_back)
    second = lease.take(str(tmp_path), locked, BOOT)
    assert looks == [lease.LOOK_S, lease.LOOK_S, 0.0]
    assert (second.believed, second.is_orderly) == (first.generation, True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("was_there", [False, True])
def test_a_start_without_room_for_its_lease_goes_on_believes_nothing_and_writes_it_later(
    tmp_path: Path,
    locked: int,
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    was_there: bool,
    code: int,
) -> None:
    if was_there:
        first = lease.take(str(tmp_path), locked, BOOT)
        first.begin()
        first.give_back(is_stopped=True)
    real = lease._write

    def refused(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(lease, "_write", refused)
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    second = lease.take(str(tmp_path), locked, BOOT)
    assert (second.believed, second.is_orderly) == (0, False)
    second.begin()
    second.require()
    assert lease.read(str(tmp_path)) is None, "a record of an earlier start would vouch for what this one writes"
    assert "lease cannot be written" in caplog.text
    monkeypatch.setattr(lease, "_write", real)
    second.keep(lambda: None)

    def generation() -> int:
        record = lease.read(str(tmp_path))
        return record.written.generation if record is not None and record.written is not None else 0

    wait_until(lambda: generation() == second.generation, "the record is written")
    second.give_back(is_stopped=True)
    assert lease.take(str(tmp_path), locked, BOOT).believed == second.generation


def test_a_lease_that_cannot_be_written_for_another_reason_is_refused(
    tmp_path: Path, locked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lease, "_write", refused)
    with pytest.raises(SetupError, match="cannot write"):
        lease.take(str(tmp_path), locked, BOOT)


def test_an_owner_whose_lease_was_taken_hears_of_it_and_writes_no_more(
    tmp_path: Path, locked: int, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    lost: list[str] = []
    first = lease.take(str(tmp_path), locked, BOOT)
    first.begin()
    first.keep(lambda: lost.append(first.lost))
    second = lease.take(str(tmp_path), locked, BOOT)
    wait_until(lambda: bool(lost), "the first one hears of it")
    assert "is in use by the broker with pid" in lost[0]
    with pytest.raises(AlreadyRunning):
        first.require()
    first.give_back(is_stopped=True)
    second.require()


def test_a_lease_that_cannot_be_written_is_a_warning_a_minute_and_is_renewed_when_it_can(
    tmp_path: Path, locked: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.001)
    first = lease.take(str(tmp_path), locked, BOOT)
    first.begin()
    file, away = tmp_path / lease.FILE, tmp_path / "away"
    file.rename(away)
    file.mkdir()  # neither read nor written
    first.keep(lambda: None)
    wait_until(lambda: "is not renewed" in caplog.text, "a warning")
    file.rmdir()
    away.rename(file)

    def renewals() -> int:
        record = lease.read(str(tmp_path))
        return record.renewals if record is not None else 0

    wait_until(lambda: renewals() > 0, "a renewal")
    first.give_back(is_stopped=True)
    assert caplog.text.count("is not renewed") == 1


def test_a_damaged_lease_vouches_for_nothing_and_one_of_a_newer_version_is_refused(
    tmp_path: Path, locked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease.take(str(tmp_path), locked, BOOT).begin()
    file = tmp_path / lease.FILE
    whole = file.read_bytes()
    for at in range(0, len(whole.rstrip()), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert lease.take(str(tmp_path), locked, BOOT).believed == 0
    with monkeypatch.context() as newer:
        newer.setattr(lease, "_FORMAT", lease._FORMAT + 1)
        lease.take(str(tmp_path), locked, BOOT)
    with pytest.raises(SetupError, match="is of version 2"):
        lease.take(str(tmp_path), locked, BOOT)


# ---- with real brokers ----


def refused(data: Path, **environment: str) -> str:
    """Start a second broker, which must end; return what it wrote."""
    done = subprocess.run(
        [*SERVE, "--workers", "1", "--data-dir", str(data)],
        capture_output=True, text=True, timeout=120, env={**ENVIRONMENT, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "vibemq ready" not in done.stdout
    return done.stderr


@contextmanager
def seen_through_fuse(directory: Path, at: Path) -> Iterator[None]:
    """The same directory through a mount of its own, whose locks the kernel does not compare with the first one's."""
    if shutil.which("bindfs") is None or os.geteuid() != 0:
        pytest.skip("only root may mount a file system, with bindfs")
    at.mkdir()
    done = subprocess.run(["bindfs", str(directory), str(at)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"FUSE cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


def test_a_second_broker_through_another_mount_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    with (
        seen_through_fuse(data, other),
        broker(data, workers=1) as served,
        vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client,
    ):
        client.create_queue("q")
        said = refused(other)
        assert "waiting 5 s for it to renew the lease" in said
        assert f"in use by the broker with pid {served.process.pid}" in said and "through another mount" in said
        client.publish("q", 1)


def test_after_a_kill_a_broker_starts_through_another_mount(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    with seen_through_fuse(data, other):
        with pytest.raises(AssertionError, match="did not stop cleanly"), broker(data, workers=1) as served:
            with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
                client.create_queue("q")
                client.publish("q", "kept")
            served.process.kill()
            served.process.wait()
            wait_until(lambda: not is_served(str(data)), "its workers end")
        with (
            broker(other, workers=1) as served,
            vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client,
            client.consume("q") as consumer,
        ):
            message = next(consumer)
            assert message.payload == "kept"
            message.ack()
        assert "waiting 2 s for it to renew the lease" in written(capfd)


@pytest.fixture
def without_lock(tmp_path: Path) -> str:
    """A library for LD_PRELOAD in which flock always succeeds, as through mounts that do not share locks."""
    if COMPILER is None:
        pytest.skip("there is no C compiler to build a library with")
    source, library = tmp_path / "no_flock.c", tmp_path / "no_flock.so"
    source.write_text("int flock(int fd, int how) { (void)fd; (void)how; return 0; }\n")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


def test_where_every_lock_is_granted_the_second_broker_is_refused(tmp_path: Path, without_lock: str) -> None:
    data = tmp_path / "data"
    with broker(data, workers=1) as served:
        said = refused(data, LD_PRELOAD=without_lock)
        assert f"in use by the broker with pid {served.process.pid}" in said
        with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
            client.create_queue("q")


def test_a_broker_whose_lease_was_taken_ends_with_its_workers_and_confirms_nothing_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with pytest.raises(AssertionError, match="did not stop cleanly"), broker(data, workers=2) as served:
        workers = served.worker_pids()
        write(data, {"token": "of another", "pid": 4711, "host": "elsewhere"})
        taken = (data / lease.FILE).read_bytes()
        assert served.process.wait(60) == 3
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        assert (data / lease.FILE).read_bytes() == taken
    assert "in use by the broker with pid 4711 on elsewhere" in written(capfd)


def test_a_broker_that_was_killed_starts_again_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    with pytest.raises(AssertionError, match="did not stop cleanly"), broker(data, workers=1) as served:
        served.process.kill()
        served.process.wait()
        wait_until(lambda: not is_served(str(data)), "its workers end")
    with broker(data, workers=1):
        pass
    said = written(capfd)
    assert "to renew the lease" not in said and "or is a copy" not in said
