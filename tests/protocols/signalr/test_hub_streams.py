# SPDX-License-Identifier: Apache-2.0
"""Uploads, cancels that race, results as acknowledgements, what a lost connection had, a peer that does not read."""

import socket
from collections.abc import Iterator

import pytest
from peers.http import HttpPeer
from peers.signalr import HubPeer, bodies, delivery_of, fresh
from running import Running, resident_bytes

from vibemq.protocols.signalr.spec import Dialect, Encoding, MessageType

UPLOAD, ITEM, COMPLETION, CANCEL = (
    MessageType.INVOCATION,
    MessageType.STREAM_ITEM,
    MessageType.COMPLETION,
    MessageType.CANCEL_INVOCATION,
)


@pytest.fixture(params=list(Encoding), ids=lambda encoding: encoding.name.lower())
def hub(served: Running, request: pytest.FixtureRequest) -> Iterator[HubPeer]:
    with HubPeer(served, encoding=request.param) as peer:
        yield peer


def upload(hub: HubPeer, id: str | None, stream: str, *arguments: object, streamed: bool = False) -> bytes:
    type = MessageType.STREAM_INVOCATION if streamed else MessageType.INVOCATION
    return hub.record(type, id=id, target="PublishStream", arguments=list(arguments), stream_ids=[stream])


def received(hub: HubPeer, name: str, count: int) -> list[object]:
    found: list[object] = []
    while len(found) < count:
        found += bodies(hub.ask("Receive", name, {"max": count, "waitMs": 20_000}))
    return found


# ---- uploads ----


def test_an_upload_in_one_read_with_its_call_is_published(hub: HubPeer) -> None:
    name = fresh()
    items = [hub.record(ITEM, id="s", payload=number) for number in range(3)]
    hub.raw(upload(hub, "1", "s", name) + b"".join(items) + hub.record(COMPLETION, id="s"))
    answer = hub.answer("1")
    assert (answer.error, answer.payload) == (None, {"count": 3, "lastOffset": 2})
    assert received(hub, name, 3) == [0, 1, 2]


def test_items_wait_for_their_method(hub: HubPeer) -> None:
    """CreateQueue is in a helper thread meanwhile."""
    name = fresh()
    records = [hub.call_record("CreateQueue", name, id="0"), upload(hub, "1", "s", name)]
    records += [hub.record(ITEM, id="s", payload=number) for number in range(100)]
    hub.raw(b"".join([*records, hub.record(COMPLETION, id="s")]))
    assert hub.next().id == "0"
    assert hub.next().payload == {"count": 100, "lastOffset": 99}


def test_an_upload_without_a_queue_names_it_in_each_item(hub: HubPeer) -> None:
    """All that Python clients can do: no other argument, no id."""
    one, other = fresh(), fresh()
    items: list[object] = [
        {"queue": one, "body": "a"},
        {"queue": other, "body": "b", "headers": {"h": "v"}},
        [{"queue": one, "body": "c"}, {"queue": one, "body": "d"}],
    ]
    hub.raw(upload(hub, None, "s") + b"".join(hub.record(ITEM, id="s", payload=item) for item in items))
    hub.raw(hub.record(COMPLETION, id="s"))
    assert received(hub, one, 3) == ["a", "c", "d"]
    assert received(hub, other, 1) == ["b"]


def test_an_empty_upload_is_complete(hub: HubPeer) -> None:
    hub.raw(upload(hub, "1", "s", fresh()) + hub.record(COMPLETION, id="s"))
    assert hub.answer("1").payload == {"count": 0}


def test_an_upload_as_a_stream_tells_of_its_progress(hub: HubPeer) -> None:
    hub.raw(upload(hub, "1", "s", fresh(), streamed=True) + hub.record(ITEM, id="s", payload="x"))
    assert hub.items("1", 1) == [{"accepted": 1, "lastOffset": 0}]
    hub.raw(hub.record(COMPLETION, id="s"))
    assert hub.items("1", 1) == [{"count": 1, "lastOffset": 0}]
    assert hub.stream_end("1").error is None


def test_an_upload_that_the_client_gives_up_fails_with_its_words(hub: HubPeer) -> None:
    hub.raw(upload(hub, "1", "s", fresh()) + hub.record(COMPLETION, id="s", error="Something bad"))
    assert hub.answer("1").error == (
        "An unexpected error occurred invoking 'PublishStream' on the server. HubException: Something bad"
    )


def test_the_first_item_that_is_refused_ends_an_upload(hub: HubPeer) -> None:
    hub.raw(upload(hub, "1", "s") + hub.record(ITEM, id="s", payload=7) + hub.record(ITEM, id="s", payload=8))
    assert "INVALID_ARGUMENT" in str(hub.answer("1").error)
    hub.raw(hub.record(ITEM, id="s", payload=9) + hub.record(COMPLETION, id="s"))
    assert hub.ask("ServerInfo")


def test_items_of_unknown_uploads_are_ignored(hub: HubPeer) -> None:
    hub.raw(hub.record(ITEM, id="nobody", payload=1) + hub.record(COMPLETION, id="nobody"))
    assert hub.ask("ServerInfo")


