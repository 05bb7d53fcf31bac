# SPDX-License-Identifier: Apache-2.0
"""Messages and calls of a hub connection where limits and endings meet them in the middle."""

from collections.abc import Iterator

import pytest
from peers.http import MESSAGE_BYTES_MAX
from peers.signalr import HubPeer, fresh
from running import Running

from vibemq.protocols.signalr.spec import Dialect, Encoding, MessageType

ITEM, COMPLETION = MessageType.STREAM_ITEM, MessageType.COMPLETION


@pytest.fixture(params=list(Encoding), ids=lambda encoding: encoding.name.lower())
def hub(served: Running, request: pytest.FixtureRequest) -> Iterator[HubPeer]:
    with HubPeer(served, encoding=request.param) as peer:
        yield peer


def test_a_message_that_makes_those_before_it_be_confirmed_stays_as_it_is(hub: HubPeer) -> None:
    """With the queue full, they are persisted and confirmed while this one is on its way into the next batch."""
    name = fresh()
    hub.ask("CreateQueue", name, {"maxLength": 2})
    items = hub.stream("Subscribe", name)
    texts = [f"message {number}" for number in range(20)]
    records = [hub.call_record("Publish", name, text, id=f"p{at}") for at, text in enumerate(texts)]
    hub.raw(b"".join(records))
    delivered: list[object] = []
    kept = refused = 0
    while kept + refused < len(texts) or len(delivered) < kept:
        message = hub.next()
        if message.type == ITEM:
            assert message.id == items
            delivered.append(message.payload["body"])
        else:
            kept += message.error is None
            refused += message.error is not None
    assert [body for body in delivered if body not in texts] == []
    assert kept > 2


def test_a_record_in_very_many_pieces_is_read(served: Running) -> None:
    name, text = fresh(), "x" * (MESSAGE_BYTES_MAX // 2)
    with HubPeer(served, encoding=Encoding.MESSAGEPACK) as hub:
        record = hub.call_record("Publish", name, text, id="1") + hub.call_record("ServerInfo", id="2")
        for at in range(0, len(record), 7):
            hub.raw(record[at : at + 7])
        assert hub.answer("1").error is None
        assert hub.answer("2").error is None
        assert hub.ask("Receive", name)[0]["body"] == text


def test_items_behind_a_refused_one_count_only_once(hub: HubPeer) -> None:
    """Each upload is refused at its first item while others wait: what waits is counted down to nothing, not below."""
    name = fresh()
    for number in range(3):
        id, stream = f"u{number}", f"s{number}"
        upload = hub.record(MessageType.INVOCATION, id=id, target="PublishStream", arguments=[], stream_ids=[stream])
        items = [hub.record(ITEM, id=stream, payload={"queue": name}) for _ in range(5)]
        hub.raw(hub.call_record("CreateQueue", name, id=f"c{number}") + upload + b"".join(items))
        assert hub.answer(f"c{number}").error is None
        assert "INVALID_ARGUMENT" in str(hub.answer(id).error)
    assert hub.ask("QueueInfo", name)["messages"] == 0


def test_a_pull_brings_no_more_than_one_record_holds(hub: HubPeer) -> None:
    name = fresh()
    texts = [str(number) + "x" * (MESSAGE_BYTES_MAX // 3) for number in range(7)]
    for text in texts:
        hub.ask("Publish", name, text)
    found: list[object] = []
    while len(found) < len(texts):
        pulled = hub.ask("Receive", name, {"max": 7, "waitMs": 20_000})
        assert 1 <= len(pulled) <= 2
        found += [delivery["body"] for delivery in pulled]
    assert found == texts


def test_a_pull_that_nobody_waits_for_takes_nothing(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("Publish", name, 1)
    hub.notify("Receive", name)
    assert hub.ask("QueueInfo", name)["messages"] == 1
    assert hub.ask("Receive", name)[0]["body"] == 1


def test_a_stream_that_nobody_receives_ends_at_once(served: Running) -> None:
    name = fresh()
    with HubPeer(served, dialect=Dialect.EARLY) as hub:
        hub.ask("CreateQueue", name)
        for method in ("Subscribe", "ReadStream"):
            hub.notify(method, name)
        hub.notify("StreamQueues")
        assert hub.ask("QueueInfo", name)["consumers"] == 0


def test_a_connection_has_a_bounded_number_of_dashboards(hub: HubPeer) -> None:
    streams = [hub.stream("StreamQueues", 3_600_000) for _ in range(17)]
    while True:
        message = hub.next()
        if message.type == COMPLETION:
            break
    assert message.id == streams[-1], message
    assert "LIMIT_EXCEEDED" in str(message.error)


def test_the_method_of_a_pushing_subscription_leaves_room_for_messages(hub: HubPeer) -> None:
    assert "INVALID_ARGUMENT" in hub.refusal("SubscribePush", fresh(), {"method": "M" * 256})


def test_messages_with_options_are_found_by_what_follows_them(hub: HubPeer) -> None:
    """They share a batch, which is in the log before another method looks."""
    name = fresh()
    hub.ask("CreateQueue", name)
    records = [hub.call_record("Publish", name, at, {"key": "k"}, id=f"p{at}") for at in range(10)]
    hub.raw(b"".join(records) + hub.call_record("QueueInfo", name, id="info"))
    assert [hub.answer(f"p{at}").payload["offset"] for at in range(10)] == list(range(10))
    assert hub.answer("info").payload["messages"] == 10


def test_more_calls_than_a_turn_has_time_for_are_answered_in_order(hub: HubPeer) -> None:
    count = 150
    hub.raw(b"".join(hub.call_record("ServerInfo" if at % 2 else "ListQueues", id=f"c{at}") for at in range(count)))
    found = [hub.next() for _ in range(count)]
    assert [message.id for message in found] == [f"c{at}" for at in range(count)]
    assert all(message.error is None for message in found)


def test_a_stream_does_not_become_a_queue_by_the_way(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("CreateQueue", name, {"type": "stream"})
    hub.ask("Publish", name, "kept")
    assert "NOT_SUPPORTED" in hub.refusal("Receive", name)
    assert "PRECONDITION_FAILED" in hub.refusal("CreateQueue", name, {"type": "queue"})
    info = hub.ask("QueueInfo", name)
    assert (info["type"], info["messages"]) == ("stream", 1)
