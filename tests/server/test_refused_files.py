# SPDX-License-Identifier: Apache-2.0
"""What a broker says where the machine does not give it what it needs: /proc, a writable disk, files of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import ENVIRONMENT, broker

from vibemq.errors import SetupError, VibeMQError
from vibemq.server import datadir
from vibemq.storage import ownership
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
    assert "the kernel's log says whether a damaged disk made it so" in todo and "--data-dir" in todo


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
    assert "make the file system writable" in todo and "remount" not in todo


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
    assert todo == "run this as root if it is a broker's data directory, or choose another directory with --data-dir"


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
    made = f"{reachable}/roots/data"
    assert todo == (
        f"as root, `install -d -o {STRANGER} -m 700 {made}` makes it; or choose another directory with --data-dir"
    )


@needs_root
@pytest.mark.parametrize("path", ["/", "/etc", "/mnt", "/root", "/var/lib"])
def test_no_hint_gives_away_a_directory_of_the_machine(path):
    _, todo = as_stranger(lambda: datadir.prepare(path))
    assert "--data-dir" in todo and "`" not in todo
    _, todo = as_stranger(lambda: datadir.prepare(os.path.join(path, "vibemq of tests", "data")))
    if path == "/root":
        assert "--data-dir" in todo
    assert "chown" not in todo
    assert f"`install -d -o {STRANGER} -m 700 '{os.path.join(path, 'vibemq of tests', 'data')}'`" in todo


@needs_root
def test_a_directory_with_other_files_is_not_given_away(reachable):
    (reachable / "shared").mkdir(mode=0o755)
    (reachable / "shared" / "letters").mkdir()
    _, todo = as_stranger(lambda: datadir.prepare(f"{reachable}/shared"))
    assert todo == (
        "it has other files than a broker's: choose another directory with --data-dir, such as "
        f"{reachable}/shared/vibemq"
    )
    (reachable / "shared" / "letters").rmdir()
    _, todo = as_stranger(lambda: datadir.prepare(f"{reachable}/shared"))
    assert f"`install -d -o {STRANGER} -m 700 {reachable}/shared` makes it" in todo


@needs_root
@pytest.mark.parametrize("given", ["shared", "link"])
def test_root_gives_an_account_no_directory_with_other_files(reachable, given):
    shared = reachable / "shared"
    shared.mkdir(mode=0o755)
    (shared / "letter").write_text("")
    (reachable / "link").symlink_to(shared)
    command = [sys.executable, "-m", "vibemq.cli", "serve", "--user", "nobody", "--data-dir", f"{reachable}/{given}"]
    what, todo = lines(subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60))
    assert "account nobody would be given it and other files than a broker's (letter)" in what
    assert f"--data-dir {reachable}/{given}/vibemq" in todo
    assert [path.name for path in shared.iterdir()] == ["letter"]
    assert {path.stat().st_uid for path in (shared, shared / "letter")} == {0}


def test_only_a_directory_without_other_files_is_closed_by_a_hint(tmp_path, caplog):
    data = tmp_path / "my data"
    data.mkdir(mode=0o755)
    datadir.prepare(str(data))
    assert f"`chmod 700 '{data}'` keeps messages private" in caplog.text
    caplog.clear()
    (data / "letter").write_text("")
    datadir.prepare(str(data))
    assert "chmod" not in caplog.text and "give messages a directory of their own" in caplog.text


def test_all_files_of_a_broker_are_known_as_its_own(tmp_path):
    data, store = tmp_path / "data", tmp_path / "store"
    store.mkdir()
    command = ["users", "add", "ada", "--password-stdin", "--data-dir", str(data)]
    subprocess.run([sys.executable, "-m", "vibemq.cli", *command], input="correct horse\n", text=True, check=True,
                   env=ENVIRONMENT)  # fmt: skip
    with broker(data, "--set", f"remote.url={store.as_uri()}", "--set", "remote.name=b1") as served:
        assert served.port
        assert ownership.is_ours(str(data)), ownership.others_in(str(data))
    assert ownership.is_ours(str(data)), ownership.others_in(str(data))
