# SPDX-License-Identifier: Apache-2.0
"""A connection that has ended leaves nothing in its worker.

What the process takes from the kernel says little: closed connections are cycles, which the collector of the
interpreter frees in steps, and allocators keep what they once had; both are bounded (after 20,000 connections a
worker grows no more), and hide what really leaks.  So the worker itself counts: blocks of objects and bytes of
malloc that are in use after a collection.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import running
from running import Running, broker

import vibemq.client
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection

DEADLINE_S = 60
WARM_UP, MEASURED = 500, 5000
BLOCKS_PER_CONNECTION_MAX = 0.1  # 500 in all: weak references, caches and sets that grow in steps
BYTES_PER_CONNECTION_MAX = 16.0

#: Runs in each process of the broker, because this folder is on its path: SIGUSR1 writes down what is in use.
COUNTS = """
import ctypes, gc, os, signal, sys

class Mallinfo2(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2

def count(*_):
    gc.collect()
    info = libc.mallinfo2()
    path = f"{os.environ['VIBEMQ_TEST_COUNTS']}/{os.getpid()}"
    with open(path + ".new", "w") as file:
        file.write(f"{sys.getallocatedblocks()} {info.uordblks + info.hblkhd}")
    os.replace(path + ".new", path)

signal.signal(signal.SIGUSR1, count)
"""


def streams_dialled(served: Running) -> None:
    with socket.create_connection((served.host, served.port), DEADLINE_S) as peer:
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""  # its end has come and gone, and not only been asked for


def streams(served: Running) -> None:
    StreamsConnection.connect(served.host, served.port).close()


def native(served: Running) -> None:
    vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}").close()


def signalr(served: Running) -> None:
    with socket.create_connection((served.host, served.ports["signalr"]), DEADLINE_S) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while peer.recv(1 << 16):
            continue


def micromsg2(served: Running) -> None:
    with Micromsg2Client(served.host, served.ports["micromsg2"]):
        pass


def counted(pid: int, folder: Path, wake: Callable[[], None]) -> tuple[int, int]:
    path = folder / str(pid)
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, "the worker does not count"
        wake()  # its loop may be asleep within a call: the interpreter's handler runs after it
        time.sleep(0.05)
    blocks, size = path.read_text().split()
    return int(blocks), int(size)


@pytest.mark.parametrize("connect", [streams_dialled, streams, native, signalr, micromsg2])
def test_thousands_of_connections_leave_no_memory_in_use(tmp_path, monkeypatch, connect):
    folder = tmp_path / "counts"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(COUNTS)
    path = os.pathsep.join([str(folder), running.ENVIRONMENT["PYTHONPATH"]])
    monkeypatch.setitem(running.ENVIRONMENT, "PYTHONPATH", path)
    monkeypatch.setitem(running.ENVIRONMENT, "VIBEMQ_TEST_COUNTS", str(folder))
    unlimited = ("--set", "native.connections_per_address_per_minute=0", "--set", "server.log_level=warning")
    with broker(tmp_path / "data", *unlimited, workers=1) as served:
        (pid,) = served.worker_pids()
        for _ in range(WARM_UP):
            connect(served)
        blocks, size = counted(pid, folder, lambda: streams_dialled(served))
        for _ in range(MEASURED):
            connect(served)
        blocks_now, size_now = counted(pid, folder, lambda: streams_dialled(served))
        print(f"{blocks_now - blocks} blocks, {size_now - size} bytes after {MEASURED} connections")
        assert (blocks_now - blocks) / MEASURED <= BLOCKS_PER_CONNECTION_MAX
        assert (size_now - size) / MEASURED <= BYTES_PER_CONNECTION_MAX
