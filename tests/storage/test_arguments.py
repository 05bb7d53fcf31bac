# SPDX-License-Identifier: Apache-2.0
"""Stream arguments: text from clients to the log's numbers."""

import pytest

from vibemq.errors import LimitExceeded
from vibemq.storage.arguments import has_retention, log_options, max_age_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1s", 1000),
        ("5m", 300_000),
        ("12h", 43_200_000),
        ("7D", 604_800_000),
        ("1M", 2_592_000_000),
        ("1Y", 31_536_000_000),
        ("999999999Y", 2**63 - 1),
    ],
)
def test_ages(text, ms):
    assert max_age_ms(text) == ms


@pytest.mark.parametrize("text", ["", "12", "h", "0h", "-1h", "1.5h", "1d", "1 h", "12h ", "9999999999s", "\u0661h"])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(LimitExceeded, match="max-age must be a positive integer"):
        max_age_ms(text)


def test_what_a_stream_says_wins_over_the_default():
    said = {
        "max-age": "1h",
        "max-length-bytes": "1000",
        "local-max-age": "1m",
        "local-max-length-bytes": "500",
        "stream-max-segment-size-bytes": "5000",
        "stream-filter-size-bytes": "32",
        "stream-max-chunk-messages": "100",
        "read-unconfirmed": "true",
        "other": "x",
    }
    assert log_options(said, "disk", 777) == {
        "segment_bytes_max": 5000,
        "retention_bytes_max": 1000,
        "retention_age_ms_max": 3_600_000,
        "local_bytes_max": 500,
        "local_age_ms_max": 60_000,
        "durability": "disk",
        "filter_size_bytes": 32,
        "chunk_messages_max": 100,
        "read_unconfirmed": True,
    }
    assert log_options({}, "os", 777) == {
        "segment_bytes_max": 777,
        "retention_bytes_max": 0,
        "retention_age_ms_max": 0,
        "local_bytes_max": 0,
        "local_age_ms_max": 0,
        "durability": "os",
        "filter_size_bytes": 16,
        "chunk_messages_max": 2048,
        "read_unconfirmed": False,
    }


@pytest.mark.parametrize("said", ["", "True", "1", "yes"])
def test_a_flag_is_true_or_false(said):
    with pytest.raises(LimitExceeded, match="read-unconfirmed must be true or false"):
        log_options({"read-unconfirmed": said}, "disk", 777)


@pytest.mark.parametrize("size", ["-1", "3000000001", "1e3", ""])
def test_sizes_out_of_range_are_refused(size):
    with pytest.raises(LimitExceeded, match="stream-max-segment-size-bytes must be an integer from 0 to 3000000000"):
        log_options({"stream-max-segment-size-bytes": size}, "os", 777)


@pytest.mark.parametrize("size", ["15", "256", "", "-16", "0x20"])
def test_filter_sizes_out_of_range_are_refused(size):
    with pytest.raises(LimitExceeded, match="stream-filter-size-bytes must be an integer from 16 to 255"):
        log_options({"stream-filter-size-bytes": size}, "os", 777)


@pytest.mark.parametrize("messages", ["0", "2049", "", "many"])
def test_numbers_of_messages_out_of_range_are_refused(messages):
    with pytest.raises(LimitExceeded, match="stream-max-chunk-messages must be an integer from 1 to 2048"):
        log_options({"stream-max-chunk-messages": messages}, "os", 777)


def test_the_default_number_of_messages_is_for_streams_that_do_not_say():
    assert log_options({}, "os", 777, 64)["chunk_messages_max"] == 64
    assert log_options({"stream-max-chunk-messages": "100"}, "os", 777, 64)["chunk_messages_max"] == 100


def test_the_default_filter_size_is_the_same_as_the_one_said():
    assert log_options({"stream-filter-size-bytes": "16"}, "os", 777) == log_options({}, "os", 777)
    assert log_options({"stream-filter-size-bytes": "17"}, "os", 777) != log_options({}, "os", 777)


def test_which_streams_ever_drop_anything():
    assert has_retention({"max-age": "1h"})
    assert has_retention({"max-length-bytes": "1"})
    assert not has_retention({"max-length-bytes": "0"})
    assert not has_retention({})


def test_what_stays_here_of_what_the_store_has_is_the_brokers_to_say_where_a_stream_does_not():
    assert log_options({}, "os", 777, 64, 9, 8)["local_bytes_max"] == 9
    assert log_options({}, "os", 777, 64, 9, 8)["local_age_ms_max"] == 8
    assert log_options({"local-max-length-bytes": "0"}, "os", 777, 64, 9, 8)["local_bytes_max"] == 0
    assert has_retention({}, 9, 0)
    assert has_retention({}, 0, 8)
    assert has_retention({"local-max-age": "1h"})
    assert has_retention({"local-max-length-bytes": "5"})
    assert not has_retention({"local-max-length-bytes": "0"}, 9, 0)
    with pytest.raises(LimitExceeded, match="local-max-age must be"):
        log_options({"local-max-age": "1"}, "os", 777)
