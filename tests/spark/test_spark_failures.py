# SPDX-License-Identifier: Apache-2.0
"""What is told of an exception of Spark: the sentence of ours in its midst, or Spark's own last word."""

import pytest

from vibemq.spark.failures import TEXT_MAX, is_of_spark, last_line, ours

WORKER = """\
Traceback (most recent call last):
  File "/somewhere/vibemq/spark/client.py", line 318, in patiently
    return call(taken)
           ^^^^^^^^^^^
"""
MISSPELT = "127.0.0.1:5552: PlanReads oders: the broker answered STREAM_DOES_NOT_EXIST (2)"
QUERY = """\
=== Streaming Query ===
Identifier: [id = 444d, runId = ba32]
Current State: ACTIVE

Logical Plan:
+- ~StreamingDataSourceV2ScanRelation[value#24] vibemq.errors.Fake: of a plan
"""
ENDED = "[STREAM_FAILED] Query [id = 444d, runId = ba32] terminated with exception: "
IN_A_SOURCE = (
    "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: "
)
SENTENCE = f"vibemq.errors.StreamNotFound: {MISSPELT}. Check its name. Or not."
FULL = "java.io.IOException: No space left"
STATES = " SQLSTATE: 38000 SQLSTATE: XXKST\n"
IN_A_TASK = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times (TID 1) (vm executor driver): \
org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/lake.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:782)
Caused by: {}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\t... 23 more

Driver stacktrace: SQLSTATE: XXKST
"""


def of_worker(sentence):
    return IN_A_TASK.format(f"org.apache.spark.api.python.PythonException: {WORKER}{sentence}\n")


@pytest.mark.parametrize(
    "text",
    [
        f"{ENDED}{IN_A_SOURCE}{WORKER}{SENTENCE}\n{STATES}{QUERY}",
        f"{ENDED}{of_worker(SENTENCE)}{QUERY}",
        f"{WORKER}vibemq.errors.Other: of before\n\nDuring handling of the above exception, another one occurred:\n\n"
        f"{WORKER}{SENTENCE}\n",
    ],
)
def test_an_error_of_ours_is_found_with_its_hint(text):
    found = ours(RuntimeError(text))
    assert found is not None
    assert (str(found), found.hint) == (MISSPELT, "Check its name. Or not.")
    assert last_line(RuntimeError(text)) == f"{MISSPELT}. Check its name. Or not."


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (
            f"An error occurred while calling o62.start.\n: {FULL}\n\tat java.io.X.y(X.java:1)\n",
            FULL,
        ),
        (f"{ENDED}No FileSystem for scheme\n{STATES}{QUERY}", "No FileSystem for scheme"),
        (
            f"{ENDED}Job aborted.\n{QUERY}\tat a.B.c(B.scala:1)\nCaused by: {FULL}\n\t... 3 more\n",
            FULL,
        ),
        (IN_A_TASK.format(FULL), FULL),
        (of_worker("KeyError: 'size'"), "KeyError: 'size'"),
        (
            f"{ENDED}{WORKER}{SENTENCE}\n\nDuring handling of the above exception, another exception occurred:\n\n"
            f"{WORKER}KeyError: 'size'\n{QUERY}",
            "KeyError: 'size'",
        ),
        (
            "[DELTA_SCHEMA_MISMATCH] A schema mismatch is detected.\nTable schema:\nroot\n |-- vibemq: string\n",
            "[DELTA_SCHEMA_MISMATCH] A schema mismatch is detected.",
        ),
        ("", "RuntimeError"),
        ("x" * 1000, "x" * TEXT_MAX),
    ],
)
def test_else_it_is_the_last_word_of_the_cause(text, last):
    assert ours(RuntimeError(text)) is None
    assert last_line(RuntimeError(text)) == last


def test_an_exception_of_this_program_is_none_of_spark():
    errors, protocol = pytest.importorskip("pyspark.errors"), pytest.importorskip("py4j.protocol")
    assert is_of_spark(errors.PySparkException("x")) and is_of_spark(protocol.Py4JError("x"))
    assert not is_of_spark(KeyError("x"))
