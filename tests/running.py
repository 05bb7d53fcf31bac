# SPDX-License-Identifier: Apache-2.0
"""A broker as `vibemq serve` starts it, for tests that only need one to be there."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import vibemq
from benchmarks.servers import free_ports

#: The processes that tests start use the same vibemq as the tests, installed or not.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        filter(None, [str(Path(vibemq.__file__).parent.parent), os.environ.get("PYTHONPATH")])
    ),
}
STOP_SECONDS_MAX = 60


class Server(subprocess.Popen[str]):
    """Is asked once to end, whether by a test or after it: a second SIGTERM would make the broker hurry."""

    asked = False

    def send_signal(self, sig: int) -> None:
        if sig != signal.SIGTERM or not self.asked:
            self.asked = self.asked or sig == signal.SIGTERM
            super().send_signal(sig)


class Running(NamedTuple):
    host: str
    port: int  # of the streams door
    process: subprocess.Popen
    native_port: int = 0
    admin_port: int = 0
    tls_port: int = 0  # of the streams door, where it speaks TLS
    ports: Mapping[str, int] = {}  # of each door, by its name in the ready line

    def worker_pids(self) -> list[int]:
        return self._children("vibemq: worker")

    def admin_pid(self) -> int:
        """The process of the management API, once it has given itself its name: nobody waits for it to be ready."""
        wait_until(lambda: bool(self._children("vibemq: admin")), "an admin process")
        return self._children("vibemq: admin")[0]

    def _children(self, title: str) -> list[int]:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if _title(child).startswith(title)]


def _title(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


def written(_: object) -> str:
    """What all processes have written to standard error in this test.

    capfd has put a file there, which it empties when it is read: what comes in that moment would be lost."""
    return os.pread(2, os.fstat(2).st_size, 0).decode(errors="replace")


def resident_bytes(pid: int) -> int:
    """Memory of a process that it shares with nobody, and its part of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


DOORS = ("streams", "native", "signalr", "micromsg2", "admin")
#: On free ports: who has the ordinary ones is not known, and tests run side by side.
SERVE = [sys.executable, "-m", "vibemq.cli", "serve"]
for _door in DOORS:
    SERVE += [f"--{_door}-port", "0"]
for _door in ("native", "micromsg2", "admin"):
    SERVE += ["--set", f"{_door}.tls_port=0"]


@contextmanager
def broker(folder: Path, *flags: str, workers: int = 2, through: Sequence[str] = ()) -> Iterator[Running]:
    """Serve on a free port with data in ``folder``; at the end it must stop cleanly.

    ``through``: a command that becomes the one behind it, as `env` does.
    """
    command = [*through, *SERVE, "--workers", str(workers)]
    process = Server([*command, "--data-dir", str(folder), *flags], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        line = process.stdout.readline() if process.stdout else ""
        assert line.startswith(f"vibemq ready pid={process.pid} workers={workers} streams="), f"no ready line: {line!r}"
        doors = {door: address.rpartition(":") for door, _, address in (word.partition("=") for word in line.split())}
        ports = {door: int(port) for door, (_, colon, port) in doors.items() if colon}
        native, admin, tls = (ports.get(door, 0) for door in ("native", "admin", "streams-tls"))
        yield Running(doors["streams"][0].strip("[]"), ports["streams"], process, native, admin, tls, ports)
        process.terminate()
        assert process.wait(STOP_SECONDS_MAX) == 0, "the broker did not stop cleanly"
        (Path(folder) / "reserve").unlink(missing_ok=True)  # 16 MiB of each of hundreds of folders that pytest keeps
    finally:
        process.kill()  # no harm when it has ended; its workers follow it
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Restartable:
    """A broker that can be ended in an orderly way and started again: the same folder, the same ports."""

    def __init__(self, folder: Path, flags: tuple[str, ...], workers: int) -> None:
        self._folder, self._flags, self._workers = folder, flags, workers
        self._stack = ExitStack()
        # The kernel gives none of these to an outgoing connection while the broker is down.
        self.running = self._start(
            *(word for door, port in zip(DOORS, free_ports(len(DOORS)), strict=True) for word in _flag(door, port))
        )

    def _start(self, *ports: str) -> Running:
        return self._stack.enter_context(broker(self._folder, *self._flags, *ports, workers=self._workers))

    def restart(self) -> None:
        """As `systemctl restart` does it."""
        ports = self.running.ports
        self.stop()
        self.running = self._start(*(word for door, port in ports.items() for word in _flag(door, port)))

    def stop(self) -> None:
        self._stack.close()


def _flag(door: str, port: int) -> tuple[str, str]:
    """What sets the port of a door, as the ready line names it."""
    name, _, is_tls = door.partition("-")
    return ("--set", f"{name}.tls_port={port}") if is_tls else (f"--{name}-port", str(port))


@contextmanager
def restartable(folder: Path, *flags: str, workers: int = 2) -> Iterator[Restartable]:
    made = Restartable(folder, flags, workers)
    try:
        yield made
    finally:
        made.stop()


def forked(work: Callable[[], None]) -> int:
    """Run it in a child of this process, which exits with 0, or with 1 for an exception; return the child's pid.

    Nothing else of pytest runs in the child, whatever ``work`` does.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    """Wait for the end of a child; negative: of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Poll for what another process does in its own time; `what` says what never happened."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.002)
