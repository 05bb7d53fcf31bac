# SPDX-License-Identifier: Apache-2.0
"""Messages through the hub: published, confirmed, delivered, acknowledged, read from a place, seen by other doors."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from peers.signalr_data import DEADLINE_S, DataPeer, Refused
from running import Running, broker

import vibemq.client
from vibemq.protocols.signalr.spec import GIVEN_ID_BYTES_MAX, ID_BYTES_MAX, Dialect, Encoding, MessageType

names = itertools.count()
HEADERS = {"text": "é", "minus": -7, "yes": True, "half": 0.5}
Connect = Callable[..., DataPeer]


@pytest.fixture(scope="module", params=["os", "disk"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    flags = ("--set", "queues.block_timeout_ms=400", "--set", f"store.durability={request.param}")
    with broker(tmp_path_factory.mktemp("hub") / "data", *flags) as running:
        yield running


@pytest.fixture
def connect(served: Running) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:
        yield lambda *how: stack.enter_context(DataPeer(served, *how))


@pytest.fixture(params=Encoding, ids=lambda encoding: encoding.name.lower())
def hub(request: pytest.FixtureRequest, connect: Connect) -> DataPeer:
    return connect(request.param)


@pytest.fixture
def name() -> str:
    return f"hub-{next(names)}"


def bodies(deliveries: list[dict[str, Any]]) -> list[Any]:
    return [delivery["body"] for delivery in deliveries]


def wait_for_unacked(hub: DataPeer, name: str, count: int) -> None:
    """The home counts at the end of a turn, and may be another worker."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := hub.ask("QueueInfo", name)["unacked"]) != count:
        assert time.monotonic() < deadline, found


# ---- publishing ----


def test_a_message_is_confirmed_with_its_id_and_offset(hub: DataPeer, name: str) -> None:
    assert hub.ask("Publish", name, 1) == {"id": "0", "offset": 0}
    assert hub.ask("Publish", name, 2, {"messageId": "mine"}) == {"id": "mine", "offset": 1}


def test_the_longest_ids_are_answered_whole(hub: DataPeer, name: str) -> None:
    """In JSON each of their bytes becomes six."""
    id = "\x01" * GIVEN_ID_BYTES_MAX
    call = hub.call("Publish", name, 1, {"messageId": id})._replace(id="\x02" * ID_BYTES_MAX)
    hub.send(call)
    assert hub.answer(call.id) == {"id": id, "offset": 0}


def test_many_messages_of_one_read_have_offsets_in_their_order(hub: DataPeer, name: str) -> None:
    hub.ask("Publish", name, "first")
    calls = [hub.call("Publish", name, number) for number in range(300)]
    hub.send(*calls)
    assert [hub.answer(call.id)["offset"] for call in calls] == list(range(1, 301))


def test_two_publishers_of_one_turn_have_the_offsets_that_their_messages_got(connect: Connect, name: str) -> None:
    one, other = connect(), connect(Encoding.MESSAGEPACK)
    one.ask("CreateQueue", name)
    calls = [
        (peer, peer.call("Publish", name, [index, number]))
        for number in range(100)
        for index, peer in enumerate((one, other))
    ]
    for peer, call in calls:
        peer.send(call)
    found = {peer.answer(call.id)["offset"]: call.arguments[1] for peer, call in calls}
    id = one.stream("ReadStream", name, {"from": "first", "max": 200})
    assert {item["offset"]: item["body"] for item in one.rest(id)} == found


def test_a_batch_has_one_answer_and_its_messages_lie_together(hub: DataPeer, name: str) -> None:
    hub.ask("Publish", name, 0)
    answer = hub.ask("PublishBatch", name, [1, {"body": 2, "headers": HEADERS}, [3]])
    assert answer == {"count": 3, "firstOffset": 1, "lastOffset": 3}
    found = hub.rest(hub.stream("ReadStream", name, {"from": 0, "max": 4}))
    assert bodies(found) == [0, 1, 2, [3]] and found[2]["headers"] == HEADERS
    assert bodies(hub.items(hub.stream("Subscribe", name), 4)) == [0, 1, 2, [3]]


def test_one_bad_message_keeps_a_batch_out(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name)
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        hub.ask("PublishBatch", name, [1, {"body": 2, "priority": -1}])
    assert hub.ask("Publish", name, 3)["offset"] == 0


