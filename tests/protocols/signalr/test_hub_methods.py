# SPDX-License-Identifier: Apache-2.0
"""Each method of the hub, in both encodings and dialects: what it returns, and with which code it refuses."""

from collections.abc import Iterator

import pytest
from peers.signalr import HubPeer, bodies, delivery_of, fresh
from running import Running

from vibemq.protocols.signalr.spec import Dialect, Encoding, MessageType

KINDS = [(encoding, dialect) for encoding in Encoding for dialect in (Dialect.V1, Dialect.EARLY, Dialect.ALPHA2)]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0].name}-{kind[1].name}".lower())
def hub(served: Running, request: pytest.FixtureRequest) -> Iterator[HubPeer]:
    encoding, dialect = request.param
    target = "/hub?dialect=alpha2" if dialect == Dialect.ALPHA2 else "/hub"
    with HubPeer(served, encoding=encoding, dialect=dialect, target=target) as peer:
        yield peer


def code_of(error: str) -> str:
    """The code of a HubException, which stands before the last text."""
    return error.rpartition("HubException: ")[2].partition(":")[0]


@pytest.mark.parametrize("kind", ["queue", "topic", "stream"])
def test_a_queue_can_be_made_looked_at_listed_and_deleted(hub: HubPeer, kind: str) -> None:
    name = fresh(kind)
    made = hub.ask("CreateQueue", name, {"type": kind})
    assert (made["name"], made["type"], made["messages"]) == (name, kind, 0)
    assert hub.ask("CreateQueue", name, {"type": kind})["name"] == name
    assert hub.ask("QueueInfo", name)["type"] == kind
    assert [info["name"] for info in hub.ask("ListQueues", name)] == [name]
    assert hub.ask("DeleteQueue", name) is True
    assert hub.ask("DeleteQueue", name) is False
    assert code_of(hub.refusal("QueueInfo", name)) == "QUEUE_NOT_FOUND"


