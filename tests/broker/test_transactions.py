# SPDX-License-Identifier: Apache-2.0
"""Transactions of a real broker: what is staged is nowhere to be seen, and what is decided is there once."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from running import Running, broker, wait_until
from staging import amqp, begun, entries, rows, staged

import vibemq.client
from vibemq.access.users import add_user
from vibemq.client.queues import QueueOptions
from vibemq.client.streams import StreamsConnection
from vibemq.errors import RequestFailed, StreamNotFound
from vibemq.protocols.native.spec import OverflowStrategy
from vibemq.protocols.streams.spec import Code, Key
from vibemq.protocols.streams.spec import TransactionState as State
from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("transactions") / "data") as running:
        yield running


@pytest.fixture
def connect(served: Running) -> Iterator[object]:
    opened = []

    def one(**options: str) -> StreamsConnection:
        opened.append(StreamsConnection.connect(served.host, served.port, **options))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close()


@pytest.fixture
def client(connect) -> StreamsConnection:
    return connect()


@pytest.fixture
def stream(client: StreamsConnection) -> str:
    """Its name is that of the test's application, too."""
    name = f"rows-{uuid.uuid4().hex[:8]}"
    client.create(name)
    return name


# ---- once, and all of it ----


def test_what_is_staged_is_there_once_it_is_committed_and_not_before(client, stream):
    with begun(client, stream, 0, stream) as staging:
        staging.stage(0, entries(b"one", b"two"))
        staging.stage(0, entries(b"three"))
    assert (staging.blocks, rows(client, stream)) == (2, [])
    for expected in ((State.OK, 3, ""), (State.ALREADY, 3, "")):
        assert client.commit_transactions(stream, 0, "run", [stream], [(staging.name, 2)]) == expected
        assert rows(client, stream) == [b"one", b"two", b"three"]


def test_a_staging_stream_can_be_found_by_nobody(client, stream):
    staging = begun(client, stream, 0, stream)
    assert staging.name not in [item.name for item in client.list_streams()]
    assert not client.exists(staging.name)
    with pytest.raises(StreamNotFound):
        client.subscribe(staging.name)
    with pytest.raises(StreamNotFound):
        client.publisher(staging.name)
    staging.close()
    client.abort_transactions(stream, "run")


def test_several_transactions_go_to_several_streams_in_the_order_of_the_commit(client, stream):
    streams = [stream, f"{stream}-1", f"{stream}-2"]
    for other in streams[1:]:
        client.create(other)
    parts = [staged(client, stream, 5, *((name, [b"%d" % i]) for name in streams)) for i in range(2)]
    assert client.commit_transactions(stream, 5, "run", streams, parts[::-1]) == (State.OK, 6, "")
    assert [rows(client, name) for name in streams] == [[b"1", b"0"]] * 3


def test_batches_follow_each_other_and_an_old_one_is_already_decided(client, stream):
    for version in (0, 1, 7):
        part = staged(client, stream, version, (stream, [b"%d" % version]))
        assert client.commit_transactions(stream, version, "run", [stream], [part]).state == State.OK
    assert rows(client, stream) == [b"0", b"1", b"7"]
    late = client.begin_transaction(uuid.uuid4().hex, stream, 7, "run", [stream])
    assert late.state == State.ALREADY
    assert client.commit_transactions(stream, 3, "run", [stream], [(uuid.uuid4().hex, 1)]) == (State.ALREADY, 0, "")


def test_a_batch_without_rows_is_decided_too(client, stream):
    assert client.commit_transactions(stream, 0, "run", [stream], []) == (State.OK, 0, "")
    assert client.commit_transactions(stream, 0, "run", [stream], []) == (State.ALREADY, 0, "")


