# SPDX-License-Identifier: Apache-2.0
"""Retention on a timer: which streams are looked at, and that it stays in slices."""

import os
import time

import pytest

import vibemq.storage.log as logs
from vibemq.errors import StorageError
from vibemq.server import housekeeping
from vibemq.storage.metadata import Metadata


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def run_to_the_end(keeper):
    slices = 0
    while keeper.due <= time.monotonic():
        began = time.process_time()  # of the processor: the time on the clock depends on who else is at work
        keeper.run_slice()
        slices += 1
        assert time.process_time() - began < 1.0  # SLICE_S and one stream
    return slices


def due_now(metadata):
    keeper = housekeeping.Housekeeper(metadata, 3600, 500_000_000)
    keeper.due = time.monotonic()
    return keeper


def test_only_streams_with_a_limit_are_opened(metadata, monkeypatch):
    limited = [
        metadata.create_stream("/", "aged", {"max-age": "1h"}, "os", 10),
        metadata.create_stream("/", "sized", {"max-length-bytes": "1000"}, "os", 10),
    ]
    metadata.create_stream("/", "all", {}, "os", 10)
    metadata.create_stream("/", "unlimited", {"max-length-bytes": "0"}, "os", 10)
    looked = []
    monkeypatch.setattr(housekeeping.logs, "housekeep", lambda directory: (looked.append(directory), (0, 0))[1])
    run_to_the_end(due_now(metadata))
    assert sorted(looked) == sorted(record.directory for record in limited)


def test_many_streams_are_done_in_slices_and_each_once(metadata, monkeypatch):
    for number in range(1200):  # more than two pages
        metadata.create_stream("/", f"s{number}", {"max-age": "1h"}, "os", 2000)
    looked = []

    def slow(directory):
        looked.append(directory)
        if len(looked) % 400 == 0:
            time.sleep(housekeeping.SLICE_S)  # stands for a disk that takes its time
        return 0, 0

    monkeypatch.setattr(housekeeping.logs, "housekeep", slow)
    assert run_to_the_end(due_now(metadata)) > 3
    assert len(looked) == len(set(looked)) == 1200


def test_a_stream_deleted_meanwhile_is_no_news_and_a_bad_one_no_obstacle(metadata, monkeypatch, caplog):
    for name in ("gone", "bad", "good"):
        metadata.create_stream("/", name, {"max-age": "1h"}, "os", 10)
    names = {record.directory: record.name for record in metadata.streams()}
    done = []

    def housekeep(directory):
        match names[directory]:
            case "gone":
                raise StorageError("ERR_NOT_FOUND", "no such file")
            case "bad":
                raise StorageError("ERR_CORRUPT", "checksum")
        done.append(names[directory])
        return 2, 4096

    monkeypatch.setattr(housekeeping.logs, "housekeep", housekeep)
    with caplog.at_level("INFO"):
        run_to_the_end(due_now(metadata))
    assert done == ["good"]
    assert "retention of stream 'bad' failed: checksum" in caplog.text
    assert "stream 'good': retention dropped 2 segments, 4096 bytes" in caplog.text
    assert "gone" not in caplog.text


def test_a_changed_policy_sets_the_limits_of_every_stream_once(metadata, monkeypatch):
    made = [
        metadata.create_stream("/", "orders", {"max-length-bytes": "1000"}, "os", 10),
        metadata.create_stream("/", "logs-eu", {"max-age": "7D"}, "os", 10),
        metadata.create_stream("/", "rest", {}, "disk", 10),
    ]
    metadata.create_stream("/", "jobs", {}, "os", 10, queue={})
    names = {record.directory: record.name for record in made}
    limits, looked = {}, []

    def set_limits(directory, **options):
        limits[names[directory]] = options["retention_bytes_max"], options["retention_age_ms_max"] // 3_600_000

    monkeypatch.setattr(housekeeping.logs, "set_limits", set_limits)
    monkeypatch.setattr(housekeeping.logs, "housekeep", lambda directory: (looked.append(names[directory]), (0, 0))[1])
    keeper = due_now(metadata)

    def look():
        limits.clear()
        looked.clear()
        keeper.due = time.monotonic()
        run_to_the_end(keeper)
        return dict(limits), sorted(looked)

    assert look() == ({}, ["logs-eu", "orders"])
    metadata.set_policy("/", "short", "^logs|^rest", {"max-age": "2h"})
    everything = ["logs-eu", "orders", "rest"]
    assert look() == ({"orders": (1000, 0), "logs-eu": (0, 2), "rest": (0, 2)}, everything)
    assert look() == ({}, everything)
    metadata.clear_policy("/", "short")
    assert look() == ({"orders": (1000, 0), "logs-eu": (0, 7 * 24), "rest": (0, 0)}, ["logs-eu", "orders"])


def test_what_a_policy_says_holds_in_the_log_itself(metadata):
    os.mkdir(metadata.streams_dir)
    record = metadata.create_stream("/", "orders", {}, "os", 10, prepare=lambda made: logs.create(made.directory))
    held = logs.Log(record.directory)
    keeper = due_now(metadata)
    metadata.set_policy("/", "wide", "^orders$", {"stream-filter-size-bytes": 255})
    run_to_the_end(keeper)
    assert held.filter_size_bytes == 255
    held.close()


def test_the_longest_age_and_a_stream_with_senseless_arguments_stop_nothing(metadata, caplog):
    os.mkdir(metadata.streams_dir)
    metadata.create_stream("/", "bad", {"max-length-bytes": "-1"}, "os", 10)
    record = metadata.create_stream("/", "good", {}, "os", 10, prepare=lambda made: logs.create(made.directory))
    keeper = due_now(metadata)
    metadata.set_policy("/", "long", ".", {"max-age": "999999999Y", "stream-filter-size-bytes": 64})
    run_to_the_end(keeper)
    held = logs.Log(record.directory)
    assert held.filter_size_bytes == 64
    held.close()
    assert "retention of stream 'bad' failed: max-length-bytes" in caplog.text


def test_limits_that_could_not_be_set_are_set_by_the_next_look(metadata, monkeypatch):
    """Else workers would go on dropping messages by the limit of a policy that is gone."""
    for name in ("a", "b"):
        metadata.create_stream("/", name, {}, "os", 10)
    seen = []

    def set_limits(directory, **options):
        seen.append(directory)
        if len(seen) == 1:
            raise StorageError("ERR_IO", "too many open files")

    monkeypatch.setattr(housekeeping.logs, "set_limits", set_limits)
    keeper = due_now(metadata)
    metadata.set_policy("/", "all", ".", {"stream-filter-size-bytes": 64})
    for _ in range(3):
        keeper.due = time.monotonic()
        run_to_the_end(keeper)
    assert len(seen) == 3
    assert seen[2] == seen[0] != seen[1]
