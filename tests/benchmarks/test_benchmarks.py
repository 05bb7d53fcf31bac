# SPDX-License-Identifier: Apache-2.0
"""Every command of benchmarks/ runs as its README says, here with few messages: what it measures then says nothing."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.spark.kafka import Kafka

ROOT = Path(__file__).parent.parent.parent
#: Each command with what makes it small.  Peers that are not installed are left out by the commands, which say so.
SMALL = ["--rounds", "1", "--scale", "0.001"]
COMMANDS = {
    "features": SMALL,
    "micromsg2": SMALL,
    "queues": [*SMALL, "--scenario", "both"],
    "queues-scale": ["--queues", "10", "--connections", "2", "--waiting", "1000"],
    "remote": [*SMALL, "--only", "durabilities", "--only", "tier", "--only", "restore"],
    "scale": ["--connections", "20", "--streams", "20", "--scale", "0.001"],
    "signalr": ["--rounds", "1", "--scale", "0.002"],
    "signalr-idle": ["--connections", "20"],
    "streams": [*SMALL, "--scenario", "pubsub-100"],
}
ELSEWHERE = {
    "run",
    "targets",
    "spark",
    "start",
}  # test_queue_bench.py, test_compare.py, below; 65,536 streams take long
TIMEOUT_S = 500


def run(*command: str) -> str:
    environment = {**os.environ, "VIBEMQ_PEER_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_benchmark_runs(command: str) -> None:
    if command == "features" and shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    assert run("-m", "benchmarks", command, *COMMANDS[command]).strip(), "it reports nothing"


@pytest.mark.parametrize("peers", ["parquet", "kafka"])
def test_the_spark_pipeline_runs(peers: str) -> None:
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if peers == "kafka" and (why := Kafka.missing()):
        pytest.skip(why)
    works = "scan,drain,latency" if peers == "parquet" else "scan,drain,sink"
    small = ["--rounds", "1", "--rows", "2000", "--sizes", "100", "--latency-s", "1"]
    assert "| batch scan, 100 B |" in run("-m", "benchmarks", "spark", "--work", works, "--peers", peers, *small)


def test_every_command_is_run_here() -> None:
    assert set(main.commands) == set(COMMANDS) | ELSEWHERE


def test_the_parts_that_pytest_measures_run() -> None:
    assert " passed" in run("-m", "pytest", "-q", "benchmarks", "--benchmark-disable", "-p", "no:cacheprovider")
