# SPDX-License-Identifier: Apache-2.0
"""Messages on their way out of queues: windows, acknowledgements of every kind, and what comes again."""

import random

import pytest
from peers.micromsg2 import NO_TYPE, TYPE_A, TYPE_B, ExtensionFrame, Message, code, connected
from running import wait_until

from vibemq.protocols.micromsg2.codec import encode_ack, encode_error, encode_extension

MIB = 1 << 20


def fill(peer, destination, count, first=0):
    peer.write(*(peer.message(destination, b"%d" % at) for at in range(first, first + count)))
    peer.acked()


def numbers(first, last):
    return [b"%d" % at for at in range(first, last)]


# ---- what is not acknowledged comes again ----


@pytest.mark.parametrize("acked", [0, 3, 10])
def test_a_lost_connection_gives_back_what_it_had_not_acknowledged_in_order(served, peer, other, name, acked):
    fill(peer, name, 10)
    with connected(served) as lost:
        lost.subscribe(name)
        assert lost.delivers(10, ack=False) == numbers(0, 10)
        if acked:
            lost.ack(acked)
        lost.ping()
    other.subscribe(name)
    assert other.delivers(10 - acked) == numbers(acked, 10)
    wait_until(lambda: peer.info(name) == {"messages": 0, "in-flight": 0, "consumers": 1}, "nothing else is left")


def test_what_waited_for_room_in_a_window_comes_behind_what_came_back(served, peer, other, name):
    fill(peer, name, 20)
    with connected(served, "batch-ack:max-count=5;pub-sub;x-reply") as lost:
        lost.subscribe(name)
        assert lost.delivers(5, ack=False) == numbers(0, 5)
    other.subscribe(name)
    assert other.delivers(20) == numbers(0, 20)


def test_unsubscribing_gives_back_and_late_acknowledgements_settle_nothing(peer, other, name):
    peer.subscribe(name)
    fill(other, name, 3)
    assert peer.delivers(3, ack=False) == numbers(0, 3)
    peer.tell("unsubscribe", destination=name)
    peer.ack(3)  # late
    wait_until(lambda: other.info(name) == {"messages": 3, "in-flight": 0, "consumers": 0}, "all are back")
    peer.subscribe(name)
    assert peer.delivers(3, ack=False) == numbers(0, 3)
    peer.ack(3)  # of the first round again
    peer.ping()
    assert peer.info(name)["in-flight"] == 3
    peer.ack()
    wait_until(lambda: peer.info(name)["in-flight"] == 0, "the second round is settled")


# ---- acknowledgements ----


@pytest.mark.parametrize("number", [0, 4, 100, 65_535, -1])
def test_an_acknowledgement_of_what_was_never_sent_is_ignored(served, peer, name, number):
    with connected(served) as reader:
        reader.subscribe(name)
        fill(peer, name, 3)
        reader.delivers(3, ack=False)
        if number < 0:
            reader.write(encode_extension(reader.agreed.ack_id, b"\0\1\0\1"))  # as a u32: 65537
        else:
            reader.ack(number)
        reader.ping()
        assert reader.info(name)["in-flight"] == 3
    wait_until(lambda: peer.info(name) == {"messages": 3, "in-flight": 0, "consumers": 0}, "all are back")


def test_late_and_duplicate_acknowledgements_are_ignored(peer, other, name):
    peer.subscribe(name)
    fill(other, name, 6)
    peer.delivers(6, ack=False)
    for number in (2, 2, 1, 4, 3, 4, 1):
        peer.ack(number)
    peer.ping()
    peer.tell("unsubscribe", destination=name)
    other.subscribe(name)
    assert other.delivers(2) == [b"4", b"5"]


@pytest.mark.parametrize("payload", [b"\x02", b"\0\2", b"\0\0\0\2"], ids=len)
def test_the_number_may_have_one_two_or_four_octets(peer, other, name, payload):
    peer.subscribe(name)
    fill(other, name, 2)
    peer.delivers(2, ack=False)
    peer.write(encode_extension(peer.agreed.ack_id, payload))
    wait_until(lambda: peer.info(name)["in-flight"] == 0, "both are settled")


@pytest.mark.parametrize("payload", [b"", b"\0\0\1", b"\0\0\0\0\1", b"x" * 300], ids=len)
def test_any_other_size_is_an_error(peer, payload):
    peer.write(encode_extension(peer.agreed.ack_id, payload))
    assert code(peer.ended()) == "PROTOCOL_ERROR"


