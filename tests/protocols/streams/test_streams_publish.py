# SPDX-License-Identifier: Apache-2.0
"""Publishing: each id is answered exactly once, what is refused has its code, and deduplication forgets nothing."""

import gzip
import os
import signal

import pytest
from peers.streams import connected, publish_frame
from running import broker, wait_until

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.codec import SubBatch
from vibemq.protocols.streams.spec import Code, Key

REFERENCE_255 = "r" * 255


def plain(*messages, **changes):
    """A sub-batch without compression, or one that lies about itself."""
    body = b"".join(len(message).to_bytes(4, "big") + message for message in messages)
    fields = {"compression": 0, "records": len(messages), "uncompressed_size": len(body), "body": body, **changes}
    return SubBatch(**fields)


def read_all(running, stream):
    """The entries' bytes of all chunks of a stream, and how many records they are."""
    data, records = b"", 0
    with connected(running) as peer:
        last = peer.ask(Key.STREAM_STATS, stream=stream).statistics["committed_offset"]
        if last >= 0:
            peer.subscribe(stream, credit=1000)
            while records <= last:
                chunk = peer.chunk()
                data, records = data + chunk.data, records + chunk.records
    return data, records


def entry(message):
    return len(message).to_bytes(4, "big") + message


# ---- publishers ----


def test_a_publisher_needs_a_stream_that_exists(peer, name):
    assert peer.code(Key.DECLARE_PUBLISHER, publisher_id=0, reference="", stream=name) == Code.STREAM_DOES_NOT_EXIST


def test_a_publisher_id_and_a_reference_on_a_stream_are_taken_once(peer, stream):
    peer.declare(stream, 0, "one")
    again = {"publisher_id": 0, "reference": "two", "stream": stream}
    assert peer.code(Key.DECLARE_PUBLISHER, **again) == Code.PRECONDITION_FAILED
    same = {"publisher_id": 1, "reference": "one", "stream": stream}
    assert peer.code(Key.DECLARE_PUBLISHER, **same) == Code.PRECONDITION_FAILED
    peer.declare(stream, 2)
    peer.declare(stream, 3)  # without a reference as many as one likes
    assert peer.code(Key.DELETE_PUBLISHER, publisher_id=0) == Code.OK
    peer.declare(stream, 1, "one")


def test_a_reference_has_at_most_255_bytes(peer, stream):
    peer.declare(stream, 0, REFERENCE_255)
    long = {"publisher_id": 1, "reference": REFERENCE_255 + "!", "stream": stream}
    assert peer.code(Key.DECLARE_PUBLISHER, **long) == Code.PRECONDITION_FAILED


def test_a_connection_has_at_most_256_publishers(peer, stream):
    for publisher_id in range(256):
        peer.declare(stream, publisher_id)
    peer.publish([(1, b"the last one works")], 255)
    assert peer.confirmed(1, 255) == [1]


def test_an_unknown_publisher_cannot_be_deleted(peer):
    assert peer.code(Key.DELETE_PUBLISHER, publisher_id=9) == Code.PUBLISHER_DOES_NOT_EXIST


def test_publishing_without_a_publisher_gives_18_for_every_id_and_no_more(peer, stream):
    peer.publish([(7, b"a"), (2**64 - 1, b"b"), (7, b"c")], 4)
    refused = peer.expect(Key.PUBLISH_ERROR)
    assert refused.publisher_id == 4
    assert refused.errors == [(7, 18), (2**64 - 1, 18), (7, 18)]
    peer.declare(stream, 4)
    peer.publish([(1, b"now")], 4)
    assert peer.confirmed(1, 4) == [1]


def test_a_deleted_publisher_is_an_unknown_one(peer, stream, served):
    peer.declare(stream)
    peer.send(publish_frame([(1, b"kept")]), peer.command(Key.DELETE_PUBLISHER, publisher_id=0))
    peer.send(publish_frame([(2, b"refused")]))
    before, refused = peer.until(Key.PUBLISH_ERROR)
    assert refused.errors == [(2, 18)]
    assert {frame.key for frame in before} <= {Key.PUBLISH_CONFIRM, Key.DELETE_PUBLISHER | spec.RESPONSE_BIT}
    assert read_all(served, stream)[0] == entry(b"kept")