def test_an_upload_is_answered_once_with_its_last_offset(hub: DataPeer, name: str) -> None:
    call = hub.call("PublishStream", name, stream_ids=["u"])
    items = [hub.call("")._replace(type=MessageType.STREAM_ITEM, id="u", target=None, payload=n) for n in range(50)]
    hub.send(call, *items, hub.call("")._replace(type=MessageType.COMPLETION, id="u", target=None))
    assert hub.answer(call.id) == {"count": 50, "lastOffset": 49}


@pytest.mark.parametrize(
    ("options", "code"),
    [({"ttlMs": 5}, "NOT_SUPPORTED"), ({"encoding": "x"}, "INVALID_ARGUMENT"), ({"unknown": 1}, "INVALID_ARGUMENT")],
)
def test_a_refused_message_says_why_and_costs_only_itself(hub: DataPeer, name: str, options: Any, code: str) -> None:
    with pytest.raises(
        Refused, match=f"An unexpected error occurred invoking 'Publish' on the server. HubException: {code}"
    ):
        hub.ask("Publish", name, 1, options)
    assert hub.ask("Publish", name, 2)["offset"] == 0


# ---- full queues ----


def test_a_full_queue_that_rejects_says_so(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name, {"maxLength": 2, "overflow": "dropNewest"})
    hub.ask("PublishBatch", name, [1, 2])
    with pytest.raises(Refused, match="QUEUE_FULL: The queue holds its maximum of 2 messages"):
        hub.ask("Publish", name, 3)


def test_a_full_queue_that_blocks_confirms_when_there_is_room_or_says_that_there_was_none(
    hub: DataPeer, name: str
) -> None:
    hub.ask("CreateQueue", name, {"maxLength": 1, "overflow": "blockPublisher"})
    hub.ask("Publish", name, 1)
    with pytest.raises(Refused, match="QUEUE_FULL: The queue stayed full"):
        hub.ask("Publish", name, 2)
    late = hub.call("Publish", name, 3)
    hub.send(late)
    found = hub.item(hub.stream("Subscribe", name))
    assert found["body"] == 1
    assert hub.answer(late.id)["offset"] == 1


def test_a_full_queue_redirects_to_its_dead_letters(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name, {"maxLength": 1, "overflow": "redirectToDlq", "deadLetter": True})
    hub.ask("Publish", name, 1)
    assert hub.ask("Publish", name, 2, {"messageId": "m"}) == {"id": "m"}
    found = hub.item(hub.stream("Subscribe", name + ".dlq"))
    assert (found["body"], found["id"], found["headers"]["x-failure-reason"]) == (2, "m", "QueueFull")


# ---- subscribing ----


def test_tags_name_deliveries_and_only_once(hub: DataPeer, name: str) -> None:
    hub.ask("PublishBatch", name, list(range(5)))
    found = hub.items(hub.stream("Subscribe", name, {"ack": "manual"}), 5)
    tags = [item["tag"] for item in found]
    assert len(set(tags)) == 5 and all(0 < tag < 2**53 for tag in tags)
    assert hub.ask("Ack", tags[1]) == 1 and hub.ask("Ack", tags[1]) == 0
    assert hub.ask("Ack", [tags[0], tags[1], 2**52, 0]) == 1
    assert hub.ask("Ack", tags[3], {"multiple": True}) == 2
    wait_for_unacked(hub, name, 1)


def test_a_topic_collects_messages_for_a_named_subscriber_that_is_away(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name, {"type": "topic"})
    options = {"ack": "manual", "subscriber": "audit", "subscriberTtlSeconds": 600}
    hub.ask("Publish", name, "before")
    id = hub.stream("Subscribe", name, options)
    assert hub.item(id)["body"] == "before"
    hub.cancel(id)
    hub.answer(id)
    hub.ask("Publish", name, "meanwhile")
    assert bodies(hub.items(hub.stream("Subscribe", name, options), 2)) == ["before", "meanwhile"]


def test_what_was_not_acknowledged_comes_again_marked(connect: Connect, name: str) -> None:
    one, other = connect(), connect(Encoding.MESSAGEPACK)
    one.ask("Publish", name, "x")
    id = one.stream("Subscribe", name, {"ack": "manual"})
    assert one.item(id)["redelivered"] is False
    one.cancel(id)
    one.answer(id)
    assert other.item(other.stream("Subscribe", name, {"ack": "manual"}))["redelivered"] is True


