# SPDX-License-Identifier: Apache-2.0
"""What is parked before a full queue never keeps the broker from reading the acknowledgements that make room."""

from pathlib import Path

from peers.native import connected
from running import broker

from vibemq.protocols.native.spec import Command

BLOCK_PUBLISHER = 2
COUNT, BODY_BYTES, PARKED_BYTES_MAX = 24, 900_000, 16 << 20


def test_who_consumes_what_it_publishes_is_read_however_much_of_it_is_parked(tmp_path: Path) -> None:
    """Beyond 16 MiB its publishes are refused; without subscriptions it would not be read."""
    with (
        broker(tmp_path / "data", "--set", "queues.block_timeout_ms=600000", workers=1) as running,
        connected(running) as peer,
    ):
        peer.create("q", maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
        peer.subscribe("q", prefetch="1")
        payload = b'"' + b"x" * BODY_BYTES + b'"'
        ids = [b"m%d" % number for number in range(COUNT)]
        for id in ids:
            peer.send(Command.PUBLISH, id, queue="q", payload=payload)
        answered: dict[bytes, str] = {}
        delivered: list[bytes] = []
        held: list[bytes] = []
        while len(answered) < COUNT or len(delivered) < list(answered.values()).count(""):
            message = peer.next()
            if message.type == Command.DELIVER:
                delivered.append(message.id)
                held.append(message.id)
            else:
                assert message.type in (Command.PUBLISH_ACK, Command.ERROR), message
                answered[message.id] = message.error_code or ""
            if "QUEUE_FULL" in answered.values():  # nothing is acknowledged before too much is parked
                while held:
                    peer.send(Command.ACK, held.pop(0))
        kept = [id for id in ids if not answered[id]]
        assert delivered == kept
        assert PARKED_BYTES_MAX // BODY_BYTES <= len(kept) < COUNT, "what fits in 16 MiB waits, the rest is refused"
        assert set(answered.values()) == {"", "QUEUE_FULL"}
        assert peer.info("q")["refusedCount"] == COUNT - len(kept)