def test_only_the_winners_of_a_commit_are_there_and_the_others_are_gone(client, stream):
    lost = staged(client, stream, 0, (stream, [b"lost"]))
    won = staged(client, stream, 0, (stream, [b"won"]))
    assert client.commit_transactions(stream, 0, "run", [stream], [won]).rows == 1
    assert rows(client, stream) == [b"won"]
    again = client.commit_transactions(stream, 1, "run", [stream], [lost])
    assert (again.state, lost[0] in again.holder) == (State.CHANGED, True)


def test_who_lost_the_connection_goes_on_behind_what_is_staged(connect, stream):
    first, second = connect(), connect()
    begin = begun(first, stream, 0, stream)
    begin.stage(0, entries(b"one"))
    begin.stage(0, entries(b"two"))
    begin.flush()
    again = begun(second, stream, 0, stream, name=begin.name)
    assert again.sequence == 2
    again.stage(0, entries(b"three"))
    again.flush()
    begin.stage(0, entries(b"the third block again, which was on its way"))
    begin.flush()
    assert second.commit_transactions(stream, 0, "run", [stream], [(begin.name, 3)]).rows == 3
    assert rows(second, stream) == [b"one", b"two", b"three"]


def test_blocks_that_were_not_counted_do_not_count(client, stream):
    with begun(client, stream, 0, stream) as staging:
        for i in range(3):
            staging.stage(0, entries(b"%d" % i))
    assert client.commit_transactions(stream, 0, "run", [stream], [(staging.name, 2)]).rows == 2
    assert rows(client, stream) == [b"0", b"1"]


def test_who_still_stages_when_it_is_decided_loses_the_transaction(connect, stream):
    client, late = connect(), connect()
    staging = begun(late, stream, 0, stream)
    part = staged(client, stream, 0, (stream, [b"won"]))
    assert client.commit_transactions(stream, 0, "run", [stream], [part]).state == State.OK
    with pytest.raises((StreamNotFound, RequestFailed)):
        for _ in range(1000):
            staging.stage(0, entries(b"late"))
            staging.flush()
    assert rows(client, stream) == [b"won"]


def test_with_durability_disk_it_is_the_same(client, stream):
    safe = f"{stream}-disk"
    client.create(safe, {"durability": "disk"})
    part = staged(client, stream, 0, (stream, [b"os"]), (safe, [b"disk"]))
    assert client.commit_transactions(stream, 0, "run", [stream, safe], [part]).rows == 2
    assert (rows(client, stream), rows(client, safe)) == ([b"os"], [b"disk"])


def test_a_super_stream_takes_rows_by_its_partitions(client, stream):
    partitions = [f"{stream}-{i}" for i in range(3)]
    keys = [str(i) for i in range(3)]
    client.request(
        Key.CREATE_SUPER_STREAM, name=f"{stream}-super", partitions=partitions, binding_keys=keys, arguments={}
    )
    part = staged(client, stream, 0, *((name, [name.encode()]) for name in partitions))
    assert client.commit_transactions(stream, 0, "run", partitions, [part]).rows == 3
    assert [rows(client, name) for name in partitions] == [[name.encode()] for name in partitions]


# ---- runs ----


def test_a_second_run_waits_while_the_first_lives_and_then_supersedes_it(connect, stream):
    first, second = connect(), connect()
    staging = begun(first, stream, 0, stream, run="A")
    staging.stage(0, entries(b"of A"))
    staging.flush()
    busy = second.begin_transaction(uuid.uuid4().hex, stream, 0, "B", [stream])
    assert (busy.state, "run A" in busy.holder) == (State.BUSY, True)
    assert second.commit_transactions(stream, 0, "B", [stream], []).state == State.BUSY
    first.abort_transactions(stream, "A", last=True)  # its driver has ended
    part = staged(second, stream, 0, (stream, [b"of B"]), run="B")
    assert second.commit_transactions(stream, 0, "B", [stream], [part]).state == State.OK
    assert rows(second, stream) == [b"of B"]


