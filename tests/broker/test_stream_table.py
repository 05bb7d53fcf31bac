# SPDX-License-Identifier: Apache-2.0
"""Streams as one worker holds them: what ends one while others are being looked at."""

import os

import pytest
from test_queue_table import HangingDisk, table_of

from vibemq.broker.messages import LogReader
from vibemq.broker.stream import StreamTable
from vibemq.storage import log as logs
from vibemq.storage import shm
from vibemq.storage.metadata import Metadata


def table_in(directory):
    metadata = Metadata(str(directory / "meta.db"))
    os.mkdir(metadata.streams_dir)
    board = os.memfd_create("board")
    shm.board_init(board, 1)
    doorbell = os.eventfd(0, os.EFD_NONBLOCK)
    return StreamTable(
        metadata, shm.Board(board, 0, [doorbell]), None, lambda incarnation: f"{metadata.streams_dir}/{incarnation}"
    )


def test_a_stream_that_another_ones_tick_has_closed_is_left_alone(tmp_path):
    """A tick may end a connection, which lets go of its other streams: also of those whose tick comes next."""
    table = table_in(tmp_path)
    table.metadata.create_stream("/", "s", {}, "os", 10, prepare=lambda record: logs.create(record.directory))
    stream = table.find("/", "s")
    table.release(stream)
    stream.tick(0)
    assert table.find("/", "s") is not stream


@pytest.mark.parametrize("durability", ["os", "disk", "remote"])
def test_a_stream_whose_last_reader_ends_in_its_tick_is_left_alone(tmp_path, durability):
    """What the tick would look at next is not mapped any more."""
    queues = table_of(tmp_path, HangingDisk())
    table = queues.streams
    os.mkdir(table.metadata.streams_dir)
    table.metadata.create_stream(
        "/", "s", {}, durability, 10, prepare=lambda record: logs.create(record.directory, durability=durability)
    )
    stream = table.find("/", "s")
    reader = LogReader(queues, stream, 0, follows=False)
    stream.tick(0)
    assert reader.closed and table.find("/", "s") is not stream
