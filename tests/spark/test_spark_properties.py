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


# ---- keys, content types, and headers as Kafka's source has them ----

KAFKA = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
BESIDE = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("content_type", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("headers", KAFKA, False),
    ]
)


def full(body, key, content_type, message_id, headers):
    """A message with the properties that the columns show; each as a text, as bytes with their code, or null."""
    fields = [b"\x40"] * 11
    for place, value in ((0, message_id), (6, content_type), (10, key)):
        if value is not None:
            fields[place] = text(value) if isinstance(value, str) else value
    return b"\x00\x53\x73" + listed(b"\xd0", 11, b"".join(fields)) + message(body, None, headers)


def binary(data):
    return b"\xb0" + struct.pack(">I", len(data)) + data


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=40),
            st.none() | st.text(st.characters(max_codepoint=127), max_size=20),
            st.none() | texts,
            st.lists(st.tuples(texts, st.binary(max_size=40)), max_size=4),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 20),
)
def test_keys_content_types_and_binary_headers_are_those_of_the_message(sent, batch_rows):
    stored = [
        full(
            b"x", None if key is None else b"\xb1" + binary(key)[1:], kind, ident, [(n, binary(v)) for n, v in headers]
        )
        for key, kind, ident, headers in sent
    ]
    found = [row for batch in decode(stored, BESIDE, batch_rows=batch_rows) for row in batch.to_pylist()]
    names = ("key", "content_type", "message_id")
    assert [tuple(row[name] for name in names) for row in found] == [each[:3] for each in sent]
    assert [[(pair["key"], pair["value"]) for pair in row["headers"]] for row in found] == [each[3] for each in sent]


def test_kafkas_headers_have_the_text_of_what_is_no_bytes_and_null_of_what_has_none():
    headers = [("n", b"\x44"), ("list", b"\x45"), ("bytes", binary(b"\xff\x00")), ("n", "again")]
    (batch,) = decode([full(b"", "k", b"\xa3\x04a/b\xff", None, headers), b"no AMQP"], BESIDE)
    values = [("n", b"0"), ("list", None), ("bytes", b"\xff\x00"), ("n", b"again")]
    assert batch.to_pylist() == [
        {
            "key": b"k",
            "content_type": "a/b\N{REPLACEMENT CHARACTER}",
            "message_id": None,
            "headers": [{"key": key, "value": value} for key, value in values],
        },
        {"key": None, "content_type": None, "message_id": None, "headers": []},
    ]