def test_the_first_run_is_told_who_took_over(connect, stream):
    first, second = connect(), connect()
    left = staged(first, stream, 1, (stream, [b"of A"]), run="A")
    wait_until(lambda: second.commit_transactions(stream, 0, "B", [stream], []).state == State.OK, "run A to be over")
    gone = first.commit_transactions(stream, 1, "A", [stream], [left])
    assert gone.state == State.SUPERSEDED
    assert "run A" in gone.holder and "run B" in gone.holder and "127.0.0.1" in gone.holder
    assert first.begin_transaction(uuid.uuid4().hex, stream, 1, "A", [stream]).state == State.SUPERSEDED
    begun(second, stream, 1, stream, run="B", name=left[0])  # what A had staged is thrown away


def test_what_a_run_aborts_is_gone_and_what_it_does_not_name_is_there(client, stream):
    parts = [staged(client, stream, 0, (stream, [b"%d" % i])) for i in range(3)]
    client.abort_transactions(stream, "run", [parts[0][0]])
    assert client.commit_transactions(stream, 0, "run", [stream], parts).state == State.CHANGED
    client.abort_transactions(stream, "another run")
    assert client.commit_transactions(stream, 0, "run", [stream], parts[1:]).rows == 2
    assert rows(client, stream) == [b"1", b"2"]


# ---- what has changed, and what is refused ----


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_target_that_was_deleted_meanwhile_gets_nothing(client, stream, is_made_again):
    part = staged(client, stream, 0, (stream, [b"lost"]))
    client.delete(stream)
    if is_made_again:
        client.create(stream)
        assert client.commit_transactions(stream, 0, "run", [stream], [part]).state == State.CHANGED
        assert rows(client, stream) == []
    else:
        with pytest.raises(StreamNotFound):
            client.commit_transactions(stream, 0, "run", [stream], [part])


def test_a_retried_commit_is_already_decided_though_its_target_is_gone(client, stream):
    part = staged(client, stream, 0, (stream, [b"kept for a while"]))
    client.commit_transactions(stream, 0, "run", [stream], [part])
    client.delete(stream)
    assert client.commit_transactions(stream, 0, "run", [stream], [part]) == (State.ALREADY, 1, "")
    assert client.begin_transaction(part[0], stream, 0, "run", [stream]).state == State.ALREADY


def test_fewer_blocks_than_named_other_targets_or_another_version_are_changed(client, stream):
    client.create(f"{stream}-other")
    name, blocks = staged(client, stream, 4, (stream, [b"one"]))
    for version, targets, count in ((4, [stream], blocks + 1), (4, [f"{stream}-other"], blocks), (5, [stream], blocks)):
        answer = client.commit_transactions(stream, version, "run", targets, [(name, count)])
        assert (answer.state, name in answer.holder) == (State.CHANGED, True)
    assert client.commit_transactions(stream, 4, "run", [stream], [(name, blocks)]).state == State.OK


def test_a_transaction_of_another_application_is_changed(client, stream):
    name, blocks = staged(client, stream, 0, (stream, [b"theirs"]))
    answer = client.commit_transactions(f"{stream}-mine", 0, "run", [stream], [(name, blocks)])
    assert answer.state == State.CHANGED
    other = client.begin_transaction(name, f"{stream}-mine", 0, "run", [stream])
    assert (other.state, name in other.holder) == (State.CHANGED, True)


HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "said",
    [
        {"transaction": "x" * 32},
        {"transaction": HEX.upper()},
        {"transaction": HEX[1:]},
        {"application": ""},
        {"application": "a" * 256},
        {"application": "line\nbreak"},
        {"run": ""},
        {"run": "\0"},
        {"batch": 2**63},
        {"targets": []},
        {"targets": ["twice", "twice"]},
        {"flags": 255, "application": "\x7f"},
        {"targets": [f"t{i}" for i in range(1025)]},
    ],
)
def test_what_no_client_of_ours_says_is_refused(client, said):
    fields = {
        "publisher_id": 0, "transaction": HEX, "application": "a", "batch": 0, "run": "r", "flags": 0, "targets": ["t"]
    }  # fmt: skip
    with pytest.raises(RequestFailed) as refused:
        client._extension(0x7004, **{**fields, **said})
    assert refused.value.code == Code.PRECONDITION_FAILED


