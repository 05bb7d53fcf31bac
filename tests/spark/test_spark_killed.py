# SPDX-License-Identifier: Apache-2.0
"""Drivers and brokers are killed with -9 at random moments, and in the end each row is there once.

In small here; `make spark-soak` runs VIBEMQ_SOAK_ROUNDS rounds of it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_brokers import VibeMQ, end_group

from vibemq.client._streams import read_message, write_message
from vibemq.errors import SetupError
from vibemq.spark.java import ensure_java

ROUNDS = int(os.environ.get("VIBEMQ_SOAK_ROUNDS", "2"))
ROWS_A_ROUND = 20_000
ALIVE_SECONDS_MAX = 4.0  # some ten batches
ROUND_SECONDS_MAX = 120

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300 + ROUNDS * ROUND_SECONDS_MAX)]
SCRIPT = Path(__file__).with_name("spark_pipeline.py")


@pytest.fixture
def mortal(tmp_path):
    try:
        ensure_java()
    except SetupError as missing:
        pytest.skip(str(missing))
    broker = VibeMQ(tmp_path).start()
    yield broker
    broker.kill()


class Driver:
    """The pipeline in processes of its own."""

    def __init__(self, broker: VibeMQ, folder: Path, *more: str) -> None:
        self.log = folder / "driver.log"
        command = [sys.executable, str(SCRIPT), broker.endpoints, "source", "target", str(folder / "checkpoint"), *more]
        root = str(SCRIPT.parents[2])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
            )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return
        raise AssertionError(f"the driver ended before {word!r}: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        end_group(self.process, signal.SIGKILL)


def counts(broker: VibeMQ, rows: int) -> tuple[int, int, list[int]]:
    """How many rows there are, how many more than once, and which are missing (the first ones)."""
    seen = bytearray(rows)
    found = twice = 0
    with broker.connect() as connection:
        for chunk in connection.read_chunks("target", 0):
            for _, message in chunk.messages():
                number = int(read_message(bytes(message))[0])
                found += 1
                twice += seen[number]
                seen[number] = 1
    return found, twice, [number for number in range(rows) if not seen[number]][:10]


def test_each_row_is_there_once_whoever_is_killed_when(mortal, tmp_path):
    seed = int(os.environ.get("VIBEMQ_SOAK_SEED", time.time_ns() & 0xFFFFFFFF))
    print(f"VIBEMQ_SOAK_SEED={seed}")
    random_ = random.Random(seed)
    mortal.publish("target", [])
    rows = 0
    for round_ in range(ROUNDS):
        numbers = range(rows, rows + ROWS_A_ROUND)
        mortal.publish("source", [write_message(b"%d" % number) for number in numbers])
        rows += ROWS_A_ROUND
        driver = Driver(mortal, tmp_path)
        try:
            driver.wait_for(random_.choice(("started", "batch")))
            time.sleep(random_.uniform(0, ALIVE_SECONDS_MAX))  # a moment that nobody has chosen
            if round_ % 3 == 1:
                mortal.kill()
                mortal.start()
                driver.wait_for("batch")
                time.sleep(random_.uniform(0, ALIVE_SECONDS_MAX / 2))
        finally:
            driver.kill()
        found, twice, _ = counts(mortal, rows)
        assert not twice, f"round {round_}: {twice} of {found} rows are there more than once"
    driver = Driver(mortal, tmp_path, "available-now")
    try:
        assert driver.process.wait(ROUND_SECONDS_MAX) == 0, driver.log.read_text()[-3000:]
    finally:
        driver.kill()
    assert counts(mortal, rows) == (rows, 0, [])
