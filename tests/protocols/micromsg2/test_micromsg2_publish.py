# SPDX-License-Identifier: Apache-2.0
"""Messages on their way in: destinations, acknowledgements, refusals, fragments, and full queues."""

import random

import pytest
from peers.micromsg2 import TYPE_A, TYPE_B, Command, ErrorFrame, ExtensionFrame, Message, code, connected
from running import broker, wait_until

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.micromsg2.codec import ack_sequence, encode_command, encode_extension, encode_message

MIB = 1 << 20

# ---- kept, and acknowledged ----


def test_an_acknowledgement_says_that_everything_up_to_it_is_kept_in_order(peer, other, name):
    payloads = [b"m%d" % at for at in range(100)]
    peer.write(*(peer.message(name, payload) for payload in payloads))
    peer.acked(100)
    assert other.info(name)["messages"] == 100
    other.subscribe(name)
    assert other.delivers(100) == payloads


def test_destination_properties_and_payload_come_out_as_they_went_in(peer, other, name):
    sent = [
        (b"", b""),
        (b"k:Tv;", b""),
        (b"first_name:Ttomas;age:N0;", b'{"Id":0}'),
        (b"a=b;:x;;c", b"\0\xff" * 200),
        (b"p:T" + b"x" * 65_000 + b";", b"x" * 70_000),
        (b"note:no%74e;at:D1413198000.0", b"y" * 256),
    ]
    peer.write(*(peer.message(name, payload, properties) for properties, payload in sent))
    peer.acked()
    other.subscribe(f"queue/{name}")
    for properties, payload in sent:
        message = other.deliver()
        assert (message.destination.decode(), message.properties, message.payload) == (
            f"queue/{name}", properties, payload
        )  # fmt: skip


def test_queue_prefix_and_bare_name_are_one_queue(peer, other, name):
    peer.publish(name, b"1")
    peer.publish(f"queue/{name}", b"2")
    other.subscribe(name)
    assert other.delivers(2) == [b"1", b"2"]


def test_without_acknowledgements_messages_are_kept_and_nothing_is_answered(served, other, name):
    with connected(served, "pub-sub;x-reply") as peer:
        peer.write(*(peer.message(name, b"%d" % at) for at in range(300)))
        peer.ping()
    other.subscribe(name)
    assert other.delivers(300) == [b"%d" % at for at in range(300)]


@pytest.mark.parametrize("numbers", [[1, 2, 3, 2, 1, 3, 4], [1, 1, 1, 2], [9, 10, 9, 11]])
def test_duplicates_are_acknowledged_again_and_stored_once(peer, other, name, numbers):
    seen = set()
    for number in numbers:
        peer.write(encode_message(number, name.encode(), b"%d" % number))
        seen.add(number)
        peer.acked(max(seen))
    assert other.info(name)["messages"] == len(seen)


@pytest.mark.parametrize("before", [65_530, 65_535])
def test_peers_that_count_on_to_zero_are_understood(peer, other, name, before):
    sequence = [(before + at) % 65_536 for at in range(12)]
    for number in sequence:
        peer.write(encode_message(number, name.encode(), b"%d" % number))
        peer.acked(number)
    other.subscribe(name)
    assert other.delivers(12) == [b"%d" % number for number in sequence]


def test_70000_messages_in_windows_of_1000_go_through_65535_on_both_ways(served, name):
    count, size = 70_000, 1000
    with connected(served, f"batch-ack:max-count={size};x-reply;pub-sub") as peer:
        peer.create(name, max_messages=0)
        for first in range(0, count, size):
            peer.write(*(peer.message(name, b"%d" % at) for at in range(first, first + size)))
            peer.acked()
        assert peer.sent == count - 65_535
    with connected(served, f"batch-ack:max-count={size};x-reply;pub-sub") as reader:
        reader.subscribe(name)
        for first in range(0, count, size):
            assert reader.delivers(size, ack=False) == [b"%d" % at for at in range(first, first + size)]
            reader.ack()
        assert reader.got == count - 65_535
        wait_until(lambda: reader.info(name)["in-flight"] == 0, "all of them are settled")


def test_a_publisher_that_does_not_wait_sends_on_while_acknowledgements_come(served, name):
    count, window = 20_000, 100
    with connected(served, f"batch-ack:max-count={window};x-reply") as peer:
        peer.create(name, max_messages=0)
        known = 0
        while known < count:
            if peer.sent < min(count, known + window):
                peer.write(*(peer.message(name) for _ in range(min(count, known + window) - peer.sent)))
            frame = peer.next()
            assert isinstance(frame, ExtensionFrame)
            number = ack_sequence(frame.payload)
            assert known < number <= peer.sent
            known = number
        assert peer.info(name)["messages"] == count


