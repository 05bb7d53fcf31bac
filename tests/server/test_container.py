# SPDX-License-Identifier: Apache-2.0
"""The broker in a container as docs/operating.md describes one, made of the same namespaces by util-linux."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ENVIRONMENT, SERVE

from vibemq.client import connect

UID = 54321
NAMESPACES = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
#: $1: the data directory, $2: the interpreter's folder, which may lie in root's closed home, $3: the uid.  All but
#: the data directory is read-only.
ROOT = """
mount --make-rprivate /
if [ "${2#/root/}" != "$2" ]; then
    mount --bind "$2" "$1"
    mount -t tmpfs -o mode=755 tmpfs /root; mkdir -p "$2"; mount --move "$1" "$2"
fi
mount --bind "$1" "$1"; mount --bind / /; mount -o remount,bind,ro /
mount -t tmpfs -o size=1m tmpfs /dev/shm; mount -t proc proc /proc
uid=$3
shift 3
exec setpriv --reuid "$uid" --regid 0 --clear-groups --no-new-privs --bounding-set -all --inh-caps -all "$@"
"""


def contained(data: Path, *command: str) -> list[str]:
    return [*NAMESPACES, "sh", "-ec", ROOT, "sh", str(data), str(Path(sys.base_prefix).resolve()), str(UID), *command]


@pytest.fixture
def data() -> Iterator[Path]:
    """A volume as an orchestrator hands it out: of root, and its group may write."""
    base = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else "/tmp")
    volume = base / f"vibemq-container-{os.getpid()}"
    volume.mkdir()
    os.chmod(volume, 0o2770)
    yield volume
    shutil.rmtree(volume)


def environment() -> dict[str, str]:
    without = {name: value for name, value in ENVIRONMENT.items() if name not in ("HOME", "USER", "LOGNAME")}
    return without | {"PYTHONDONTWRITEBYTECODE": "1"}


def skip_unless_possible(data: Path) -> None:
    missing = [tool for tool in ("unshare", "setpriv") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    tried = contained(data, sys.executable, "-c", "import vibemq, os; print(os.getuid(), os.getgid())")
    done = subprocess.run(tried, env=environment(), capture_output=True, text=True, timeout=60)
    if done.stdout.split() != [str(UID), "0"]:
        pytest.skip(f"no such container can be made here: {done.stderr.strip()[-200:]}")


def test_with_a_random_uid_and_a_read_only_root_it_serves_is_probed_and_stops_with_0(data):
    skip_unless_possible(data)
    command = contained(data, *SERVE, "--workers", "2", "--data-dir", str(data / "vibemq"))
    for kept in (0, 1):  # the second start finds what the first has kept
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as outside:
            try:
                line = outside.stdout.readline()
                assert line.startswith("vibemq ready pid=1 workers=2 "), line
                ports = dict(word.split("=", 1) for word in line.split()[2:])
                for probe in ("live", "ready"):
                    with urllib.request.urlopen(f"http://{ports['admin']}/health/{probe}", timeout=60) as answer:
                        assert answer.status == 200
                with connect(f"vibemq://{ports['native']}") as client:
                    assert kept == 0 or client.queue_info("jobs").messages == 1
                    client.publish("jobs", {"number": kept})
                (inside,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
                assert (data / "vibemq/meta.db").stat().st_uid == UID
                os.kill(int(inside), signal.SIGTERM)
                assert outside.wait(60) == 0
            finally:
                outside.kill()


def test_a_volume_of_another_uid_is_refused_with_what_to_do(data):
    skip_unless_possible(data)
    made = data / "vibemq"
    made.mkdir(mode=0o700)
    os.chown(made, UID + 1, 0)
    command = contained(data, *SERVE, "--data-dir", str(made))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{made} belongs to uid {UID + 1}, and this runs as uid {UID}" in done.stderr
    assert f"run this as uid {UID + 1} if it is a broker's data directory" in done.stderr