def test_a_target_that_is_not_there_is_no_target(client):
    with pytest.raises(StreamNotFound):
        client.begin_transaction(HEX, "app", 0, "run", ["nowhere"])


def test_nobody_publishes_under_the_reference_of_transactions(client, stream):
    with pytest.raises(RequestFailed) as refused:
        client.request(Key.DECLARE_PUBLISHER, publisher_id=0, reference="\0transactions", stream=stream)
    assert refused.value.code == Code.PRECONDITION_FAILED


def test_blocks_that_are_nonsense_cost_only_themselves(client, stream):
    with begun(client, stream, 0, stream) as staging:
        staging.stage(7, entries(b"for nobody"))
        staging.stage(0, entries(b"one") + struct.pack(">I", 1000) + b"short")
        staging.stage(0, b"")
        staging.stage(0, entries(b"two"))
    assert client.commit_transactions(stream, 0, "run", [stream], [(staging.name, 4)]).rows == 2
    assert rows(client, stream) == [b"one", b"two"]


def test_rights_are_looked_at_when_it_begins_while_it_is_staged_and_when_it_is_decided(tmp_path):
    with (
        broker(tmp_path / "data") as served,
        closing(Metadata(metadata_path(str(tmp_path / "data")))) as metadata,
        StreamsConnection.connect(served.host, served.port) as guest,
    ):
        for name in ("mine", "other"):
            guest.create(name)
        for user in ("writer", "another"):
            add_user(metadata, user, "correct horse", is_superuser=False)
            metadata.set_permissions("/", user, "", "^mine$", "")
        login = {"user": "writer", "password": "correct horse"}
        with StreamsConnection.connect(served.host, served.port, **login) as writer:
            with pytest.raises(RequestFailed) as refused:
                writer.begin_transaction(HEX, "app", 0, "run", ["mine", "other"])
            assert refused.value.code == Code.ACCESS_REFUSED
            part = staged(writer, "app", 0, ("mine", [b"one"]))
            with StreamsConnection.connect(served.host, served.port, **{**login, "user": "another"}) as another:
                for ask in (
                    lambda: another.begin_transaction(uuid.uuid4().hex, "app", 0, "run", ["mine"]),
                    lambda: another.commit_transactions("app", 0, "run", ["mine"], [part]),
                    lambda: another.abort_transactions("app", "run"),
                ):
                    with pytest.raises(RequestFailed) as refused:
                        ask()
                    assert refused.value.code == Code.PRECONDITION_FAILED
            staging = begun(writer, "app", 0, "mine")
            metadata.set_permissions("/", "writer", "", "^other$", "")
            with pytest.raises((StreamNotFound, RequestFailed)):
                for _ in range(100_000):
                    staging.stage(0, entries(b"two"))
                    staging.flush()
            with pytest.raises(RequestFailed) as refused:
                writer.commit_transactions("app", 0, "run", ["mine"], [part])
            assert refused.value.code == Code.ACCESS_REFUSED
            assert rows(guest, "mine") == []


# ---- queues ----


@pytest.fixture
def native(served: Running) -> Iterator[vibemq.client.Client]:
    with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as connected:
        yield connected


def test_a_queue_hands_committed_rows_out_to_consumers_that_wait(client, native, stream):
    queue = f"{stream}-queue"
    native.create_queue(queue)
    with native.consume(queue, timeout_s=60, auto_ack=True) as consumer:
        for version in range(3):
            part = staged(client, stream, version, (queue, [amqp(b"%d" % version)]), (stream, [b"beside"]))
            assert client.commit_transactions(stream, version, "run", [queue, stream], [part]).rows == 2
            assert next(consumer).payload == version


