# SPDX-License-Identifier: Apache-2.0
"""How long a broker with very many streams takes from its start to the ready line: in this boot, in a new one after a
stop, and after the power was cut.

    python -m benchmarks start [--streams 65536] [--rounds 3] [--output FILE.json]

The streams are made from one with a message in it, by the broker's own metadata and copies of its log: through a
broker that many would take longer than all that is measured.  A log belongs to a boot by what its control page says
(csrc/log/FORMAT.md), and the last broker's stop says to which (`DATA/lock`).  So these two are changed to what a start
of the machine leaves, but for what lies in the page cache: `--cold` drops that before, which needs root.
"""

import os
import shutil
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import click

from benchmarks.figures import show
from benchmarks.servers import VibeMQ
from vibemq.client.streams import StreamsConnection
from vibemq.config import STREAMS_MAX
from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord

AT_A_TIME = 1024
BOOT_ID_AT, OTHER_BOOT = 8, b"another boot...."
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def make(folder: Path, count: int) -> None:
    """The data directory of a broker that has this many streams, each with a message."""
    server = VibeMQ(folder)
    try:
        server.start()
        with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
            connection.create("first")
            with connection.publisher("first") as publisher:
                publisher.publish([b"a message"])
    finally:
        server.stop()
    with closing(Metadata(metadata_path(str(folder / "data")))) as metadata:
        (first,) = metadata.streams()

        def copied(record: StreamRecord) -> None:
            shutil.copytree(first.directory, record.directory)

        for number in range(1, count, AT_A_TIME):
            keys = [str(each) for each in range(min(AT_A_TIME, count - number))]
            partitions = [(f"many-{number}-{key}", key) for key in keys]
            metadata.create_super_stream("/", f"many-{number}", partitions, {}, "os", STREAMS_MAX, copied)


def of_another_boot(data: Path, directories: list[Path], *, stopped: bool) -> None:
    lock = data / "lock"
    said, _, version = lock.read_text().split()
    if said != "stopped":
        raise click.ClickException(f"{lock}: the last broker has not noted its stop; --streams is too small?")
    lock.write_text(f"stopped {OTHER_BOOT.hex()} {version}\n" if stopped else "1\n")
    for directory in directories:
        with open(directory / "control", "r+b") as file:
            file.seek(BOOT_ID_AT)
            file.write(OTHER_BOOT)


def ready_s(folder: Path) -> float:
    server = VibeMQ(folder)
    began = time.monotonic()
    try:
        server.start()
        return time.monotonic() - began
    finally:
        server.stop()


def summary(seconds: list[float]) -> dict[str, object]:
    return {"median": round(statistics.median(seconds), 2), "all": [round(each, 2) for each in seconds]}


@click.command()
@click.option("--streams", default=STREAMS_MAX, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--cold", is_flag=True, help="With nothing in the page cache; needs root.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keeps the data there, and takes what is there.")
@click.option("--output", type=click.Path(path_type=Path))
def start(streams: int, rounds: int, cold: bool, folder: Path | None, output: Path | None) -> None:
    """A broker's start with very many streams, in this boot and in a new one."""
    with tempfile.TemporaryDirectory() as temporary:
        where = folder or Path(temporary)
        began = time.monotonic()
        if not (where / "data").exists():
            make(where, streams)
        with closing(Metadata(metadata_path(str(where / "data")))) as metadata:
            directories = [Path(record.directory) for record in metadata.streams()]
        report: dict[str, object] = {"streams": len(directories), "made_s": round(time.monotonic() - began, 1)}
        kinds = "after_a_power_cut_s", "after_another_boot_s", "in_this_boot_s"
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        ready_s(where)  # and stopped, which is noted
        for _ in range(rounds):
            for kind, seconds in taken.items():
                if kind != "in_this_boot_s":
                    of_another_boot(where / "data", directories, stopped=kind == "after_another_boot_s")
                os.sync()
                if cold:
                    DROP_CACHES.write_text("3\n")
                seconds.append(ready_s(where))
        report |= {kind: summary(seconds) for kind, seconds in taken.items()}
    show(report, output)
