# SPDX-License-Identifier: Apache-2.0
"""Queues as one worker holds them, without the worker around them."""

import os
import time
from types import SimpleNamespace

from peers.queues import QueuePeer
from running import broker

from vibemq import config
from vibemq.broker.expiry import Expiry
from vibemq.broker.messages import Messages
from vibemq.broker.options import DeliveryMode
from vibemq.broker.queue_table import QueueTable
from vibemq.broker.rotation import Rotation
from vibemq.broker.stream import StreamTable
from vibemq.broker.timers import Timers
from vibemq.storage import log as logs
from vibemq.storage import shm
from vibemq.storage.metadata import Metadata
from vibemq.storage.shm import Mail, mail_init


class HangingDisk:
    """Helper threads that come back from the disk when the test says so."""

    def __init__(self):
        self.jobs = []

    def submit_sync(self, work, done):
        self.jobs.append((work, done))

    submit_remove = submit_append = submit_sync

    def come_back(self):
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            done(work(), None)


def table_of(data, helpers):
    metadata = Metadata(str(data / "meta.db"))
    board_fd, mail_fd = os.memfd_create("board"), os.memfd_create("mail")
    shm.board_init(board_fd, 1)
    mail_init(mail_fd, 1)
    board = shm.Board(board_fd, 0, [os.eventfd(0, os.EFD_NONBLOCK)])
    streams = StreamTable(metadata, board, helpers, lambda incarnation: os.path.join(metadata.streams_dir, incarnation))
    table = QueueTable(
        streams,
        Mail(mail_fd, board, 1),
        Messages(helpers),
        Timers(),
        config.load(environ={}).queues,
        {DeliveryMode.ROUND_ROBIN: Rotation},
        None,
    )
    table.reserve = SimpleNamespace(retry=lambda drop: drop())
    return table


def test_a_disk_that_hangs_is_asked_for_a_queues_room_once_at_a_time(tmp_path):
    with broker(tmp_path, workers=1) as running, QueuePeer(running) as peer:
        peer.create("q")
        peer.publish_all("q", range(3))
        peer.purge("q")
        peer.await_counts("q", 0)
    disk = HangingDisk()
    table = table_of(tmp_path, disk)
    queue = table.find("/", "q")
    queue.hold(user := object())
    table.set_alarms(None, True, False)  # the disk is full
    segments = logs.segments(queue.stream.log.directory)
    for _ in range(3):
        for _ in range(3):
            queue.tick()
            assert len(disk.jobs) <= 1
        disk.come_back()
    assert logs.segments(queue.stream.log.directory) > segments
    queue.tick()
    assert not disk.jobs, "nothing is left to drop"
    queue.release(user)
    queue.close()


def test_the_age_of_messages_counts_from_a_clock_that_is_read_after_them(tmp_path, monkeypatch):
    """The turn of a loop may be old when messages of other workers are found: they would expire early by its age."""
    with broker(tmp_path, workers=1) as running, QueuePeer(running) as peer:
        peer.create("q", messageTtl="00:10:00")
        peer.publish_all("q", range(3))
    found = []

    class Watched(Expiry):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.append(self.looked_ms >= began_ms)

        def arrived(self, next_offset, now_ms):
            found.append(now_ms >= began_ms)
            super().arrived(next_offset, now_ms)

    monkeypatch.setattr("vibemq.broker.backlog.Expiry", Watched)
    began_ms = time.monotonic_ns() // 1_000_000
    with monkeypatch.context() as early:
        early.setattr(time, "monotonic_ns", lambda: (began_ms - 60_000) * 1_000_000)
        table = table_of(tmp_path, HangingDisk())
    assert table.now_ms == began_ms - 60_000  # of a turn that began long ago
    queue = table.find("/", "q")
    queue.hold(user := object())
    queue.call_home()
    queue.tick()
    assert found and all(found)
    queue.release(user)
    queue.close()
