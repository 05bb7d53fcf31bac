# SPDX-License-Identifier: Apache-2.0
"""What the tests of the management page share: a broker with users, a load, and hands that log in."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chromium import Page
from http_caller import STREAM, Http
from running import Running, wait_until

import vibemq.client
from vibemq.client._streams import write_message
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError
from vibemq.protocols.streams.spec import OffsetType

ADMINISTRATOR = ("ada", "a-password-of-ada")
WATCHER = ("carol", "a-password-of-carol")  # sees everything, and may do nothing
PAUSE_S = 0.02  # between two batches of a load


def prepare(running: Running) -> None:
    """Users, and some things to be seen."""
    http = Http(running)
    for (name, password), tag in ((ADMINISTRATOR, "administrator"), (WATCHER, "monitoring")):
        assert http.status("PUT", "users", name, body={"password": password, "tags": tag}) == 201
    read = {"configure": "", "write": "", "read": ".*"}
    assert http.status("PUT", "permissions", "/", WATCHER[0], body=read) == 201
    assert http.status("PUT", "permissions", "/", ADMINISTRATOR[0], body=dict.fromkeys(read, ".*")) == 201
    for name in ("orders", "clicks"):
        arguments = {**STREAM["arguments"], "x-max-age": "7D"}
        assert http.status("PUT", "queues", "/", name, body={**STREAM, "arguments": arguments}) == 201
    options = {"mode": 3, "dead_letter": True, "max_messages": 100_000}
    assert http.status("PUT", "queues", "/", "mails", "definition", body={"queue_options": options}) == 201
    assert http.status("PUT", "stream", "super-streams", "/", "invoices", body={"partitions": 3}) == 201
    policy = {"pattern": "^clicks", "apply-to": "streams", "definition": {"max-age": "1D"}}
    assert http.status("PUT", "policies", "/", "short", body=policy) == 201


def log_in(page: Page, running: Running, user: tuple[str, str] = ADMINISTRATOR, to: str = "") -> None:
    page.open(f"http://localhost:{running.admin_port}/#/{to}")
    page.see("button", "Log in")
    page.fill("input[name=user]", user[0])
    page.fill("input[name=password]", user[1])
    page.press("Enter")
    page.see("header", user[0])


def order(number: int) -> bytes:
    facts = {"order": number, "customer": f"c-{number % 97}", "total": number * 7 % 40_000 / 100}
    return write_message(json.dumps(facts).encode())


@contextmanager
def somebody(running: Running) -> Iterator[None]:
    """Reads a stream and publishes to a queue, now and then; and a Spark query has told how far it was."""
    user, password = ADMINISTRATOR
    with contextlib.ExitStack() as left:
        client = left.enter_context(StreamsConnection.connect(running.host, running.port, user=user, password=password))
        with client.publisher("clicks") as publisher:
            publisher.publish([order(number) for number in range(10)])
        client.store_offset("spark-report", "clicks", 3)
        client.publisher("clicks")
        client.subscribe("clicks", OffsetType.FIRST, 0, credit=2)
        yield  # its worker may have been killed then, so only the socket is closed


@contextmanager
def jobs(running: Running, queue: str) -> Iterator[None]:
    """Messages go through a queue: published, delivered, acknowledged."""
    over = threading.Event()
    address = f"vibemq://guest:guest@{running.host}:{running.native_port}"

    def publish() -> None:
        with vibemq.client.connect(address) as client, client.publisher(queue) as publisher:
            number = 0
            while not over.wait(5 * PAUSE_S):
                for _ in range(60):
                    publisher.publish({"mail": number, "to": "somebody@example.org"})
                    number += 1

    def consume() -> None:
        with vibemq.client.connect(address) as client:
            while not over.is_set():
                for message in client.consume(queue, timeout_s=1):
                    message.ack()
                    if over.wait(PAUSE_S / 10):
                        break

    threads = [threading.Thread(target=publish), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def load(running: Running, *streams: str, at_once: int = 20) -> Iterator[None]:
    """Somebody publishes to each of them without end, connects again after a kill, and a reader follows the first."""
    over = threading.Event()
    user, password = ADMINISTRATOR

    def connected() -> StreamsConnection:
        return StreamsConnection.connect(running.host, running.port, user=user, password=password)

    def publish(name: str) -> None:
        number = 0
        while not over.is_set():
            with contextlib.suppress(VibeMQError, OSError), connected() as client, client.publisher(name) as publisher:
                while not over.wait(PAUSE_S):
                    count = round(at_once * (1 + math.sin(time.monotonic() / 40 + len(name)) / 3))
                    publisher.publish([order(number + one) for one in range(count)])
                    number += count

    def follow() -> None:
        while not over.is_set():
            with (
                contextlib.suppress(VibeMQError, OSError),
                connected() as client,
                client.subscribe(streams[0], OffsetType.FIRST, 0, credit=2) as reading,
            ):
                while not over.is_set():
                    chunk = reading.next_chunk(0.2, default=None)
                    if chunk is not None:
                        client.store_offset("billing", streams[0], chunk.chunk_id)

    threads = [threading.Thread(target=publish, args=(name,)) for name in streams]
    threads.append(threading.Thread(target=follow))
    for thread in threads:
        thread.start()
    try:
        http = Http(running, *ADMINISTRATOR)
        wait_until(lambda: http.get("queues", "/", streams[-1])["messages"] > 0, "the load has begun")
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
