# SPDX-License-Identifier: Apache-2.0
"""Read a stream from the broker's own files, where a task runs on its machine and may read its data directory.

The broker says where its directory is and which store lies there (DATA/identity); that this is the very one is seen
here. Each part of the way below the data directory is opened by the descriptor of the one before, and no link is
followed. No connection is made and the broker spends nothing. What the files do not give (any more), because retention
or a deletion took them or a disk is bad, is left to the broker, whose answer says what is lost.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pwd
from collections.abc import Generator
from typing import TYPE_CHECKING

from vibemq.errors import StorageError, VibeMQError
from vibemq.storage import identity

if TYPE_CHECKING:
    import pyarrow as pa

    from vibemq.spark._arrow import Decoder
    from vibemq.spark.ranges import Range
    from vibemq.storage.reading import ChunkReader

log = logging.getLogger("vibemq.spark")

IDENTITY_BYTES_MAX = 256  # of DATA/identity: a short line of text
GONE = ("ERR_NOT_FOUND", "ERR_DELETED")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotLocal(VibeMQError):
    """The files cannot be read here. Spark shows the message only, so it says why and what to do."""


def read(decoder: Decoder, wanted: Range, *, must: bool) -> Generator[pa.RecordBatch, None, int]:
    """Yield what the files have from the start of a range on; returns the offset at which the broker is to be asked.

    With `must`, NotLocal says why they cannot be read at all.
    """
    try:
        chunks = _open(wanted)
        chunks.attach(wanted.start)
    except (NotLocal, StorageError) as problem:
        if must and not (isinstance(problem, StorageError) and problem.code in GONE):
            raise NotLocal(
                f"option readMode=local: stream {wanted.stream!r} cannot be read from files: {problem}. "
                "readMode=auto reads it over TCP where that is so"
            ) from problem
        log.debug("stream %r is read over TCP: %s", wanted.stream, problem)
        return wanted.start
    at, failed = yield from decoder.decode_log(chunks, wanted.start, wanted.end)
    if at < wanted.end:
        why = failed or "there is a gap"
        log.debug("stream %r is read over TCP from offset %d on: %s", wanted.stream, at, why)
    return at


def _open(wanted: Range) -> ChunkReader:
    """The stream's files. NotLocal; StorageError from the log itself, with a code of GONE where it was deleted."""
    from vibemq.storage.reading import ChunkReader  # compiled: only tasks need it

    if not (wanted.store and wanted.directory and wanted.incarnation):
        raise NotLocal(
            "the broker has not said where its data directory is, which only VibeMQ does, and only to its own machine"
        )
    data, name = os.path.split(wanted.directory)
    folder = f"{int(wanted.incarnation, 16):016x}"
    with contextlib.ExitStack() as opened:
        here = _enter(opened, data, data, None)
        if (had := _identity(here, data)) != wanted.store:
            raise NotLocal(f"the directory {data} is another one here: its store is {had}, the broker's {wanted.store}")
        streams = _enter(opened, name, wanted.directory, here)
        path = f"{wanted.directory}/{folder}"
        try:
            directory = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=streams)
        except FileNotFoundError:
            raise StorageError("ERR_NOT_FOUND", f"{path} is not there (any more)") from None
        except OSError as problem:
            raise NotLocal(_why(problem, path)) from problem
    return ChunkReader(directory, path)


def _enter(opened: contextlib.ExitStack, name: str, path: str, above: int | None) -> int:
    """A directory's descriptor; `path` is what messages call it. Only the data directory itself may be a link."""
    try:
        fd = os.open(name, _FOLDER | (os.O_NOFOLLOW if above is not None else 0), dir_fd=above)
    except OSError as problem:
        raise NotLocal(_why(problem, path)) from problem
    opened.callback(os.close, fd)
    return fd


def _identity(above: int, data: str) -> str:
    try:
        fd = os.open(identity.FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError as problem:
        raise NotLocal(_why(problem, f"{data}/{identity.FILE}")) from problem
    with open(fd, "rb") as file:
        return file.read(IDENTITY_BYTES_MAX).decode(errors="replace").strip()


def _why(problem: OSError, path: str) -> str:
    if problem.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{path} may not be read by {_user()}, as whom this task runs; "
            "run Spark as the broker's user, whose data directory is closed to others"
        )
    if problem.errno in (errno.ELOOP, errno.ENOTDIR):
        return f"{path} is a link, or no directory, and links are not followed"
    if problem.errno == errno.ENOENT:
        return f"{path} is not there, so this is not the broker's machine, or a container without that directory"
    return f"{path}: {problem.strerror}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