def test_a_nack_gives_back_or_buries(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name, {"deadLetter": True})
    hub.ask("Publish", name, "x")
    id = hub.stream("Subscribe", name, {"ack": "manual"})
    assert hub.ask("Nack", hub.item(id)["tag"]) == 1
    again = hub.item(id)
    assert again["redelivered"] and hub.ask("Nack", again["tag"], {"requeue": False}) == 1
    letter = hub.item(hub.stream("Subscribe", name + ".dlq"))
    assert letter["body"] == "x" and letter["headers"]["x-failure-reason"] == "MaxRetriesExceeded"


def test_a_dead_letter_is_the_message_that_it_was(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name, {"deadLetter": True, "maxAttempts": 1})
    options = {
        "contentType": "text/plain",
        "key": "k",
        "headers": {"count": 7, "good": True, "half": 0.5, "of": "text"},
    }
    hub.ask("Publish", name, "5", options)
    buried = hub.ask("Receive", name, {"ack": "manual", "waitMs": 10_000})[0]
    hub.ask("Nack", buried["tag"])
    (letter,) = hub.ask("Receive", f"{name}.dlq", {"waitMs": 10_000})
    for member in ("id", "body", "key", "contentType"):
        assert letter[member] == buried[member], member
    assert letter["body"] == "5", "and no number"
    assert {header: letter["headers"][header] for header in options["headers"]} == options["headers"]


def test_without_acknowledgements_a_message_is_gone_when_it_was_sent(connect: Connect, name: str) -> None:
    hub, watcher = connect(), connect()
    hub.ask("PublishBatch", name, list(range(3000)))
    assert bodies(hub.items(hub.stream("Subscribe", name), 3000)) == list(range(3000))
    hub.ask("ServerInfo")  # whatever was written before has been sent
    wait_for_unacked(watcher, name, 0)
    assert watcher.ask("QueueInfo", name)["messages"] == 0


def test_a_subscription_may_call_a_method_and_be_answered(hub: DataPeer, name: str) -> None:
    hub.ask("PublishBatch", name, ["good", "bad"])
    hub.ask("SubscribePush", name, {"ack": "result", "method": "Take"})
    for body, answer in (("good", True), ("bad", False)):
        call = hub.next(lambda m: m.type == MessageType.INVOCATION)
        assert call.target == "Take" and call.arguments[0] == name and call.arguments[1]["body"] == body
        hub.send(call._replace(type=MessageType.COMPLETION, target=None, arguments=[], payload=answer))
    again = hub.next(lambda m: m.type == MessageType.INVOCATION)
    assert again.arguments[1]["body"] == "bad" and again.arguments[1]["redelivered"]
    hub.send(again._replace(type=MessageType.COMPLETION, target=None, arguments=[], payload=True))
    wait_for_unacked(hub, name, 0)


@pytest.mark.parametrize("encoding", Encoding)
def test_early_peers_publish_and_subscribe(connect: Connect, name: str, encoding: Encoding) -> None:
    hub = connect(encoding, Dialect.EARLY)
    assert hub.ask("Publish", name, {"a": 1}) == {"id": "0", "offset": 0}
    assert hub.item(hub.stream("Subscribe", name))["body"] == {"a": 1}
    hub.ask("SubscribePush", name + "-push")
    hub.ask("PublishBatch", name + "-push", [1, 2])
    calls = [hub.next(lambda m: m.type == MessageType.INVOCATION) for _ in range(2)]
    assert [call.arguments[1]["body"] for call in calls] == [1, 2]
    assert len({call.id for call in calls}) == 2 and all(call.nonblocking for call in calls)


def test_a_deleted_queue_ends_its_streams_with_an_error(connect: Connect, name: str) -> None:
    hub = connect()
    hub.ask("Publish", name, 1)
    following, subscribed = hub.stream("ReadStream", name), hub.stream("Subscribe", name, {"ack": "manual"})
    hub.item(following), hub.item(subscribed)
    hub.ask("DeleteQueue", name)
    for id in (following, subscribed):
        with pytest.raises(Refused, match="QUEUE_NOT_FOUND"):
            hub.rest(id)