def test_a_method_without_uploads_refuses_one(hub: HubPeer) -> None:
    hub.raw(hub.record(UPLOAD, id="1", target="ServerInfo", arguments=[], stream_ids=["s"]))
    assert "InvalidDataException" in str(hub.answer("1").error)


# ---- cancels ----


def test_a_cancel_in_one_read_with_its_stream_ends_it(hub: HubPeer) -> None:
    name = fresh()
    subscribe = hub.record(MessageType.STREAM_INVOCATION, id="1", target="Subscribe", arguments=[name])
    hub.raw(subscribe + hub.record(CANCEL, id="1"))
    assert hub.stream_end("1").error is None
    assert hub.ask("ServerInfo")
    # and also when the stream waits behind a method in a helper thread
    subscribe = hub.record(MessageType.STREAM_INVOCATION, id="3", target="Subscribe", arguments=[name])
    hub.raw(hub.call_record("CreateQueue", name, id="2") + subscribe + hub.record(CANCEL, id="3"))
    assert {hub.next().id, hub.next().id} == {"2", "3"}
    assert hub.ask("QueueInfo", name)["consumers"] == 0


def test_a_cancel_of_what_is_unknown_or_over_is_ignored(hub: HubPeer) -> None:
    hub.raw(hub.record(CANCEL, id="nothing"))
    hub.raw(hub.call_record("ServerInfo", id="1") + hub.record(CANCEL, id="1"))
    assert hub.answer("1").error is None


def test_a_cancelled_receive_is_still_completed(hub: HubPeer) -> None:
    id = hub.begin("Receive", fresh(), {"waitMs": 60_000})
    hub.send(CANCEL, id=id)
    assert hub.answer(id).payload == []


def test_an_early_stream_ends_by_a_cancel_too(served: Running) -> None:
    with HubPeer(served, dialect=Dialect.EARLY) as early:
        id = early.stream("Subscribe", fresh())
        early.send(CANCEL, id=id)
        assert early.stream_end(id).type == MessageType.STREAM_COMPLETION


def test_a_preview_client_gets_the_end_that_it_knows(served: Running) -> None:
    with HubPeer(served, dialect=Dialect.EARLY) as early:
        early.raw(b'{"type":4,"invocationId":"1","target":"Subscribe","arguments":["%s"]}\x1e' % fresh().encode())
        early.send(CANCEL, id="1")
        assert early.next_raw() == b'{"type":3,"invocationId":"1"}'


# ---- results of the client ----


def test_results_of_the_client_acknowledge(hub: HubPeer) -> None:
    name = fresh()
    hub.ask("SubscribePush", name, {"ack": "result", "prefetch": 1})
    hub.notify("PublishBatch", name, [1, 2])
    first = hub.next()
    assert delivery_of(first)["body"] == 1
    hub.send(COMPLETION, id=first.id, error="Client didn't provide a result.")
    calls = [hub.next()]
    hub.send(COMPLETION, id=calls[0].id, payload=False)
    while len({delivery_of(call)["body"] for call in calls}) < 2:
        message = hub.next()
        calls.append(message)
        hub.send(COMPLETION, id=message.id, payload=True)
    assert hub.ask("QueueInfo", name)["consumers"] == 1
    assert hub.ask("Unsubscribe", name) is True
    assert hub.ask("QueueInfo", name)["unacked"] == 0


# ---- what a lost connection had ----


def test_what_a_lost_connection_had_comes_again(served: Running, hub: HubPeer) -> None:
    name = fresh()
    hub.ask("PublishBatch", name, [1, 2])
    with HubPeer(served) as lost:
        id = lost.stream("Subscribe", name, {"ack": "manual"})
        assert bodies(lost.items(id, 2)) == [1, 2]
        pulled = lost.ask("Receive", name, {"ack": "manual"})
        assert pulled == []
    id = hub.stream("Subscribe", name, {"ack": "manual"})
    found = hub.items(id, 2)
    assert sorted(bodies(found)) == [1, 2]
    assert all(one["redelivered"] for one in found)
    hub.notify("Ack", found[1]["tag"], {"multiple": True})


def test_what_was_published_before_a_loss_is_kept(served: Running, hub: HubPeer) -> None:
    name = fresh()
    with HubPeer(served) as lost:
        for number in range(50):
            lost.notify("Publish", name, number)
        lost.ask("ServerInfo")
    assert hub.ask("QueueInfo", name)["messages"] == 50


# ---- a peer that does not read ----


def test_a_peer_that_does_not_read_is_not_written_to_without_end(served: Running, hub: HubPeer) -> None:
    name, body = fresh("topic"), "x" * 8000
    hub.ask("CreateQueue", name, {"type": "stream"})
    for _ in range(100):
        hub.ask("PublishBatch", name, [body])
    http = HttpPeer(served)
    http.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    (worker,) = served.worker_pids()
    with HubPeer(served, http=http) as deaf:
        before = resident_bytes(worker)
        for _ in range(20):
            deaf.stream("ReadStream", name)
        for _ in range(200):
            hub.ask("Publish", name, body)  # others go on
        assert resident_bytes(worker) - before < 40 << 20  # 20 readers of 2.4 MB each, and what else grows
        id = hub.stream("ReadStream", name, {"max": 300})
        assert len(hub.items(id, 300)) == 300