# ---- messages ----


def test_every_id_is_confirmed_once_whatever_its_order(peer, stream):
    ids = [5, 3, 3, 0, 2**64 - 1, 4]
    peer.declare(stream)
    peer.publish([(publishing_id, b"x") for publishing_id in ids])
    assert peer.confirmed(len(ids)) == ids


def test_an_empty_publish_is_nothing(peer, stream):
    peer.declare(stream)
    peer.publish([])
    peer.publish([(1, b"")])
    assert peer.confirmed(1) == [1]


def counted(count, *entries, tail=b""):
    """A Publish frame of publisher 0 with that count, whatever its entries are."""
    data = b"".join(number.to_bytes(8, "big") + entry(message) for number, message in enumerate(entries, 1)) + tail
    size = (9 + len(data)).to_bytes(4, "big")
    return size + bytes.fromhex("0002 0001 00") + count.to_bytes(4, "big") + data


@pytest.mark.parametrize("count", [0, 3, 5, 2**31 - 1, 2**32 - 1])
def test_the_entries_of_a_frame_are_taken_whatever_its_count(peer, stream, served, count):
    """The .NET client writes such a count when an application's filter function throws."""
    peer.send(counted(count, b"a", b"b"))
    assert peer.expect(Key.PUBLISH_ERROR).errors == [(1, 18), (2, 18)]
    peer.declare(stream)
    peer.send(counted(count, b"a", b"b", b"c", b"d"))
    assert peer.confirmed(4) == [1, 2, 3, 4]
    assert read_all(served, stream) == (b"".join(map(entry, (b"a", b"b", b"c", b"d"))), 4)


@pytest.mark.parametrize("tail", [b"!", bytes(8) + b"\0\0\0\2x"])
def test_whole_entries_are_taken_and_confirmed_before_the_close_for_what_follows_them(peer, stream, served, tail):
    peer.declare(stream)
    peer.send(counted(2, b"a", b"b", tail=tail))
    assert peer.confirmed(2) == [1, 2]
    assert peer.expect(Key.CLOSE).code == Code.UNKNOWN_FRAME
    assert read_all(served, stream) == (entry(b"a") + entry(b"b"), 2)


def test_bytes_come_back_as_they_went(peer, stream, served):
    messages = [b"", b"\0", bytes(range(256)) * 40, "żółw".encode(), b"x" * 100_000]
    peer.store(stream, messages)
    assert read_all(served, stream) == (b"".join(map(entry, messages)), 5)


def test_the_largest_message_that_fits_a_frame(peer, stream, served):
    message = os.urandom(1_048_576 - 9 - 12)
    peer.declare(stream)
    assert len(publish_frame([(1, message)])) == 4 + 1_048_576
    peer.publish([(1, message)])
    peer.confirmed(1)
    assert read_all(served, stream)[0] == entry(message)


def test_publish_2_stores_the_same_with_and_without_a_filter_value(peer, stream, served):
    rows = [(1, None, b"a"), (2, "", b"b"), (3, "region", b"c")]
    peer.declare(stream)
    peer.send(codec.encode_request(Key.PUBLISH, version=2, publisher_id=0, messages=rows))
    assert peer.confirmed(3) == [1, 2, 3]
    assert read_all(served, stream)[0] == entry(b"a") + entry(b"b") + entry(b"c")


def chunk_sizes(peer, stream, count):
    """The messages of each chunk, of `count` together."""
    peer.subscribe(stream, credit=1000)
    sizes = []
    while sum(sizes) < count:
        chunk = peer.chunk()
        assert chunk.entries == chunk.records
        sizes.append(chunk.records)
    return sizes


