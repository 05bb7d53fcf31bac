# SPDX-License-Identifier: Apache-2.0
"""What a task and a driver do with a real broker when connections end, brokers die, or another driver is there."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import running
from spark_brokers import VibeMQ
from spark_chunks import data_section, simple

from vibemq.client._streams import read_message
from vibemq.client.streams import Staging, StreamsConnection, TransactionState
from vibemq.errors import ConnectionClosed, VibeMQError
from vibemq.spark import staging
from vibemq.spark.sink_options import parse
from vibemq.spark.staging import Batch

pytestmark = pytest.mark.timeout(120)

SEED = 20261123
names = itertools.count()


def options_of(broker, stream, **more):
    return parse({"endpoints": broker.endpoints, "stream": stream, "brokerDownTimeoutMs": "30000", **more})


def batch_of(stream, version=0, run=None, application=None):
    return Batch(application or f"app:{stream}", version, run or uuid.uuid4().hex, (stream,))


def blocks(numbers, at_once=50):
    """Blocks of so many rows each, which are their numbers."""
    rows = [simple(data_section(b"%d" % number)) for number in numbers]
    for at in range(0, len(rows), at_once):
        yield 0, b"".join(rows[at : at + at_once])


def name() -> str:
    return uuid.uuid4().hex


def rows_of(broker, stream) -> list[int]:
    with broker.connect() as connection:
        return [
            int(read_message(bytes(message))[0])
            for chunk in connection.read_chunks(stream, 0)
            for _, message in chunk.messages()
        ]


@pytest.fixture
def there(own_broker, stream):
    own_broker.publish(stream, [])
    return stream


# ---- connections that end ----


def test_a_task_goes_on_where_its_lost_connection_ended(own_broker, there, monkeypatch):
    random_ = random.Random(SEED)
    real = Staging.stage

    def stage(self, target, entries, timeout_s=None):
        if random_.random() < 0.1:
            self._connection._transport.close()
        real(self, target, entries, timeout_s)
        if random_.random() < 0.1:  # the block is on its way, its confirm will not be heard
            self._connection._transport.close()

    monkeypatch.setattr(Staging, "stage", stage)
    options, batch = options_of(own_broker, there), batch_of(there)
    transaction = name()
    count = staging.stage(options, batch, transaction, blocks(range(10_000)))
    assert count == 200
    assert rows_of(own_broker, there) == [], "nothing shows before it is decided"
    assert staging.decide(options, batch, [(transaction, count)], last=True).rows == 10_000
    assert rows_of(own_broker, there) == list(range(10_000)), f"seed {SEED}"


def test_a_broker_that_is_killed_while_staging_and_while_deciding_costs_only_time(tmp_path, stream, monkeypatch):
    broker = VibeMQ(tmp_path).start()
    try:
        broker.publish(stream, [])
        options, batch = options_of(broker, stream), batch_of(stream)

        def rows():
            for at, block in enumerate(blocks(range(5_000))):
                if at in (20, 60):
                    broker.kill()
                    broker.start()
                yield block

        transaction = name()
        count = staging.stage(options, batch, transaction, rows())
        asked = []
        real = staging.StreamsConnection.commit_transactions

        def commit(self, *args, **more):
            asked.append(args)
            if len(asked) == 1:
                broker.kill()
                broker.start()
            found = real(self, *args, **more)
            if len(asked) == 2:  # it is decided, and nobody has heard it
                broker.kill()
                broker.start()
                raise ConnectionClosed("the answer was lost")
            return found

        monkeypatch.setattr(staging.StreamsConnection, "commit_transactions", commit)
        assert staging.decide(options, batch, [(transaction, count)]).state == TransactionState.ALREADY
        assert rows_of(broker, stream) == list(range(5_000))
    finally:
        broker.kill()


def test_what_is_wrong_with_the_rows_is_not_taken_for_a_lost_connection(own_broker, there):
    def rows():
        yield next(blocks(range(10)))
        raise OSError("the JVM is gone")

    with pytest.raises(OSError, match="the JVM is gone"):
        staging.stage(options_of(own_broker, there), batch_of(there), name(), rows())


# ---- decided once ----


def test_a_batch_is_decided_once_and_staging_for_it_again_is_refused(own_broker, there):
    options, batch = options_of(own_broker, there), batch_of(there, version=7)
    first, second, late = name(), name(), name()
    for transaction in (first, second):
        assert staging.stage(options, batch, transaction, blocks(range(100))) == 2
    assert staging.decide(options, batch, [(first, 2)]).state == TransactionState.OK
    assert staging.decide(options, batch, [(second, 2)]).state == TransactionState.ALREADY
    assert staging.stage(options, batch, late, blocks(range(100))) is None
    assert rows_of(own_broker, there) == list(range(100))


def test_rows_of_attempts_that_do_not_count_never_show(own_broker, there):
    options, batch = options_of(own_broker, there), batch_of(there)
    attempts = [name() for _ in range(4)]
    for at, transaction in enumerate(attempts):
        staging.stage(options, batch, transaction, blocks(range(100 * at, 100 * at + 100)))
    staging.decide(options, batch, [(attempts[2], 2), (attempts[1], 2)])
    assert rows_of(own_broker, there) == [*range(200, 300), *range(100, 200)], "in the order of the commit"


def test_what_was_given_up_is_not_decided(own_broker, there):
    options, batch = options_of(own_broker, there), batch_of(there)
    transaction = name()
    staging.stage(options, batch, transaction, blocks(range(100)))
    staging.give_up(options, batch)
    with pytest.raises(VibeMQError, match=r"cannot be written"):
        staging.decide(options, batch, [(transaction, 2)])
    assert rows_of(own_broker, there) == []


def test_giving_up_does_not_need_the_broker(tmp_path, caplog):
    broker = VibeMQ(tmp_path).start()
    broker.kill()
    staging.give_up(options_of(broker, "gone", fetchTimeoutMs="500"), batch_of("gone"))
    assert "left to the broker" in caplog.text


def test_more_tasks_than_a_commit_can_name_are_told_before_anything_is_asked(own_broker, there):
    with pytest.raises(VibeMQError, match=r"7000 tasks with rows.*fewer tasks \(coalesce\)"):
        staging.decide(options_of(own_broker, there), batch_of(there), [(name(), 1)] * 7_000)


# ---- two drivers ----


def test_a_second_driver_on_one_checkpoint_is_refused_with_words_that_say_so(own_broker, there, monkeypatch):
    monkeypatch.setattr(staging, "RUN_WAIT_SECONDS_MAX", 1.0)
    options = options_of(own_broker, there)
    first, second = batch_of(there, run="one"), batch_of(there, run="two")

    def rows():
        yield from blocks(range(50))
        with pytest.raises(VibeMQError, match=r"two drivers use one checkpoint.*being written by run one.*Stop one"):
            staging.stage(options, second, name(), blocks(range(50)))
        with pytest.raises(VibeMQError, match="two drivers use one checkpoint"):
            staging.decide(options, second, [])

    transaction = name()
    count = staging.stage(options, first, transaction, rows())
    staging.decide(options, first, [(transaction, count)])
    assert rows_of(own_broker, there) == list(range(50))


def test_a_driver_that_was_taken_over_hears_it(own_broker, there):
    options = options_of(own_broker, there)
    old, new = batch_of(there, run="one"), batch_of(there, run="two")
    lost = name()
    staging.stage(options, old, lost, blocks(range(50)))
    transaction = name()  # which waits until nobody has heard of the old one for some seconds
    count = staging.stage(options, new, transaction, blocks(range(50)))
    with pytest.raises(VibeMQError, match=r"another driver has taken over.*run two.*the older and ends here"):
        staging.decide(options, old, [(lost, 1)])
    staging.decide(options, new, [(transaction, count)])
    assert rows_of(own_broker, there) == list(range(50))


# ---- bounds ----

HUNGRY = """
import sys, uuid
import pyarrow as pa
from pyspark.sql import types
from vibemq.spark.sink import Writer
from vibemq.spark.staging import Batch

