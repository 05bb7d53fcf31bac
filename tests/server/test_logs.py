# SPDX-License-Identifier: Apache-2.0
"""What peers say comes into the log as text on one line, and no more of it than a line holds."""

import fcntl
import logging
import os
import select
import time
from pathlib import Path

import pytest
from running import broker, wait_until

import vibemq.client
from vibemq.server import log_output
from vibemq.server.log_output import PENDING_BYTES_MAX, LogOutput
from vibemq.server.logs import LINE_CHARACTERS_MAX, OneLine

PAGE_BYTES = 4096


def line(text: str) -> str:
    record = logging.LogRecord("vibemq", logging.INFO, __file__, 1, "user %s", (text,), None)
    record.created = record.msecs = 0  # lines are compared
    return OneLine().format(record)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("a\r\nERROR forged", "a\\r\\nERROR forged"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b2J\x85", "\\x9b2J\\x85"),
        ("a\u2028b", "a\\u2028b"),
        ("żółw", "żółw"),
    ],
)
def test_what_a_terminal_or_a_collector_would_obey_is_written_as_text(said: str, written: str) -> None:
    assert line(said).endswith(f"vibemq: user {written}")


def test_a_line_is_cut_where_it_gets_too_long() -> None:
    whole = line("")
    fits = "x" * (LINE_CHARACTERS_MAX - len(whole))
    assert line(fits) == whole + fits
    assert line(fits + "yy") == whole + fits + "... and 2 characters more"


def everything(fd: int) -> bytes:
    """All that a pipe has."""
    found = b""
    while select.select([fd], [], [], 0)[0]:
        found += os.read(fd, 1 << 16)
    return found


def test_lines_wait_for_a_reader_and_those_beyond_the_limit_are_counted() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PAGE_BYTES)
    output = LogOutput(writer)
    lines = [f"{number:03d} " + "x" * 1020 for number in range(300)]
    for line in lines:
        output.write(line)
    found = everything(reader)
    while not output.write_pending():
        found += everything(reader)
    found += everything(reader)
    written = found.decode().splitlines()
    assert PENDING_BYTES_MAX // 1025 <= len(written) <= PENDING_BYTES_MAX // 1025 + 4
    assert written == lines[: len(written)]
    assert [output.take_dropped(), output.take_dropped()] == [300 - len(written), 0]
    output.write("after")
    assert everything(reader) == b"after\n"
    assert os.get_blocking(writer), "the mode of the pipe that others share is as it was"


def test_the_end_of_a_process_waits_for_a_reader_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PAGE_BYTES)
    output = LogOutput(writer)
    output.write("x" * PAGE_BYTES * 2)
    now_s = time.monotonic()
    monkeypatch.setattr(log_output.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(log_output, "END_TIMEOUT_S", 0.0)
    output.end()
    assert everything(reader) == b"x" * PAGE_BYTES
    output.end()
    assert everything(reader) == b"x" * PAGE_BYTES
    output.end()
    assert everything(reader) == b"\n"


def test_a_broker_whose_standard_error_nobody_reads_works_and_ends(tmp_path: Path) -> None:
    """Its pipe is full from the beginning."""
    pipe = tmp_path / "stderr"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    size = fcntl.fcntl(filler, fcntl.F_SETPIPE_SZ, PAGE_BYTES)
    os.write(filler, b"\n" * size)
    through = ("sh", "-c", f'exec "$@" 2>{pipe}', "sh")
    with broker(tmp_path / "data", "--set", "server.shutdown_timeout_s=2", through=through) as running:
        with vibemq.client.connect(f"vibemq://{running.host}:{running.native_port}") as client:
            client.publish("q", "taken")
            with client.consume("q") as consumer:
                next(consumer).ack()
        found = b""

        def is_read() -> bool:
            nonlocal found
            found += everything(reader)
            return b"worker 1 is ready" in found

        wait_until(is_read, "lines that waited are written when somebody reads")
        os.write(filler, b"\n")
        while True:  # full again, for the stop
            try:
                os.write(filler, b"\n" * 512)
            except BlockingIOError:
                break