def test_acknowledgements_without_any_delivery_and_of_nothing_do_no_harm(peer, name):
    peer.write(*(encode_ack(peer.agreed.ack_id, at) for at in range(2_000)))
    peer.publish(name)


# ---- windows ----


@pytest.mark.parametrize(("extensions", "window"), [("ack", 1), ("batch-ack", 10), ("ack:max-count=3", 3)])
def test_no_more_is_sent_than_the_window_holds_until_an_acknowledgement_comes(served, peer, name, extensions, window):
    fill(peer, name, 3 * window)
    with connected(served, f"{extensions};pub-sub;x-reply") as reader:
        reader.subscribe(name)
        for first in range(0, 3 * window, window):
            assert reader.delivers(window, ack=False) == numbers(first, first + window)
            reader.ping()
            reader.ack()


def test_each_acknowledgement_makes_as_much_room_as_it_covers(served, peer, name):
    fill(peer, name, 20)
    with connected(served, "batch-ack:max-count=4;pub-sub;x-reply") as reader:
        reader.subscribe(name)
        reader.delivers(4, ack=False)
        reader.ack(1)
        assert reader.delivers(1, ack=False) == [b"4"]
        reader.ping()
        reader.ack(4)
        assert reader.delivers(3, ack=False) == numbers(5, 8)
        reader.ping()


def test_one_window_is_shared_by_all_subscriptions_of_a_connection(served, peer, name):
    queues = [f"{name}-{at}" for at in range(3)]
    for queue in queues:
        fill(peer, queue, 4)
    with connected(served, "batch-ack:max-count=5;pub-sub;x-reply") as reader:
        reader.subscribe(queues[0])
        reader.delivers(4, ack=False)
        reader.subscribe(queues[1])
        reader.delivers(1, ack=False)
        assert reader.tell("subscribe", destination=queues[2]) == {"destination": queues[2]}
        got = set()
        for _ in range(7):
            reader.ack()
            frame = reader.deliver(ack=False)
            got.add((frame.destination.decode(), frame.payload))
        assert len(got) == 7


def test_a_prefetch_of_any_size_is_a_number(peer, other, name):
    fill(other, name, 5)
    peer.subscribe(name, prefetch=99999999999999999999)
    assert peer.delivers(5) == numbers(0, 5)


def test_prefetch_bounds_what_one_subscription_has_in_flight(peer, other, name):
    fill(other, name, 5)
    peer.subscribe(name, prefetch=2)
    assert peer.delivers(2, ack=False) == numbers(0, 2)
    peer.ping()
    peer.ack(1)
    assert peer.delivers(1, ack=False) == [b"2"]
    peer.ping()


def test_a_window_overrun_closes_and_keeps_what_had_come(served, other, name):
    other.create(name)
    with connected(served, "batch-ack:max-count=4;pub-sub;x-reply") as peer:
        peer.subscribe(name)
        fill(other, name, 3)
        assert peer.delivers(3, ack=False) == numbers(0, 3)
        queue = f"{name}-in"
        peer.create(queue)
        peer.write(*(peer.message(queue, b"%d" % at) for at in range(6)))
        assert peer.ended().startswith("WINDOW_OVERRUN: message 5 came while 4 are unacknowledged")
    assert other.info(queue)["messages"] == 4
    other.subscribe(queue)
    assert other.delivers(4) == numbers(0, 4)
    wait_until(lambda: other.info(name) == {"messages": 3, "in-flight": 0, "consumers": 0}, "its deliveries are back")


def test_with_a_window_of_one_fragments_go_out_one_for_each_acknowledgement(served, peer, name):
    data = random.Random(3).randbytes(2 * MIB + 1)
    peer.publish(name, data)
    peer.publish(name, b"next")
    with connected(served, "ack;pub-sub;x-reply") as reader:
        reader.subscribe(name)
        frames = []
        for _ in range(3):
            frames.append(reader.deliver(ack=False))
            reader.ping()
            reader.ack()
        assert [frame.continued for frame in frames] == [True, True, False]
        assert b"".join(frame.payload for frame in frames) == data
        assert reader.delivers(1) == [b"next"]


def test_a_message_whose_last_fragment_was_not_acknowledged_comes_again(served, peer, name):
    data = random.Random(4).randbytes(MIB + 1)
    peer.publish(name, data)
    with connected(served, "ack;pub-sub;x-reply") as lost:
        lost.subscribe(name)
        lost.deliver()
        assert lost.deliver(ack=False).continued is False
    with connected(served) as reader:
        reader.subscribe(name)
        assert reader.deliver(ack=False).payload + reader.deliver().payload == data


