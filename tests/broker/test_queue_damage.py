# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in a queue's ledger loses no message: each undamaged one is delivered, and the damage is named."""

import os
import random
import shutil
from pathlib import Path

import pytest
from other_boot import write_in_another_boot
from running import broker

import vibemq.client
from vibemq.storage.metadata import Metadata

COUNT, ACKNOWLEDGED = 60, frozenset(range(0, 40, 3))
ENTRY_BYTES = 16
#: Queues with a flipped byte of their page each, of which half drop the oldest; messages that they wait with.
HARMED, WAITING, MESSAGES_MAX = 20, 16, 8
#: Where words lie in the page.
WORDS = range(0, 768 + 40)
SEED = int(os.environ.get("VIBEMQ_DAMAGE_SEED") or random.randrange(1 << 32))
#: Places in the page: csrc/ledger/FORMAT.md.
PAGE = {"magic": 0, "version": 4, "base": 256, "next": 264, "purge": 280, "synced": 288, "base's copy": 296}


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A queue of 60 messages, of which 40 were handed out and 14 acknowledged, after an orderly stop."""
    data = tmp_path_factory.mktemp("template") / "data"
    with broker(data, workers=1) as served, connected(served) as client:
        client.create_queue("orders", durability="disk")
        client.publish_many("orders", range(COUNT))
        with client.consume("orders", prefetch=40) as consumer:
            messages = [next(consumer) for _ in range(40)]
            for message in messages:
                if message.payload in ACKNOWLEDGED:
                    message.ack()
            client.queue_info("orders")  # answered after the acknowledgements were read
    return data


def connected(served):
    return vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}")


def directory(data: Path, queue: str = "orders") -> Path:
    metadata = Metadata(str(data / "meta.db"))
    found = Path(metadata.find_stream("/", queue).directory)
    metadata.close()
    return found


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def delivered(data: Path) -> list[int]:
    """Return the messages that a consumer gets from a broker with this data, in order."""
    with broker(data, workers=1) as served, connected(served) as client:
        waiting = client.queue_info("orders").messages
        with client.consume("orders", prefetch=COUNT, timeout_s=60) as consumer:
            return [next(consumer).payload for _ in range(waiting)]


def places() -> list[tuple[str, int, int]]:
    dice = random.Random(12)
    flips = [("ledger", at + (0 if at < 8 else dice.randrange(2)), dice.randrange(8)) for at in PAGE.values()]
    # The states of an acknowledged and of a waiting message, then words and places anywhere.
    flips += [("block", 3 * ENTRY_BYTES, 0), ("block", 4 * ENTRY_BYTES, 1), ("block", 8 * ENTRY_BYTES + 9, 4)]
    return flips + [("block", dice.randrange(40 * ENTRY_BYTES), dice.randrange(8)) for _ in range(3)]


@pytest.mark.parametrize("boot", ["this", "another"])
def test_settled_messages_of_an_undamaged_ledger_stay_settled(template, tmp_path, boot):
    data = tmp_path / "data"
    shutil.copytree(template, data)
    if boot == "another":
        write_in_another_boot(directory(data))
    assert sorted(delivered(data)) == sorted(set(range(COUNT)) - ACKNOWLEDGED)


@pytest.mark.parametrize(("file", "at", "bit"), places())
def test_a_flipped_bit_of_a_ledger_loses_no_message_and_is_named(template, tmp_path, capfd, file, at, bit):
    data = tmp_path / "data"
    shutil.copytree(template, data)
    queue = directory(data)
    flip(queue / ("ledger" if file == "ledger" else f"{0:020}.ledger"), at, bit)
    if at % 2:
        write_in_another_boot(queue)
    capfd.readouterr()
    had = delivered(data)
    told = capfd.readouterr().err
    assert set(had) >= set(range(COUNT)) - ACKNOWLEDGED, "an intact message is never delivered"
    again = set(had) & ACKNOWLEDGED
    assert len(had) == len(set(had)) and len(again) <= 1
    if file == "ledger":
        assert f"queue 'orders': {queue}/ledger is damaged" in told and not again
    elif at % ENTRY_BYTES != 7 or bit != 7:  # without its mark an entry has no check
        assert f"its ledger in {queue} is damaged: 1 messages, the first at offset {at // ENTRY_BYTES}," in told


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Queues in which more messages wait than half of them allow, because a consumer gave its messages back."""
    data = tmp_path_factory.mktemp("many") / "data"
    with broker(data, workers=1) as served, connected(served) as client:
        for number in range(HARMED):
            name, blocks = f"q{number}", number % 2
            most = MESSAGES_MAX if not blocks else WAITING + 4
            client.create_queue(name, max_messages=most, overflow="block_publisher" if blocks else "drop_oldest")
            client.publish_many(name, range(MESSAGES_MAX))
            with client.consume(name, prefetch=MESSAGES_MAX, timeout_s=60) as consumer:
                held = [next(consumer) for _ in range(MESSAGES_MAX)]
                client.publish_many(name, range(MESSAGES_MAX, WAITING))
                assert [message.payload for message in held] == list(range(MESSAGES_MAX))
            assert client.queue_info(name).messages == WAITING
    return data


@pytest.mark.parametrize("boot", ["this", "another"])
def test_a_flipped_bit_anywhere_in_the_page_loses_no_message_and_publishing_goes_on(many, tmp_path, boot):
    print(f"VIBEMQ_DAMAGE_SEED={SEED}")
    dice = random.Random(f"{SEED} {boot}")
    data = tmp_path / "data"
    shutil.copytree(many, data)
    # A byte of each word that says something once, and then any.
    words = [at for at in WORDS[::8] if at < 8 or at >= 256]
    places = [at + dice.randrange(8) for at in dice.sample(words, HARMED // 2)]
    places += [dice.choice(WORDS) for _ in range(HARMED - len(places))]
    dice.shuffle(places)
    for number, at in enumerate(places):
        queue = directory(data, f"q{number}")
        flip(queue / "ledger", at, dice.randrange(8))
        if boot == "another":
            write_in_another_boot(queue)
    with broker(data, workers=1) as served, connected(served) as client:
        for number, at in enumerate(places):
            name = f"q{number}"
            assert client.queue_info(name).messages == WAITING, f"{name}: byte {at}"
            more = [WAITING] if number % 2 else []
            client.publish_many(name, more)
            with client.consume(name, prefetch=2 * WAITING, timeout_s=60) as consumer:
                had = [next(consumer) for _ in range(WAITING + len(more))]
                assert sorted(message.payload for message in had) == list(range(WAITING + len(more))), f"byte {at}"
                for message in had:
                    message.ack()
                client.publish(name, "last")
                assert next(consumer).payload == "last"