# ---- what is refused ----


@pytest.mark.parametrize(
    ("destination", "refusal"),
    [
        (b"", "NO_DESTINATION"),
        (b"topic/", "INVALID_NAME"),
        (b"queue/", "INVALID_NAME"),
        (b"a\nb", "INVALID_NAME"),
        (b"\xff\xfe", "INVALID_NAME"),
        (b"amq.x", "INVALID_NAME"),
        (b"topic/amq.x", "INVALID_NAME"),
    ],
)
def test_a_destination_that_cannot_be_is_refused_and_the_connection_goes_on(peer, name, destination, refusal):
    assert peer.refused(destination) == refusal
    peer.publish(name)


def test_names_may_be_utf8_and_255_bytes_long(peer, other, name):
    long = name + "x" * (255 - len(name))
    for destination in (f"заказы-{name}", long, f"topic/{name}-{'y' * 200}"):
        other.subscribe(destination)
        peer.publish(destination)
        assert other.deliver().destination.decode() == destination
    assert other.denied("subscribe", destination=f"topic/{'z' * 255}") == "INVALID_NAME"


def test_a_refused_message_is_never_acknowledged_by_its_own_number(peer, name):
    bad = peer.message("a\nb")
    peer.write(bad)
    assert code(peer.error()) == "INVALID_NAME"
    peer.ping()
    peer.publish(name)
    peer.ping()


def test_refusals_come_before_the_acknowledgement_that_covers_them(peer, name):
    peer.create(name)
    peer.write(peer.message(name), peer.message("a\nb"), peer.message(name))
    frames = []
    while not frames or not isinstance(frames[-1], ExtensionFrame) or ack_sequence(frames[-1].payload) != 3:
        frames.append(peer.next())
    assert [type(frame) for frame in frames].count(ErrorFrame) == 1
    assert 2 not in [ack_sequence(frame.payload) for frame in frames if isinstance(frame, ExtensionFrame)]


def test_the_wrong_prefix_is_refused_and_the_bare_name_is_whatever_is_there(peer, other, name):
    peer.create(f"topic/{name}-t")
    peer.create(f"queue/{name}-q")
    assert peer.refused(f"queue/{name}-t") == "WRONG_KIND"
    assert peer.refused(f"topic/{name}-q") == "WRONG_KIND"
    assert peer.denied("subscribe", destination=f"queue/{name}-t") == "WRONG_KIND"
    other.subscribe(f"{name}-t")
    peer.publish(f"{name}-t", b"t")
    assert other.delivers(1) == [b"t"]
    peer.publish(f"{name}-q", b"q")
    assert peer.info(f"{name}-q")["messages"] == 1


def test_without_auto_create_a_missing_queue_is_not_found(tmp_path):
    with (
        broker(tmp_path, "--set", "queues.auto_create=false", workers=1) as running,
        connected(running) as peer,
    ):
        assert peer.refused("missing") == peer.refused("topic/missing") == "QUEUE_NOT_FOUND"
        assert peer.denied("subscribe", destination="missing") == "QUEUE_NOT_FOUND"
        assert peer.ask("subscribe", queue="missing")["text"].endswith("'missing'")
        peer.create("made")
        peer.publish("made")


def test_an_empty_destination_is_the_default_queue_where_one_is_set(tmp_path):
    flags = ("--set", "micromsg2.default_queue=inbox")
    with broker(tmp_path, *flags, workers=1) as running, connected(running) as peer, connected(running) as other:
        peer.publish("", b"1")
        other.subscribe("inbox")
        assert other.delivers(1) == [b"1"]
        other.command("unsubscribe", destination="inbox")
        other.subscribe("")
        peer.publish("inbox", b"2")
        assert other.deliver().destination == b""


# ---- fragments ----


def test_fragments_are_one_message_whose_first_frame_says_what_it_is(peer, other, name):
    peer.create(name)
    peer.write(
        peer.message(name, b"first-", b"k:Tv;", continued=True),
        peer.message(name, b"second-", b"k:Tother;", continued=True),
        peer.message("", b"", continued=True),
        peer.message("", b"third"),
    )
    peer.acked(4)
    other.subscribe(name)
    message = other.deliver()
    assert (message.destination.decode(), message.properties) == (name, b"k:Tv;")
    assert message.payload == b"first-second-third"


def test_an_empty_message_may_come_in_fragments_and_an_unfinished_one_is_never_seen(served, peer, other, name):
    peer.write(peer.message(name, b"", continued=True), peer.message("", b""))
    peer.acked(2)
    with connected(served) as leaving:
        leaving.write(leaving.message(name, b"half", continued=True))
        leaving.acked(1)
    peer.publish(name, b"after")
    other.subscribe(name)
    assert other.delivers(2) == [b"", b"after"]


