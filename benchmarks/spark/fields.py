# SPDX-License-Identifier: Apache-2.0
"""JSON to columns: by the source (`valueFormat=json`), and by Spark's `from_json` from the same messages.

The columns are compared field by field with what the messages were made of before anything is timed. The same read
without any conversion stands beside both: what is left is the conversion.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.spark.bed import POOL_COUNT, Bed, Summary
from benchmarks.spark.works import Case, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = "json"
STREAM = "json"
SIZE_BYTES = 120  # of a message
SCHEMA = "id BIGINT, user STRING, country STRING, price DOUBLE, paid BOOLEAN, note STRING"
SOURCE, FUNCTION, NEITHER = "vibemq, valueFormat=json", "vibemq, from_json", "vibemq, bytes alone"


def objects() -> Iterator[dict[str, Any]]:
    chance = random.Random(2)
    for _ in range(POOL_COUNT):
        fields = {
            "id": chance.randrange(1 << 40),
            "user": f"user-{chance.randrange(100_000):05}",
            "country": chance.choice(("DE", "FR", "PL", "SE")),
            "price": chance.randrange(400_000) / 4,  # Java and Python write it alike
            "paid": chance.random() < 0.5,
            "note": "ä",
        }
        fields["note"] += "".join(chance.choices("abcdefghijklmnop ", k=SIZE_BYTES - len(_message(fields))))
        yield fields


def _message(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def publish(bed: Bed, rows: int) -> Summary:
    """The checksum is over the fields."""
    pool = list(objects())
    bodies = [_message(fields) for fields in pool]
    with bed.connect() as connection:
        connection.create(STREAM)
        with connection.publisher(STREAM) as publisher:
            for at in range(0, rows, POOL_COUNT):
                publisher.publish(bodies[: rows - at])
            publisher.flush()
    each = [zlib.crc32("|".join(map(_as_text, fields.values())).encode()) for fields in pool]
    return rows, rows // POOL_COUNT * sum(each) + sum(each[: rows % POOL_COUNT])


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def cases(bed: Bed, expected: Summary) -> Iterator[Case]:
    """A scan into `noop` of one column, in each way."""
    from pyspark.sql import functions as F

    def plain() -> DataFrame:
        return bed.ours(STREAM, columns="value")

    frames: dict[str, Callable[[], DataFrame]] = {
        SOURCE: partial(bed.ours, STREAM, columns="value", valueFormat="json", valueSchema=SCHEMA),
        FUNCTION: lambda: plain().select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("value")),
    }
    for name, frame in frames.items():
        yield Case(name, partial(scan, frame), partial(fields_of, frame), expected)
    yield Case(NEITHER, partial(scan, plain), lambda: (plain().count(), expected[1]), expected)


def fields_of(frame: Callable[[], DataFrame]) -> Summary:
    from pyspark.sql import functions as F

    rows = frame().select("value.*")
    texts = F.concat_ws("|", *(F.col(name).cast("string") for name in rows.columns))
    count, checksum = rows.agg(F.count("*"), F.sum(F.crc32(texts.cast("binary")))).first()
    return count, checksum or 0