def test_a_subscription_that_ends_in_the_middle_of_a_message_finishes_its_frames(served, peer, name):
    data = random.Random(5).randbytes(2 * MIB + 1)
    peer.publish(name, data)
    peer.publish(f"{name}-2", b"other")
    with connected(served, "ack;pub-sub;x-reply") as reader:
        reader.subscribe(name)
        payload = reader.deliver(ack=False).payload
        reader.tell("unsubscribe", destination=name)
        reader.subscribe(f"{name}-2")
        while True:
            reader.ack()
            frame = reader.deliver(ack=False)
            payload += frame.payload
            if not frame.continued:
                break
        assert payload == data
        reader.ack()
        assert reader.deliver().payload == b"other"
    wait_until(lambda: peer.info(name) == {"messages": 1, "in-flight": 0, "consumers": 0}, "it is back")


# ---- without acknowledgements ----


def test_without_acknowledgements_a_delivery_is_settled_when_it_was_written(served, peer, name):
    with connected(served, "pub-sub;x-reply") as reader:
        reader.subscribe(name)
        fill(peer, name, 50)
        assert reader.delivers(50) == numbers(0, 50)
        wait_until(lambda: peer.info(name) == {"messages": 0, "in-flight": 0, "consumers": 1}, "all are settled")


def test_a_consumer_that_never_reads_holds_neither_publishers_nor_consumers_up(served, peer, other, name):
    count, payload = 400, b"x" * 20_000
    with connected(served, "batch-ack:max-count=10000;pub-sub;x-reply", receive_buffer_bytes=4096) as deaf:
        deaf.subscribe(name)
        peer.subscribe(name)
        for _ in range(count):
            other.publish(name, b"%d" % other.sent + payload)
        got = set()

        def shared_out():
            while peer.has_frame():
                got.add(peer.deliver().payload)
            info = other.info(name)
            return info["messages"] == 0 and len(got) + info["in-flight"] == count

        wait_until(shared_out, "the one that reads has settled its part")
        assert 0 < len(got) < count
    while len(got) < count:
        got.add(peer.deliver().payload)


def test_one_that_never_reads_and_acknowledges_nothing_keeps_what_the_socket_has_not_taken(served, peer, other, name):
    count, payload = 400, b"x" * 20_000
    with connected(served, "pub-sub;x-reply", receive_buffer_bytes=4096) as deaf:
        deaf.subscribe(name)
        for at in range(count):
            other.publish(name, b"%d" % at + payload)
        assert other.info(name)["messages"] > 0, "it has not all been given to somebody who does not read"
    peer.subscribe(name)
    first = int(peer.deliver().payload.rstrip(b"x"))
    assert 0 < first < count
    assert [int(peer.deliver().payload.rstrip(b"x")) for _ in range(first + 1, count)] == [*range(first + 1, count)]


# ---- .NET types ----


def test_a_type_is_told_when_it_changes_and_kept_with_each_message(served, name):
    with connected(served, "batch-ack:max-count=100;dotnet;x-reply") as peer:
        peer.create(name)
        peer.write(
            peer.message(name, b"0"),
            peer.dotnet(TYPE_A),
            peer.message(name, b"1"),
            peer.message(name, b"2", b"k:Tv;"),
            peer.dotnet(TYPE_B),
            peer.dotnet(TYPE_A),
            peer.message(name, b"3"),
            peer.dotnet(TYPE_B),
            peer.message(name, b"4"),
            peer.dotnet(b""),
            peer.message(name, b"5"),
            peer.message(name, b"6"),
        )
        peer.acked(7)
    with connected(served, "batch-ack:max-count=100;dotnet;pub-sub;x-reply") as reader:
        reader.subscribe(name)
        told = []
        while b"6" not in told:
            frame = reader.next()
            assert isinstance(frame, Message) or frame.id == reader.agreed.dotnet_id
            told.append(frame.payload)
        assert told == [b"0", TYPE_A, b"1", b"2", b"3", TYPE_B, b"4", NO_TYPE, b"5", b"6"]
        reader.tell("unsubscribe", destination=name)
    with connected(served) as plain:
        plain.subscribe(name)
        seen = [plain.deliver().properties for _ in range(7)]
        told = b"dotnet-type:TOrder%2C%20shop%2C%20Version%3D1.0.0.0;"
        assert seen[:4] == [b"", told, b"k:Tv;" + told, told]
        assert b"Invoice" in seen[4] and seen[5:] == [b"", b""]