def test_other_options_for_a_queue_that_exists_are_refused(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("CreateQueue", name, {"maxLength": 5, "deadLetter": True, "overflow": "redirectToDlq"})
    hub.ask("CreateQueue", name, {"maxLength": 5})
    for options in ({"maxLength": 6}, {"type": "topic"}, {"type": "stream"}, {"messageTtlMs": 1}):
        assert code_of(hub.refusal("CreateQueue", name, options)) == "PRECONDITION_FAILED"
    info = hub.ask("QueueInfo", name)
    assert (info["maxLength"], info["deadLetter"], info["overflow"]) == (5, f"{name}.dlq", "redirectToDlq")


@pytest.mark.parametrize(
    "options",
    [{"maxLength": -1}, {"type": "pile"}, {"nope": 1}, {"durable": False}, {"type": "stream", "maxLength": 1}],
)
def test_options_that_cannot_be_are_refused(hub: HubPeer, options: dict[str, object]) -> None:
    assert code_of(hub.refusal("CreateQueue", fresh(), options)) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("name", ["", "x" * 256, "amq.x", "a\nb"])
def test_names_that_no_queue_can_have_are_refused(hub: HubPeer, name: str) -> None:
    assert code_of(hub.refusal("CreateQueue", name)) == "INVALID_NAME"


def test_a_deletion_may_be_only_of_an_empty_or_unused_queue(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("Publish", name, 1)
    assert code_of(hub.refusal("DeleteQueue", name, {"ifEmpty": True})) == "PRECONDITION_FAILED"
    assert hub.ask("PurgeQueue", name) == 1
    assert hub.ask("DeleteQueue", name, {"ifUnused": True}) is True


def test_lists_are_paged_by_name(hub: HubPeer) -> None:
    stem = fresh("page")
    for letter in "abc":
        hub.ask("CreateQueue", f"{stem}-{letter}")
    first = hub.ask("ListQueues", f"{stem}-*", {"limit": 2})
    assert [info["name"] for info in first] == [f"{stem}-a", f"{stem}-b"]
    rest = hub.ask("ListQueues", f"{stem}-*", {"limit": 2, "after": first[-1]["name"]})
    assert [info["name"] for info in rest] == [f"{stem}-c"]


def test_messages_are_published_and_received(hub: HubPeer) -> None:
    name = fresh()
    assert hub.ask("Publish", name, {"n": 1}) == {"id": "0", "offset": 0}
    assert hub.ask("Publish", name, "two", {"messageId": "my", "headers": {"h": "v"}}) == {"id": "my", "offset": 1}
    assert hub.ask("PublishBatch", name, [3, {"body": 4, "headers": {"h": "w"}}]) == {
        "count": 2,
        "firstOffset": 2,
        "lastOffset": 3,
    }
    found = hub.ask("Receive", name, {"max": 10, "waitMs": 10_000})
    while len(found) < 4:
        found += hub.ask("Receive", name, {"max": 10, "waitMs": 10_000})
    assert bodies(found) == [{"n": 1}, "two", 3, 4]
    assert [one.get("headers") for one in found] == [None, {"h": "v"}, None, {"h": "w"}]
    assert hub.ask("Receive", name) == []


def test_calls_without_an_answer_do_what_others_do(hub: HubPeer) -> None:
    name = fresh()
    hub.notify("CreateQueue", name)
    hub.notify("Publish", name, "first")
    hub.notify("PublishBatch", name, ["second"])
    hub.notify("Publish", name)  # wrong, and nobody hears of it
    assert hub.ask("QueueInfo", name)["messages"] == 2


def test_pulled_messages_are_held_until_they_are_acknowledged(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("PublishBatch", name, [1, 2, 3])
    found: list[dict[str, object]] = []
    while len(found) < 3:
        found += hub.ask("Receive", name, {"max": 3, "waitMs": 10_000, "ack": "manual"})
    assert hub.ask("QueueInfo", name)["unacked"] == 3
    assert hub.ask("Ack", found[0]["tag"]) == 1
    assert hub.ask("Nack", [found[1]["tag"]], {"requeue": True}) == 1
    assert hub.ask("Ack", [found[2]["tag"], found[2]["tag"], 12345]) == 1
    again = hub.ask("Receive", name, {"waitMs": 10_000, "ack": "manual"})
    assert [(one["body"], one["redelivered"]) for one in again] == [(2, True)]
    assert hub.ask("Ack", [again[0]["tag"]], {"multiple": True}) == 1
    assert hub.ask("QueueInfo", name)["unacked"] == 0


def test_a_waiting_receive_gets_what_comes_later(hub: HubPeer, served: Running) -> None:
    name = fresh()
    hub.ask("CreateQueue", name)
    id = hub.begin("Receive", name, {"waitMs": 30_000})
    with HubPeer(served) as other:
        other.ask("Publish", name, "late")
    assert bodies(hub.answer(id).payload) == ["late"]  # type: ignore[arg-type]


def test_a_subscription_streams_and_ends_when_it_is_left(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("PublishBatch", name, [1, 2])
    id = hub.stream("Subscribe", name, {"ack": "manual", "prefetch": 1})
    (first,) = hub.items(id, 1)
    hub.notify("Ack", first["tag"])
    (second,) = hub.items(id, 1)
    assert bodies([first, second]) == [1, 2]
    if hub.dialect == Dialect.V1:
        hub.send(MessageType.CANCEL_INVOCATION, id=id)
        assert hub.stream_end(id).error is None
    else:
        left = hub.begin("Unsubscribe", name)
        assert hub.stream_end(id).error is None
        assert hub.answer(left).payload is True
    assert hub.ask("QueueInfo", name) | {"consumers": 0, "unacked": 0, "messages": 1} == hub.ask("QueueInfo", name)


def test_a_stream_is_read_from_where_one_likes(hub: HubPeer) -> None:
    name = fresh("stream")
    hub.ask("CreateQueue", name, {"type": "stream"})
    for number in range(4):
        assert hub.ask("Publish", name, number)["offset"] == number
    id = hub.stream("ReadStream", name, {"from": 1, "max": 2})
    assert bodies(hub.items(id, 2)) == [1, 2]
    assert hub.stream_end(id).error is None
    id = hub.stream("ReadStream", name, {"from": "first", "follow": False})
    assert bodies(hub.items(id, 4)) == [0, 1, 2, 3]
    assert hub.stream_end(id).error is None
    id = hub.stream("Subscribe", name, {"from": "last"})
    assert bodies(hub.items(id, 1)) == [3]
    hub.notify("Publish", name, 4)
    assert bodies(hub.items(id, 1)) == [4]


def test_a_pushing_subscription_calls_a_method_of_the_client(hub: HubPeer) -> None:
    name = fresh()
    made = hub.ask("SubscribePush", name, {"method": "Take"})
    hub.notify("Publish", name, "x")
    call = hub.next()
    assert (call.type, call.target, call.arguments[0]) == (MessageType.INVOCATION, "Take", name)
    assert delivery_of(call)["body"] == "x"
    assert (call.id is None) if hub.dialect == Dialect.V1 else call.nonblocking
    assert hub.ask("Unsubscribe", made["subscriptionId"]) is True
    assert hub.ask("Unsubscribe", made["subscriptionId"]) is False


def test_what_is_deleted_ends_its_subscriptions(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("CreateQueue", name)
    id = hub.stream("Subscribe", name)
    deleted = hub.begin("DeleteQueue", name)
    ends = {message.id: message for message in (hub.next(), hub.next())}
    assert ends[deleted].payload is True
    assert "QUEUE_NOT_FOUND" in str(ends[id].error)


def test_changes_of_queues_are_streamed(hub: HubPeer) -> None:
    name = fresh("watched")
    hub.ask("CreateQueue", name)
    id = hub.stream("StreamQueues", 100)
    while hub.items(id, 1)[0]["name"] != name:
        pass
    hub.notify("Publish", name, 1)
    while (info := hub.items(id, 1)[0])["name"] != name or info["messages"] != 1:
        pass
    hub.notify("DeleteQueue", name)
    while (info := hub.items(id, 1)[0])["name"] != name or "deleted" not in info:
        pass


def test_a_full_queue_refuses_with_a_code(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("CreateQueue", name, {"maxLength": 1, "overflow": "dropNewest"})
    hub.ask("Publish", name, 1)
    error = hub.refusal("Publish", name, 2)
    assert code_of(error) == "QUEUE_FULL"
    assert error.startswith(
        "QUEUE_FULL" if hub.dialect != Dialect.V1 else "An unexpected error occurred invoking 'Publish'"
    )


def test_answers_come_in_the_order_of_the_calls(hub: HubPeer) -> None:
    name = fresh()
    ids = [hub.begin("CreateQueue", name), hub.begin("Publish", name, 1), hub.begin("QueueInfo", name)]
    ids += [hub.begin("PurgeQueue", name), hub.begin("DeleteQueue", name), hub.begin("ServerInfo")]
    assert [hub.next().id for _ in ids] == ids
