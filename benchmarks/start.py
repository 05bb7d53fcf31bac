# SPDX-License-Identifier: Apache-2.0
"""How long a broker with very many streams takes from its start to the ready line, in this boot and in a new one, and
then until it has looked at all of them.

    python -m benchmarks start [--streams 65536] [--rounds 3] [--output FILE.json]

The streams are made from one with a message in it, by the broker's own metadata and copies of its log: through a
broker that many would take longer than all that is measured.  A log belongs to a boot by what its control page says
(csrc/log/FORMAT.md), so a page that names another is what a start of the machine leaves, after a stop or a power cut
alike, but for what lies in the page cache: `--cold` drops that before, which needs root.
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
from vibemq.server.recovery import STEP
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord

AT_A_TIME = 1024
RECOVERED_S_MAX, LOOK_S = 600.0, 0.05
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


def of_another_boot(directories: list[Path]) -> None:
    for directory in directories:
        with open(directory / "control", "r+b") as file:
            file.seek(BOOT_ID_AT)
            file.write(OTHER_BOOT)


def is_of_this_boot(directory: Path) -> bool:
    with open(directory / "control", "rb") as file:
        file.seek(BOOT_ID_AT)
        return file.read(len(OTHER_BOOT)) != OTHER_BOOT


def taken_s(folder: Path, directories: list[Path]) -> tuple[float, float]:
    """Until the ready line, and until all logs are of this boot: the broker takes them in their order."""
    server = VibeMQ(folder)
    began = time.monotonic()
    try:
        server.start()
        ready = time.monotonic() - began
        while not all(map(is_of_this_boot, directories[-STEP:])):
            if time.monotonic() > began + RECOVERED_S_MAX:
                raise click.ClickException(f"after {RECOVERED_S_MAX:.0f} s not all logs in {folder} are recovered")
            time.sleep(LOOK_S)
        return ready, time.monotonic() - began
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
        taken: dict[str, list[float]] = {
            "after_another_boot_s": [],
            "all_recovered_s": [],
            "in_this_boot_s": [],
        }
        for _ in range(rounds):
            for is_new in (True, False):
                if is_new:
                    of_another_boot(directories)
                os.sync()
                if cold:
                    DROP_CACHES.write_text("3\n")
                ready, recovered = taken_s(where, directories)
                taken["after_another_boot_s" if is_new else "in_this_boot_s"].append(ready)
                if is_new:
                    taken["all_recovered_s"].append(recovered)
        report |= {kind: summary(seconds) for kind, seconds in taken.items()}
    show(report, output)
