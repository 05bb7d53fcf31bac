# SPDX-License-Identifier: Apache-2.0
"""The MicroMsg2 door under load: messages in, out, and both at once with batch-ack of 1,000; latencies; fan-out.

    python benchmarks/micromsg2.py --rounds 5 --warm-mb 18000 --output result
    python benchmarks/micromsg2.py --load publish --server vibemq-micromsg2 --server null-micromsg2

Brokers of its own with two workers each and the durability `os`: one under MicroMsg2, one under the native protocol
with the same windows; and for each protocol a null server that shows where the load generator ends. All in turn, the
generator on the same cores.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks import fanout, report
from benchmarks.commands import extent_options, output_option, show, tell
from benchmarks.fanout import DIGITS, FanOut
from benchmarks.loads import WORKERS, DoorLoad, measured, one_queue, table
from benchmarks.servers import Null, NullMicromsg2, Server, VibeMQ, VibeMQMicromsg2
from vibemq.bench.queues import QueueLoad

WINDOW = 1_000
SUBSCRIBERS = 100
BASE = QueueLoad(window=WINDOW, prefetch=WINDOW, group=WINDOW // 2)


def waiting(load: QueueLoad) -> dict[str, Any]:
    """The messages lie in the queue already."""
    one_queue(replace(load, mode="pub", keep=True))
    return one_queue(load)


def to_many(load: QueueLoad, one_in: int = 0) -> dict[str, Any]:
    return fanout.run(FanOut(load, subscribers=SUBSCRIBERS, one_in=one_in)).figures()


def is_micromsg2(server: Server) -> bool:
    return server.protocol == VibeMQMicromsg2.protocol


def filters(server: Server) -> bool:
    return isinstance(server, VibeMQMicromsg2)


def keeps(server: Server) -> bool:
    """Something, for a consumer that comes later; the native null server forgets."""
    return type(server) is not Null


LOADS = (
    DoorLoad("publish", "publish 100 B", replace(BASE, mode="pub", messages=3_000_000), one_queue),
    DoorLoad("consume", "consume what waits", replace(BASE, mode="con", messages=3_000_000), waiting, keeps),
    DoorLoad("both", "publish and consume", replace(BASE, mode="both", messages=2_000_000), one_queue),
    DoorLoad(
        "latency",
        "the same at 50,000 msg/s, open loop",
        replace(BASE, mode="lat", rate=50_000.0, messages=150_000),
        one_queue,
    ),
    DoorLoad(
        "fan-out",
        f"one publisher to {SUBSCRIBERS} subscribers, deliveries in all",
        replace(BASE, mode="pub", messages=20_000),
        to_many,
        is_micromsg2,
    ),
    DoorLoad(
        "fan-out-filter",
        "the same with filters of two conditions that all messages pass",
        replace(BASE, mode="pub", messages=20_000),
        partial(to_many, one_in=1),
        is_micromsg2,
    ),
    DoorLoad(
        "fan-out-some",
        f"the same with filters that one message in {DIGITS} passes",
        replace(BASE, mode="pub", messages=100_000),
        partial(to_many, one_in=DIGITS),
        filters,
    ),
)


@click.command(help=__doc__.splitlines()[0])
@click.option("--load", "names", multiple=True, type=click.Choice([load.name for load in LOADS]))
@click.option("--server", "wanted", multiple=True, help="Repeatable; default: all.")
@click.option("--baseline", default="vibemq", show_default=True, help="Ratios are against this server.")
@extent_options
@output_option
def main(
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    baseline: str,
    rounds: int,
    scale: float,
    warm_mb: int,
    output: Path | None,
) -> None:
    report.warm_memory(warm_mb)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        brokers = [kind(folder / kind.name, workers=WORKERS) for kind in (VibeMQMicromsg2, VibeMQ)]
        nulls = [kind(folder / kind.name) for kind in (NullMicromsg2, Null)]
        servers: list[Server] = [each for each in (*brokers, *nulls) if not wanted or each.name in wanted]
        for server in servers:
            tell(f"starting {server.name}")
            stack.callback(server.start().stop)
        found = report.head(rounds, baseline) | {
            "scenarios": [
                measured(load, servers, rounds, scale, baseline) for load in LOADS if not names or load.name in names
            ]
        }
        text = table(found, servers, "an acknowledgement")
    show(found, text, output)


if __name__ == "__main__":
    main()
