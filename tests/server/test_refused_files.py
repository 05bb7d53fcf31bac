# SPDX-License-Identifier: Apache-2.0
"""What a broker says where the machine does not give it what it needs: /proc, a writable disk, files of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import ENVIRONMENT

from vibemq.errors import SetupError, VibeMQError
from vibemq.server import datadir
from vibemq.storage.metadata import Metadata

STRANGER = 54321  # an account that is not root's; it needs no name
COMMAND = f'exec "{sys.executable}" -m vibemq.cli "$@"'


def mounts() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(not mounts(), reason="only root may mount, and not in every container")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")


def apart(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command with mounts of its own."""
    command = ["unshare", "-m", "sh", "-ec", f"{script}\n{COMMAND}", "sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)


def as_stranger(work: Callable[[], object]) -> tuple[str, str]:
    """The error that this account gets for it, and its hint."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing was refused\n"
        try:
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            work()
        except VibeMQError as problem:
            said = f"{problem}\n{problem.hint}"
        except BaseException as problem:
            said = f"{problem!r}\n"
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        message, _, hint = pipe.read().partition("\n")
    return message, hint


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A folder that every account may enter."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == "root" and folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 1, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith(("vibemq:", "  hint:", "Traceback"))]


@needs_mounts
@pytest.mark.parametrize("hidden", ["/proc", "/proc/sys"])
def test_without_proc_one_sentence_says_what_is_needed(tmp_path, hidden):
    what, todo = lines(apart(f"mount -t tmpfs none {hidden}", "serve", "--data-dir", str(tmp_path / "data")))
    assert what.startswith(
        "vibemq: /proc is not there as the kernel has it: needed are /proc/sys/kernel/random/boot_id"
    )
    assert "/proc/self/fd" in what and "`mount -t proc proc /proc`" in todo
    assert not (tmp_path / "data").exists()


@needs_mounts
def test_without_proc_a_running_broker_is_not_taken_for_none(tmp_path):
    (tmp_path / "data").mkdir()
    done = apart("mount -t tmpfs none /proc", "ctl", "list_users", "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 69  # EX_UNAVAILABLE
    assert f"cannot look for the broker in {tmp_path}/data" in done.stderr and "/proc is not there" in done.stderr


@needs_mounts
@pytest.mark.parametrize("existing", [True, False])
def test_a_read_only_file_system_is_called_that(tmp_path, existing):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"mount -t tmpfs none {disk}\n{f'mkdir -p {disk}/data/streams' if existing else ''}\n"
    what, todo = lines(apart(f"{script}mount -o remount,ro {disk}", "serve", "--data-dir", f"{disk}/data"))
    assert "is on a read-only file system" in what and "Permission denied" not in what
    assert "mount -o remount,rw" in todo and "--data-dir" in todo


@needs_mounts
def test_users_of_a_read_only_database_are_not_changed_and_the_reason_is_told(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"""mount -t tmpfs none {disk}
export VIBEMQ_SERVER_DATA_DIR={disk}/data
echo 'correct horse' | {sys.executable} -m vibemq.cli users add ada --password-stdin > /dev/null 2>&1
mount -o remount,ro {disk}"""
    what, todo = lines(apart(script, "users", "remove", "ada", "--data-dir", f"{disk}/data"))
    assert what == f"vibemq: cannot use {disk}/data/meta.db: {disk}/data/meta.db is on a read-only file system"
    assert "mount -o remount,rw" in todo


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_data_directory_that_is_a_file_is_told_apart(tmp_path, below):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(SetupError) as refused:
        datadir.prepare(f"{path}{below}")
    assert str(refused.value) == f"cannot use the data directory {path}{below}: it is a file ({path})"
    assert "choose another with --data-dir" in refused.value.hint


@needs_root
def test_the_owner_of_a_data_directory_is_named(reachable):
    datadir.prepare(str(reachable / "data"))
    what, todo = as_stranger(lambda: datadir.prepare(str(reachable / "data")))
    reason = f"{reachable}/data belongs to root, and this runs as uid {STRANGER}"
    assert what == f"cannot use the data directory {reachable}/data: {reason}"
    assert todo == f"run this as root, or give it away: `chown -R {STRANGER} {reachable}/data`"


@needs_root
def test_the_owner_of_the_database_and_of_the_lock_is_named(reachable):
    data = reachable / "data"
    datadir.prepare(str(data))
    os.chown(data, STRANGER, STRANGER)
    os.chown(data / "streams", STRANGER, STRANGER)
    os.close(datadir.acquire(str(data)))
    metadata = Metadata(str(data / "meta.db"))
    assert metadata.users() == []
    metadata.close()
    what, todo = as_stranger(lambda: Metadata(str(data / "meta.db")).users())
    assert what == f"cannot use {data}/meta.db: {data}/meta.db belongs to root, and this runs as uid {STRANGER}"
    assert todo == f"run this as root, or give it away: `chown -R {STRANGER} {data}`"
    what, _ = as_stranger(lambda: datadir.acquire(str(data)))
    assert what == f"cannot open {data}/lock: {data}/lock belongs to root, and this runs as uid {STRANGER}"


@needs_root
def test_a_directory_in_which_nothing_may_be_made_is_named_with_its_owner(reachable):
    (reachable / "roots").mkdir(mode=0o755)
    what, todo = as_stranger(lambda: datadir.prepare(str(reachable / "roots" / "data")))
    assert what.endswith(f": {reachable}/roots belongs to root, and this runs as uid {STRANGER}")
    assert "run this as root" in todo