def test_the_chunks_of_a_burst_begin_with_32_messages_and_double_up_to_2048(peer, stream):
    peer.store(stream, [b"x"] * 7000)
    assert chunk_sizes(peer, stream, 7000) == [32, 64, 128, 256, 512, 1024, 2048, 2048, 888]


def test_one_frame_of_500_messages_is_more_than_one_credit_buys(peer, stream):
    """Consumers with a credit strategy of their own rely on it."""
    peer.store(stream, [b"x"] * 500)
    peer.subscribe(stream, credit=1)
    assert peer.chunk().records == 32
    peer.ask(Key.METADATA, streams=[])  # its answer comes after all that was to be delivered
    peer.credit(0, 1)
    assert peer.chunk().records == 64


@pytest.mark.parametrize(("most", "sizes"), [("1", [1] * 40), ("20", [20, 20]), ("33", [32, 8])])
def test_a_stream_says_how_many_messages_its_chunks_may_have(peer, name, most, sizes):
    stream = peer.create(name, **{"stream-max-chunk-messages": most})
    peer.store(stream, [b"x"] * 40)
    assert chunk_sizes(peer, stream, 40) == sizes


def test_the_messages_of_sub_batches_count_and_one_that_has_more_is_a_chunk(peer, name):
    stream = peer.create(name, **{"stream-max-chunk-messages": "30"})
    body = bytes.fromhex("0000000161")
    entries = [codec.SubBatch(0, records, 5 * records, body * records) for records in (20, 10, 5, 31, 1)]
    peer.store(stream, entries)
    peer.subscribe(stream, credit=10)
    assert [peer.chunk().records for _ in range(4)] == [30, 5, 31, 1]


def test_the_bytes_of_a_chunk_are_limited_too(peer, stream):
    peer.declare(stream)
    for publishing_id in range(1, 9):  # in one turn or in several: no chunk has more than two of them
        peer.publish([(publishing_id, b"x" * 400_000)])
    peer.confirmed(8)
    peer.subscribe(stream, credit=8)
    records = 0
    while records < 8:
        chunk = peer.chunk()
        assert len(chunk.data) <= 1 << 20
        records += chunk.records


def test_the_broker_has_a_default_for_the_messages_of_a_chunk(tmp_path):
    with (
        broker(tmp_path / "data", "--set", "store.chunk_messages_max=10") as running,
        connected(running) as peer,
    ):
        peer.create("ten")
        peer.store("ten", [b"x"] * 25)
        assert chunk_sizes(peer, "ten", 25) == [10, 10, 5]
        assert peer.code(Key.CREATE, stream="ten", arguments={"stream-max-chunk-messages": "10"}) == (
            Code.STREAM_ALREADY_EXISTS
        )
        assert peer.code(Key.CREATE, stream="ten", arguments={"stream-max-chunk-messages": "11"}) == (
            Code.PRECONDITION_FAILED
        )


# ---- sub-batches ----


def test_a_sub_batch_is_one_id_many_records_and_verbatim(peer, stream, served):
    batch = "0000002600020001010000000100000000000000078000020000000a0000000a00000001610000000162"
    peer.declare(stream, 1)
    peer.send(bytes.fromhex(batch))
    assert peer.confirmed(1, 1) == [7]
    peer.subscribe(stream, 2)
    deliver = peer.next_frame()
    assert len(deliver.body) == 70
    chunk = deliver.decoded().chunk
    assert (chunk.entries, chunk.records, chunk.chunk_id, chunk.epoch, chunk.crc) == (1, 2, 0, 1, 0x5DDB9D35)
    assert chunk.data == bytes.fromhex("8000020000000a0000000a00000001610000000162")
    packed = gzip.compress(b"\0\0\0\1c" * 300)
    for compression, body in ((1, packed), (2, b"opaque"), (3, b"opaque"), (4, b"opaque")):
        row = SubBatch(compression=compression, records=300, uncompressed_size=1500, body=body)
        peer.publish([(8, row)], 1)
        assert peer.confirmed(1, 1) == [8]
    data, records = read_all(served, stream)
    assert records == 2 + 4 * 300
    assert packed in data
    assert peer.ask(Key.STREAM_STATS, stream=stream).statistics["committed_offset"] == 2 + 4 * 300 - 1


