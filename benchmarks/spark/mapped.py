# SPDX-License-Identifier: Apache-2.0
"""A Python data source that has nothing to do: its rows lie in Arrow files, which are mapped and handed on as they are.

What a scan by it takes is what Spark takes for the rows of any Python source.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH_ROWS = 10_000
SCHEMA = pyarrow.schema(
    [("value", pyarrow.binary()), ("offset", pyarrow.int64()), ("timestamp", pyarrow.timestamp("us", "UTC"))]
)


class Mapped(DataSource):
    """Option `folder`: where `write` has put the files."""

    @classmethod
    def name(cls) -> str:
        return "mapped"

    def schema(self) -> str:
        return "value BINARY, offset BIGINT, timestamp TIMESTAMP"

    def reader(self, schema: object) -> MappedReader:
        return MappedReader(self.options["folder"])


class MappedReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        with pyarrow.memory_map(partition.value) as source, pyarrow.ipc.open_file(source) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


def write(parquet: Path, folder: Path) -> None:
    """The rows of a folder of Parquet, one file for each of its."""
    folder.mkdir()
    for path in sorted(parquet.glob("*.parquet")):
        rows = pyarrow.parquet.ParquetFile(path)
        with pyarrow.ipc.new_file(str(folder / f"{path.stem}.arrow"), SCHEMA) as file:
            for batch in rows.iter_batches(BATCH_ROWS, columns=SCHEMA.names):
                file.write_table(pyarrow.Table.from_batches([batch]).cast(SCHEMA))
