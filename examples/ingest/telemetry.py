# SPDX-License-Identifier: Apache-2.0
"""This host's own telemetry, as messages: the counters under /proc, one message for each value.

A family of counters has one metric name and its labels say which counter it is, so there
are a few dozen names however large the machine is, and Parquet partitioned by metric
stays a few dozen folders.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SECTOR_BYTES = 512  # what /proc/diskstats counts in, whatever the device
FILE_BYTES_MAX = 1 << 20
PROCESSES_MAX = 256  # a machine with thousands of them must not be slowed by being watched

CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
EVENT_FIELDS = {
    "ctxt": "context_switches",
    "processes": "forks",
    "procs_running": "running",
    "procs_blocked": "blocked",
}
VM_FAMILIES = {
    "nr": "vm_pages",
    "pg": "vm_paging",
    "pswp": "vm_swap",
    "numa": "vm_numa",
    "thp": "vm_huge_pages",
    "workingset": "vm_working_set",
    "compact": "vm_compaction",
}

Sample = tuple[str, str, str, float]  # metric, device, field, value


class Labels(msgspec.Struct):
    device: str
    field: str


class Message(msgspec.Struct):
    """What goes over the wire, as compact JSON."""

    host: str
    metric: str
    labels: Labels
    value: float
    timestamp: int  # microseconds since 1970
    sequence: int


SPARK_SCHEMA = (
    "host STRING, metric STRING, labels STRUCT<device: STRING, field: STRING>, "
    "value DOUBLE, timestamp BIGINT, sequence BIGINT"
)


class Tally(msgspec.Struct):
    """What was sent of one metric; sums that only the same messages, each once, add up to."""

    count: int = 0
    checksums: int = 0
    sequences: int = 0


class Sampler:
    """Reads the counters again and again. Files of the system stay open: to read one is a single call."""

    def __init__(self, proc: Path = Path("/proc"), host: str = "", clock: Callable[[], float] = time.time) -> None:
        self.proc = proc
        self.host = host or socket.gethostname()
        self.clock = clock
        # Sequences of later runs are above those of earlier ones, so a stream can hold several.
        self.first_sequence = self.sequence = int(clock() * 1000) * 1_000_000
        self.bytes = 0
        self.tallies: dict[tuple[str, str], Tally] = {}  # by metric and door
        self._encode = msgspec.json.Encoder().encode
        self._files: dict[str, int] = {}

    @property
    def count(self) -> int:
        return self.sequence - self.first_sequence

    def sweep(self, door: str) -> list[bytes]:
        """One message for each counter there is now, noted in the tallies as going through that door."""
        now = int(self.clock() * 1_000_000)
        messages = []
        for metric, device, field, value in self.samples():
            body = self._encode(Message(self.host, metric, Labels(device, field), value, now, self.sequence))
            tally = self.tallies.get((metric, door))
            if tally is None:
                tally = self.tallies[metric, door] = Tally()
            tally.count += 1
            tally.checksums += zlib.crc32(body)
            tally.sequences += self.sequence
            self.sequence += 1
            self.bytes += len(body)
            messages.append(body)
        return messages

    def samples(self) -> Iterator[Sample]:
        yield from self._cpu()
        yield from self._memory()
        yield from self._virtual_memory()
        yield from self._network()
        yield from self._disks()
        yield from self._load()
        yield from self._pressure()
        yield from self._processes()

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _lines(self, name: str) -> list[str]:
        """A file's lines; none where the kernel has no such file."""
        fd = self._files.get(name)
        try:
            if fd is None:
                fd = self._files[name] = os.open(self.proc / name, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(fd, FILE_BYTES_MAX, 0).decode("ascii", "replace").splitlines()
        except OSError:
            return []

    def _cpu(self) -> Iterator[Sample]:
        for line in self._lines("stat"):
            name, *numbers = line.split(None, 12)
            if name.startswith("cpu"):
                for field, ticks in zip(CPU_FIELDS, numbers, strict=False):
                    yield "cpu_seconds", name, field, int(ticks) / TICKS_PER_SECOND
            elif name in EVENT_FIELDS:
                yield "kernel_events", "", EVENT_FIELDS[name], float(numbers[0])
            elif name in ("intr", "softirq"):
                yield "kernel_events", "", name, float(numbers[0])

    def _memory(self) -> Iterator[Sample]:
        for line in self._lines("meminfo"):
            words = line.split()
            if len(words) == 3:  # the others count huge pages, not bytes
                yield "memory_bytes", "", words[0].rstrip(":"), float(words[1]) * 1024

    def _virtual_memory(self) -> Iterator[Sample]:
        for line in self._lines("vmstat"):
            name, _, value = line.partition(" ")
            family = name.partition("_")[0]
            metric = VM_FAMILIES.get(family) or next(
                (VM_FAMILIES[start] for start in ("pswp", "pg") if family.startswith(start)), "vm_other"
            )
            yield metric, "", name, float(value)

    def _network(self) -> Iterator[Sample]:
        for line in self._lines("net/dev")[2:]:
            name, _, rest = line.partition(":")
            numbers = rest.split()
            if len(numbers) < 16:
                continue
            device = name.strip()
            for at, way in ((0, "received"), (8, "sent")):
                yield "network_bytes", device, way, float(numbers[at])
                yield "network_packets", device, way, float(numbers[at + 1])
                yield "network_errors", device, way, float(numbers[at + 2])
                yield "network_drops", device, way, float(numbers[at + 3])

    def _disks(self) -> Iterator[Sample]:
        for line in self._lines("diskstats"):
            words = line.split()
            if len(words) < 14:
                continue
            device = words[2]
            for at, way in ((3, "read"), (7, "written")):
                yield "disk_operations", device, way, float(words[at])
                yield "disk_bytes", device, way, float(words[at + 2]) * SECTOR_BYTES
                yield "disk_seconds", device, way, float(words[at + 3]) / 1000
            yield "disk_in_flight", device, "both", float(words[11])

    def _load(self) -> Iterator[Sample]:
        for line in self._lines("loadavg"):
            for field, value in zip(("1m", "5m", "15m"), line.split(), strict=False):
                yield "load_average", "", field, float(value)

    def _pressure(self) -> Iterator[Sample]:
        for resource in ("cpu", "io", "memory"):
            for line in self._lines(f"pressure/{resource}"):
                kind, *fields = line.split()
                yield "pressure_seconds", resource, kind, float(fields[-1].partition("=")[2]) / 1_000_000

    def _processes(self) -> Iterator[Sample]:
        names = [name for name in os.listdir(self.proc) if name.isdigit()]
        for name in names[:PROCESSES_MAX]:
            try:
                with open(self.proc / name / "stat", "rb", buffering=0) as file:
                    text = file.read(4096).decode("utf-8", "replace")
            except OSError:
                continue  # it has ended meanwhile
            head, _, rest = text.rpartition(")")
            words = rest.split()
            device = f"{head.partition('(')[2]}[{name}]"
            yield "process_cpu_seconds", device, "user", int(words[11]) / TICKS_PER_SECOND
            yield "process_cpu_seconds", device, "system", int(words[12]) / TICKS_PER_SECOND
            yield "process_threads", device, "", float(words[17])
            yield "process_memory_bytes", device, "virtual", float(words[20])
            yield "process_memory_bytes", device, "resident", float(words[21]) * PAGE_BYTES
            yield "process_page_faults", device, "minor", float(words[7])
            yield "process_page_faults", device, "major", float(words[9])
