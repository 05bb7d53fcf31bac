# SPDX-License-Identifier: Apache-2.0
"""A log's limits: kept with the log, the same for every handle, and changed while it is in use."""

import pytest

from vibemq.errors import StorageError
from vibemq.storage import log as logs
from vibemq.storage.arguments import log_options


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "log")


def test_the_filter_size_is_kept_with_the_log(directory):
    logs.create(directory, **log_options({"stream-filter-size-bytes": "200"}, "os", 0))
    assert logs.Log(directory).filter_size_bytes == 200


def test_a_log_made_without_a_filter_size_has_the_default(directory):
    logs.create(directory)
    assert logs.Log(directory).filter_size_bytes == 16


@pytest.mark.parametrize("size", [1, 15, 256])
def test_a_filter_size_out_of_range_makes_nothing(directory, size):
    with pytest.raises(StorageError, match="filter_bytes"):
        logs.create(directory, filter_size_bytes=size)
    with pytest.raises(StorageError):
        logs.Log(directory)


def test_changed_limits_hold_for_handles_that_are_open(directory):
    logs.create(directory, filter_size_bytes=16)
    held = logs.Log(directory)
    logs.set_limits(directory, **log_options({"stream-filter-size-bytes": "64", "max-age": "1h"}, "os", 0))
    assert held.filter_size_bytes == 64
    held.set_limits(filter_size_bytes=32)
    assert logs.Log(directory).filter_size_bytes == 32


def test_limits_that_cannot_be_change_none(directory):
    logs.create(directory, filter_size_bytes=64)
    with pytest.raises(StorageError):
        logs.set_limits(directory, filter_size_bytes=32, segment_bytes_max=2**40)
    assert logs.Log(directory).filter_size_bytes == 64


def test_durability_is_for_life(directory):
    logs.create(directory, durability="disk")
    logs.set_limits(directory, **log_options({}, "os", 0))
    assert logs.Log(directory).is_disk_durable


def test_a_start_in_the_same_boot_sets_the_limits_too(directory):
    logs.create(directory, filter_size_bytes=16)
    assert not logs.recover(directory, filter_size_bytes=48).ran
    assert logs.Log(directory).filter_size_bytes == 48
