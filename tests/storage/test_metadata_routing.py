# SPDX-License-Identifier: Apache-2.0
"""Super streams as exchanges and bindings: the order of partitions, what is made at once, and what goes with what."""

import os
import signal
import subprocess
import sys

import pytest

from vibemq.errors import ExchangeExists, ExchangeNotFound, LimitExceeded, StreamExists, StreamNotFound, VhostNotFound
from vibemq.storage.metadata import Metadata


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def create_super(metadata, name="invoices", count=3, prepare=lambda record: None, streams_max=100):
    partitions = [(f"{name}-{number}", str(number)) for number in range(count)]
    return metadata.create_super_stream("/", name, partitions, {"max-age": "1h"}, "os", streams_max, prepare)


def create(metadata, *names):
    for name in names:
        metadata.create_stream("/", name, {}, "os", 100)


def test_a_super_stream_is_its_partitions_in_order_an_exchange_and_bindings(metadata):
    create(metadata, "before")
    made = create_super(metadata)
    assert [record.slot for record in made] == [1, 2, 3]
    assert list(metadata.streams())[1:] == made
    assert [record.arguments for record in made] == [{"max-age": "1h"}] * 3
    assert metadata.partitions("/", "invoices") == ["invoices-0", "invoices-1", "invoices-2"]
    assert metadata.route("/", "invoices", "1") == ["invoices-1"]
    assert metadata.route("/", "invoices", "7") == []
    (exchange,) = metadata.exchanges()
    assert (exchange.name, exchange.arguments) == ("invoices", {"x-super-stream": True})
    bindings = metadata.bindings("/", "invoices")
    assert [(found.stream, found.routing_key) for found in bindings] == [(f"invoices-{n}", f"{n}") for n in range(3)]
    assert [found.arguments for found in bindings] == [{"x-stream-partition-order": n} for n in range(3)]


def test_nothing_is_known_of_what_is_no_super_stream(metadata):
    create(metadata, "orders")
    assert metadata.partitions("/", "orders") is None
    assert metadata.route("/", "orders", "") is None
    assert metadata.partition_of("/", "orders", "orders") is None
    metadata.add_vhost("shop")
    create_super(metadata)
    assert metadata.partitions("shop", "invoices") is None


def test_slots_that_are_free_in_between_are_filled(metadata):
    create(metadata, *"abcdef")
    for name in "ace":
        metadata.delete_stream("/", name)
    assert [record.slot for record in create_super(metadata, count=5)] == [0, 2, 4, 6, 7]


def test_one_put_together_by_hand_is_the_same_thing(metadata):
    create_super(metadata)
    create(metadata, "by-hand-0", "by-hand-1", "by-hand-2")
    assert metadata.add_exchange("/", "by-hand", {"x-super-stream": True})
    for number in (2, 0, 1):  # some tools send text
        order = str(number) if number else number
        assert metadata.add_binding(
            "/", "by-hand", f"by-hand-{number}", f"{number}", {"x-stream-partition-order": order}
        )
    for name in ("invoices", "by-hand"):
        assert metadata.partitions("/", name) == [f"{name}-{number}" for number in range(3)]
        assert [metadata.partition_of("/", name, f"{name}-{number}") for number in range(3)] == [0, 1, 2]
        assert metadata.route("/", name, "2") == [f"{name}-2"]


def test_partitions_without_an_order_come_last_as_they_were_bound(metadata):
    create(metadata, "x", "y-4", "z", "first")
    metadata.add_exchange("/", "mixed", {})
    for stream, arguments in (("z", {}), ("y-4", {"x-stream-partition-order": "no"}), ("x", {})):
        metadata.add_binding("/", "mixed", stream, "k", arguments)
    metadata.add_binding("/", "mixed", "first", "k", {"x-stream-partition-order": 9})
    assert metadata.partitions("/", "mixed") == ["first", "z", "y-4", "x"]
    assert [metadata.partition_of("/", "mixed", name) for name in ("first", "y-4", "x")] == [9, 4, -1]


