# SPDX-License-Identifier: Apache-2.0
"""Kinds of load on our own broker, each with every message checked: sub-batches, named publishers, filter values."""

import pytest

from vibemq.bench.run import run
from vibemq.bench.streams import StreamsLoad
from vibemq.errors import UserError

SMALL = {"messages": 6000, "batch": 100, "window": 2000, "size_bytes": 40, "verify": True, "timeout_s": 30.0}


@pytest.mark.parametrize(
    "kind",
    [
        {"sub_batch": 100},
        {"sub_batch": 1, "group": 4},
        {"sub_batch": 25, "publishers": 2, "consumers": 3},
        {"reference": "writer", "publishers": 2},
        {"filter_value": "red"},
        {"spread": True, "publishers": 6, "consumers": 6},
    ],
    ids=str,
)
def test_every_message_comes_in_order(own_port, kind):
    load = StreamsLoad(port=own_port, mode="pubsub", **(SMALL | kind))
    result = run(load)
    assert (result.confirmed, result.disordered) == (load.messages, 0)
    assert result.consumed == load.messages * (1 if load.spread else load.consumers)


def test_a_sub_batch_is_timed_too(own_port):
    load = StreamsLoad(
        port=own_port, mode="lat", messages=2000, rate=20_000.0, sub_batch=10, size_bytes=40, timeout_s=30.0
    )
    result = run(load)
    assert result.latencies.total == 2000
    assert result.confirms.total == 200


def test_a_filter_skips_what_an_earlier_run_left(own_port):
    red = {"port": own_port, "stream": "skipped", "keep": True, "timeout_s": 30.0, "filter_value": "red"}
    blue = red | {"filter_value": "blue"}
    run(StreamsLoad(mode="pub", messages=6000, **red))
    run(StreamsLoad(mode="pub", messages=100, append=True, **blue))
    assert run(StreamsLoad(mode="con", messages=100, **blue)).consumed == 100
    run(StreamsLoad(mode="pub", messages=100, append=True, **(red | {"keep": False})))


@pytest.mark.parametrize("wrong", [{"sub_batch": 30}, {"sub_batch": 100, "messages": 50}, {"sub_batch": 100_000}])
def test_a_sub_batch_must_fit_its_frame(wrong):
    with pytest.raises(UserError, match="sub-batch"):
        run(StreamsLoad(**({"batch": 100} | wrong)))


def test_a_sub_batch_has_no_filter_value():
    with pytest.raises(UserError, match="sub-batch"):
        run(StreamsLoad(sub_batch=10, filter_value="red"))
