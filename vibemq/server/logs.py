# SPDX-License-Identifier: Apache-2.0
"""Logging to standard error: one line for each event, with time, level and which process.

One line means one: line breaks and other control characters inside a message or a traceback are written as
``\\n`` or ``\\x1b``, so that a peer cannot forge entries, a log collector never cuts an event in two, and what a
terminal would obey stays text.  A longer line than LINE_CHARACTERS_MAX is cut: names that peers give may be as long
as their frames.
"""

import logging
import sys
import time

LINE_CHARACTERS_MAX = 16 * 1024

_process = "vibemq"
#: C0, DEL and C1 of ISO 6429, and the line breaks of Unicode.
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


class OneLine(logging.Formatter):
    """``2025-06-01T12:00:00.123Z INFO  worker 1[4242] vibemq.broker: stream orders created``"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(who)s[%(process)d] %(name)s: %(message)s")
        self.datefmt = "%Y-%m-%dT%H:%M:%S"

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        record.who = _process
        line = super().format(record).translate(_CONTROLS)
        more = len(line) - LINE_CHARACTERS_MAX
        return f"{line[:LINE_CHARACTERS_MAX]}... and {more} characters more" if more > 0 else line


def setup(level: str) -> None:
    """Send the log of this process, and of those forked from it, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.captureWarnings(True)
    set_level(level)


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


def set_process(name: str) -> None:
    """Name this process in its log lines ("worker 1")."""
    global _process
    _process = name
