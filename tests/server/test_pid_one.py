# SPDX-License-Identifier: Apache-2.0
"""The broker as process 1, as a container's only process: it is its own init."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import ENVIRONMENT, wait_until

from vibemq.client import connect

NAMESPACE = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
DOORS = [word for door in ("streams", "native", "signalr", "micromsg2", "admin") for word in (f"--{door}-port", "0")]
STOP_SECONDS_MAX = 60


def reason() -> str:
    """Why not here; "" where a namespace of processes may be made."""
    missing = [tool for tool in ("unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


pytestmark = pytest.mark.skipif(bool(why := reason()), reason=f"no namespace of processes can be made: {why}")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zombies_of(pid: int) -> list[int]:
    stats = {child: Path(f"/proc/{child}/stat") for child in children(pid)}
    return [
        child
        for child, stat in stats.items()
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
    ]


def test_as_process_1_it_serves_reaps_orphans_and_ends_when_told(tmp_path):
    command = [
        *NAMESPACE,
        sys.executable,
        "-m",
        "vibemq.cli",
        "serve",
        "--workers",
        "2",
        *DOORS,
        "--data-dir",
        tmp_path,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as outside:
        try:
            assert outside.stdout is not None
            line = outside.stdout.readline()
            assert line.startswith("vibemq ready pid=1 workers=2 "), f"no ready line: {line!r}"
            words = dict(word.split("=", 1) for word in line.split()[2:])
            (broker,) = children(outside.pid)
            with connect(f"vibemq://{words['native']}") as client:
                client.publish("tasks", {"number": 1})
                with client.consume("tasks", timeout_s=STOP_SECONDS_MAX) as messages:
                    message = next(iter(messages))
                    assert message.payload == {"number": 1}
                    message.ack()

            # Somebody's shell in the container leaves a process behind, which ends later.
            left = "exec 2>&-; { sleep 1000 & echo $!; } | head -1"
            found = subprocess.run(
                ["nsenter", "--target", str(broker), "--pid", "--mount", "sh", "-c", left],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STOP_SECONDS_MAX, check=True,
            )  # fmt: skip
            ours = set(children(broker))
            orphan = found.stdout.strip()
            adopted = [
                child for child in ours if f"NSpid:\t{child}\t{orphan}\n" in Path(f"/proc/{child}/status").read_text()
            ]
            assert len(adopted) == 1, f"process {orphan} is not the broker's: {ours}"
            os.kill(adopted[0], signal.SIGKILL)
            wait_until(lambda: adopted[0] not in children(broker), "the orphan's end")
            assert zombies_of(broker) == []
            assert len(children(broker)) == 3, "both workers and the admin process are still there"

            os.kill(broker, signal.SIGTERM)
            assert outside.wait(STOP_SECONDS_MAX) == 0
        finally:
            outside.kill()  # and with it all in the namespace


@pytest.mark.parametrize("arguments", [["serve"], ["config"]])
def test_as_process_1_it_can_be_told_to_end_before_anything_heavy_is_loaded(tmp_path, arguments):
    (tmp_path / "click.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(1000)\n"
    )
    path = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    command = [*NAMESPACE, sys.executable, "-m", "vibemq.cli", *arguments]
    done = subprocess.run(command, env={**ENVIRONMENT, "PYTHONPATH": path}, timeout=STOP_SECONDS_MAX)
    assert done.returncode == 128 + signal.SIGTERM