endpoints, streams, size, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
names = streams.split(",")
schema = types.StructType([types.StructField(name, types.StringType()) for name in ("value", "stream")])
writer = Writer({"endpoints": endpoints, "stream": streams, "createStream": "true"}, schema)
rows = min(10_000, (16 << 20) // size)

def batches():
    value = "x" * size
    for at in range(count // rows):
        columns = [pa.array([value] * rows), pa.array([names[(at * rows + row) % len(names)] for row in range(rows)])]
        yield pa.RecordBatch.from_arrays(columns, ["value", "stream"])

batch = Batch("app:" + uuid.uuid4().hex, 0, uuid.uuid4().hex, writer.targets.names)
staged = writer.stage(batch, batches())
writer.decide([staged], last=True)
# Of this program alone: getrusage also counts the process that started it.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(staged.rows // rows * rows, int(peak.split()[1]) // 1024)
"""
TASK_MEMORY_MB_MAX = 200


@pytest.mark.parametrize(("streams", "size", "count"), [(1, 100, 1_500_000), (1, 900_000, 400), (300, 900_000, 400)])
def test_a_task_needs_less_memory_than_its_rows(own_broker, stream, streams, size, count):
    targets = ",".join(f"{stream}-{at}" for at in range(streams))
    command = [sys.executable, "-c", HUNGRY, own_broker.endpoints, targets, str(size), str(count)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    rows, megabytes = map(int, ran.stdout.split())
    assert rows >= count * 9 // 10
    assert megabytes < TASK_MEMORY_MB_MAX


# ---- a broker without room ----


def test_a_full_broker_slows_a_task_until_there_is_room_or_its_patience_ends(own_broker, there, monkeypatch):
    options = options_of(own_broker, there, confirmTimeoutMs="1500")
    answers = iter([TransactionState.FULL, TransactionState.FULL])
    real = staging.Task._begin

    def begin(self, taken):
        found = real(self, taken)
        if (state := next(answers, None)) is not None:
            found.close()
            found.state, found.holder = state, "staged bytes: 34 of 32 allowed"
        return found

    monkeypatch.setattr(staging.Task, "_begin", begin)
    assert staging.stage(options, batch_of(there), name(), blocks(range(50))) == 1
    answers = itertools.repeat(TransactionState.FULL)
    with pytest.raises(VibeMQError, match=r"no room.*confirmTimeoutMs.*34 of 32"):
        staging.stage(options, batch_of(there), name(), blocks(range(50)))


def test_a_task_waits_while_a_broker_is_full_of_what_another_has_staged(tmp_path, monkeypatch):
    full, real = threading.Event(), staging.Waiting.wait

    def wait(self, state, holder):
        if state == TransactionState.FULL and self.batch.application == "second":
            full.set()
        real(self, state, holder)

    def megabytes(count):
        return ((0, simple(data_section(bytes(1_000_000)))) for _ in range(count))

    monkeypatch.setattr(staging.Waiting, "wait", wait)
    with running.broker(tmp_path, "--set", "transactions.staged_size_max_bytes=1000000", workers=1) as served:
        options = parse({"endpoints": f"127.0.0.1:{served.port}", "stream": "s", "createStream": "true"})
        staging.prepare(options)
        first, second = batch_of("s", application="first"), batch_of("s", application="second")
        staging.stage(options, first, name(), megabytes(2))

        def is_full():
            with StreamsConnection.connect("127.0.0.1", served.port) as probe:
                state = probe.begin_transaction(name(), "probe", 0, "r", ("s",)).state
                probe.abort_transactions("probe", "r")
                return state == TransactionState.FULL

        running.wait_until(is_full, "the broker has noticed")  # it adds up twice a second
        transaction = name()
        with ThreadPoolExecutor(1) as pool:
            task = pool.submit(staging.stage, options, second, transaction, megabytes(1))
            assert full.wait(60) and not task.done()
            staging.give_up(options, first)
            assert task.result(60) == 1
        assert staging.decide(options, second, [(transaction, 1)]).rows == 1


def test_an_application_that_the_broker_does_not_take_is_told_at_once(own_broker, there, monkeypatch):
    monkeypatch.setattr(staging.Waiting, "wait", lambda *_: pytest.fail("time would not help"))
    batch = batch_of(there, application="app:" + "x" * 5000)
    with pytest.raises(VibeMQError, match=r"does not let app:x{96} begin: .*PRECONDITION_FAILED"):
        staging.stage(options_of(own_broker, there), batch, name(), blocks(range(50)))


def test_a_target_that_is_made_anew_between_staging_and_commit_is_noticed(own_broker, there):
    options, batch = options_of(own_broker, there), batch_of(there)
    transaction = name()
    staging.stage(options, batch, transaction, blocks(range(50)))
    own_broker.delete(there)
    own_broker.publish(there, [])
    with pytest.raises(VibeMQError, match="cannot be written"):
        staging.decide(options, batch, [(transaction, 1)])


# ---- the targets of an application ----


def query_of(version, *targets, run=None):
    return Batch(f"query:{targets[0]}", version, run or uuid.uuid4().hex, targets, keeps_targets=True)


def written(broker, batch, numbers):
    """Stage and decide one batch."""
    options, transaction = options_of(broker, ",".join(batch.targets)), name()
    staging.stage(options, batch, transaction, blocks(numbers))
    staging.decide(options, batch, [(transaction, 1)], last=True)


def test_a_query_that_continues_with_another_target_is_refused_and_both_are_named(own_broker, there):
    other = f"{there}-other"
    own_broker.publish(other, [])
    batch = query_of(0, there)
    written(own_broker, batch, range(10))
    for version in (0, 1):  # the last batch, replayed, and a new one
        elsewhere = Batch(batch.application, version, uuid.uuid4().hex, (other,), keeps_targets=True)
        with pytest.raises(VibeMQError, match=rf"was written to {there}, and this one is to go to {other}\."):
            written(own_broker, elsewhere, range(10, 20))
    assert rows_of(own_broker, other) == []
    again = Batch(batch.application, 1, uuid.uuid4().hex, (there,), keeps_targets=True)
    written(own_broker, again, range(10, 20))
    assert rows_of(own_broker, there) == list(range(20))


def test_targets_may_be_added_to_a_query_and_deleted_ones_may_be_left_out(own_broker, there):
    other = f"{there}-other"
    own_broker.publish(other, [])
    written(own_broker, query_of(0, there), range(10))
    written(own_broker, query_of(1, there, other), range(10, 20))
    with pytest.raises(VibeMQError, match=f"was written to {there}, {other}, and this one is to go to {there}"):
        written(own_broker, query_of(2, there), range(20, 30))
    own_broker.delete(other)
    written(own_broker, query_of(2, there), range(20, 30))
    assert rows_of(own_broker, there) == list(range(30))


def test_a_job_may_write_its_next_version_elsewhere_and_not_the_same_one(own_broker, there):
    other = f"{there}-other"
    own_broker.publish(other, [])
    written(own_broker, batch_of(there, 1), range(10))
    with pytest.raises(VibeMQError, match=f"was written to {there}, and this one is to go to {other}"):
        written(own_broker, batch_of(other, 1, application=f"app:{there}"), range(10, 20))
    written(own_broker, batch_of(other, 2, application=f"app:{there}"), range(10, 20))
    assert rows_of(own_broker, other) == list(range(10, 20))
