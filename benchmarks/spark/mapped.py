# SPDX-License-Identifier: Apache-2.0
"""A Python data source that has nothing to do: its rows are ready as Arrow batches, which are handed on as they are.

They lie in files, which are mapped, or come over TCP from a process that does nothing but `sendfile`. What a scan takes
then is what Spark and the kernel take for the rows of any Python source.

A file is a row of batches as `RecordBatch.serialize` gives them, each behind HEAD_BYTES that begin with its size.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH_BYTES = 4 << 20
HEAD_BYTES = 64  # so that what follows is aligned as Arrow wants it
NAME_BYTES = 256
BUFFERS = 3  # memory for batches that come over TCP, used in turn: Spark has two at hand at most
SCHEMA = pyarrow.schema(
    [("value", pyarrow.binary()), ("offset", pyarrow.int64()), ("timestamp", pyarrow.timestamp("us", "UTC"))]
)


class Mapped(DataSource):
    """Options: `folder`, where `write` has put the files; `port`, of a Sender, if they are to come from it."""

    @classmethod
    def name(cls) -> str:
        return "mapped"

    def schema(self) -> str:
        return "value BINARY, offset BIGINT, timestamp TIMESTAMP"

    def reader(self, schema: object) -> MappedReader:
        return MappedReader(self.options["folder"], int(self.options.get("port", "0")))


class MappedReader(DataSourceReader):
    def __init__(self, folder: str, port: int) -> None:
        self.folder, self.port = folder, port

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).glob("*.batches"))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        for batch in received(self.port, partition.value) if self.port else mapped(partition.value):
            yield pyarrow.ipc.read_record_batch(batch, SCHEMA)


def mapped(path: str) -> Iterator[pyarrow.Buffer]:
    with pyarrow.memory_map(path) as file:
        while head := file.read(HEAD_BYTES):
            yield file.read_buffer(int.from_bytes(head[:8], "big"))


def received(port: int, path: str) -> Iterator[pyarrow.Buffer]:
    buffers = [bytearray() for _ in range(BUFFERS)]
    head = bytearray(HEAD_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as sender:
        sender.sendall(os.fsencode(path).ljust(NAME_BYTES))
        while got := sender.recv_into(head, HEAD_BYTES, socket.MSG_WAITALL):
            size = int.from_bytes(head[:8], "big")
            buffers.append(buffers.pop(0))
            if len(buffers[0]) < size:
                buffers[0] = bytearray(size)
            batch = memoryview(buffers[0])[:size]
            if got != HEAD_BYTES or sender.recv_into(batch, size, socket.MSG_WAITALL) != size:
                raise EOFError(f"{path}: the sender closed in the middle of a batch")
            yield pyarrow.py_buffer(batch)


def write(parquet: Path, folder: Path) -> None:
    """The rows of a folder of Parquet, one file for each of its."""
    folder.mkdir()
    for path in sorted(parquet.glob("*.parquet")):
        rows = pyarrow.parquet.ParquetFile(path)
        groups = map(rows.metadata.row_group, range(rows.num_row_groups))
        row_bytes = sum(group.total_byte_size for group in groups) // max(rows.metadata.num_rows, 1)
        with open(folder / f"{path.stem}.batches", "wb") as file:
            for batch in rows.iter_batches(max(BATCH_BYTES // max(row_bytes, 1), 1), columns=SCHEMA.names):
                ready = pyarrow.Table.from_batches([batch]).cast(SCHEMA).combine_chunks().to_batches()[0].serialize()
                size = -(-ready.size // HEAD_BYTES) * HEAD_BYTES
                file.write(size.to_bytes(8, "big").ljust(HEAD_BYTES, b"\0"))
                file.write(ready.to_pybytes().ljust(size, b"\0"))


class Sender:
    """A process that sends the file that a connection names."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def send(peer: socket.socket) -> None:
    with peer, open(os.fsdecode(peer.recv(NAME_BYTES, socket.MSG_WAITALL)).strip(), "rb") as file:
        left = os.fstat(file.fileno()).st_size
        while left:
            left -= os.sendfile(peer.fileno(), file.fileno(), None, left)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
