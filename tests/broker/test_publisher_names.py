# SPDX-License-Identifier: Apache-2.0
"""Publisher names and stored offsets of a stream: they are kept up to their limits, and evicted beyond."""

import base64
import os
import re
import signal
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from peers.streams import Peer, connected
from running import Running, broker, restartable, wait_until

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.codec import encode_request
from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, Key

NAMES_MAX = 10_000
PER_CONNECTION = 250
WORKERS = 2


def declare_all(peer: Peer, stream: str, names: list[str]) -> list[int]:
    """Declare publishers of these names, all at once; return the answers' codes."""
    fields = [{"publisher_id": at, "reference": name, "stream": stream} for at, name in enumerate(names)]
    peer.send(b"".join(peer.command(Key.DECLARE_PUBLISHER, **each) for each in fields))
    return [peer.expect(Key.DECLARE_PUBLISHER | RESPONSE_BIT).code for _ in names]


def publish_all(peer: Peer, count: int, ids: list[int]) -> None:
    """Publish these ids by each of the publishers 0 to `count` - 1, and wait for all confirms."""
    for publisher in range(count):
        peer.publish([(number, b"%d of %d" % (number, publisher)) for number in ids], publisher)
    confirmed = 0
    while confirmed < count * len(ids):
        confirmed += len(peer.expect(Key.PUBLISH_CONFIRM).publishing_ids)


def stored(running: Running, stream: str) -> int:
    with StreamsConnection.connect(running.host, running.port) as client:
        return client.next_offset(stream)


def metric(running: Running, name: str) -> float:
    request = urllib.request.Request(f"http://{running.host}:{running.admin_port}/metrics")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^vibemq_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def names_of(first: int, count: int) -> list[str]:
    return [f"publisher-{number}" for number in range(first, first + count)]


def test_of_600_messages_that_300_connected_publishers_send_again_none_is_stored_twice(tmp_path):
    with restartable(tmp_path, workers=WORKERS) as broker_of_mine:
        running = broker_of_mine.running
        for again in range(3):  # the second time after another connection, the third after a restart
            with ExitStack() as stack:
                peers = [stack.enter_context(connected(running)) for _ in range(2)]
                if not again:
                    peers[0].create("s")
                for at, peer in enumerate(peers):
                    assert set(declare_all(peer, "s", names_of(150 * at, 150))) == {Code.OK}
                for _ in range(2):
                    for peer in peers:
                        publish_all(peer, 150, [1, 2])
            assert stored(running, "s") == 600
            if again == 1:
                broker_of_mine.restart()
                running = broker_of_mine.running


def test_10000_connected_publishers_keep_their_names_and_one_more_is_refused(tmp_path, capfd):
    with broker(tmp_path, workers=WORKERS) as running, ExitStack() as stack:
        first = stack.enter_context(connected(running))
        first.create("s")
        # Names without a connected publisher are evicted, the one that published longest ago first.
        assert set(declare_all(first, "s", names_of(NAMES_MAX, 200))) == {Code.OK}
        publish_all(first, 200, [7])
        for at in range(200):
            first.code(Key.DELETE_PUBLISHER, publisher_id=at)
        peers = [first, *(stack.enter_context(connected(running)) for _ in range(NAMES_MAX // PER_CONNECTION - 1))]
        for at, peer in enumerate(peers):
            assert set(declare_all(peer, "s", names_of(PER_CONNECTION * at, PER_CONNECTION))) == {Code.OK}
        assert metric(running, "publisher_names_evicted_total") == 200
        one_more = stack.enter_context(connected(running))
        assert declare_all(one_more, "s", ["one more"]) == [Code.PRECONDITION_FAILED]
        assert metric(running, "publisher_names_refused_total") == 1
        told = capfd.readouterr().err
        assert "publisher b'one more' is refused: 10000 publisher names are kept" in told
        assert len(re.findall("longest ago was evicted for", told)) <= WORKERS
        for peer in peers:
            publish_all(peer, PER_CONNECTION, [1])
            publish_all(peer, PER_CONNECTION, [1])
        assert stored(running, "s") == 200 + NAMES_MAX
        first.code(Key.DELETE_PUBLISHER, publisher_id=0)
        assert declare_all(one_more, "s", ["one more"]) == [Code.OK]


def test_the_names_of_a_killed_workers_connections_can_be_evicted_again(tmp_path):
    with broker(tmp_path, workers=1) as running, ExitStack() as stack:
        peers = [stack.enter_context(connected(running)) for _ in range(NAMES_MAX // PER_CONNECTION)]
        peers[0].create("s")
        for at, peer in enumerate(peers):
            assert set(declare_all(peer, "s", names_of(PER_CONNECTION * at, PER_CONNECTION))) == {Code.OK}
        publish_all(peers[0], PER_CONNECTION, [1])
        (worker,) = running.worker_pids()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: running.worker_pids() not in ([], [worker]), "another worker")
        with connected(running) as peer:
            assert declare_all(peer, "s", ["one more"]) == [Code.OK]
            publish_all(peer, 1, [1])
            assert set(declare_all(peer, "s", ["", *names_of(0, PER_CONNECTION)])[1:]) == {Code.OK}


def test_of_1500_named_consumers_every_stored_offset_is_there(tmp_path):
    with broker(tmp_path, workers=WORKERS) as running, connected(running) as peer:
        peer.create("s")
        peer.store("s", [b"x"])
        for number in range(1500):
            peer.send(encode_request(Key.STORE_OFFSET, reference=f"consumer-{number}", stream="s", offset=number))
        for number in range(1500):
            assert peer.ask(Key.QUERY_OFFSET, reference=f"consumer-{number}", stream="s").offset == number


@pytest.mark.parametrize("byte", [512 + 9, 512 + 33, 64 + 8])  # an id, a name, the number of names
def test_a_flipped_bit_in_the_table_costs_no_message_and_is_named(tmp_path, capfd, byte):
    with restartable(tmp_path, workers=1) as broker_of_mine:
        with connected(broker_of_mine.running) as peer:
            peer.create("s")
            peer.declare("s", 0, "shop")
            publish_all(peer, 1, list(range(1, 401)))
        broker_of_mine.stop()
        (path,) = Path(tmp_path).glob("streams/*/tracking")
        data = bytearray(path.read_bytes())
        data[byte] ^= 1
        path.write_bytes(data)
        broker_of_mine.restart()
        with connected(broker_of_mine.running) as peer:
            peer.declare("s", 0, "shop")
            publish_all(peer, 1, list(range(399, 501)))
        assert stored(broker_of_mine.running, "s") == 500
        told: list[str] = []

        def is_named() -> bool:
            told.append(capfd.readouterr().err)
            return f"{path} was damaged, and its publishing ids were rebuilt from the log" in "".join(told)

        wait_until(is_named, "a line in the log")