@pytest.mark.parametrize("overflow", [OverflowStrategy.DROP_NEWEST, OverflowStrategy.BLOCK_PUBLISHER])
def test_a_queue_that_would_not_take_all_of_a_batch_takes_none_of_it(client, native, stream, overflow):
    queue = f"{stream}-queue"
    native.create_queue(queue, options=QueueOptions(max_messages=3, overflow=overflow))
    first = staged(client, stream, 0, (queue, [amqp(b"0"), amqp(b"1")]))
    assert client.commit_transactions(stream, 0, "run", [queue], [first]).state == State.OK
    second = staged(client, stream, 1, (queue, [amqp(b"2"), amqp(b"3")]))
    full = client.commit_transactions(stream, 1, "run", [queue], [second])
    assert (full.state, queue in full.holder) == (State.FULL, True)
    assert native.queue_info(queue).messages == 2
    with native.consume(queue, timeout_s=60) as consumer:
        next(consumer).ack()
    wait_until(
        lambda: client.commit_transactions(stream, 1, "run", [queue], [second]).state == State.OK, "room in the queue"
    )
    assert native.queue_info(queue).messages == 3


def test_a_queue_that_drops_its_oldest_drops_them(client, native, stream):
    queue = f"{stream}-queue"
    native.create_queue(queue, options=QueueOptions(max_messages=2, overflow=OverflowStrategy.DROP_OLDEST))
    part = staged(client, stream, 0, (queue, [amqp(b"%d" % i) for i in range(5)]))
    assert client.commit_transactions(stream, 0, "run", [queue], [part]).rows == 5
    wait_until(lambda: native.queue_info(queue).messages == 2, "the oldest three to be dropped")


# ---- hostile blocks ----


def expected(block: bytes, targets: int) -> tuple[int, bytes]:
    """The target and the entries that are to be stored of a block, by the words of csrc/log/apply.h."""
    kept, at = b"", 2
    target = int.from_bytes(block[:2], "big") if len(block) >= 2 else targets
    while target < targets and at < len(block):
        if block[at] & 0x80:
            if len(block) - at < 11:
                break
            records, uncompressed, size = struct.unpack_from(">HII", block, at + 1)
            compression, head = (block[at] >> 4) & 7, 11
            is_sound = records * 4 <= uncompressed <= 67_108_864 and not (size == 0 and compression)
            if compression > 4 or records == 0:
                break
        else:
            if len(block) - at < 4:
                break
            (size,), head, is_sound = struct.unpack_from(">I", block, at), 4, True
        if size > len(block) - at - head:
            break
        kept += block[at : at + head + size] if is_sound else b""
        at += head + size
    return target, kept


def test_of_random_blocks_exactly_what_is_an_entry_is_stored(client, stream):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    streams = [stream, f"{stream}-other"]
    client.create(streams[1])
    wanted = [b"", b""]
    with begun(client, stream, 0, *streams) as staging:
        for _ in range(400):
            parts = []
            for _ in range(chance.randrange(4)):
                body = chance.randbytes(chance.randrange(40))
                parts.append(
                    struct.pack(">I", len(body)) + body
                    if chance.random() < 0.6
                    else struct.pack(
                        ">BHII", 0x80 | chance.randrange(6) << 4, chance.randrange(4), chance.randrange(20), len(body)
                    )
                    + body
                )
            content = bytearray(b"".join(parts))
            if content and chance.random() < 0.3:
                content[chance.randrange(len(content))] = chance.randrange(256)
            if chance.random() < 0.2:
                content = content[: chance.randrange(len(content) + 1)]
            target = chance.choice((0, 0, 1, 1, 2, 65535))
            staging.stage(target, bytes(content))
            found, kept = expected(struct.pack(">H", target) + content, len(streams))
            if found < len(streams):
                wanted[found] += kept
    assert client.commit_transactions(stream, 0, "run", streams, [(staging.name, 400)]).state == State.OK
    assert [b"".join(bytes(chunk.data) for chunk in client.read_chunks(name, 0)) for name in streams] == wanted
