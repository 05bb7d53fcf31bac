# SPDX-License-Identifier: Apache-2.0
"""kill -9 under load at random moments: of a worker, of the supervisor, of everything.

In small here, each way at least once; `make kills` runs VIBEMQ_KILL_ROUNDS rounds of each.  All have publishers on
several connections and a reader.  VIBEMQ_KILL_SEED repeats a run as far as a race can be repeated: the moments are
counted in confirmed messages, the rest is up to the machine.
"""

import contextlib
import os
import random
import time

import pytest
from load import Load, verify
from peers.streams import Killed, connected, is_alive, kill
from running import broker, wait_until

from vibemq.protocols.streams.spec import Code, Key

SEED = int(os.environ.get("VIBEMQ_KILL_SEED", time.time_ns() % 2**32))
ROUNDS = int(os.environ.get("VIBEMQ_KILL_ROUNDS", "0"))
CONFIRMED_BEFORE_MAX = 12_000  # a kill comes after a random number of confirms up to this
CONFIRMED_AFTER = 500  # and the round goes on until so many more have come from the new worker
ORPHANS_END_S_MAX = 10.0


@pytest.fixture
def random_(request):
    seed = f"{SEED}/{request.node.name}"
    print(f"VIBEMQ_KILL_SEED={SEED}")  # pytest shows it when the test fails
    return random.Random(seed)


def create(running, stream, durability="os"):
    with connected(running) as peer:
        # Small segments, so that rolls are among what is interrupted.
        arguments = {"stream-max-segment-size-bytes": "300000", "durability": durability}
        assert peer.code(Key.CREATE, stream=stream, arguments=arguments) in (Code.OK, Code.STREAM_ALREADY_EXISTS)


def await_new_workers(running, old, count):
    wait_until(lambda: len(set(running.worker_pids()) - set(old)) >= count, "new workers")


@pytest.mark.parametrize("round_", range(ROUNDS or 8))
def test_a_killed_worker_costs_only_its_connections(tmp_path, random_, round_):
    both = round_ % 4 == 3
    with broker(tmp_path) as running:
        create(running, "s", "disk" if round_ % 8 == 5 else "os")
        with Load(running, "s", random_.getrandbits(32)) as load:
            for _ in range(2):
                load.await_confirmed(random_.randint(1, CONFIRMED_BEFORE_MAX // 2))
                old = running.worker_pids()
                victims = old if both else [random_.choice(old)]
                for pid in victims:
                    kill(pid)
                await_new_workers(running, old, len(victims))
                load.await_confirmed(CONFIRMED_AFTER)
        verify(load, running)


@pytest.mark.parametrize("round_", range(ROUNDS or 4))
def test_a_killed_supervisor_takes_its_workers_along_and_the_next_one_goes_on(tmp_path, random_, round_):
    with contextlib.suppress(Killed), broker(tmp_path) as running:
        create(running, "s")
        with Load(running, "s", random_.getrandbits(32), reconnects=False) as load:
            load.await_confirmed(random_.randint(1, CONFIRMED_BEFORE_MAX))
            workers = running.worker_pids()
            kill(running.process.pid)
            if round_ % 2:  # every other time the next one is started at once, and waits for the old workers
                wait_until(lambda: not any(map(is_alive, workers)), "the workers ended", ORPHANS_END_S_MAX)
        raise Killed
    with broker(tmp_path) as running:
        assert not any(map(is_alive, workers)), "two generations of workers on one folder"
        verify(load, running)
        goes_on(running, random_)


@pytest.mark.parametrize("round_", range(ROUNDS or 5))
def test_everything_killed_at_once_loses_nothing_confirmed(tmp_path, random_, round_):
    with contextlib.suppress(Killed), broker(tmp_path) as running:
        create(running, "s", "disk" if round_ % 5 == 2 else "os")
        with Load(running, "s", random_.getrandbits(32), reconnects=False) as load:
            load.await_confirmed(random_.randint(1, CONFIRMED_BEFORE_MAX))
            pids = [running.process.pid, *running.worker_pids()]
            random_.shuffle(pids)
            for pid in pids:
                kill(pid)
        raise Killed
    with broker(tmp_path) as running:
        verify(load, running)
        goes_on(running, random_)


def goes_on(running, random_):
    """The stream that was interrupted takes more, and other streams can be made."""
    with connected(running) as peer:
        before = peer.ask(Key.STREAM_STATS, stream="s").statistics["committed_offset"]
        peer.store("s", [b"after"] * random_.randint(1, 100))
        assert peer.ask(Key.STREAM_STATS, stream="s").statistics["committed_offset"] > before
        peer.create("another")
        peer.store("another", [b"first"])


def test_workers_killed_again_and_again_while_nobody_publishes_come_back(tmp_path, random_):
    with broker(tmp_path) as running:
        create(running, "s")
        with connected(running) as peer:
            peer.store("s", [b"x"] * 10)
        for _ in range(10):
            old = running.worker_pids()
            kill(random_.choice(old))
            await_new_workers(running, old, 1)
        wait_until(lambda: stored(running) == 9, "an answer")


def stored(running):
    try:
        with connected(running) as peer:
            return peer.ask(Key.STREAM_STATS, stream="s").statistics["committed_offset"]
    except ConnectionError:  # accepted by a worker's listener just before its end
        return None
