# SPDX-License-Identifier: Apache-2.0
"""The README's examples run as they are printed, and what it says of options and limits holds."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from running import ENVIRONMENT, broker

from vibemq.config import OPTIONS, Config

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("data")) as running:
        yield running.port


def example(number, port, folder):
    code = EXAMPLES[number].replace("5552", str(port))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, cwd=folder, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def test_rstream_publishes_and_consumes(port, tmp_path):
    done = example(0, port, tmp_path)
    assert done.stdout.splitlines()[-10:] == [f"{n} order {n}" for n in range(10)]
    assert done.stderr == ""


def test_bulk_client_publishes_and_reads(port, tmp_path):
    assert example(1, port, tmp_path).stdout == "100000 messages read back\n"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_what_rstream_published(port, tmp_path):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    example(0, port, tmp_path)
    orders = int(example(2, port, tmp_path).stdout.split()[0])
    assert orders in (10, 20)  # twenty when the first test ran, too


def test_an_address_in_use_is_the_first_thing_a_newcomer_may_meet(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "vibemq.cli", "serve", "--data-dir", str(tmp_path / "data")]
        command += ["--streams-port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 1
    assert "hint: another program listens there; choose another port (--streams-port" in done.stderr


def test_every_option_that_is_named_exists():
    named = re.findall(r"`(?:--set )?(server|streams|native|queues|store|guest)\.(\w+)", README)
    assert named
    assert [f"{section}.{option}" for section, option in named if option not in OPTIONS[section]] == []


def test_the_limits_are_the_defaults():
    defaults = Config()
    assert f"| connections for each worker | {defaults.server.connections_max:,} |" in README
    assert f"| streams | {defaults.store.streams_max:,} |" in README
    assert f"confirm | {defaults.streams.unconfirmed_max:,} |" in README
    assert f"127.0.0.1:{defaults.streams.port}, a worker for each core, data in {defaults.server.data_dir}" in README
