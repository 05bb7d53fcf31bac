# SPDX-License-Identifier: Apache-2.0
"""`vibemq ingest` and `vibemq spark-check` as an operator runs them, and the sums behind what they show."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from running import wait_until
from spark_jobs import SPARK
from test_spark_ingest import children

from vibemq.cli.commands import main
from vibemq.errors import SetupError
from vibemq.protocols.streams.spec import Key
from vibemq.spark import local_session
from vibemq.spark.check import environment
from vibemq.spark.ingest import Ingest, State, Watch, lag_of, line, metrics, require_format, start

REMEDY = re.compile(r"--package io\.delta:delta-spark_\d\.\d_2\.1\d:VERSION")

IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"  # how often while idle, in milliseconds


def offset(**streams):
    return {"v": 1, "s": {name: {"i": "a", "o": at} for name, at in streams.items()}}


class Progress(dict):
    """As PySpark has it, whose own fields of a source are not the same in all versions."""

    @property
    def json(self):
        return json.dumps(self)


def batch(number, rows, end, tail, milliseconds=500, **durations):
    durations = durations or {"latestOffset": 3, "addBatch": 400, "triggerExecution": milliseconds}
    sources = [{"endOffset": offset(orders=end), "latestOffset": offset(orders=tail)}]
    return Progress(
        {
            "batchId": number,
            "numInputRows": rows,
            "batchDuration": milliseconds,
            "durationMs": durations,
            "sources": sources,
        }
    )


def idle(following, end, tail):
    """What Spark says now and then while there is no batch: by the number of the one that will be next."""
    return batch(following, 0, end, tail, 7, latestOffset=6, triggerExecution=7)


class Query:
    def __init__(self, *batches):
        self.recentProgress = list(batches)


# ---- how far it is ----


def test_lag_is_what_lies_between_the_end_of_a_batch_and_the_tail():
    source = {"endOffset": offset(a=10, b=7), "latestOffset": offset(a=25, b=7, c=3)}
    assert lag_of([source]) == {"a": 15, "b": 0, "c": 3}
    assert lag_of([{"endOffset": None, "latestOffset": offset(a=5)}]) == {"a": 5}
    assert lag_of([{"endOffset": offset(a=9), "latestOffset": offset(a=5)}]) == {"a": 0}, "a tail that is gone"
    assert lag_of([{"endOffset": None, "latestOffset": None}]) == {}


def test_a_batch_is_counted_once_however_often_it_is_seen():
    watch, query = Watch(), Query(batch(0, 100, 100, 400))
    assert watch.look(query, 0.0).rows == 100
    assert watch.look(query, 1.0).rows == 100
    query.recentProgress += [batch(1, 100, 200, 400), idle(2, 200, 450)]
    state = watch.look(query, 10.0)
    assert (state.rows, state.batch, state.behind, state.rows_per_second) == (200, 1, 250, 10.0)
    assert state.batch_seconds == 0.5


def test_a_batch_after_an_idle_time_is_counted_though_its_number_was_seen():
    watch, query = Watch(), Query(batch(0, 13, 13, 13), idle(1, 13, 13), idle(1, 13, 13))
    assert (watch.look(query, 0.0).rows, watch.seen) == (13, 0)
    query.recentProgress += [batch(1, 3, 16, 16)]
    assert (watch.look(query, 10.0).rows, watch.seen) == (16, 1)
    query.recentProgress += [idle(2, 16, 16), batch(2, 4, 20, 20)]
    assert (watch.look(query, 20.0).rows, watch.seen) == (20, 2)


def test_started_again_with_nothing_new_it_is_caught_up_and_does_not_wait_for_a_first_batch():
    assert line(Watch().look(Query(idle(7, 20, 20)), 0.0)) == "0 rows, 0 rows/s, caught up"
    assert line(Watch().look(Query(idle(0, 0, 0)), 0.0)) == "waiting for the first batch"


def test_rows_after_an_idle_time_of_a_real_query_are_counted(spark, own_broker, stream, tmp_path):
    own_broker.publish(stream, [b"x"] * 13)
    spark.conf.set(IDLE_REPORTS, "500")  # of the newest 100 reports none is lost meanwhile
    watch = Watch()
    query = start(
        Ingest({"endpoints": own_broker.endpoints, "stream": stream}, f"{tmp_path}/o", f"{tmp_path}/c"), spark
    )
    try:
        for more, rows in (3, 13), (4, 16):
            query.processAllAvailable()
            wait_until(lambda: "addBatch" not in query.lastProgress["durationMs"], "an idle report")
            assert watch.look(query).rows == rows
            own_broker.publish(stream, [b"x"] * more)
        query.processAllAvailable()
        assert watch.look(query).rows == 20
    finally:
        query.stop()
        spark.conf.unset(IDLE_REPORTS)


def test_the_estimate_is_by_how_fast_the_lag_becomes_less():
    watch = Watch()
    watch.look(Query(batch(0, 100, 100, 400)), 0.0)
    closing = watch.look(Query(batch(0, 100, 100, 400), batch(1, 100, 200, 400)), 10.0)
    assert closing.caught_up_in_seconds == 20.0  # 200 behind, 10 a second
    falling = watch.look(Query(batch(1, 100, 200, 400), batch(2, 100, 300, 900)), 20.0)
    assert falling.caught_up_in_seconds is None and "falling behind" in line(falling)
    done = watch.look(Query(batch(3, 600, 900, 900)), 30.0)
    assert done.caught_up_in_seconds == 0.0 and "caught up" in line(done)


def test_one_row_is_no_rows():
    assert line(State(1, 2, 0.25, 1.2, {"a": 0}, 0.0)) == "1 row, 1 row/s, caught up"


def test_metrics_name_each_stream_once():
    text = metrics(State(5, 2, 0.25, 1.5, {"a": 1, 'b"\n': 2}, None))
    assert 'vibemq_ingest_lag_records{stream="a"} 1\n' in text
    assert 'vibemq_ingest_lag_records{stream="b\\"\\n"} 2\n' in text
    assert text.count("# TYPE vibemq_ingest_lag_records gauge") == 1 and "vibemq_ingest_rows_total 5\n" in text


# ---- the commands ----


@pytest.fixture
def vibemq(own_broker):
    def start(*arguments, **more):
        environment = os.environ | {"VIBEMQ_URL": f"rabbitmq-stream://{own_broker.endpoints}"}
        return subprocess.Popen(
            [sys.executable, "-m", "vibemq.cli", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more,
        )  # fmt: skip

    def run(*arguments):
        process = start(*arguments)
        try:
            out, err = process.communicate(timeout=280)
        finally:
            process.kill()  # no one who is late goes on beside the next test
        return process.returncode, out, err

    run.start = start
    return run


pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # three commands, each with the 280 s that it may take


def test_ingest_goes_on_where_it_was(spark, own_broker, vibemq, stream, tmp_path):
    other, lake = f"{stream}-2", tmp_path / "lake"
    own_broker.publish(stream, [b"%d" % n for n in range(1000)])
    own_broker.publish(other, [b"%d" % n for n in range(10)])
    arguments = ("ingest", stream, other, "--output", lake, "--partition-by", "stream", "--available-now")
    code, _, err = vibemq(*arguments)
    assert code == 0, err
    assert "1,010 rows" in err and "caught up" in err
    own_broker.publish(stream, [b"more"] * 5)
    code, out, err = vibemq(*arguments, "--json")
    assert code == 0, err
    state = json.loads(out.splitlines()[-1])
    assert (state["rows"], state["lag"]) == (5, {stream: 0, other: 0})
    found = {row.stream: row["count"] for row in spark.read.parquet(str(lake)).groupBy("stream").count().collect()}
    assert found == {stream: 1005, other: 10}
    assert (tmp_path / "lake.checkpoint" / "commits").is_dir()
    kept = [path.read_bytes() for path in (tmp_path / "lake.checkpoint").rglob("*") if path.is_file()]
    assert kept and not any(b"guest" in each for each in kept)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_ingest_in_order_and_metrics_are_served_meanwhile(
    spark, own_broker, vibemq, stream, tmp_path, number, code
):
    own_broker.publish(stream, [b"x"] * 100)
    arguments = ("--trigger", "1 second", "--checkpoint", tmp_path / "here", "--metrics-port", "0", "--json")
    process = vibemq.start("ingest", stream, "--output", tmp_path / "lake", *arguments)
    try:
        assert process.stderr is not None and process.stdout is not None
        url = next(found[0] for text in process.stderr if (found := re.search(r"http://\S+", text)))
        rows = 0
        while rows < 100:
            assert process.poll() is None
            with urllib.request.urlopen(url) as answer:
                rows = int(re.search(r"^vibemq_ingest_rows_total (\d+)$", answer.read().decode(), re.M)[1])
            time.sleep(0.1)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.removesuffix("metrics"))
        below = children(process.pid)
        process.send_signal(number)
        last = process.stderr.read().splitlines()[-1]
        assert (
            last == f"vibemq: at least 100 rows written; the same command goes on behind them, by {tmp_path / 'here'}"
        )
        assert process.wait(60) == code
    finally:
        process.kill()
        process.wait()
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 100
    assert (tmp_path / "here" / "commits").is_dir() and not (tmp_path / "lake.checkpoint").exists()
    deadline = time.monotonic() + 10
    while (left := [pid for pid in below if os.path.exists(f"/proc/{pid}")]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_delta_is_refused_with_what_adds_it(spark, own_broker, vibemq, stream, tmp_path):
    own_broker.publish(stream, [b"x"])
    code, _, err = vibemq("ingest", stream, "--output", tmp_path / "table", "--format", "delta", "--available-now")
    assert code == 1 and REMEDY.search(err), err
    assert not (tmp_path / "table").exists()


def test_iceberg_is_refused_as_well(spark):
    package = r"--package org\.apache\.iceberg:iceberg-spark-runtime-\d\.\d_2\.1\d:VERSION"
    with pytest.raises(SetupError) as refused:
        require_format(spark, "iceberg")
    assert re.search(package, refused.value.hint)


#: By Spark's version, what writes each format. For a newer Spark neither has a package yet.
PACKAGES = {
    (4, 0): {
        "delta": "io.delta:delta-spark_4.0_2.13:4.1.0",
        "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    },
    (4, 1): {
        "delta": "io.delta:delta-spark_4.1_2.13:4.1.0",
        "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    },
}
READ_TABLE = """
import json
import sys

