# SPDX-License-Identifier: Apache-2.0
"""Options are read once, an unknown one names its neighbour, and no password shows."""

import json
import pickle
import re
from pathlib import Path

import pytest

from vibemq.errors import ConfigError
from vibemq.spark import options, sink_options
from vibemq.spark.logins import secret
from vibemq.spark.options import parse
from vibemq.spark.places import EARLIEST, LATEST, Place

LEAST = {"endpoints": "localhost:5552", "stream": "orders"}


def test_the_least_one_must_say():
    options = parse(LEAST)
    assert options.endpoints == (("localhost", 5552),)
    assert options.streams == ("orders",)
    assert options.columns == ("value", "offset", "timestamp", "stream")
    assert options.fail_on_data_loss and options.value_format == "binary"
    assert options.start_of("orders", EARLIEST) == EARLIEST
    assert options.end_of("orders") == LATEST


@pytest.mark.parametrize("read", [parse, sink_options.parse])
def test_a_table_is_answered_with_the_view_that_works(read):
    """Spark adds the option for CREATE TABLE, and gives none of the others to the table's reader."""
    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW NAME USING vibemq OPTIONS"):
        read({**LEAST, "provider": "vibemq"})


def test_bytes_and_times_take_units():
    given = {"maxBytesPerTrigger": "1GiB", "batchBytes": "8MB", "fetchTimeoutMs": "30s", "brokerDownTimeoutMs": "1500"}
    options = parse({**LEAST, **given})
    assert (options.max_bytes_per_trigger, options.batch_bytes) == (1 << 30, 8_000_000)
    assert (options.fetch_timeout_ms, options.broker_down_timeout_ms) == (30_000, 1500)
    with pytest.raises(ConfigError, match="nor one with a unit"):
        parse({**LEAST, "fetchTimeoutMs": "30 parsecs"})


def test_names_are_case_insensitive_as_in_spark():
    assert parse({**LEAST, "MAXOFFSETSPERTRIGGER": "5"}).max_offsets_per_trigger == 5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1,b:2", (("a", 1), ("b", 2))),
        ("broker", (("broker", 5552),)),
        ("[::1]:5552", (("::1", 5552),)),
        (" a:1 , b:2 ", (("a", 1), ("b", 2))),
    ],
)
def test_endpoints(text, found):
    assert parse({**LEAST, "endpoints": text}).endpoints == found


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"Fail_On_Data_Loss": "true"}, "did you mean failOnDataLoss"),
        ({"zzz": "1"}, "there are endpoints"),
        ({"endpoints": ""}, "option endpoints"),
        ({"endpoints": "a:b"}, "'a:b' is not host:port"),
        ({"endpoints": "a:70000"}, "host:port"),
        ({"endpoints": "a:1;b:2"}, "host:port"),
        ({"endpoints": "ada@a:1"}, "host:port"),
        ({"endpoints": "vibemq://localhost:5552"}, "has a scheme, and host:port is needed: write localhost:5552"),
        ({"endpoints": "a:1,vibemq://localhost:2925/x"}, "has a scheme, and host:port is needed: write localhost:5552"),
        ({"endpoints": "vibemqs://b"}, "has a scheme, and host:port is needed: write b:5551 with tls=true"),
        ({"endpoints": "rabbitmq-stream://ada:secret@[::1]:77"}, "write [::1]:77, and the login as options"),
        ({"subscribe": "a"}, "exactly one"),
        ({"columns": "value,keys"}, "no column 'keys'"),
        ({"columns": "value,value"}, "twice"),
        ({"columns": "value", "includeHeaders": "true"}, "give one of the two"),
        ({"includeHeaders": "yes"}, "none of false, true"),
        ({"valueFormat": "xml"}, "option valueFormat"),
        ({"valueSchema": "a INT"}, "valueSchema: it needs valueFormat=json"),
        ({"valueFormat": "string", "mode": "FAILFAST"}, "mode: it needs valueFormat=json"),
        ({"startingOffsets": "soon"}, "option startingOffsets"),
        ({"startingOffsets": '{"other": 0}'}, "orders"),
        ({"startingOffsets": '{"orders": -3}'}, "-3"),
        ({"startingOffsets": '{"orders": true}'}, "True"),
        ({"startingOffsets": '{"orders": -1.0}'}, "-1.0"),
        ({"startingOffsets": "[]"}, "option startingOffsets"),
        ({"endingOffsets": "earliest"}, "option endingOffsets"),
        ({"endingOffsets": '{"orders": -2}'}, "-2"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "many"}, "not a whole number"),
        ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss"),
        ({"batchRows": "65537"}, "option batchRows"),
        ({"startingOffsets": "last:0"}, "from 1 on"),
        ({"startingOffsets": "last:x"}, "from 1 on"),
        ({"startingOffsets": "-10x"}, "such as 15m"),
        ({"startingOffsets": "-10"}, "is not earliest, latest, last:1000, -10m"),
        ({"startingOffsetsByTimestamp": "5"}, "is not an object"),
        ({"startingOffsetsByTimestamp": '{"orders": -5}'}, "milliseconds"),
        ({"endingOffsets": "earliest"}, "is not latest"),
        ({"endingOffsets": '{"orders": -2}'}, "-2"),
        ({"endingTimestamp": "5", "endingOffsets": "latest"}, "give one of them"),
        ({"superStream": "o"}, "exactly one"),
        ({"maxTriggerDelay": "5s"}, "needs minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5", "minOffsetsPerTrigger": "1"}, "such as 15m"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "the least is above the most"),
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, "give one of them"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "needs startingTimestamp"),
        ({"password": "a", "passwordEnv": "B"}, "give one of them"),
    ],
)
def test_mistakes_name_the_option_and_the_remedy(extra, says):
    with pytest.raises(ConfigError) as caught:
        parse({**LEAST, **extra})
    assert says in str(caught.value)


