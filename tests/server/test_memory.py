# SPDX-License-Identifier: Apache-2.0
"""Limits and use of memory and processors, as the kernel, a container or a control group has them."""

from __future__ import annotations

import os
import re
import shutil
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import broker, wait_until

from vibemq.config import Config
from vibemq.control_groups import processors_limit
from vibemq.server.memory import MemoryUsage, high_watermark_bytes, tmpfs_bytes, total_bytes

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


class Tree:
    """Stands in for /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        self.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:        1 kB\n")
        self.folder = folder

    def write(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, pid: int, resident: int, exact_kib: int | None) -> None:
        """`resident`: pages, beside 200 pages of files."""
        self.write(f"proc/{pid}/statm", f"5000 {resident + 200} 200 1 0 90 0\n")
        if exact_kib is not None:
            self.write(f"proc/{pid}/smaps_rollup", f"Rss: 99 kB\nPss: 77 kB\nPss_Anon: {exact_kib} kB\n")

    @property
    def total(self) -> int:
        return total_bytes(str(self.proc), str(self.groups))


def test_the_smallest_limit_of_a_control_group_holds(tree: Tree) -> None:
    assert tree.total == 1_024_000
    tree.write("proc/self/cgroup", "0::/outer/inner\n")
    tree.write("cgroup/outer/inner/memory.max", "max\n")
    assert tree.total == 1_024_000
    tree.write("cgroup/outer/memory.max", "500000\n")
    assert tree.total == 500_000
    tree.write("cgroup/outer/inner/memory.high", "450000\n")
    assert tree.total == 450_000
    tree.write("proc/self/cgroup", "4:cpu,memory:/old\n1:name=systemd:/\n")
    tree.write("cgroup/memory/old/memory.limit_in_bytes", "400000\n")
    assert tree.total == 400_000


@pytest.mark.parametrize("name", [b"caf\xe9", "a\u2028b".encode()], ids=["not UTF-8", "a line separator"])
def test_any_name_of_a_control_group_will_do(tree: Tree, name: bytes) -> None:
    group = os.fsdecode(name)
    (tree.proc / "self").mkdir()
    (tree.proc / "self/cgroup").write_bytes(b"0::/" + name + b"\n")
    tree.write(f"cgroup/{group}/memory.max", "400000\n")
    assert tree.total == 400_000


def test_a_watermark_in_bytes_goes_before_one_in_percent() -> None:
    assert high_watermark_bytes(60, 0, 1000) == 600
    assert high_watermark_bytes(60, 700, 1000) == 700
    assert high_watermark_bytes(0, 0, 1000) == 0


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"cgroup/a/b/cpu.max": "150000 100000\n", "cgroup/a/cpu.max": "50000 100000\n"}, 0.5),
        ({"cgroup/cpu/old/cpu.cfs_quota_us": "-1\n", "cgroup/cpu/old/cpu.cfs_period_us": "100000\n"}, None),
        ({"cgroup/cpu/old/cpu.cfs_quota_us": "300000\n", "cgroup/cpu/old/cpu.cfs_period_us": "100000\n"}, 3.0),
        ({"cgroup/a/b/cpu.max": "nonsense\n"}, None),
    ],
)
def test_the_smallest_quota_of_processors_holds(tree: Tree, files: dict[str, str], limit: float | None) -> None:
    tree.write("proc/self/cgroup", "5:cpu,cpuacct:/old\n0::/a/b\n")
    for path, text in files.items():
        tree.write(path, text)
    assert processors_limit(str(tree.proc), str(tree.groups)) == limit


@pytest.mark.parametrize(("quota", "workers"), [(None, 8), (0.1, 1), (1.0, 1), (2.5, 3), (100.0, 8)])
def test_workers_are_no_more_than_a_quota_lets_run(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, workers: int
) -> None:
    monkeypatch.setattr("vibemq.config.processors_limit", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert Config().worker_count == workers


def test_a_page_that_processes_share_is_counted_once(tree: Tree) -> None:
    usage = MemoryUsage(str(tree.folder), str(tree.proc))
    tree.process(7, resident=100, exact_kib=200)
    tree.process(8, resident=100, exact_kib=200)
    assert usage.bytes_of([7, 8, 9]) == 400 * 1024, "9 has ended"
    tree.process(8, resident=150, exact_kib=None)
    assert usage.bytes_of([7, 8, 9]) == 400 * 1024 + 50 * PAGE_BYTES, "memory added since the exact reading"
    tree.process(8, resident=150, exact_kib=300)
    assert usage.bytes_of([7, 8]) == 500 * 1024, "other processes: read exactly at once"


def test_without_exact_figures_resident_sizes_count(tree: Tree) -> None:
    tree.process(7, resident=100, exact_kib=None)
    tree.process(8, resident=20, exact_kib=None)
    tree.write("proc/8/smaps_rollup", "Rss: 99 kB\n")
    assert MemoryUsage(str(tree.folder), str(tree.proc)).bytes_of([7, 8]) == 120 * PAGE_BYTES


def test_the_exact_figures_are_read_again_after_a_while(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    usage = MemoryUsage(str(tree.folder), str(tree.proc))
    tree.process(7, resident=100, exact_kib=200)
    assert usage.bytes_of([7]) == 200 * 1024
    tree.process(7, resident=100, exact_kib=90)
    assert usage.bytes_of([7]) == 200 * 1024
    now_s += 10
    assert usage.bytes_of([7]) == 90 * 1024


def test_the_files_of_a_tmpfs_are_memory(tmp_path: Path) -> None:
    assert tmpfs_bytes(str(tmp_path)) == 0 or "tmpfs" in Path("/proc/self/mounts").read_text()
    folder = Path("/dev/shm")
    if not any(
        line.split()[1:3] == [str(folder), "tmpfs"] for line in Path("/proc/self/mounts").read_text().splitlines()
    ):
        pytest.skip("/dev/shm is no tmpfs here")
    file = folder / f"vibemq-test-{os.getpid()}"
    before = tmpfs_bytes(str(folder))
    try:
        file.write_bytes(bytes(64 * MIB))
        assert tmpfs_bytes(str(folder)) >= before + 32 * MIB, "others may have removed some meanwhile"
    finally:
        file.unlink()


def test_an_idle_broker_of_many_workers_counts_what_they_share_once(tmp_path: Path) -> None:
    with broker(tmp_path, workers=16) as running:
        pids = [running.process.pid, *running.worker_pids()]
        usage = MemoryUsage(str(tmp_path))
        resident = sum(usage._resident_bytes(pid) for pid in pids)
        assert usage.bytes_of(pids) < resident // 2


def test_the_kernel_would_kill_a_worker_before_the_supervisor(tmp_path: Path) -> None:
    with broker(tmp_path, workers=1) as running:

        def score(pid: int) -> int:
            return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

        children = [running.admin_pid(), *running.worker_pids()]
        assert {score(pid) for pid in children} == {min(score(running.process.pid) + 50, 1000)}


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of this test's own."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    root = Path("/sys/fs/cgroup") if unified else Path("/sys/fs/cgroup/memory")
    folder = root / f"vibemq-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(512 * MIB))
    except OSError as problem:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no control group can be made here: {problem}")
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the group's processes have ended")
    folder.rmdir()


def test_a_broker_in_a_control_group_takes_its_watermark_from_it(tmp_path: Path, memory_group: Path) -> None:
    joins = ("sh", "-c", f'echo $$ > {memory_group}/cgroup.procs && exec "$@"', "sh")
    with broker(tmp_path, workers=1, through=joins) as running:
        request = urllib.request.Request(f"http://127.0.0.1:{running.admin_port}/metrics")
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())

        def limit() -> float:
            with urllib.request.urlopen(request) as answer:
                found = re.search(rb"^vibemq_memory_limit_bytes (.*)$", answer.read(), re.MULTILINE)
            return float(found[1]) if found else 0.0

        wait_until(lambda: limit() == 512 * MIB * 60 // 100, "the watermark is 60 % of the group's limit")