def test_extension_frames_and_commands_may_come_between_fragments(served, other, name):
    with connected(served, "batch-ack;dotnet;x-reply;json") as peer:
        other.create(name)
        peer.write(
            peer.dotnet(TYPE_A),
            peer.message(name, b"a", continued=True),
            peer.dotnet(TYPE_B),
            encode_extension(4),
            encode_command("info", {"destination": name, "id": "between"}),
            peer.message("", b"b"),
            peer.message(name, b"c"),
        )
        frames = [peer.next()]
        while not isinstance(frames[-1], ExtensionFrame) or ack_sequence(frames[-1].payload) != 3:
            frames.append(peer.next())
        assert [dict(frame.pairs)["id"] for frame in frames if isinstance(frame, Command)] == ["between"]
    with connected(served, "batch-ack;dotnet;pub-sub;x-reply") as reader:
        reader.subscribe(name)
        types, payloads = [], []
        while len(payloads) < 2:
            frame = reader.next()
            if isinstance(frame, Message):
                payloads.append(frame.payload)
                reader.ack()
            elif isinstance(frame, ExtensionFrame):
                types.append(frame.payload)
        assert payloads == [b"ab", b"c"]
        assert types == [TYPE_A, TYPE_B], "a type between fragments is that of the next message"


@pytest.mark.parametrize("continued", [False, True])
def test_a_message_to_another_destination_between_fragments_is_an_error(peer, other, name, continued):
    other.create(name)
    peer.write(peer.message(name, b"a", continued=True), peer.message(f"{name}-2", b"x", continued=continued))
    assert code(peer.ended()) == "PROTOCOL_ERROR"
    assert other.info(name)["messages"] == 0


def test_with_a_window_of_one_fragments_are_acknowledged_one_by_one(served, other, name):
    data = random.Random(7).randbytes(3_000)
    with connected(served, "ack") as peer:
        for at in range(0, 3_000, 1_000):
            peer.publish(name, data[at : at + 1_000], continued=at < 2_000)
    other.subscribe(name)
    assert other.delivers(1) == [data]


def test_a_message_of_several_mib_comes_out_in_fragments_of_one(served, peer, name):
    data = random.Random(8).randbytes(3 * MIB + 5)
    peer.publish(name, data, b"k:Tv;")
    with connected(served, "batch-ack:max-count=10;pub-sub;x-reply") as reader:
        reader.subscribe(name)
        frames = [reader.deliver(ack=False) for _ in range(4)]
        assert [(frame.continued, len(frame.payload)) for frame in frames] == [(True, MIB)] * 3 + [(False, 5)]
        assert [(frame.destination.decode(), frame.properties) for frame in frames] == [(name, b"k:Tv;")] + [
            ("", b"")
        ] * 3
        assert b"".join(frame.payload for frame in frames) == data
        reader.ack(3)
        assert reader.info(name)["in-flight"] == 1, "the acknowledgement of the last fragment is that of the message"
        reader.ack(4)
        wait_until(lambda: reader.info(name) == {"messages": 0, "in-flight": 0, "consumers": 1}, "it is settled")


