# SPDX-License-Identifier: Apache-2.0
"""Bodies as text and as JSON: the same as from_json, at whatever place in a batch a bad one stands."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from pyspark.sql import functions, types

from vibemq.errors import ConfigError
from vibemq.spark import columns, infer_schema, options, schemas, values
from vibemq.spark.values import CORRUPT, BadRecord, JsonObjects

DDL = (
    "a BIGINT, b STRING, c DOUBLE, d BOOLEAN, e ARRAY<BIGINT>, f STRUCT<g: BIGINT, h: STRING>, i INT, "
    "s ARRAY<STRUCT<g: BIGINT>>, _corrupt_record STRING"
)
LEAST = {"endpoints": "here:1", "stream": "s", "valueFormat": "json"}

#: Every kind of thing that a message can be where an object of DDL is expected.
CASES = [
    b'{"a":1,"b":"x","c":1.5,"d":true,"e":[1,2],"f":{"g":1,"h":"y"},"i":7,"s":[{"g":1},{"g":2}]}',
    *(b"", b"  ", b"\n", b"null", b"{}", b"[]", b'[{"a":1}]', b"5", b'"x"', b"tru", b"\x00", b"\xff"),
    *(b'{"a":"5"}', b'{"a":1.5}', b'{"a":1.0}', b'{"a":1e3}', b'{"a":9223372036854775807}', b'{"a":-0}', b'{"a":true}'),
    *(b'{"a":9223372036854775808}', b'{"a":-9223372036854775809,"b":"kept"}', b'{"a":01}', b'{"a":"","b":""}'),
    *(b'{"b":5}', b'{"b":{"x": [1, "y\\n"]}}', b'{"b":[1, 2]}', b'{"b":true}', b'{"b":null}', b'{"b":"a\\u0000b"}'),
    *(
        b'{"b":"\\ud800"}',
        b'{"b":"\xff\xfe"}',
        '{"b":"é€😀"}'.encode(),
        b'{"b":100000000000000000000000}',
        b'{"b":"\\n"}',
    ),
    *(b'{"c":"NaN"}', b'{"c":NaN}', b'{"c":"1.5"}', b'{"c":1}', b'{"c":1e999}', b'{"c":"-Infinity"}', b'{"c":""}'),
    *(b'{"c":0.1}', b'{"c":1e-7}', b'{"c":12345678901234567890123}', b'{"d":"true"}', b'{"d":1}', b'{"d":false}'),
    b'{"c":1%s,"a":"x"}' % (b"0" * 400),
    *(b'{"e":[1,"x"]}', b'{"e":1}', b'{"e":[1,null]}', b'{"e":[]}', b'{"e":[[1]]}', b'{"e":{"0":1}}'),
    *(b'{"f":1}', b'{"f":{"g":"x"}}', b'{"a":1,"f":{"g":"x","h":"y"}}', b'{"f":[]}', b'{"f":null}', b'{"f":{}}'),
    *(b'{"i":2147483648}', b'{"i":-2147483648}', b'{"i":5.0}', b'{"A":1}', b'{"a":1,"zz":{"a":[1,{"b":2}]}}'),
    *(b'{"a":1,"a":2}', b'{"a":1,"a":"x"}', b'{"a":"x","a":1}', b'{"z":1,"z":"x"}', b'{"f":{"g":1,"g":2}}'),
    *(b'{"a":1,}', b'{"a":1', b'{"a":tru}', b'{"a":1 "b":2}', b'{"b":"x\ny"}', b'{\n"a":\t1\r\n}', b' {"a":1} '),
    *(b'\xef\xbb\xbf{"a":1}', b'{"_corrupt_record":"mine","a":1}', b'{"s":[null,{"g":null}]}', b'{"\\u0061":1}'),
]
#: What Spark takes and this does not, or takes otherwise; README.md says so.
OTHERWISE = [b'{"a":1} x', b'{"a":1}{"a":2}', b"{'a':1}", b'{"b":1.50}', b'{"b":1e5}']


def arrow_type(ddl=DDL):
    source = options.parse({**LEAST, "valueFormat": "json", "valueSchema": ddl})
    return columns.arrow_schema(columns.spark_schema(source), source).field("value").type


def decode(bodies, ddl=DDL, fail_fast=False):
    found = JsonObjects("s", arrow_type(ddl), fail_fast=fail_fast)(pa.array(bodies, pa.binary()))
    found.validate(full=True)
    return found.to_pylist()


def alone():
    return [decode([body])[0] for body in CASES + OTHERWISE]


# ---- JSON ----


def test_it_is_what_from_json_makes(spark):
    frame = spark.createDataFrame([(number, bytearray(body)) for number, body in enumerate(CASES)], "n INT, v BINARY")
    made = functions.from_json(functions.col("v").cast("string"), DDL).alias("j")
    theirs = [row.j and row.j.asDict(recursive=True) for row in frame.orderBy("n").select(made).collect()]
    for body, ours, spark_has in zip(CASES, alone(), theirs, strict=False):
        assert repr(ours) == repr(spark_has), body  # as text, in which NaN equals itself


def test_a_row_is_the_same_wherever_it_stands():
    print("seed", seed := random.randrange(1 << 32))
    source = random.Random(seed)
    bodies = CASES + OTHERWISE
    judge = dict(zip(bodies, alone(), strict=True))
    for count, share in ((1, 1.0), (33, 0.5), (500, 1.0), (3000, 0.001), (3000, 0.02)):
        chosen = [source.choice(bodies) if source.random() < share else CASES[0] for _ in range(count)]
        assert repr(decode(chosen)) == repr([judge[body] for body in chosen])


def test_what_is_documented_to_differ():
    found = dict(zip(OTHERWISE, [decode([body])[0] for body in OTHERWISE], strict=True))
    for body in OTHERWISE[:3]:
        assert found[body] == {**dict.fromkeys(found[body]), CORRUPT: body.decode()}
    assert [found[body]["b"] for body in OTHERWISE[3:]] == ["1.50", "1e5"]  # Spark: 1.5 and 100000.0


def test_without_the_column_what_does_not_fit_is_null():
    assert decode([b'{"a":"x","b":"y"}', b"no", b""], "a BIGINT, b STRING") == [
        {"a": None, "b": "y"},
        {"a": None, "b": None},
        None,
    ]


@pytest.mark.parametrize("bad", [b'{"a":"x"}', b"no"])
def test_failfast_names_the_message(bad):
    kind = arrow_type("a BIGINT")
    convert = JsonObjects("orders", kind, fail_fast=True)
    assert convert(pa.array([b'{"a":1}', b""], pa.binary())).to_pylist() == [{"a": 1}, None]
    with pytest.raises(BadRecord, match=r"stream 'orders', offset 1041: .*mode=PERMISSIVE"):
        convert(pa.array([b'{"a":1}'] * 41 + [bad], pa.binary()), 1000)


fields = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(1 << 63), (1 << 63) - 1),
        "b": st.text(max_size=20),
        "c": st.floats(allow_nan=False, allow_infinity=False),
        "d": st.booleans(),
        "e": st.lists(st.none() | st.integers(-9, 9), max_size=4),
        "f": st.none() | st.fixed_dictionaries({"g": st.integers(-9, 9)}),
    },
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(fields, min_size=1, max_size=40), indent=st.sampled_from([None, 1]), ascii=st.booleans())
def test_objects_that_fit_come_back(rows, indent, ascii):
    bodies = [json.dumps(row, indent=indent, ensure_ascii=ascii).encode(errors="surrogatepass") for row in rows]
    names = ("a", "b", "c", "d", "e", "f")
    found = decode(bodies, "a BIGINT, b STRING, c DOUBLE, d BOOLEAN, e ARRAY<BIGINT>, f STRUCT<g: BIGINT>")
    assert found == [{name: row.get(name) for name in names} for row in rows]


# ---- text ----


def test_text_is_the_bytes_where_they_are_utf8_and_mended_where_not():
    for bodies in ([b"", "é€😀".encode(), b"x"], [b"\xff", b"ok", b"\xe2\x82"], ["é".encode()[:1], "é".encode()[1:]]):
        found = values.text(pa.array(bodies, pa.binary()))
        found.validate(full=True)
        assert found.to_pylist() == [body.decode(errors="replace") for body in bodies]


# ---- schemas ----


def test_a_schema_is_read_as_ddl_and_as_json(spark):
    for ddl in (DDL, "`a b` string, `c``d` int", "a: array<struct<b: array<double>>>", "x long,y Integer"):
        wanted = spark.createDataFrame([], ddl.replace(": ", ":")).schema
        assert schemas.read(ddl) == wanted
        assert schemas.read(wanted.json()) == wanted


def test_what_a_schema_says_is_never_null_may_be_missing_from_a_message():
    inner = types.StructType().add("b", types.LongType(), False)
    strict = types.StructType().add("a", types.ArrayType(inner, False), False)
    assert schemas.read(strict.json()) == schemas.read("a ARRAY<STRUCT<b: BIGINT>>")
    plain = options.parse({**LEAST, "includeHeaders": "true"})
    for bad in (
        types.StructType().add("value", strict),
        types.StructType().add("value", schemas.read("a BIGINT"), False),
        types.StructType().add("key", types.BinaryType(), False),
    ):
        with pytest.raises(ConfigError, match=rf"column {bad.names[0]} is NOT NULL, or something in it.*leave"):
            columns.arrow_schema(bad, plain)


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("", "needed a name where 'the end' is"),
        ("a", "needed a name where 'the end' is"),
        ("a BIGINT b", "needed a comma or the end where 'b' is"),
        ("a ARRAY<BIGINT", "needed > where 'the end' is"),
        ("a TIMESTAMP", "type timestamp is not one of boolean, int, bigint.*read it as string and cast it"),
        ("a BIGINT, a STRING", "a field is named twice"),
        ('{"type":"struct","fields":[]}', "a struct<…> of at least one field"),
        ('{"type":"what"}', "not a schema in Spark's JSON"),
        (types.StructType().add("a", types.DateType()).json(), "field a: JSON is not decoded to date"),
    ],
)
def test_what_is_wrong_with_a_schema_is_said(ddl, words):
    with pytest.raises(ConfigError, match=words):
        schemas.read(ddl)


def test_the_value_is_typed_by_the_option_or_by_the_users_schema():
    plain = options.parse(LEAST)
    with pytest.raises(ConfigError, match="it needs valueSchema"):
        columns.spark_schema(plain)
    own = types.StructType().add("value", schemas.read("a BIGINT")).add("offset", types.LongType(), False)
    assert columns.arrow_schema(own, plain).field("value").type == pa.struct([("a", pa.int64())])
    with pytest.raises(ConfigError, match=r"a JSON message is a struct<…>"):
        columns.arrow_schema(types.StructType().add("value", types.StringType()), plain)
    as_text = options.parse({**LEAST, "valueFormat": "string"})
    assert columns.spark_schema(as_text)["value"].dataType == types.StringType()


# ---- with a broker, by way of Spark ----


def test_a_query_reads_json_with_a_schema_that_was_found(spark, own_broker, stream):
    rows = [
        {"n": number, "x": number / 2 if number % 2 else number, "tags": ["a"], "in": {"y": None}}
        for number in range(999)
    ]
    own_broker.publish(stream, [json.dumps(row).encode() for row in rows] + [b"no JSON", b'{"n":"many","x":1}'])
    found = infer_schema(endpoints=own_broker.endpoints, stream=stream, records=500)
    assert found.simpleString() == "struct<n:bigint,x:double,tags:array<string>,in:struct<y:string>>"
    frame = (
        spark.read.format("vibemq")
        .options(endpoints=own_broker.endpoints, stream=stream, valueFormat="json")
        .options(valueSchema=found.add(CORRUPT, "string").json())
        .load()
    )
    got = frame.orderBy(frame["offset"]).collect()
    assert [row.value.n for row in got] == [*range(999), None, None]
    assert [row.value.asDict(recursive=True)["in"] for row in got[:2]] == [{"y": None}] * 2
    assert [row.value[CORRUPT] for row in got[998:]] == [None, "no JSON", '{"n":"many","x":1}']
    assert got[1000].value.x == 1.0
    with pytest.raises(Exception, match="offset 999: not JSON that fits the schema"):
        spark.read.format("vibemq").options(
            endpoints=own_broker.endpoints, stream=stream, valueFormat="json", valueSchema="n BIGINT", mode="FAILFAST"
        ).load().collect()
    text = spark.read.format("vibemq").options(
        endpoints=own_broker.endpoints, stream=stream, valueFormat="string", columns="value"
    )
    assert text.load().where("value like '%many%'").collect() == [('{"n":"many","x":1}',)]
    with pytest.raises(ConfigError, match="no JSON object with a field is among the first 1 messages"):
        infer_schema(
            endpoints=own_broker.endpoints, stream=stream, records=1, startingOffsets=json.dumps({stream: 999})
        )
    own_broker.publish(f"{stream}-empty", [])
    with pytest.raises(ConfigError, match=f"messages of '{stream}-empty'; publish one"):
        infer_schema(endpoints=own_broker.endpoints, stream=f"{stream}-empty")
