# SPDX-License-Identifier: Apache-2.0
"""How many queues and how long they may be: memory of many queues with a consumer each, and opening one that is long.

    python -m benchmarks queues-scale [--queues 10000] [--waiting 10000000] [--output FILE.json]

Starts its own broker. Anonymous memory is what processes have for themselves: heap, stacks, no file. A page of a file
belongs to whoever needs the memory more, so it is told apart.
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks.figures import as_many_files_as_allowed, memory_mb, show
from benchmarks.servers import VibeMQ
from vibemq.bench.queues import Native, QueueLoad
from vibemq.bench.run import run
from vibemq.protocols.native import codec
from vibemq.protocols.native.spec import Command

MESSAGES_PER_QUEUE = 20
FILL_WINDOW = 50_000


def many_queues(folder: Path, count: int, connections: int) -> dict[str, object]:
    """`count` queues, each with a consumer, and messages through all of them."""
    with ExitStack() as stack:
        server = VibeMQ(folder / "many")
        stack.callback(server.start().stop)
        load = QueueLoad(
            port=server.port,
            messages=count * MESSAGES_PER_QUEUE,
            queues=count,
            consumers=min(connections, count),
            prefetch=100,
            verify=True,
            timeout_s=300.0,
        )
        before, after = memory_mb(server), {}
        began = time.monotonic()
        result = run(load, look=lambda: after.update(memory_mb(server)))
        figures = result.figures()
        return {
            "queues": count,
            "connections": load.consumers,
            "before": before,
            "with_all_subscribed": after,
            "kb_for_a_queue": round((after["pss_mb"] - before["pss_mb"]) * 1024 / count, 1),
            "anonymous_kb_for_a_queue": round((after["pss_anon_mb"] - before["pss_anon_mb"]) * 1024 / count, 2),
            "consume_msg_s": figures["consume_msg_s"],
            "wall_with_making_them_s": round(time.monotonic() - began, 1),
        }


def first_delivery_s(peer: Native) -> float:
    """From the connection to the first message."""
    began = time.monotonic()
    wire = peer.connect()
    wire.send(codec.encode_frame(Command.SUBSCRIBE, "subscribe", queue=peer.load.queue))
    while peer.reply(wire).type != Command.DELIVER:
        continue
    took = time.monotonic() - began
    wire.close()
    return took


def long_queue(folder: Path, waiting: int) -> dict[str, object]:
    """A queue that is filled, closed by stopping the broker, opened by the next one, and emptied."""
    with ExitStack() as stack:
        server = VibeMQ(folder / "long")
        stack.callback(server.stop)
        server.start()
        before = memory_mb(server)
        load = QueueLoad(port=server.port, mode="pub", messages=waiting, window=FILL_WINDOW, keep=True, timeout_s=600.0)
        filled = run(load).figures()
        full = memory_mb(server)
        server.stop()
        began = time.monotonic()
        server.start()
        ready_s = time.monotonic() - began
        closed = memory_mb(server)
        load = QueueLoad(port=server.port, mode="con", messages=waiting, timeout_s=600.0)
        peer = Native(load)
        first_s = first_delivery_s(peer)
        began = time.monotonic()
        left = peer.left()
        info_s = time.monotonic() - began
        opened = memory_mb(server)
        peer.close()
        emptied = run(load).figures()
        return {
            "waiting": left,
            "publish_msg_s": filled["publish_msg_s"],
            "start_s": round(ready_s, 3),
            "connect_to_first_delivery_s": round(first_s, 4),
            "queue_info_s": round(info_s, 4),
            "memory": {"empty": before, "full": full, "started_again": closed, "open": opened},
            "anonymous_bytes_for_a_message_while_filling": _per_message(before, full, waiting),
            "anonymous_bytes_for_a_message_after_opening": _per_message(closed, opened, waiting),
            "consume_msg_s": emptied["consume_msg_s"],
        }


def _per_message(before: dict[str, float], after: dict[str, float], count: int) -> float:
    return round((after["pss_anon_mb"] - before["pss_anon_mb"]) * 1048576 / count, 3)


@click.command("queues-scale")
@click.option("--queues", default=10_000, show_default=True)
@click.option("--connections", default=100, show_default=True, help="Of the consumers, each with its share of queues.")
@click.option("--waiting", default=10_000_000, show_default=True)
@click.option("--output", type=click.Path(path_type=Path))
def queues_scale(queues: int, connections: int, waiting: int, output: Path | None) -> None:
    """Memory of many queues with a consumer each; opening a queue that is long."""
    as_many_files_as_allowed()
    report: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        if queues:
            report["many_queues"] = many_queues(Path(name), queues, connections)
        if waiting:
            report["long_queue"] = long_queue(Path(name), waiting)
    show(report, output)
