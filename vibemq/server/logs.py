# SPDX-License-Identifier: Apache-2.0
"""Logging to standard error: one line for each event, with time, level and which process.

One line means one: line breaks inside a message or a traceback are written as ``\\n``, so that
a peer cannot forge entries and a log collector never cuts an event in two.
"""

import logging
import sys
import time

_process = "vibemq"


class OneLine(logging.Formatter):
    """``2025-06-01T12:00:00.123Z INFO  worker 1[4242] vibemq.broker: stream orders created``"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(who)s[%(process)d] %(name)s: %(message)s")
        self.datefmt = "%Y-%m-%dT%H:%M:%S"

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        record.who = _process
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


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