BAD_BATCHES = {
    "larger than 64 MiB": plain(b"a", uncompressed_size=(64 << 20) + 1),
    "no message": plain(b"a", records=0),
    "more messages than bytes for them": plain(b"a", b"b", uncompressed_size=7),
    "reserved compression": plain(b"a", compression=5),
    "user-defined compression": plain(b"a", compression=7),
    "empty but compressed": SubBatch(compression=1, records=1, uncompressed_size=5, body=b""),
}


@pytest.mark.parametrize("bad", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_a_bad_sub_batch_refuses_itself_and_what_follows_in_its_frame(peer, stream, served, bad):
    peer.declare(stream)
    peer.publish([(1, b"first"), (2, plain(b"second")), (3, bad), (4, b"not"), (5, plain(b"neither"))])
    peer.publish([(6, b"next frame")])
    refused, confirmed = [], []
    while len(refused) + len(confirmed) < 6:
        frame = peer.next_frame()
        if frame.key == Key.PUBLISH_ERROR:
            refused += frame.decoded().errors
        else:
            assert frame.key == Key.PUBLISH_CONFIRM
            confirmed += frame.decoded().publishing_ids
    assert refused == [(3, 17), (4, 17), (5, 17)]
    assert confirmed == [1, 2, 6]
    data, records = read_all(served, stream)
    assert records == 3
    assert b"first" in data and b"second" in data and data.endswith(b"next frame")
    assert b"not" not in data and b"neither" not in data


def test_a_sub_batch_can_have_a_chunk_of_its_own(tmp_path):
    rows = [b"a", b"b", plain(b"c", b"d"), b"e", plain(b"f"), plain(b"g"), b"h"]
    sizes = [(2, 2), (1, 2), (1, 1), (1, 1), (1, 1), (1, 1)]  # entries and records of each chunk
    option = ("--set", "streams.one_sub_batch_per_chunk=true")
    with broker(tmp_path / "data", *option) as running, connected(running) as peer:
        peer.create("s")
        peer.declare("s")
        peer.declare("s", 1, "with a reference")
        peer.publish(list(enumerate(rows)))
        assert peer.confirmed(7) == list(range(7))
        peer.publish(list(enumerate(rows)), 1)
        assert peer.confirmed(7, 1) == list(range(7))
        peer.subscribe("s", credit=100)
        chunks = []
        while sum(chunk.records for chunk in chunks) < 16:
            chunks.append(peer.chunk())
        assert [(chunk.entries, chunk.records) for chunk in chunks] == sizes * 2
        many = [(at, plain(b"x")) for at in range(1000)]
        peer.publish(many)
        assert peer.confirmed(1000) == list(range(1000))
        assert all(peer.chunk().entries == 1 for _ in range(100 - 2 * len(sizes)))


def test_kinds_share_a_chunk_otherwise(peer, stream):
    peer.declare(stream)
    peer.publish([(1, b"a"), (2, plain(b"b")), (3, plain(b"c")), (4, b"d")])
    peer.confirmed(4)
    peer.subscribe(stream)
    assert peer.chunk().entries == 4


# ---- deduplication ----


def sequence(peer, stream, reference):
    answer = peer.ask(Key.QUERY_PUBLISHER_SEQUENCE, reference=reference, stream=stream)
    assert answer.code == Code.OK
    return answer.sequence


def test_a_duplicate_is_confirmed_and_not_stored(peer, stream, served):
    peer.declare(stream, 0, "tank")
    peer.publish([(1, b"one"), (2, b"two"), (2, b"again in its frame"), (1, b"older")])
    assert peer.confirmed(4) == [1, 2, 2, 1]
    peer.publish([(2, b"again"), (10, b"a gap is fine"), (9, b"late")])
    assert peer.confirmed(3) == [10, 2, 9]
    assert read_all(served, stream)[0] == entry(b"one") + entry(b"two") + entry(b"a gap is fine")
    assert sequence(peer, stream, "tank") == 10


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_duplicates_are_confirmed_in_a_frame_of_their_own(peer, name, durability):
    peer.create(name, durability=durability)
    peer.declare(name, 0, "tank")
    peer.declare(name, 1)
    peer.publish([(0, b"a"), (0, b"b"), (1, b"c"), (1, b"d")], 0)
    confirms = [peer.expect(Key.PUBLISH_CONFIRM) for _ in range(2)]
    assert [list(confirm.publishing_ids) for confirm in confirms] == [[0, 1], [0, 1]]
    peer.publish([(7, b"e"), (7, b"f")], 1)
    assert list(peer.expect(Key.PUBLISH_CONFIRM).publishing_ids) == [7, 7], "without a name there are no duplicates"
    peer.publish([(1, b"g"), (0, b"h")], 0)
    assert list(peer.expect(Key.PUBLISH_CONFIRM).publishing_ids) == [1, 0], "nothing but duplicates"


def test_references_are_apart_and_none_means_no_deduplication(peer, stream, served):
    for publisher_id, reference in enumerate(("a", "b", "")):
        peer.declare(stream, publisher_id, reference)
        for _ in range(2):
            peer.publish([(1, b"x")], publisher_id)
            peer.confirmed(1, publisher_id)
    assert read_all(served, stream)[1] == 1 + 1 + 2
    assert sequence(peer, stream, "a") == sequence(peer, stream, "b") == 1
    assert sequence(peer, stream, "unheard of") == 0


def test_a_sub_batch_is_one_id_for_deduplication_too(peer, stream, served):
    peer.declare(stream, 0, "batches")
    for _ in range(2):
        peer.publish([(4, plain(b"a", b"b", b"c"))])
        assert peer.confirmed(1) == [4]
    assert read_all(served, stream)[1] == 3
    assert sequence(peer, stream, "batches") == 4


def test_the_sequence_of_a_stream_that_does_not_exist_is_0_with_code_2(peer, name):
    answer = peer.ask(Key.QUERY_PUBLISHER_SEQUENCE, reference="a", stream=name)
    assert (answer.code, answer.sequence) == (Code.STREAM_DOES_NOT_EXIST, 0)


def test_the_sequence_dies_with_the_stream(peer, stream):
    peer.declare(stream, 0, "tank")
    peer.publish([(5, b"x")])
    peer.confirmed(1)
    assert peer.code(Key.DELETE, stream=stream) == Code.OK
    peer.expect(Key.METADATA_UPDATE)
    peer.create(stream)
    assert sequence(peer, stream, "tank") == 0


def test_deduplication_survives_reconnects_killed_workers_and_restarts(tmp_path):
    with broker(tmp_path) as running:
        with connected(running) as peer:
            peer.create("s")
            peer.declare("s", 0, "tank")
            peer.publish([(1, b"one"), (2, b"two")])
            peer.confirmed(2)
        with connected(running) as peer:
            peer.declare("s", 7, "tank")
            peer.publish([(2, b"again"), (3, b"three")], 7)
            peer.confirmed(2, 7)
            old = set(running.worker_pids())
            for pid in old:
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(set(running.worker_pids()) - old) == 2, "two new workers")
        with connected(running) as peer:
            assert sequence(peer, "s", "tank") == 3
            peer.declare("s", 0, "tank")
            peer.publish([(3, b"again"), (4, b"four")])
            assert peer.confirmed(2) == [4, 3]
    with broker(tmp_path) as running:
        with connected(running) as peer:
            assert sequence(peer, "s", "tank") == 4
            peer.declare("s", 0, "tank")
            peer.publish([(4, b"again"), (5, b"five")])
            peer.confirmed(2)
        assert read_all(running, "s")[0] == b"".join(map(entry, (b"one", b"two", b"three", b"four", b"five")))
