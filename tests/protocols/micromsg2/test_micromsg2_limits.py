# SPDX-License-Identifier: Apache-2.0
"""Heartbeats, and what one peer can make the broker hold."""

import contextlib
from pathlib import Path

from peers.micromsg2 import Message, Micromsg2Peer, code, connected
from running import broker, resident_bytes, wait_until

from vibemq.protocols.micromsg2.codec import ExtensionFrame, encode_extension, encode_message

MIB = 1 << 20

# ---- heartbeats ----


def test_a_silent_peer_that_promised_heartbeats_is_closed_and_one_that_sends_them_is_kept(served, peer, name):
    with (
        connected(served, "batch-ack;pub-sub;x-heartbeat:interval=1000") as silent,
        connected(served, "batch-ack;x-heartbeat:interval=1000") as beating,
    ):
        silent.command("subscribe", destination=name)
        peer.publish(name)
        while not isinstance(silent.next(), Message):
            pass
        text = ""
        silent.socket.settimeout(0.1)
        while not text:
            beating.write(encode_extension(beating.agreed.heartbeat_id))
            try:
                frame = silent.next()
            except TimeoutError:
                continue
            text = "" if isinstance(frame, ExtensionFrame) else frame.text
        assert code(text) == "TOO_SLOW"
        beating.write(beating.message(name))
        while (frame := beating.next()) == ExtensionFrame(beating.agreed.heartbeat_id, b""):
            pass
        assert frame.id == beating.agreed.ack_id
    wait_until(lambda: peer.info(name)["consumers"] == 0, "what it had is given back")


def test_who_reads_slowly_and_sends_heartbeats_is_kept_until_it_has_read_everything(served, peer, name):
    """It is not read while so much waits for it, so what it sends is not heard."""
    extensions, count = "batch-ack:max-count=100;pub-sub;x-heartbeat:interval=1000", 8
    for _ in range(count):
        peer.publish(name, b"x" * MIB)
    with connected(served, extensions, receive_buffer_bytes=4096) as slow:
        slow.command("subscribe", destination=name)
        wait_until(lambda: peer.info(name)["in-flight"] > 0, "it is delivered to")
        with connected(served, "x-heartbeat:interval=1000") as silent:
            silent.socket.settimeout(0.1)
            text = ""
            while not text:
                slow.write(encode_extension(slow.agreed.heartbeat_id))
                with contextlib.suppress(TimeoutError):
                    frame = silent.next()
                    text = "" if isinstance(frame, ExtensionFrame) else frame.text
            assert code(text) == "TOO_SLOW"
        got = 0
        while got < count:
            frame = slow.next()
            assert isinstance(frame, ExtensionFrame) or len(frame.payload) == MIB
            got += isinstance(frame, Message)


def test_the_broker_sends_heartbeats_when_it_has_nothing_else_to_say(served):
    with connected(served, "x-heartbeat:interval=1000") as peer:
        for _ in range(3):
            assert peer.next() == ExtensionFrame(1, b"")
            peer.write(encode_extension(1))


def test_without_an_interval_that_makes_sense_nothing_happens(served, name):
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(connected(served, f"batch-ack;x-heartbeat{interval}"))
            for interval in ("", ":interval=0", ":interval=soon", ":interval=-5", ":interval=" + "9" * 40)
        ]
        with connected(served, "x-heartbeat:interval=100") as silent:
            assert code(silent.rest()[-1].text) == "TOO_SLOW"
        for peer in peers:
            peer.publish(name)  # and not a heartbeat has come


# ---- memory ----


def test_who_has_not_finished_the_handshake_makes_the_broker_hold_little(tmp_path):
    with broker(tmp_path, workers=1) as running:
        (pid,) = running.worker_pids()
        with connected(running) as peer:
            peer.ping()
        before = resident_bytes(pid)
        idle = [Micromsg2Peer(running) for _ in range(100)]
        for raw in idle:
            raw.write(b"\1\0\0\xff" + b"x" * 255 + b"\xff\xff" + b"y" * 65_535 + b"\xff\xff" + b"y" * 65_000)
        with connected(running) as peer:
            peer.ping()
        assert resident_bytes(pid) - before < 100 * 160 * 1024 + 8 * MIB
        for raw in idle:
            raw.socket.close()


def test_parked_messages_of_more_than_16_mib_stop_the_reading_until_there_is_room(tmp_path):
    # Sockets may hold so much more; how much they do depends on how soon the broker reads.
    limits = (Path(f"/proc/sys/net/ipv4/tcp_{way}mem").read_text().split()[2] for way in "rw")
    count = 30 + sum(map(int, limits)) // MIB
    flags = ("--set", "queues.block_timeout_ms=120000")
    with (
        broker(tmp_path, *flags, workers=1) as running,
        connected(running) as other,
        connected(running, "batch-ack:max-count=100;x-reply") as peer,
    ):
        other.create("q", max_messages=1, overflow="block-publisher")
        other.publish("q", b"first")
        (pid,) = running.worker_pids()
        before = resident_bytes(pid)
        data = b"".join(peer.message("q", b"x" * MIB) for _ in range(count))
        peer.socket.setblocking(False)
        sent = got = 0

        def push():
            nonlocal sent
            try:
                sent += peer.socket.send(data[sent : sent + MIB])
            except BlockingIOError:
                other.ping()  # the worker has had a turn since
                return sent > 16 * MIB
            return False

        wait_until(push, "it takes no more", 120)
        assert sent < len(data), "all of it is taken"
        assert resident_bytes(pid) - before < 40 * MIB
        other.subscribe("q")

        def flow():
            nonlocal got
            if sent < len(data):
                push_more()
            while other.has_frame():
                got += not other.deliver().continued
            return got == count + 1

        def push_more():
            nonlocal sent
            with contextlib.suppress(BlockingIOError):
                sent += peer.socket.send(data[sent : sent + MIB])

        wait_until(flow, "with room everything goes on", 120)
        peer.socket.setblocking(True)
        peer.socket.settimeout(30)
        peer.acked(count)


def test_parked_messages_of_a_few_bytes_count_with_the_memory_that_keeping_them_takes(tmp_path):
    """1.9 million of them fit in 16 MiB, were it not for the objects around them."""
    data = encode_message(1, b"q", b"") * 10_000
    with (
        broker(tmp_path, "--set", "queues.block_timeout_ms=600000", workers=1) as running,
        connected(running) as other,
        connected(running, "x-reply") as peer,
    ):
        other.create("q", max_messages=1, overflow="block-publisher")
        other.publish("q")
        (pid,) = running.worker_pids()
        before = resident_bytes(pid)
        peer.socket.setblocking(False)
        at = refusals = 0
        while refusals < 100:  # in a row, with a turn of the worker between them
            try:
                at = (at + peer.socket.send(data[at:])) % len(data)
                refusals = 0
            except BlockingIOError:
                other.ping()
                refusals += 1
        assert resident_bytes(pid) - before < 48 * MIB
