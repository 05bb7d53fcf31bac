# SPDX-License-Identifier: Apache-2.0
"""`vibemq log`: where a stream's and a queue's files lie, what is in them, and whether they are intact."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from running import broker

import vibemq.client
from vibemq.cli.commands import main
from vibemq.client.streams import StreamsConnection


def run(*arguments):
    return CliRunner().invoke(main, ["log", *arguments], prog_name="vibemq")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A broker's data directory with stream `logs` and queue `orders`, three messages of which two are settled."""
    folder = tmp_path_factory.mktemp("data")
    with broker(folder) as running:
        with StreamsConnection.connect(running.host, running.port) as connection:
            connection.create("logs")
        with vibemq.client.connect(f"vibemq://{running.host}:{running.native_port}") as client:
            client.publish_many("orders", [{"number": number} for number in range(3)])
            with client.consume("orders") as consumer:
                for _ in range(2):
                    next(consumer).ack()
                client.queue_info("orders")  # answered after the acknowledgements were read
        yield folder


def directory_of(data, name):
    found = json.loads(run("list", "--json", "--data-dir", str(data)).stdout)
    return next(each for each in found if each["name"] == name)


def test_list_says_which_directory_is_whose(data):
    shown = run("list", "--data-dir", str(data))
    assert shown.exit_code == 0
    for name, kind in (("logs", "stream"), ("orders", "queue")):
        described = directory_of(data, name)
        assert described["kind"] == kind and described["vhost"] == "/" and described["segments"] == 1
        files = os.listdir(described["directory"])
        assert ("ledger" in files) == (kind == "queue")
        (line,) = [line for line in shown.stdout.splitlines() if f" {name} " in line]
        assert line.startswith(kind) and line.endswith(described["directory"])
    assert directory_of(data, "orders")["bytes"] > directory_of(data, "logs")["bytes"]


def test_list_needs_a_data_directory(tmp_path):
    refused = run("list", "--data-dir", str(tmp_path))
    assert refused.exit_code == 1 and "there is no meta.db in it" in refused.stderr


def test_dump_prints_a_ledgers_page_and_its_blocks(data):
    directory = Path(directory_of(data, "orders")["directory"])
    page = run("dump", str(directory / "ledger"))
    assert page.exit_code == 0 and "acked: 2" in page.stdout.splitlines()
    block = run("dump", str(directory / f"{0:020}.ledger"))
    assert block.exit_code == 0
    assert block.stdout.startswith("block: offsets 0 to below 16384") and "settled: 2" in block.stdout.splitlines()


def test_dump_prints_every_file_of_a_queue(data):
    directory = Path(directory_of(data, "orders")["directory"])
    for file in directory.iterdir():
        printed = run("dump", str(file))
        assert printed.exit_code == 0 and printed.stdout, (file, printed.stderr)


def test_dump_says_that_a_file_is_not_ours(tmp_path):
    foreign = tmp_path / "notes.txt"
    foreign.write_text("nothing to see here")
    refused = run("dump", str(foreign))
    assert refused.exit_code == 1 and refused.stderr.splitlines()[0] == f"vibemq: {foreign} is none of VibeMQ's files"
    assert "vibemq log list" in refused.stderr


def test_verify_reads_the_log_of_a_queue(data):
    verified = run("verify", directory_of(data, "orders")["directory"])
    assert verified.exit_code == 0 and "intact" in verified.stdout


def test_verify_names_the_byte_that_is_damaged(data, tmp_path):
    copy = tmp_path / "log"
    shutil.copytree(directory_of(data, "orders")["directory"], copy)
    segment = copy / f"{0:020}.segment"
    content = bytearray(segment.read_bytes())
    at = content.index(b'"number"')
    content[at] ^= 1
    segment.write_bytes(content)
    verified = run("verify", str(copy))
    assert verified.exit_code == 1 and "1 of 1 segments are damaged" in verified.stderr
    first, second = verified.stdout.splitlines()
    assert first.startswith(f"{segment.name}: ERR_CORRUPT: ") and first.endswith(f"{segment} at byte {at}")
    assert second == f"{segment.name}: DAMAGED entries of chunk 0: one bit of byte {at}"


def test_verify_names_all_damaged_chunks(data, tmp_path):
    copy = tmp_path / "log"
    shutil.copytree(directory_of(data, "orders")["directory"], copy)
    segment = copy / f"{0:020}.segment"
    content = bytearray(segment.read_bytes())
    at = content.index(b'"number"')
    content[at : at + 8] = b"DAMAGED!"
    content[:4] = b"none"
    segment.write_bytes(content)
    header, entries = run("verify", str(copy)).stdout.splitlines()[1:]
    assert header == f"{segment.name}: DAMAGED segment header: bytes 0 to 63"
    assert (
        entries.startswith(f"{segment.name}: DAMAGED entries of chunk 0: bytes ") and "differ from their CRC" in entries
    )
