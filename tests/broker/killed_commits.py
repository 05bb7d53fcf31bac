# SPDX-License-Identifier: Apache-2.0
"""Run under kill_at_call.so: processes that commit a transaction are killed at one call after another.

    killed_commits.py TEMPLATE SCRATCH HOW TARGETS STAGED EACH FIRST     (JSON from TARGETS on)

TEMPLATE is a data directory in which batches 0 and 1 of application "app" are staged.  For each EACH-th call from FIRST
on a process copies it, commits batch 0 and dies there.  Others then look that nothing of an undecided batch is to be
seen, finish what was left, and commit both batches as a driver would that heard no answer: every row is there once, in
order, and nothing staged is left.

With HOW "cut" the power goes at that call: only what is synced by then is left, and the broker starts anew on it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace

import vibemq.storage.log as logs
from vibemq.broker.disk import Reserve
from vibemq.broker.transactions import Run, State, Transactions
from vibemq.config import Config, Server
from vibemq.server.recovery import Recovery
from vibemq.storage.metadata import Metadata
from vibemq.storage.transactions import STAGING

RUN = Run("/", "app", "run", "guest", "test", False, True)
SEGMENT_HEADER, CHUNK_HEADER = 64, 48
core = ctypes.CDLL(None)


def rows(metadata: Metadata, name: str) -> list[bytes]:
    """What is committed in a stream, read from its files."""
    directory = metadata.find_stream("/", name).directory
    with closing(logs.Log(directory)) as log:
        end = log.stats().next_offset
    found: list[bytes] = []
    for first in logs.segments(directory):
        with open(f"{directory}/{first:020}.segment", "rb") as file:
            data = file.read()
        at = SEGMENT_HEADER
        while at < len(data) and len(found) < end:
            size, trailer, bloom = struct.unpack_from(">IIB", data, at + 36)
            at += CHUNK_HEADER + bloom
            stop = at + size
            while at < stop:
                (length,) = struct.unpack_from(">I", data, at)
                found.append(data[at + 4 : at + 4 + length])
                at += 4 + length
            at += trailer
    assert len(found) == end, (name, len(found), end)
    return found


def opened(folder: str) -> tuple[Metadata, Transactions]:
    metadata = Metadata(f"{folder}/meta.db")
    table = SimpleNamespace(metadata=metadata, tell=lambda workers, slot: None)
    return metadata, Transactions(Config(server=Server(data_dir=folder)), table, lambda *_: None)


def commit(transactions: Transactions, version: int, targets: list[str], staged: list[list]) -> tuple[State, int]:
    found = transactions.commit(RUN, version, targets, [tuple(one) for one in staged[version]], is_last=False)
    return found.state, found.messages


def in_a_process(work: Callable[[], None]) -> int:
    """How it ended: the exit code, 1 for an exception."""
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
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(
    template: str, folder: str, how: str, targets: list[str], staged: list[list], each: int, first: int
) -> int:  # fmt: skip
    wanted = {
        name: [b"%d %s %d" % (version, name.encode(), i) for version in (0, 1) for i in range(6)] for name in targets
    }

    disk = f"{folder}-disk"

    def start() -> None:
        metadata, _ = opened(folder)
        Recovery(metadata, 500_000_000, 67_108_864, reserve=Reserve(folder, 0)).before_serving()
        metadata.close()

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder, ignore=shutil.ignore_patterns("reserve", "*.sock", "lock"))
        start()
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(folder, disk)

    def be_killed() -> None:
        _, transactions = opened(folder)
        if how == "cut":
            core.keep_synced(os.path.realpath(folder).encode(), disk.encode())
        core.kill_at_call(at)
        assert commit(transactions, 0, targets, staged) == (State.OK, 6 * len(targets))

    def look() -> None:
        """Before anything is repaired."""
        if how == "cut":
            shutil.rmtree(folder)
            # A control page names its boot and its inode, and this is the same boot: a copy could get the same inode.
            shutil.copytree(disk, folder, ignore=shutil.ignore_patterns("control"))
            start()
        metadata, _ = opened(folder)
        is_decided = metadata.application("/", "app").version == 0
        for name in targets:
            there = rows(metadata, name)
            assert there == wanted[name][: len(there)] and len(there) <= (6 if is_decided else 0), (name, there)

    def repair() -> None:
        metadata, transactions = opened(folder)
        transactions.staged.finish()
        transactions.staged.look()
        state, messages = commit(transactions, 0, targets, staged)
        assert state in (State.OK, State.ALREADY) and messages == 6 * len(targets), (state, messages)
        assert commit(transactions, 1, targets, staged) == (State.OK, 6 * len(targets))
        for name in targets:
            assert rows(metadata, name) == wanted[name], (name, rows(metadata, name))
        assert not metadata.staging() and not metadata.decisions()
        assert metadata.find_stream(STAGING, staged[0][0][0]) is None
        known = sorted(record.incarnation for record in metadata.logs())
        assert sorted(os.listdir(f"{folder}/streams")) == known

    at = first
    while True:
        for work in (prepare, be_killed, look, repair):
            code = in_a_process(work)
            if code == 0 and work is be_killed:
                print(f"{at} calls", flush=True)  # and none was the last
                return 0
            if code != (137 if work is be_killed else 0):
                print(f"killed at call {at}: {work.__name__} ended with {code}", flush=True)
                return 1
        at += each


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], *map(json.loads, sys.argv[4:])))