def test_a_type_of_more_than_4096_bytes_is_refused(served):
    with connected(served, "batch-ack;dotnet") as peer:
        peer.write(peer.dotnet(b"t" * 4_096))
        peer.publish("typed")
        peer.write(peer.dotnet(b"t" * 4_097))
        assert code(peer.ended()) == "LIMIT_EXCEEDED"


# ---- frames of other kinds ----


@pytest.mark.parametrize(
    "data",
    [b"\x20\0\1\1q\0\0\1x", b"\3\1\2ab", b"\7\0", b"\2\0\0", b"\2\x09\0", b"\2\xff\1x", b"\xff", b"\x12\1\2\0\1"],
    ids=["reserved bit", "two kinds", "three kinds", "id 0", "id 9", "id 255", "all bits", "continued extension"],
)
def test_a_frame_that_cannot_be_closes_the_connection_and_what_came_before_is_kept(served, peer, name, data):
    peer.create(name)
    with connected(served) as raw:
        raw.write(raw.message(name), data, raw.message(name))
        assert code(raw.ended()) == "PROTOCOL_ERROR"
    assert peer.info(name)["messages"] == 1


@pytest.mark.parametrize("data", [b"\x0a\1\x00\x01\x00\x01", b"\x0c\x00\x01\x00\x01", b"\x0a\1\xff\xff\xff\xff"])
def test_an_extension_or_error_above_64_kib_is_too_large(peer, data):
    peer.write(data)
    assert code(peer.ended()) == "MESSAGE_TOO_LARGE"


def test_frames_of_extensions_that_mean_nothing_here_are_skipped(served, name):
    with connected(served, "json;batch-ack;x-reply;x-heartbeat") as peer:
        for id in (1, 3, 4):
            peer.write(encode_extension(id, b"x" * 60_000), encode_extension(id))
        peer.publish(name)


def test_an_error_from_the_peer_is_read_and_the_connection_goes_on(peer, name):
    peer.write(*(encode_error(f"I am not amused ({at})") for at in range(100)))
    peer.write(b"\x04\2\2\0", b"")  # the layout in which the text prints an acknowledgement
    peer.ping()
    peer.publish(name)


def test_frames_cut_anywhere_are_read_whole(served, peer, other, name):
    payloads = [bytes([65 + at]) * (at * 40_000) for at in range(12)]
    data = b"".join(peer.message(name, payload, b"k:Tv;") for payload in payloads)
    for at in range(0, len(data), 7_919):
        peer.write(data[at : at + 7_919])
    peer.acked()
    other.subscribe(name)
    assert [other.deliver().payload for _ in payloads] == payloads


def test_a_hundred_subscriptions_of_one_connection_are_told_apart(peer, other, name):
    queues = [f"{name}-{at}" for at in range(100)]
    for queue in queues:
        peer.subscribe(queue)
    for queue in queues[::2]:
        peer.tell("unsubscribe", destination=queue)
    for queue in queues:
        other.publish(queue, queue.encode())
    got = [peer.deliver() for _ in queues[1::2]]
    assert sorted(frame.destination.decode() for frame in got) == sorted(queues[1::2])
    assert all(frame.payload == frame.destination for frame in got)
    peer.ping()


def test_who_publishes_and_subscribes_gets_its_own_messages(peer, name):
    peer.subscribe(name)
    peer.send(name)
    frames = [peer.next(), peer.next()]
    assert {type(frame) for frame in frames} == {ExtensionFrame, Message}
    peer.ack()


def test_two_consumers_share_a_queue_and_none_gets_what_the_other_has(peer, other, served, name):
    peer.subscribe(name, prefetch=1)
    other.subscribe(name, prefetch=1)
    with connected(served) as publisher:
        fill(publisher, name, 2)
    assert {peer.deliver(ack=False).payload, other.deliver(ack=False).payload} == {b"0", b"1"}


def test_a_message_that_was_never_acknowledged_ends_as_a_dead_letter(served, peer, name):
    peer.create(name, attempts_max=2, dead_letter=1, backoff_ms=0)
    peer.publish(name, b"poison", b"k:Tv;")
    for _ in range(2):
        with connected(served) as lost:
            lost.subscribe(name)
            assert lost.deliver(ack=False).payload == b"poison"
    peer.subscribe(f"{name}.dlq")
    letter = peer.deliver()
    assert letter.payload == b"poison"
    assert letter.properties.startswith(b"k:Tv;x-original-queue:T" + name.encode())
