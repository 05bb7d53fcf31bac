# SPDX-License-Identifier: Apache-2.0
"""`vibemq ctl top`: a view of the broker that renews itself; where nobody watches a terminal, one snapshot."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from vibemq.cli.ctl_orders import Refused
from vibemq.errors import VibeMQError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vibemq.cli.ctl_orders import Order

ROWS_OF_A_SNAPSHOT = 20
ROWS_MAX = 1000  # that the broker gives
WIDTH_OF_A_SNAPSHOT = 120  # wherever it goes: a file has none
LINES_OF_THE_HEAD = 8  # and one for each process
AGAIN_S = 2.0  # while the broker does not answer


def top(order: Order) -> Any:
    """Rates are of the time between two answers."""
    interval_s = order.options["interval"]
    if order.options["formatter"] == "json":
        return _asked(order, ROWS_OF_A_SNAPSHOT)
    if sys.stdout.isatty():
        _watch(order, interval_s)
        return None
    from rich.console import Console

    before = _asked(order, ROWS_OF_A_SNAPSHOT)
    time.sleep(interval_s)
    Console(width=WIDTH_OF_A_SNAPSHOT).print(view(before, _asked(order, ROWS_OF_A_SNAPSHOT)))
    return None


def _asked(order: Order, rows: int) -> dict[str, Any]:
    found: dict[str, Any] = order.ask(f"GET /top?rows={rows}", needs_broker=True)
    return found


def _watch(order: Order, interval_s: float) -> None:
    """Until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    before = _asked(order, ROWS_OF_A_SNAPSHOT)
    with Live(view(before, before), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            rows = max(1, console.height - LINES_OF_THE_HEAD - len(before["processes"]))
            try:
                now = _asked(order, min(rows, ROWS_MAX))
            except (Refused, VibeMQError) as problem:  # it is being restarted, perhaps
                live.update(f"{problem}; asking again", refresh=True)
                time.sleep(AGAIN_S)
                continue
            live.update(view(before, now), refresh=True)
            before = now


def view(before: dict[str, Any], now: dict[str, Any]) -> RenderableType:
    """``before`` may be the same answer: then nothing is known of rates."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    passed_s = now["at_s"] - before["at_s"]

    def rate(total_now: float, total_before: float) -> str:
        return f"{max(0.0, total_now - total_before) / passed_s:,.0f}" if passed_s > 0 else "-"

    state = ", ".join([*(f"{alarm} alarm" for alarm in now["alarms"]), *(["maintenance"] if now["is_drained"] else [])])
    head = Text.assemble(
        (f"{now['node']}  {now['version']}  up {_time(now['uptime_s'])}  ", "bold"),
        (state or "no alarms", "bold red" if state else "green"),
        f"\nconfirmed/s {rate(now['confirmed_total'], before['confirmed_total'])}"
        f"  delivered/s {rate(now['delivered_total'], before['delivered_total'])}"
        f"  connections {now['connections']:,}  streams and queues {now['streams']:,}"
        f"\nmemory {_size(now['memory_used'])} of {_size(now['memory_limit']) if now['memory_limit'] else 'no limit'}"
        f"  disk {_size(now['disk_free'])} free",
    )
    processes = Table("process", "pid", "CPU %", "loop busy %", "memory", "files", box=None, header_style="bold")
    earlier = {one["pid"]: one for one in before["processes"]}
    for one in now["processes"]:
        was = earlier.get(one["pid"], {})
        spent = [_percent(one, was, key, passed_s) for key in ("cpu_seconds_total", "turning_s_total")]
        busy = spent[1] if one["name"].startswith("worker") else ""
        files = f"{one['open_fds']:,} of {one['max_fds']:,}" if "open_fds" in one else "-"
        memory = _size(one.get("resident_memory_bytes", 0))
        processes.add_row(one["name"], str(one["pid"]), spent[0], busy, memory, files)
    rows = Table(box=None, header_style="bold")
    for title in ("stream or queue", "type"):
        rows.add_column(title, no_wrap=True, overflow="ellipsis")
    for title in ("published/s", "acked/s", "lost/s", "ready", "unacked", "consumers", "lag", "size"):
        rows.add_column(title, justify="right", no_wrap=True)
    earlier_rows = {(one["vhost"], one["stream"]): one for one in before["rows"]}

    def rate_of(one: dict[str, Any], total: str) -> str:
        had = earlier_rows.get((one["vhost"], one["stream"]), {}).get(total)
        return "" if one.get(total) is None else "-" if had is None else rate(one[total], had)

    for one in now["rows"]:
        lost = rate_of(one, "lost_total")
        name = one["stream"] if one["vhost"] == "/" else f"{one['vhost']}: {one['stream']}"
        rows.add_row(
            Text("".join(character if character.isprintable() else "?" for character in name)),
            one["type"],
            f"{one['published_per_s']:,.0f}",
            rate_of(one, "acked_total"),
            Text(lost, style="bold red" if lost.strip("0-") else ""),  # dropped, or refused by a full queue
            f"{one['ready']:,}",
            f"{one['unacknowledged']:,}" if one["type"] == "queue" else "",
            "" if one["consumers"] is None else f"{one['consumers']:,}",
            "" if one["stored_offset_lag"] is None else f"{one['stored_offset_lag']:,}",
            _size(one["bytes"]),
        )
    return Group(head, Text(), processes, Text(), rows)


def _percent(now: dict[str, Any], before: dict[str, Any], key: str, passed_s: float) -> str:
    if passed_s <= 0 or key not in now or key not in before:
        return "-"
    return f"{max(0.0, now[key] - before[key]) / passed_s * 100:.0f}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _time(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    hours, minutes = rest // 3600, rest % 3600 // 60
    return f"{days}d {hours}h" if days else f"{hours}h {minutes}m" if hours else f"{minutes}m {rest % 60}s"