def test_no_selector_or_an_empty_one():
    with pytest.raises(ConfigError, match="exactly one"):
        parse({"endpoints": "a"})
    with pytest.raises(ConfigError, match="empty or given twice"):
        parse({"endpoints": "a", "subscribe": "x,,y"})


@pytest.mark.parametrize("option", ["stream", "subscribe"])
def test_both_selectors_take_a_list_and_a_name_may_have_a_comma(option):
    assert parse({"endpoints": "a", option: "s2, s1"}).streams == ("s1", "s2")
    assert parse({"endpoints": "a", option: r"one\,two"}).streams == ("one,two",)
    with pytest.raises(ConfigError, match=r"in 's1,,s2' .* a comma in one is written"):
        parse({"endpoints": "a", option: "s1,,s2"})


def test_offsets_by_stream():
    options = parse({"endpoints": "a", "subscribe": "b,a", "startingOffsets": '{"a": 5, "b": -2}'})
    assert options.streams == ("a", "b")
    assert options.start_of("a", LATEST) == Place("offset", 5)
    assert options.start_of("b", LATEST) == EARLIEST


def test_what_only_batches_or_only_streams_may_say():
    with pytest.raises(ConfigError, match="cannot start at the latest"):
        parse({**LEAST, "startingOffsets": "latest"}).for_batch()
    with pytest.raises(ConfigError, match="AvailableNow"):
        parse({**LEAST, "endingOffsets": "latest"}).for_stream()


def test_the_password_is_not_shown_and_comes_from_where_it_was_put(tmp_path, monkeypatch):
    plain = parse({**LEAST, "password": "hunter2"})
    assert secret(plain) == "hunter2" and "hunter2" not in repr(plain)
    assert pickle.loads(pickle.dumps(plain)) == plain

    monkeypatch.setenv("BROKER_PASSWORD", "from env")
    by_name = parse({**LEAST, "passwordEnv": "BROKER_PASSWORD"})
    assert secret(by_name) == "from env" and b"from env" not in pickle.dumps(by_name)
    monkeypatch.delenv("BROKER_PASSWORD")
    with pytest.raises(ConfigError, match="BROKER_PASSWORD is not set"):
        secret(by_name)

    file = tmp_path / "password"
    file.write_text("from file\n")
    assert secret(parse({**LEAST, "passwordFile": str(file)})) == "from file"
    with pytest.raises(ConfigError, match="passwordFile"):
        secret(parse({**LEAST, "passwordFile": str(tmp_path / "none")}))


@pytest.fixture
def writing():
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from vibemq.spark import sink_options

    return sink_options


README = (Path(options.__file__).parent / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_every_option(writing):
    of_reading, of_writing = README.split("### Options of writing")
    for text, known in ((of_reading, options.KNOWN), (of_writing, writing.OWN)):
        first_cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
        assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} >= set(known)


def test_defaults_are_those_of_the_readme(writing):
    read, write = parse(LEAST), writing.parse(LEAST)
    for row in (
        f"| `fetchTimeoutMs` | {read.fetch_timeout_ms} |",
        f"| `brokerDownTimeoutMs` | {read.broker_down_timeout_ms} |",
        f"| `latestOffsetPollMs` | {read.poll_ms}; {options.POLL_BUCKET_MS} without a broker |",
        f"| `batchBytes`, `batchRows` | {read.batch_bytes >> 20} MiB, {read.batch_rows} |",
        f"`minPartitions` | {read.max_bytes_per_partition >> 20} MiB, none, none |",
        f"`maxTriggerDelay` | none, `{read.max_trigger_delay_ms // 60_000}m` |",
        f"| `maxBytesPerTrigger` | {options.FIRST_BATCH_BYTES >> 30} GiB from `earliest`, else none |",
        f"| `readMode` | `{read.read_mode}` |",
        f"| `vhost` | `{read.vhost}` |",
        f"| `confirmTimeoutMs` | {write.confirm_timeout_ms} |",
        f"| `compression` | `{write.compression}` |",
        f"| `failOnDataLoss` | `{json.dumps(read.fail_on_data_loss)}` |",
        f"| `filterValues`, `filterMatchUnfiltered` | none, `{json.dumps(read.filter_match_unfiltered)}` |",
        f"| `filterPushdown` | `{json.dumps(read.filter_pushdown)}` |",
        f"`headersFormat` | the first four, `false`, `{read.headers_format}` |",
        f"| `valueFormat`, `valueSchema`, `mode` | `{read.value_format}`, none, `{read.mode.upper()}` |",
        f"| `login` | `{read.login}` |",
        f"| `tls`, `tlsCa` | `{json.dumps(read.tls)}`, ",
        f"| `createStream` | `{json.dumps(write.create_stream)}` |",
        f"| `valueFormat` | `{'json' if write.is_json else 'binary'}` |",
        f"| `ignoreUnknownColumns` | `{json.dumps(write.ignore_unknown)}` |",
    ):
        assert row in README