def test_a_key_may_lead_to_several_streams_and_a_stream_have_several_keys(metadata):
    create(metadata, "a", "b")
    metadata.add_exchange("/", "x", {})
    for stream, key in (("a", "1"), ("b", "1"), ("b", "2")):
        assert metadata.add_binding("/", "x", stream, key, {})
    assert not metadata.add_binding("/", "x", "b", "2", {})
    assert metadata.route("/", "x", "1") == ["a", "b"]
    assert metadata.partitions("/", "x") == ["a", "b"]
    assert metadata.delete_binding("/", "x", "b", "1", {})
    assert not metadata.delete_binding("/", "x", "b", "1", {})
    assert metadata.route("/", "x", "1") == ["a"]


def test_bindings_go_with_their_stream_and_with_their_exchange(metadata):
    create_super(metadata)
    metadata.delete_stream("/", "invoices-1")
    assert metadata.partitions("/", "invoices") == ["invoices-0", "invoices-2"]
    create(metadata, "invoices-1")
    assert metadata.partition_of("/", "invoices", "invoices-1") is None
    metadata.delete_exchange("/", "invoices")
    assert metadata.bindings() == []
    assert [record.name for record in metadata.streams()] == ["invoices-0", "invoices-1", "invoices-2"]
    with pytest.raises(ExchangeNotFound):
        metadata.delete_exchange("/", "invoices")


def test_an_exchange_is_made_once_and_never_changed(metadata):
    assert metadata.add_exchange("/", "x", {"x-super-stream": True})
    assert not metadata.add_exchange("/", "x", {"x-super-stream": True})
    with pytest.raises(ExchangeExists):
        metadata.add_exchange("/", "x", {})
    with pytest.raises(VhostNotFound):
        metadata.add_exchange("shop", "x", {})


def test_a_binding_needs_both_ends(metadata):
    create(metadata, "orders")
    with pytest.raises(ExchangeNotFound):
        metadata.add_binding("/", "x", "orders", "", {})
    metadata.add_exchange("/", "x", {})
    with pytest.raises(StreamNotFound):
        metadata.add_binding("/", "x", "orders-eu", "", {})


# ---- all or nothing ----


@pytest.mark.parametrize(
    ("before", "limit", "error"),
    [
        (lambda metadata: create(metadata, "invoices-2"), 100, StreamExists),
        (lambda metadata: metadata.add_exchange("/", "invoices", {}), 100, StreamExists),
        (lambda metadata: create(metadata, "orders"), 3, LimitExceeded),
    ],
)
def test_what_cannot_be_made_whole_is_not_begun(metadata, before, limit, error):
    before(metadata)
    known = list(metadata.streams()), metadata.exchanges()
    with pytest.raises(error):
        create_super(metadata, prepare=lambda _: pytest.fail("a log was made"), streams_max=limit)
    assert (list(metadata.streams()), metadata.exchanges()) == known
    assert metadata.bindings() == []


def test_a_partition_that_somebody_makes_meanwhile_undoes_it(metadata, tmp_path):
    other = Metadata(str(tmp_path / "meta.db"))
    prepared = []

    def prepare(record):
        prepared.append(record)
        if len(prepared) == 3:  # not blocked: logs are made outside of the transaction
            create(other, "invoices-0")

    with pytest.raises(StreamExists) as raised:
        create_super(metadata, prepare=prepare)
    assert raised.value.record.name == "invoices-0"
    assert [record.name for record in metadata.streams()] == ["invoices-0"]
    assert metadata.partitions("/", "invoices") is None
    other.close()


def test_a_kill_while_its_logs_are_made_leaves_nothing(metadata, tmp_path):
    program = """
import os, signal, sys
from vibemq.storage.metadata import Metadata
made = []
def prepare(record):
    made.append(record)
    if len(made) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
names = [(f"s-{n}", "") for n in range(3)]
Metadata(sys.argv[1]).create_super_stream("/", "s", names, {}, "os", 100, prepare)
"""
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "meta.db")], env=dict(os.environ), timeout=60, check=False
    )
    assert child.returncode == -signal.SIGKILL
    assert list(metadata.streams()) == []
    assert metadata.exchanges() == []
    create_super(metadata, name="s")
