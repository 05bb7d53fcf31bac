# SPDX-License-Identifier: Apache-2.0
"""How far `vibemq ingest` is, for who watches and at a port for Prometheus, until it ends or a signal ends it."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

import click

from vibemq.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from vibemq.spark.ingest import State

LOOK_S = 0.5
LINE_S = 10.0  # where nothing can be redrawn, a line this often
METRICS_HOST = "127.0.0.1"


def follow(query: StreamingQuery, metrics_port: int | None, as_json: bool, checkpoint: str) -> int | None:
    """Show how far it is until it ends by itself (None) or by a signal (its number). Raises what made it fail."""
    from vibemq.spark.ingest import Watch, rows_text

    watch = Watch()
    shown = _Line(watch.state(time.monotonic()), as_json)
    with _interrupted() as stop, _serving(metrics_port, shown):
        try:
            while query.isActive and not stop.wait(LOOK_S):
                shown.show(watch.look(query))
            if query.isActive:
                query.stop()
            else:
                query.awaitTermination()  # raises what ended it, if it was an error
        finally:
            shown.show(watch.look(query), last=True)
    if stop.heard is not None:
        done = f"at least {rows_text(watch.rows)} written; the same command goes on behind them, by {checkpoint}"
        click.echo(f"vibemq: {done}", err=True)
    return stop.heard


class _Line:
    """One line that is redrawn; where standard error is no terminal, a line now and then; with --json an object."""

    def __init__(self, state: State, as_json: bool) -> None:
        self.state = state
        self.as_json = as_json
        self.is_terminal = sys.stderr.isatty()
        self.due = 0.0

    def show(self, state: State, last: bool = False) -> None:
        from vibemq.spark.ingest import line

        self.state = state
        if self.is_terminal and not self.as_json:
            click.echo(f"\r\x1b[K{line(state)}", err=True, nl=last)
        elif last or time.monotonic() >= self.due:
            self.due = time.monotonic() + LINE_S
            click.echo(json.dumps(asdict(state)) if self.as_json else line(state), err=not self.as_json)


class _Stop(threading.Event):
    heard: int | None = None  # the signal


@contextlib.contextmanager
def _interrupted() -> Iterator[_Stop]:
    """Ctrl-C and SIGTERM end the query in order; Spark's own Java does not hear them."""
    stop = _Stop()

    def end(number: int, frame: FrameType | None) -> None:
        if stop.is_set():  # the second time: at once
            raise KeyboardInterrupt
        stop.heard = number
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _serving(port: int | None, shown: _Line) -> Iterator[None]:
    """GET /metrics on loopback, while the query runs."""
    from vibemq.spark.ingest import metrics

    if port is None:
        yield
        return

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics(shown.state).encode() if self.path == "/metrics" else b"there is only /metrics\n"
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Each scrape is no news."""

    try:
        server = http.server.ThreadingHTTPServer((METRICS_HOST, port), Handler)
    except OSError as problem:
        raise SetupError(
            f"--metrics-port {port}: {problem.strerror}", hint="Another program has it: choose another."
        ) from None
    click.echo(f"vibemq: metrics at http://{METRICS_HOST}:{server.server_port}/metrics", err=True)
    threading.Thread(target=server.serve_forever, name="vibemq metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
