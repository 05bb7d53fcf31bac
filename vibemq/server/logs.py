# SPDX-License-Identifier: Apache-2.0
"""Logging to standard error: one line for each event, for people, or as JSON for whoever collects them.

One line means one: line breaks and other control characters inside a message or a traceback are written as
``\\n`` or ``\\x1b``, so that a peer cannot forge entries, a log collector never cuts an event in two, and what a
terminal would obey stays text.  A longer line than LINE_CHARACTERS_MAX is cut: names that peers give may be as long
as their frames.

An exception is logged as its type and its code locations. Its text and source lines stay out of the log, because they
may repeat a peer's bytes, for example a password. The text of the broker's own errors is logged. Lines of libraries are
logged once a minute, without their arguments.

As JSON an event also has its name, which stays the same when its words change (events.py).
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable

from vibemq.errors import VibeMQError
from vibemq.once_a_minute import OnceAMinute
from vibemq.server.events import OTHER, event_of
from vibemq.server.log_output import LogOutput

LINE_CHARACTERS_MAX = 16 * 1024
#: Code locations of an exception that are logged, the innermost: enough to find the bug, one screen line each.
PLACES_MAX = 20
#: Records of Python's warnings have their text as an argument, and Python writes each once for each place in code.
WARNINGS = "py.warnings"

STDERR = 2
_process = "vibemq"
#: C0, DEL and C1 of ISO 6429, and the line breaks of Unicode.
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def _cut(text: str) -> str:
    more = len(text) - LINE_CHARACTERS_MAX
    return f"{text[:LINE_CHARACTERS_MAX]}... and {more} characters more" if more > 0 else text


def places_of(problem: BaseException) -> str:
    """Return the type of an exception and its code locations, the innermost first.

    The text is added only for the broker's own errors and the operating system's."""
    kind = type(problem).__name__
    if isinstance(problem, VibeMQError):
        kind += f" ({problem})"
    elif isinstance(problem, OSError) and problem.strerror:
        kind += f" ({problem.strerror})"
    frames = traceback.StackSummary.extract(traceback.walk_tb(problem.__traceback__), lookup_lines=False)
    places = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
    if len(places) > PLACES_MAX:
        places[PLACES_MAX:] = [f"{len(places) - PLACES_MAX} more"]
    return f"{kind} at {', '.join(places)}" if places else kind


class OneLine(logging.Formatter):
    """``2025-06-01T12:00:00.123Z INFO  worker 1[4242] vibemq.broker: stream orders created``"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(who)s[%(process)d] %(name)s: %(message)s")
        self.datefmt = "%Y-%m-%dT%H:%M:%S"

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        record.who = _process
        return _cut(super().format(record).translate(_CONTROLS))

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return f"{line}: {places_of(record.exc_info[1])}" if record.exc_info and record.exc_info[1] else line

    def formatException(self, _: object) -> str:
        return ""


class OneObject(logging.Formatter):
    """``{"time": "2025-06-01T12:00:00.123Z", "level": "info", "event": "stream_created", ...}``"""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "event": event_of(record),
            "process": _process,
            "pid": record.process,
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        if record.exc_info and record.exc_info[1]:
            shown["traceback"] = _cut(places_of(record.exc_info[1]))
        return json.dumps(shown)  # in ASCII: what a terminal would obey is \u00XX


logger = logging.getLogger(__name__)
_libraries = OnceAMinute(logger, event=OTHER)


def _is_ours(record: logging.LogRecord) -> bool:
    """Log each kind of line of a library once a minute, by its first words and its exception's places."""
    if record.name.partition(".")[0] == "vibemq" or record.name == WARNINGS:
        return True
    words = str(record.msg).partition("\n")[0]
    problem = record.exc_info[1] if record.exc_info else None
    shown = f"{words}: {places_of(problem)}" if problem is not None else words
    _libraries.say((record.name, words, type(problem)), "the library %s says: %s", record.name, shown)
    return False


class _Handler(logging.Handler):
    """Writes without waiting, and counts lines that say something is wrong, for /metrics."""

    #: Called with "log_warnings" or "log_errors".
    tell: Callable[[str], None] | None = None

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.output = LogOutput(fd)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.output.write(self.format(record))
            self.say_dropped()
        except Exception:  # a line that cannot be made must not end what it is about
            self.handleError(record)
        if self.tell is not None and record.levelno >= logging.WARNING:
            self.tell("log_errors" if record.levelno >= logging.ERROR else "log_warnings")

    def say_dropped(self) -> None:
        if dropped := self.output.take_dropped():
            said = "%d lines of this log were dropped: nobody read standard error, or its disk stalled"
            logger.warning(said, dropped)

    def flush(self) -> None:
        """At the end of the process."""
        self.acquire()
        try:
            self.output.end()
        finally:
            self.release()


def setup(level: str, form: str = "text") -> None:
    """Send the log of this process, and of those forked from it, to standard error; ``form``: as log.format."""
    handler = _Handler(STDERR)
    handler.setFormatter(OneObject() if form == "json" else OneLine())
    handler.addFilter(_is_ours)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.captureWarnings(True)
    set_level(level)


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


def set_process(name: str) -> None:
    """Name this process, which has just been forked, in its log lines ("worker 1")."""
    global _process
    _process = name
    for handler in _handlers():
        handler.output.forget()


def write_pending() -> None:
    """Write lines that wait for a reader of standard error; whoever runs a loop calls this now and then."""
    for handler in _handlers():
        handler.acquire()
        try:
            handler.output.write_pending()
            handler.say_dropped()
        finally:
            handler.release()


def count(tell: Callable[[str], None]) -> None:
    """``tell("log_warnings")`` or ``tell("log_errors")`` for each such line of this process from now on."""
    for handler in _handlers():
        handler.tell = tell


def _handlers() -> list[_Handler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Handler)]
