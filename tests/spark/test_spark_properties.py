# SPDX-License-Identifier: Apache-2.0
"""Ids and headers of AMQP 1.0 messages become columns: what is written, as text, and nothing for what is none."""

import struct
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from spark_chunks import Built, data_section

from vibemq.spark._arrow import Decoder

FIELDS = [
    pa.field("value", pa.binary(), False),
    pa.field("message_id", pa.string()),
    pa.field("headers", pa.map_(pa.string(), pa.string()), False),
]
SCHEMA = pa.schema(FIELDS)


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return b"\xb1" + struct.pack(">I", len(data)) + data


def listed(code, count, content):
    return code + struct.pack(">II", 4 + len(content), count) + content


def message(body, message_id=None, headers=()):
    """Encoded by hand; `message_id` and values of `headers` are texts, or bytes with their AMQP code."""
    out = b""
    if message_id is not None:
        out += b"\x00\x53\x73" + listed(b"\xd0", 1, text(message_id) if isinstance(message_id, str) else message_id)
    if headers:
        pairs = b"".join(text(key) + (text(value) if isinstance(value, str) else value) for key, value in headers)
        out += b"\x00\x53\x74" + listed(b"\xd1", 2 * len(headers), pairs)
    return out + data_section(body)


def decode(messages, schema=SCHEMA, **options):
    decoder = Decoder("orders", schema, **options)
    chunk = Built(0).add(*messages)
    batches = list(decoder.decode(0, 0, chunk.entries, chunk.records, chunk.data, 0, 1 << 60))
    if (last := decoder.finish()) is not None:
        batches.append(last)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    return batches


def rows(batches):
    return [(row["value"], row["message_id"], row["headers"]) for batch in batches for row in batch.to_pylist()]


texts = st.text(max_size=20)
messages = st.tuples(st.binary(max_size=300), st.none() | texts, st.lists(st.tuples(texts, texts), max_size=5))


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=40), st.integers(1, 2000), st.integers(1, 20))
def test_ids_and_headers_are_those_of_the_message_whatever_the_size_of_batches(sent, batch_bytes, batch_rows):
    stored = [message(*each) for each in sent]
    assert rows(decode(stored, batch_bytes=batch_bytes, batch_rows=batch_rows)) == sent


@settings(deadline=None, max_examples=300)
@given(st.lists(st.binary(max_size=100).map(lambda data: b"\x00\x53" + data), max_size=5))
def test_garbage_has_neither_id_nor_headers_or_has_what_can_be_read(stored):
    assert len(rows(decode(stored))) == len(stored)


@pytest.mark.parametrize(
    ("value", "as_text"),
    [
        (b"\x40", None),
        (b"\x41", "true"),
        (b"\x42", "false"),
        (b"\x44", "0"),
        (b"\x80" + struct.pack(">Q", 1 << 63), "9223372036854775808"),
        (b"\x81" + struct.pack(">q", -5), "-5"),
        (b"\x82" + struct.pack(">d", 0.1), "0.1"),
        (b"\x83" + struct.pack(">q", 1_700_000_000_123), "1700000000123"),
        (b"\x98" + uuid.UUID(int=7).bytes, str(uuid.UUID(int=7))),
        (b"\xa3\x03abc", "abc"),
        (b"\xa0\x03abc", "abc"),
        (b"\xa0\x04a\xff\xc3\xa9", "a\N{REPLACEMENT CHARACTER}\xe9"),
        (b"\xa0\x03\xe2\x82a", "\N{REPLACEMENT CHARACTER}a"),
        (b"\xa0\x01\xc3", "\N{REPLACEMENT CHARACTER}"),
        (b"\x45", None),  # a list has no text
        (text("x" * 70_000), "x" * 70_000),
    ],
)
def test_every_kind_of_value_is_text(value, as_text):
    found = rows(decode([message(b"", value, [("key", value), ("next", "one")])]))
    assert found == [(b"", as_text, [("key", as_text), ("next", "one")])]


def test_what_is_no_amqp_message_has_no_id_and_no_headers():
    assert rows(decode([b'{"json": 1}', message(b"x", "id")])) == [(b'{"json": 1}', None, []), (b"x", "id", [])]


def test_a_key_that_is_there_twice_is_there_twice():
    assert rows(decode([message(b"", None, [("a", "1"), ("a", "2")])])) == [(b"", None, [("a", "1"), ("a", "2")])]


def test_raw_values_have_their_ids_too():
    stored = message(b"x", "id", [("a", "1")])
    assert rows(decode([stored], raw=True)) == [(stored, "id", [("a", "1")])]


@pytest.mark.parametrize("names", [("message_id",), ("headers",), ("headers", "value")])
def test_columns_are_as_asked(names):
    schema = pa.schema([SCHEMA.field(name) for name in names])
    (batch,) = decode([message(b"x", "id", [("a", "1")])], schema)
    whole = {"value": b"x", "message_id": "id", "headers": [("a", "1")]}
    assert batch.to_pylist() == [{name: whole[name] for name in names}]


def test_headers_count_towards_the_size_of_a_batch():
    """The message that passes it is still in, the next begins a new one."""
    stored = [message(b"", None, [("key", "v" * 1000)])] * 10
    assert [batch.num_rows for batch in decode(stored, batch_bytes=2500)] == [3, 3, 3, 1]


def test_batches_do_not_share_memory_with_later_ones():
    first = decode([message(b"", f"id-{n}", [("n", str(n))]) for n in range(100)], batch_rows=10)
    later = decode([message(b"", "zzzz", [("z", "zzzz")])] * 1000)
    assert rows(first) == [(b"", f"id-{n}", [("n", str(n))]) for n in range(100)]
    assert len(rows(later)) == 1000