from vibemq.spark import local_session

form, table, config = sys.argv[1:]
spark = local_session("tables", cores=1, config=json.loads(config))
frame = spark.table(table) if form == "iceberg" else spark.read.format(form).load(table)
print(json.dumps(sorted((row.stream, bytes(row.value).decode()) for row in frame.collect())))
spark.stop()
"""


def fetching(folder, place):
    """A file by which Spark looks for packages at this place alone."""
    settings = folder / "ivy.xml"
    resolvers = f'<settings defaultResolver="jars"/><resolvers>{place}</resolvers>'
    settings.write_text(f"<ivysettings>{resolvers}</ivysettings>")
    return str(settings)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_tables_of_other_formats_have_each_message_once_after_a_restart(form, own_broker, vibemq, stream, tmp_path):
    if SPARK not in PACKAGES:
        pytest.skip(f"{form} has no package for Spark {SPARK[0]}.{SPARK[1]}")
    if (jars := os.environ.get("VIBEMQ_SPARK_JARS")) is None:
        pytest.skip("VIBEMQ_SPARK_JARS names no folder for what Spark fetches: `make spark-versions` does")
    central = (
        '<ibiblio name="jars" m2compatible="true"/>'  # and not this user's ~/.m2, where Maven leaves half a package
    )
    config = {"spark.jars.ivySettings": fetching(tmp_path, central), "spark.jars.ivy": os.path.abspath(jars)}
    if form == "iceberg":
        catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": str(tmp_path / "lake")}
        config |= {f"spark.sql.catalog.lake{name}": value for name, value in catalog.items()}
    else:
        config["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        config["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    table = "lake.shop.orders" if form == "iceberg" else str(tmp_path / "orders")
    arguments = ["--output", table, "--format", form, "--partition-by", "stream", "--available-now"]
    arguments += ["--checkpoint", tmp_path / "checkpoint", "--package", PACKAGES[SPARK][form], "--master", "local[2]"]
    for name, value in config.items():
        arguments += ["--spark-config", f"{name}={value}"]
    other = f"{stream}-2"
    sent = {stream: [b"%d" % n for n in range(500)], other: [b"%d" % n for n in range(10)]}
    for more in ([], [b"more", b"and more"]):
        for name, rows in sent.items():
            own_broker.publish(name, more or rows)
        code, _, err = vibemq("ingest", stream, other, *arguments)
        assert code == 0, err
    config |= {"spark.jars.packages": PACKAGES[SPARK][form]}
    command = [sys.executable, "-c", READ_TABLE, form, table, json.dumps(config)]
    read = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert read.returncode == 0, read.stderr[-3000:]
    expected = sorted([name, each.decode()] for name, rows in sent.items() for each in [*rows, b"more", b"and more"])
    assert json.loads(read.stdout.splitlines()[-1]) == expected  # after what Ivy says


def test_a_package_that_is_not_to_be_had_is_named(spark, vibemq, tmp_path):
    empty = f'<filesystem name="jars"><artifact pattern="{tmp_path}/[artifact]-[revision].jar"/></filesystem>'
    config = {"spark.jars.ivySettings": fetching(tmp_path, empty), "spark.jars.ivy": tmp_path / "ivy"}
    where = [word for name, value in config.items() for word in ("--spark-config", f"{name}={value}")]
    code, _, err = vibemq("ingest", "x", "--output", tmp_path / "table", "--package", "io.nobody:nothing:1.2.3", *where)
    assert (code, "Traceback" in err) == (1, False), err
    assert re.search(r"Spark cannot fetch io\.nobody:nothing:1\.2\.3; where it looked is in \S+spark\.log", err), err


def test_fields_of_json_in_a_super_stream_become_columns_and_folders(spark, own_broker, vibemq, stream, tmp_path):
    partitions = [f"{stream}-{n}" for n in range(3)]
    with own_broker.connect() as connection:
        connection.request(Key.CREATE_SUPER_STREAM, name=stream, partitions=partitions, binding_keys=["0", "1", "2"])
    for place, partition in enumerate(partitions):
        numbers = range(place, 60, 3)
        rows = [b'{"id": %d, "country": "%s", "offset": "own"}' % (n, b"DEFR"[n % 2 * 2 :][:2]) for n in numbers]
        own_broker.publish(partition, rows)
    arguments = ("--schema", "infer", "--partition-by", "country", "--available-now")
    code, _, err = vibemq("ingest", "--super-stream", stream, "--output", tmp_path / "lake", *arguments)
    assert code == 0 and ": struct<id:bigint,country:string,offset:string>" in err, err
    frame = spark.read.parquet(str(tmp_path / "lake"))
    assert frame.columns == ["id", "offset", "timestamp", "stream", "country"]
    found = sorted(tuple(row) for row in frame.select("id", "country", "offset", "stream").collect())
    assert found == [(n, ("DE", "FR")[n % 2], "own", partitions[n % 3]) for n in range(60)]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "name streams, or one --super-stream"),
        (("a", "--super-stream", "b"), "name streams, or one --super-stream"),
        (("a", "--trigger", "1 second", "--available-now"), "exclude each other"),
        (("a", "--option", "x"), "NAME=VALUE is needed"),
        (
            ("a", "--url", "vibemq://here/?tls=true&skipCertValidation=true"),
            "Spark checks the broker's certificate: add --ca-file",
        ),
    ],
)
def test_ingest_says_at_once_what_is_wrong_with_its_arguments(vibemq, arguments, why, tmp_path):
    code, _, err = vibemq("ingest", *arguments, "--output", tmp_path)
    assert (code, why in err) == (2, True), err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--option", "foo=1"), "option foo: not known"),
        (("--starting-offsets", "soon"), "option startingOffsets: 'soon' is not earliest"),
        (("--schema", "id WHAT"), "type what is not one of boolean"),
        (("--schema", "infer", "--checkpoint", "/proc/x/c"), "/proc/x/c.schema cannot be written"),
    ],
)
def test_ingest_says_what_is_wrong_with_its_options_before_spark_is_started(
    own_broker, vibemq, stream, arguments, why, tmp_path
):
    own_broker.publish(stream, [b'{"id":1}'])
    code, _, err = vibemq("ingest", stream, "--output", tmp_path / "lake", *arguments)
    assert (code, why in err) == (1, True), err
    assert "Traceback" not in err and "Spark's log" not in err


def said(err):
    """Without the lines about how far it is and where the log was."""
    lines = err.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("vibemq: until this ends", "waiting for")))


@pytest.mark.parametrize(
    ("arguments", "user", "what", "hint"),
    [
        (
            ("oders",),
            "",
            r"\S+: PlanReads oders: the broker answered STREAM_DOES_NOT_EXIST \(2\)",
            r"Check its name and ",
        ),
        (
            ("oders", "--schema", "infer"),
            "",
            r"\S+: PlanReads oders: .*STREAM_DOES_NOT_EXIST \(2\)\. Check its name and .*",
            None,
        ),
        (("x",), "guest:wrong@", r"\S+: logging in as 'guest': the broker answered AUTH\w+ \(8\)", "Check user name"),
        (
            ("x", "--option", "startingOfsets=latest"),
            "",
            r"option startingOfsets: not known to format\('vibemq'\); did you mean startingOffsets\?",
            None,
        ),
    ],
)
def test_an_ordinary_mistake_is_a_sentence_and_leaves_no_log(
    spark, own_broker, vibemq, tmp_path, monkeypatch, arguments, user, what, hint
):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    url = f"rabbitmq-stream://{user}{own_broker.endpoints}"
    code, _, err = vibemq("ingest", *arguments, "--output", tmp_path / "lake", "--available-now", "--url", url)
    assert code == 1, err
    assert re.fullmatch(f"vibemq: {what}" + (rf"\n  hint: {hint}.*" if hint else ""), said(err)), err
    assert not [path for path in (tmp_path / "temporary").iterdir() if path.name.startswith("vibemq-spark-")]


def test_what_spark_itself_fails_with_is_its_last_word_and_its_log_stays(spark, own_broker, vibemq, stream, tmp_path):
    own_broker.publish(stream, [b"x"])
    file = tmp_path / "file"
    file.touch()
    code, _, err = vibemq("ingest", stream, "--output", file, "--checkpoint", tmp_path / "c", "--available-now")
    found = re.fullmatch(
        r"vibemq: Spark failed: \S+Exception: .*file:\S+/file\b.*\n  hint: All that it said is in (\S+spark\.log)",
        said(err),
    )
    assert code == 1 and found, err
    assert "Traceback" in Path(found[1]).read_text()
    shutil.rmtree(Path(found[1]).parent)


def test_a_column_that_is_not_there_is_named_with_those_that_are(spark, own_broker, vibemq, stream, tmp_path):
    own_broker.publish(stream, [b"x"])
    code, _, err = vibemq(
        "ingest", stream, "--output", tmp_path / "lake", "--partition-by", "country", "--available-now"
    )
    assert code == 1 and "'country'" in err and "There are value, " in err, err


def test_spark_check_finds_nothing_wrong_here(spark, own_broker, vibemq, stream):
    own_broker.publish(stream, [b"x"] * 7)
    code, out, err = vibemq("spark-check", "--stream", stream, "--json")
    found = {each["check"]: each for each in json.loads(out)}
    assert code == 0, (out, err)
    assert found[f"read {stream}"]["text"] == "7 records"
    executors = next(each for check, each in found.items() if check.startswith("executors on "))
    assert executors["works"] and "tasks in" in executors["text"]
    assert found["write"]["works"] and found["read over TCP"]["works"] and found["read locally"]["works"]
    with own_broker.connect() as connection:
        assert not [each.name for each in connection.list_streams("vibemq-spark-check")
                    if each.name.startswith("vibemq-spark-check")]  # fmt: skip


def test_where_spark_is_missing_both_commands_name_the_same_extra(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    found = []
    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert not environment(found.append)
    with pytest.raises(SetupError) as refused:
        local_session()
    assert refused.value.hint in CliRunner().invoke(main, ["ingest", "s", "--output", "o"]).output
    assert refused.value.hint in next(each.text for each in found if each.check == "pyspark")


def test_spark_check_of_a_broker_that_is_not_there_fails_and_says_so(spark, vibemq):
    code, out, _ = vibemq("spark-check", "--port", "1", "--json", "--option", "brokerDownTimeoutMs=1000")
    driver = next(each for each in json.loads(out) if each["check"] == "driver")
    assert code == 1 and driver["works"] is False and "127.0.0.1:1" in driver["text"]
    assert "is this its streams port?" in driver["text"]
