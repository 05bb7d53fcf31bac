# SPDX-License-Identifier: Apache-2.0
"""The column `value` as text, or as columns of a JSON object: what is made of a batch's bodies in a task.

JSON gives what `from_json(cast(value as string), schema)` gives, for half a query's CPU, because pyarrow's parser
reads a batch at once. That takes whole blocks or nothing, and knows no partly good row: rows that are no JSON object
are taken out before, and a block that it refuses is cut until what is left are few rows, which a slow reader converts
by Spark's rules. So a bad row costs itself and its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json

from vibemq.errors import VibeMQError
from vibemq.spark import ranges
from vibemq.spark._lines import are_text, json_objects
from vibemq.spark.conversion import DECODER, EXCERPT_CHARACTERS, converter
from vibemq.spark.options import FAILFAST, JSON

if TYPE_CHECKING:
    from vibemq.spark.options import Options
    from vibemq.spark.ranges import Range

CORRUPT = "_corrupt_record"  # Spark's name for it, spark.sql.columnNameOfCorruptRecord
PIECES = 32  # what a refused block is cut into
ROWS_SLOW_MAX = 64  # of a block that is not cut any more: to parse one at all costs as much as ten rows or more


class BadRecord(VibeMQError):
    """With mode=FAILFAST: a message that does not fit the schema. Spark shows the message only."""


def read(options: Options, schema: pa.Schema, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range with their bodies converted; `schema` is that of the batches it gives."""
    place = schema.get_field_index("value")
    stored = schema.set(place, pa.field("value", pa.binary(), False))
    objects = None
    if options.value_format == JSON:
        objects = JsonObjects(wanted.stream, schema.field(place).type, fail_fast=options.mode == FAILFAST)
    for batch in ranges.read(options, stored, wanted):
        columns = batch.columns
        columns[place] = objects(columns[place], _first_offset(batch)) if objects else text(columns[place])
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _first_offset(batch: pa.RecordBatch) -> int | None:
    """For messages, where the query has the column."""
    place = batch.schema.get_field_index("offset")
    return batch.column(place)[0].as_py() if place >= 0 else None


def text(values: pa.Array) -> pa.Array:
    """Bodies as strings; what is no UTF-8 becomes U+FFFD."""
    if are_text(values):
        return pa.Array.from_buffers(pa.string(), len(values), values.buffers(), null_count=0)
    return pa.array([value.as_py().decode(errors="replace") for value in values], pa.string())


class JsonObjects:
    """Bodies as structs of type `kind`, in which CORRUPT, where it is, takes what does not fit."""

    def __init__(self, stream: str, kind: pa.StructType, *, fail_fast: bool) -> None:
        self.stream = stream
        self.kind = kind
        self.fail_fast = fail_fast
        self.fields = [field for field in kind if field.name != CORRUPT]
        self.parse = pa.json.ParseOptions(
            explicit_schema=pa.schema([field.with_nullable(True) for field in self.fields]),
            unexpected_field_behavior="ignore",
        )
        self.convert = converter(pa.struct(self.fields))

    def __call__(self, values: pa.Array, first_offset: int | None = None) -> pa.Array:
        """`first_offset`: of the first row, for messages."""
        lines, starts, odd = json_objects(values)
        whole = pa.py_buffer(lines)

        def block(first: int, end: int, pieces: list[pa.Array]) -> None:
            try:
                pieces.append(self._block(whole.slice(starts[first], starts[end] - starts[first]), end - first))
            except pa.ArrowInvalid:
                if end - first <= ROWS_SLOW_MAX:
                    pieces.append(self._rows(values, range(first, end), first_offset))
                    return
                step = -(-(end - first) // PIECES)
                for at in range(first, end, step):
                    block(at, min(at + step, end), pieces)

        pieces: list[pa.Array] = []
        block(0, len(values), pieces)
        found = pa.concat_arrays(pieces)
        if not odd:
            return found
        slow = self._rows(values, odd, first_offset)
        places = list(range(len(values)))
        for number, row in enumerate(odd):
            places[row] = len(values) + number
        return pa.concat_arrays([found, slow]).take(pa.array(places, pa.int32()))

    def _block(self, lines: pa.Buffer, rows: int) -> pa.Array:
        """All rows of some lines at once. ArrowInvalid where one does not fit."""
        read = pa.json.ReadOptions(use_threads=False, block_size=lines.size + 1)  # Spark uses the other cores
        table = pa.json.read_json(pa.BufferReader(lines), read_options=read, parse_options=self.parse).combine_chunks()
        columns = [
            pa.nulls(rows, field.type) if field.name == CORRUPT else table[field.name].combine_chunks()
            for field in self.kind
        ]
        columns = [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns]
        return pa.StructArray.from_arrays(columns, fields=list(self.kind))

    def _rows(self, values: pa.Array, rows: Iterable[int], first_offset: int | None) -> pa.Array:
        places = [(row, "" if first_offset is None else f", offset {first_offset + row}") for row in rows]
        return pa.array([self._row(values[row].as_py(), where) for row, where in places], self.kind)

    def _row(self, body: bytes, where: str) -> dict[str, Any] | None:
        """One row by Spark's rules: null of nothing, and what does not fit is null by itself."""
        if not body.strip(b" \t\r\n"):
            return None
        content = body.decode(errors="replace")
        bad: list[str] = []
        try:
            found = DECODER.decode(content)
            row = self.convert(found, bad) or {}
        except (ValueError, RecursionError) as failed:
            row, bad = {}, [str(failed)]
        if bad and self.fail_fast:
            raise BadRecord(
                f"stream {self.stream!r}{where}: not JSON that fits the schema: {bad[0]}: "
                f"{content[:EXCERPT_CHARACTERS]!r}. mode=PERMISSIVE gives null for what does not fit"
            )
        return {**row, CORRUPT: content} if bad else row