# ---- too large ----


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A broker for messages of a KiB at most."""
    folder = tmp_path_factory.mktemp("small") / "data"
    with broker(folder, "--set", "micromsg2.message_max_bytes=1024", workers=1) as running:
        yield running


def test_the_largest_message_is_taken_in_one_frame_and_in_fragments(small):
    with connected(small) as peer:
        peer.publish("q", b"x" * 1024)
        peer.publish("q", b"x" * 1023, continued=True)
        peer.publish("", b"y")
        peer.subscribe("q")
        assert peer.delivers(2) == [b"x" * 1024, b"x" * 1023 + b"y"]


@pytest.mark.parametrize("sizes", [[1025], [1 << 31], [1024, 1], [1, 1024], [1024, 0, 1, 1]])
def test_one_byte_more_closes_the_connection_and_nothing_of_it_is_kept(small, sizes):
    with connected(small) as peer, connected(small) as other:
        name = "q-" + "-".join(map(str, sizes))
        other.create(name)
        peer.write(peer.message(name, b"before"))
        peer.acked()
        if sizes == [1 << 31]:
            peer.write(b"\x08\0\2\1q\0\0" + sizes[0].to_bytes(4, "big"))  # told by the length alone
        else:
            last = len(sizes) - 1
            peer.write(*(peer.message(name, b"x" * size, continued=at < last) for at, size in enumerate(sizes)))
        assert code(peer.ended()) == "MESSAGE_TOO_LARGE"
        assert other.info(name)["messages"] == 1


# ---- what the sender agreed on ----


@pytest.mark.parametrize(
    ("serializer", "seen"),
    [
        ("json", b"content-type:Tapplication%2Fjson;"),
        ("xml", b"content-type:Tapplication%2Fxml;"),
        ("protobuf", b"content-type:Tapplication%2Fx-protobuf;"),
        ("", b""),
    ],
)
def test_the_serializer_is_the_content_type_and_told_to_who_uses_another(served, other, name, serializer, seen):
    with connected(served, ";".join(filter(None, [serializer, "batch-ack"]))) as peer:
        peer.publish(name, b"1", b"k:Tv;")
        peer.publish(name, b"2")
    with connected(served, ";".join(filter(None, [serializer, "batch-ack;pub-sub;x-reply"]))) as alike:
        alike.subscribe(name)
        assert [alike.deliver(ack=False).properties for _ in range(2)] == [b"k:Tv;", b""]
    other.subscribe(name)
    assert [other.deliver().properties for _ in range(2)] == [b"k:Tv;" + seen, seen]


def test_a_stream_that_is_no_queue_can_be_written_to(served, peer, name):
    with StreamsConnection.connect(served.host, served.port) as streams:
        streams.create(name)
        peer.publish(name, b"1")
        peer.publish(f"topic/{name}", b"2")
        assert sum(chunk.records for chunk in streams.read_chunks(name, 0)) == 2
        assert peer.denied("delete", destination=name) == "QUEUE_NOT_FOUND"


# ---- full queues ----


def test_drop_oldest_keeps_the_newest(peer, other, name):
    peer.create(name, max_messages=3, overflow="drop-oldest")
    for at in range(7):
        peer.publish(name, b"%d" % at)
    wait_until(lambda: other.info(name)["messages"] == 3, "the oldest are dropped")
    other.subscribe(name)
    assert other.delivers(3) == [b"4", b"5", b"6"]


def test_drop_newest_refuses_until_there_is_room(peer, other, name):
    peer.create(name, max_messages=2, overflow="drop-newest")
    peer.publish(name, b"0")
    peer.publish(name, b"1")
    for _ in range(3):
        assert peer.refused(name) == "QUEUE_FULL"
    other.subscribe(name)
    assert other.delivers(2) == [b"0", b"1"]
    other.ping()
    peer.publish(name, b"2")
    assert other.delivers(1) == [b"2"]


def test_block_publisher_acknowledges_when_there_is_room(peer, other, name):
    peer.create(name, max_messages=2, overflow="block-publisher")
    peer.write(*(peer.message(name, b"%d" % at) for at in range(6)))
    peer.acked(2)
    other.subscribe(name, prefetch=1)
    assert other.delivers(6) == [b"%d" % at for at in range(6)]
    peer.acked(6)


def test_a_blocked_publisher_is_told_when_nobody_makes_room(peer, name):
    peer.create(name, max_messages=1, overflow="block-publisher")
    peer.publish(name)
    assert peer.refused(name) == "QUEUE_FULL"
    peer.ping()


def test_redirect_to_dlq_puts_what_is_too_much_there(peer, other, name):
    peer.create(name, max_messages=3, overflow="redirect-to-dlq", dead_letter=1)
    peer.write(*(peer.message(name, b"%d" % at, b"k:Tv;") for at in range(6)))
    peer.acked(6)
    other.subscribe(f"{name}.dlq")
    letters = [other.deliver() for _ in range(3)]
    assert [letter.payload for letter in letters] == [b"3", b"4", b"5"]
    assert all(letter.properties.startswith(b"k:Tv;") for letter in letters)
    assert peer.info(name)["messages"] == 3


def test_redirecting_without_a_dead_letter_queue_is_refusing(peer, name):
    peer.create(name, max_messages=1, overflow="redirect-to-dlq")
    peer.publish(name)
    assert peer.refused(name) == "QUEUE_FULL"


# ---- a queue that goes ----


def test_publishing_goes_on_after_the_queue_was_deleted_by_somebody_else(peer, other, name):
    peer.publish(name)
    for _ in range(3):
        other.tell("delete", destination=name)
        peer.publish(name)
        assert other.info(name)["messages"] == 1


def test_what_was_parked_when_the_queue_was_deleted_is_refused(peer, other, name):
    peer.create(name, max_messages=1, overflow="block-publisher")
    peer.publish(name)
    peer.write(peer.message(name), peer.message(name))
    peer.ping()
    other.tell("delete", destination=name)
    assert [code(peer.error()) for _ in range(2)] == ["QUEUE_NOT_FOUND"] * 2
    peer.publish(name)
