# SPDX-License-Identifier: Apache-2.0
"""A log's control page, read as a file, says what the log itself says."""

from contextlib import closing

import vibemq.storage.log as logs
from vibemq.storage.figures import log_figures
from vibemq.storage.log import Log


def test_the_page_says_what_the_log_says(tmp_path):
    directory = str(tmp_path / "a")
    logs.create(directory)
    with closing(Log(directory)) as log:
        stats, found = log.stats(), log_figures(directory)
        assert (found.first_offset, found.next_offset) == (stats.first_offset, stats.next_offset) == (0, 0)
        assert found.active_bytes == stats.size_bytes
        assert found.written_ms == 0


def test_a_log_that_is_gone_or_being_deleted_or_damaged_has_none(tmp_path):
    directory = str(tmp_path / "a")
    assert log_figures(directory) is None
    logs.create(directory)
    with closing(Log(directory)) as log:
        log.mark_deleted()
    assert log_figures(directory) is None
    damaged = tmp_path / "b"
    logs.create(str(damaged))
    (damaged / "control").write_bytes(b"short")
    assert log_figures(str(damaged)) is None
    (damaged / "control").write_bytes(bytes(4096))
    assert log_figures(str(damaged)) is None
