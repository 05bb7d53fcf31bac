# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in a queue's ledger loses no message: each undamaged one is delivered, and the damage is named."""

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


def directory(data: Path) -> Path:
    metadata = Metadata(str(data / "meta.db"))
    found = Path(metadata.find_stream("/", "orders").directory)
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
