# SPDX-License-Identifier: Apache-2.0
"""What a stream's arguments limit: max-age does what it says, and the filter size is part of what must agree."""

import subprocess
import sys
import time

import pytest
from peers.streams import connected
from running import ENVIRONMENT, broker

from vibemq.protocols.streams.spec import Code, Key, OffsetType

WAIT_S = 60  # far more than it takes: only a broker that never does it fails


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_what_is_older_than_its_age_goes_though_nothing_is_written(tmp_path, durability):
    with broker(tmp_path / "data", "--set", "store.retention_interval_s=1") as running, connected(running) as peer:
        stream = peer.create("aging", **{"max-age": "2s", "durability": durability})
        peer.store(stream, [b"old"] * 10)
        end = time.monotonic() + WAIT_S
        while first(peer, stream) < 10:
            assert time.monotonic() < end, "nothing was dropped"
            time.sleep(0.2)
        peer.store(stream, [b"new"])
        peer.subscribe(stream, credit=10)
        chunk = peer.chunk()
        assert (chunk.chunk_id, chunk.data) == (10, b"\0\0\0\3new")


def test_a_stream_with_another_filter_size_is_another_stream(peer, name):
    def create(**arguments):
        return peer.code(Key.CREATE, stream=name, arguments=arguments)

    assert create() == Code.OK
    assert create(**{"stream-filter-size-bytes": "16"}) == Code.STREAM_ALREADY_EXISTS
    assert create(**{"stream-filter-size-bytes": "17"}) == Code.PRECONDITION_FAILED


def test_a_size_has_64_bits_for_clients_whose_type_is_unsigned(peer, name):
    assert peer.code(Key.CREATE, stream=name, arguments={"max-length-bytes": str(2**64)}) == Code.PRECONDITION_FAILED
    peer.create(name, **{"max-length-bytes": str(2**64 - 1)})
    peer.store(name, [b"kept"])


@pytest.mark.parametrize("misspelt", ["max-lenght-bytes", "max_age", "x-max-age", "Durability", "max-length"])
def test_a_misspelt_argument_is_17_and_makes_nothing(peer, name, misspelt):
    assert peer.code(Key.CREATE, stream=name, arguments={misspelt: "1"}) == Code.PRECONDITION_FAILED
    fields = {"name": name, "partitions": [f"{name}-0"], "binding_keys": ["0"], "arguments": {misspelt: "1"}}
    assert peer.code(Key.CREATE_SUPER_STREAM, **fields) == Code.PRECONDITION_FAILED
    codes = peer.ask(Key.METADATA, streams=[name, f"{name}-0"]).streams
    assert [each.code for each in codes] == [Code.STREAM_DOES_NOT_EXIST] * 2


def test_arguments_that_mean_nothing_here_are_ignored_up_to_32(peer, name):
    foreign = {"colour": "green", "queue-type": "stream", "queue-master-locator": "min-masters"}
    peer.create(name, **foreign)
    many = {f"colour-{number}": "green" for number in range(33)}
    assert peer.code(Key.CREATE, stream=f"{name}-many", arguments=many) == Code.PRECONDITION_FAILED


def first(peer, stream):
    return peer.ask(
        Key.RESOLVE_OFFSET_SPEC, stream=stream, offset_type=OffsetType.FIRST, offset_value=None, properties={}
    ).offset


NEVER_LOOKS = ("--set", "store.retention_interval_s=86400")  # what counts does so without housekeeping


def test_a_policy_counts_at_once_for_a_stream_that_exists_and_no_more_when_it_is_cleared(tmp_path):
    folder = tmp_path / "data"

    def ctl(*words):
        command = [sys.executable, "-m", "vibemq.cli", "ctl", *words, "--data-dir", str(folder)]
        subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT, timeout=WAIT_S)

    with broker(folder, *NEVER_LOOKS) as running, connected(running) as peer:
        for stream in ("chunked", "short", "free"):
            peer.create(stream)
        ctl("set_policy", "chunks", "^chunked$", '{"stream-max-chunk-messages": 10}')
        peer.store("chunked", [b"x"] * 20)
        peer.subscribe("chunked", at=OffsetType.LAST, credit=1)
        assert peer.chunk().records == 10
        ctl("clear_policy", "chunks")
        peer.store("chunked", [b"x"] * 20)
        peer.subscribe("chunked", 1, at=OffsetType.LAST, credit=1)
        assert peer.chunk(1).records == 20

        ctl("set_policy", "small", "^short$", '{"stream-max-segment-size-bytes": 4096}')
        peer.store("short", [b"x" * 1000] * 20)
        assert first(peer, "short") == 0
        ctl("set_policy", "small", "^short$", '{"max-length-bytes": 4096, "stream-max-segment-size-bytes": 4096}')
        assert first(peer, "short") > 0, "nothing was dropped"
        assert first(peer, "free") == 0