# ---- reading ----


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("first", [0, 1, 2]),
        (None, [0, 1, 2]),
        (1, [1, 2]),
        ("last", [2]),
        ("next", []),
        (7, []),
        ({"timestamp": 0}, [0, 1, 2]),
        ("2001-01-01T00:00:00Z", [0, 1, 2]),
    ],
)
def test_a_log_is_read_from_a_place_and_nothing_is_taken_away(hub: DataPeer, name: str, place: Any, found: Any) -> None:
    for number in range(3):
        hub.ask("Publish", name, number)
    read = hub.rest(hub.stream("ReadStream", name, {"from": place, "follow": False}))
    assert bodies(read) == found and all(item["tag"] == 0 for item in read)
    assert hub.ask("QueueInfo", name)["messages"] == 3


def test_a_reader_follows_and_ends_at_its_maximum(hub: DataPeer, name: str) -> None:
    hub.ask("Publish", name, 0)
    id = hub.stream("ReadStream", name, {"from": "first", "max": 3})
    assert hub.item(id)["body"] == 0
    hub.ask("PublishBatch", name, [1, 2, 3])
    assert bodies(hub.rest(id)) == [1, 2]


def test_a_large_log_is_read_as_fast_as_the_peer_takes_it(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name, {"maxLength": 0})
    for _ in range(8):
        hub.ask("PublishBatch", name, ["x" * 1000] * 1000)
    found = hub.rest(hub.stream("ReadStream", name, {"from": "first", "max": 8000}))
    assert [item["offset"] for item in found] == list(range(8000))


# ---- other doors ----


def test_native_clients_see_what_was_published_here_and_the_other_way_round(
    served: Running, hub: DataPeer, name: str
) -> None:
    with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
        hub.ask("Publish", name, {"a": [1]}, {"messageId": "m-1", "headers": HEADERS})
        with client.consume(name) as consumer:
            got = next(consumer)
            assert got.payload == {"a": [1]} and got.id == "m-1"
            assert {key: got.headers[key] for key in HEADERS} == {
                "text": "é",
                "minus": "-7",
                "yes": "true",
                "half": "0.5",
            }
            got.ack()
        client.publish(name, {"b": 2}, headers={"k": "v"})
    found = hub.item(hub.stream("Subscribe", name))
    assert (found["body"], found["headers"]) == ({"b": 2}, {"k": "v"})


def test_streams_clients_see_what_was_published_here_and_the_other_way_round(
    served: Running, hub: DataPeer, name: str
) -> None:
    rstream = pytest.importorskip("rstream", reason="the client rstream is not installed")
    login = {"username": "guest", "password": "guest"}
    hub.ask("Publish", name, {"a": [1]}, {"messageId": "m-1", "headers": HEADERS, "key": "k"})
    hub.ask("PublishBatch", name, [1, 2])

    async def exchange() -> list[Any]:
        found, complete = [], asyncio.Event()

        def collect(message: Any, _: Any) -> None:
            found.append(message)
            if len(found) == 3:
                complete.set()

        async with asyncio.timeout(DEADLINE_S):
            consumer = rstream.Consumer(served.host, served.port, **login)
            await consumer.start()
            place = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
            await consumer.subscribe(name, collect, offset_specification=place, decoder=rstream.amqp_decoder)
            await complete.wait()
            await consumer.close()
            async with rstream.Producer(served.host, served.port, **login) as producer:
                message = rstream.AMQPMessage(body=b"\xff\x00", application_properties={"n": 7})
                await producer.send_wait(name, message)
        return found

    first, second, third = asyncio.run(exchange())
    assert (first.body, second.body, third.body) == (b'{"a":[1]}', b"1", b"2")
    texts = {
        key.decode() if isinstance(key, bytes) else key: value for key, value in first.application_properties.items()
    }
    assert texts["minus"] == -7 and texts["yes"] is True and texts["half"] == 0.5
    *_, last = hub.items(hub.stream("Subscribe", name), 4)
    assert last["headers"] == {"n": 7}
    assert last["body"] == (b"\xff\x00" if hub.encoding is Encoding.MESSAGEPACK else "/wA=")


def test_a_stream_that_is_no_queue_is_published_to_and_subscribed(hub: DataPeer, name: str) -> None:
    hub.ask("CreateQueue", name, {"type": "stream"})
    assert hub.ask("Publish", name, "a")["offset"] == 0
    assert hub.ask("PublishBatch", name, ["b", "c"]) == {"count": 2, "firstOffset": 1, "lastOffset": 2}
    id = hub.stream("Subscribe", name, {"from": "first"})
    assert bodies(hub.items(id, 3)) == ["a", "b", "c"]
    hub.cancel(id)
    assert hub.rest(id) == []
