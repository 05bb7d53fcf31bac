# SPDX-License-Identifier: Apache-2.0
"""A worker that is refused descriptors or threads serves on with those that it has, and with new ones later."""

import resource
import shutil
import socket
import subprocess
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from peers.queues import QueuePeer, Refused, kill, payloads, wait_until
from running import Running, broker, written

from vibemq.protocols.native.codec import encode_frame
from vibemq.protocols.native.spec import Command

FILES = 1024
NEWCOMERS = 3000
SLOW_STOP = ("--set", "server.shutdown_timeout_s=600")
WITH_FEW_FILES = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
MESSAGE_BYTES = 900_000
REFUSED_TRIES = 30
NEVER_HANGS = ("--set", "server.worker_hang_s=0", "--set", "server.shutdown_timeout_s=4")
COMPILER = shutil.which("cc") or shutil.which("gcc")


def is_ready(running: Running) -> bool:
    with urllib.request.urlopen(f"http://{running.host}:{running.admin_port}/health/ready", timeout=60) as answer:
        return answer.status == 200


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def works(running: Running, queue: str) -> None:
    with QueuePeer(running) as peer:
        peer.create(queue)
        peer.publish_all(queue, range(10))
        peer.subscribe(queue)
        assert peer.take_acked(10) == list(range(10))
        peer.delete(queue)


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NEWCOMERS + 500, reason="this process may not open 3,500 files"
)
def test_a_worker_at_its_limit_of_open_files_keeps_its_connections_and_answers(tmp_path, capfd):
    with broker(tmp_path, through=WITH_FEW_FILES) as running, ExitStack() as stack:
        workers = sorted(running.worker_pids())
        peer = stack.enter_context(QueuePeer(running))
        peer.create("q")
        peer.subscribe("q")
        crowd = stack.enter_context(ExitStack())
        for _ in range(NEWCOMERS):
            newcomer = crowd.enter_context(socket.socket())
            newcomer.setblocking(False)
            newcomer.connect_ex((running.host, running.native_port))
        wait_until(lambda: written(capfd).count("the limit of open files is reached") == 2, "both workers are full")
        assert all(open_files(pid) < FILES for pid in workers), "some are kept"
        assert is_ready(running)
        peer.publish_all("q", range(10))
        assert payloads(peer.take(10)) == list(range(10))
        crowd.close()
        works(running, "later")
        assert sorted(running.worker_pids()) == workers
        assert f"only {FILES} files may be open in each process" in written(capfd)
        peer.delete("q")


@pytest.fixture
def refusing(tmp_path: Path) -> Path:
    """The kernel refuses threads while this file exists."""
    return tmp_path / "refuses"


@pytest.fixture
def through(tmp_path: Path, refusing: Path) -> tuple[str, ...]:
    if COMPILER is None:
        pytest.skip("there is no C compiler to build another kernel with")
    library, source = tmp_path / "refuse_threads.so", Path(__file__).parent / "refuse_threads.c"
    options = ["-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-D_GNU_SOURCE"]
    subprocess.run([COMPILER, *options, "-o", library, source, "-ldl"], check=True)
    return "env", f"LD_PRELOAD={library}", f"VIBEMQ_REFUSES_THREADS={refusing}"


def replaced(running: Running) -> None:
    """Replace the worker."""
    (before,) = running.worker_pids()
    kill(before)
    wait_until(lambda: running.worker_pids() not in ([], [before]), "another worker")


def test_without_a_single_new_thread_health_checks_are_answered_and_a_worker_ends_when_it_is_asked(
    tmp_path, through, refusing, capfd
):
    with broker(tmp_path / "data", *SLOW_STOP, workers=1, through=through) as running:
        wait_until(lambda: "the management API is ready" in written(capfd), "the management API")
        refusing.touch()
        replaced(running)
        wait_until(lambda: written(capfd).count("worker 0 is ready") == 2, "the worker is ready")
        assert is_ready(running)


def test_a_worker_that_was_refused_threads_gets_them_later(tmp_path, through, refusing, capfd):
    with broker(tmp_path / "data", workers=1, through=through) as running:
        refusing.touch()
        replaced(running)
        wait_until(lambda: "a thread for sync was refused" in written(capfd), "a refused thread")
        refusing.unlink()
        works(running, "q")
        assert len(running.worker_pids()) == 1


@pytest.mark.parametrize("room_bytes", [0, 300_000, 1 << 20, 3 << 20, 8 << 20])
def test_a_worker_that_is_refused_memory_ends_connections_and_not_itself(tmp_path, capfd, room_bytes):
    with broker(tmp_path, *NEVER_HANGS, workers=1) as running, ExitStack() as stack:
        (worker,) = running.worker_pids()
        works(running, "before")
        peer = stack.enter_context(QueuePeer(running))
        peer.create("q")
        peer.publish("q", 1)
        size = int(Path(f"/proc/{worker}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(worker, resource.RLIMIT_AS, (size + room_bytes, resource.RLIM_INFINITY))
        crowd = stack.enter_context(ExitStack())
        for number in range(REFUSED_TRIES):
            use_memory(running, crowd, f"q{number}")
        with suppress(ConnectionError):
            peer.ping()
        crowd.close()
        resource.prlimit(worker, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        works(running, "after")
        assert running.worker_pids() == [worker]
        assert "closed: the kernel refused memory that it needed" in written(capfd)


def use_memory(running: Running, crowd: ExitStack, queue: str) -> None:
    """Of the worker: for messages in their batch, half a message, files that are mapped and what nobody reads."""
    with suppress(OSError, Refused):
        peer = crowd.enter_context(QueuePeer(running, receive_buffer_bytes=4096))
        for _ in range(3):
            peer.start_publish("q", b"x" * MESSAGE_BYTES)
        peer.ping()
        peer.subscribe("q", prefetch=1000)
        peer.create(queue)
        frame = encode_frame(Command.PUBLISH, b"half", queue="q", payload=b"x" * MESSAGE_BYTES)
        peer.send_all(frame[:-100])
