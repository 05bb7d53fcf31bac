# SPDX-License-Identifier: Apache-2.0
"""Keep a data directory of the vibemq that is here, for tests of later ones to open.

    PYTHONPATH=.:tests python tests/server/released/make.py

Writes VERSION.tar.gz beside this file; test_released.py says what is in it. One that is there is never written anew.
"""

import asyncio
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import rstream
from running import ENVIRONMENT, broker

import vibemq
import vibemq.client
from vibemq.client import DeliveryMode, QueueOptions
from vibemq.client.streams import StreamsConnection

SIZE_MAX_BYTES = 50_000
#: Not part of what a release wrote: room that is kept, and what tells running processes of each other.
LEFT_OUT = {"reserve", "lock", "ctl.sock"}
BOSS = ("boss", "boss-password")
LIMITS = json.dumps({"max-queues": 50})
POLICY = json.dumps({"max-age": "7D"})


def vibemq_command(data: Path, *words: str, stdin: str = "") -> None:
    command = [sys.executable, "-m", "vibemq.cli", *words, "--data-dir", str(data)]
    subprocess.run(command, input=stdin, text=True, env=ENVIRONMENT, check=True, timeout=60)


async def parity(message: rstream.RawMessage) -> str:
    return str((message.publishing_id or 0) % 2)


async def publish(served) -> None:
    """With publishing ids from 1 on, and a filter value in each."""
    place = {"host": served.host, "port": served.port, "username": "guest", "password": "guest"}
    async with rstream.Producer(**place, filter_value_extractor=parity) as producer:
        for number in range(20):
            message = rstream.RawMessage(b"event %d" % number, number + 1)
            await producer.send_wait("events", message, publisher_name="shop")


def fill(data: Path) -> None:
    name, password = BOSS
    with broker(data) as served:
        with StreamsConnection.connect(served.host, served.port) as connection:
            connection.create("events", {"stream-filter-size-bytes": "32"})
            asyncio.run(publish(served))
            connection.store_offset("reader", "events", 12)
            assert connection.query_offset("reader", "events") == 12
        with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
            client.create_queue("jobs", QueueOptions(attempts_max=1, dead_letter=True))
            client.publish_many("jobs", range(10))
            with client.consume("jobs", prefetch=1) as consumer:
                for message in (next(consumer) for _ in range(4)):
                    message.ack() if message.payload < 3 else message.nack()
                client.queue_info("jobs")  # answered after all of these were read
            client.create_queue("copies", QueueOptions(mode=DeliveryMode.FAN_OUT_WITH_ACK))
            with (
                vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as other,
                client.consume("copies") as consumer,
                other.consume("copies", subscriber="audit", subscriber_ttl_s=86_400) as audit,
            ):
                client.publish_many("copies", range(5))
                for message in (next(consumer) for _ in range(3)):
                    message.ack()
                next(audit).ack()
                client.queue_info("copies")
                other.queue_info("copies")
        vibemq_command(data, "ctl", "set_policy", "week", "^events$", POLICY, "--apply-to", "streams")
        vibemq_command(data, "ctl", "add_super_stream", "orders", "--partitions", "3")
        vibemq_command(data, "users", "add", name, "--password-stdin", stdin=password)
        vibemq_command(data, "users", "add", "shop", "--password-stdin", stdin="shop-password")
        vibemq_command(data, "users", "grant", "shop", "jobs*", "Publish")
        vibemq_command(data, "ctl", "set_user_limits", "guest", LIMITS)


def main() -> None:
    target = Path(__file__).with_name(f"{vibemq.__version__}.tar.gz")
    if target.exists():
        raise SystemExit(f"{target} is there: what a release wrote does not change")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        fill(data)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=9) as archive:
            archive.add(data, "data", filter=lambda entry: None if Path(entry.name).name in LEFT_OUT else entry)
    size = packed.tell()
    if size > SIZE_MAX_BYTES:
        raise SystemExit(f"{size} bytes are more than the {SIZE_MAX_BYTES} that a release may have here")
    target.write_bytes(packed.getvalue())
    print(target, size, "bytes")


if __name__ == "__main__":
    main()
