# SPDX-License-Identifier: Apache-2.0
"""What users of hub clients do, with each client and in each way it connects: the lines of the door's matrix."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import pytest
from cutting import network
from hub_clients import ENCODINGS, FLAVOURS, LACKS, MAY_ASK_AGAIN, WAYS, Flavour, HubProgram, Refused
from hub_serving import READER, READER_PASSWORD, Served, way

MANUAL = {"ack": "manual"}
CALLS = 200  # on their way when the broker is told to end


def bodies(deliveries: list[dict[str, Any]]) -> list[Any]:
    return [delivery["body"] for delivery in deliveries]


def tags(deliveries: list[dict[str, Any]]) -> list[int]:
    return [delivery["tag"] for delivery in deliveries]


@pytest.mark.line("{transport} with {encoding}")
@pytest.mark.parametrize(("transport", "encoding"), WAYS)
def test_it_connects_and_leaves(programs, served, needs, client, transport, encoding):
    needs((transport, encoding))
    program = programs.start(client)
    flavour = Flavour(client, transport, encoding)
    program.connect(**way(flavour), url=served.url, **served.login(flavour))
    assert program.invoke("ServerInfo")["name"] == "VibeMQ"
    program.stop()


@pytest.mark.line("`Publish`, answered when it is kept")
def test_what_is_published_is_there(hub, queue):
    published = [hub.invoke("Publish", queue, {"number": number}) for number in range(3)]
    assert [kept["offset"] for kept in published] == [0, 1, 2]
    assert len({kept["id"] for kept in published}) == 3
    assert hub.invoke("QueueInfo", queue)["messages"] == 3


@pytest.mark.line("`Publish` without an answer")
def test_what_is_sent_is_there_too(hub, needs, queue):
    needs("sending without an answer")
    hub.send("Publish", queue, "sent")
    assert bodies(hub.invoke("Receive", queue, {"waitMs": 10_000, "ack": "auto"})) == ["sent"]


@pytest.mark.line("`PublishBatch`")
def test_a_batch_is_kept_as_a_whole(hub, queue):
    kept = hub.invoke("PublishBatch", queue, ["a", {"body": "b", "headers": {"kind": "letter"}}, "c"])
    assert kept == {"count": 3, "firstOffset": 0, "lastOffset": 2}
    received = hub.invoke("Receive", queue, {"max": 3, "ack": "auto"})
    assert bodies(received) == ["a", "b", "c"]
    assert received[1]["headers"] == {"kind": "letter"}


@pytest.mark.line("`PublishStream`, an upload")
def test_the_items_of_an_upload_are_kept(hub, needs, client, queue):
    needs("uploads")
    items = [{"queue": queue, "body": number} for number in range(50)]
    is_answered = "answers of uploads" not in LACKS[client]
    answer = hub.upload("PublishStream", items, answered=is_answered)
    if is_answered:
        assert answer == {"count": 50, "lastOffset": 49}
    received: list[Any] = []
    while len(received) < 50:
        received += bodies(hub.invoke("Receive", queue, {"max": 50, "waitMs": 10_000, "ack": "auto"}))
    assert received == list(range(50))


@pytest.mark.line("`Subscribe`, a stream, and `Ack`")
def test_what_is_acknowledged_is_settled(hub, queue):
    hub.invoke("CreateQueue", queue)
    stream = hub.stream("Subscribe", queue, MANUAL)
    for number in range(5):
        hub.invoke("Publish", queue, {"number": number})
    deliveries = stream.items(5)
    assert bodies(deliveries) == [{"number": number} for number in range(5)]
    assert [delivery["offset"] for delivery in deliveries] == list(range(5))
    assert hub.invoke("Ack", tags(deliveries)[:2]) == 2
    assert hub.invoke("Ack", tags(deliveries)[-1], {"multiple": True}) == 3
    info = hub.invoke("QueueInfo", queue)
    assert (info["messages"], info["unacked"]) == (0, 0)
    hub.invoke("Unsubscribe", queue)
    stream.end()


@pytest.mark.line("a stream is cancelled, and its messages come again")
def test_a_cancelled_stream_gives_its_messages_back(hub, needs, queue):
    needs("cancelling")
    hub.invoke("Publish", queue, "again")
    stream = hub.stream("Subscribe", queue, MANUAL)
    (first,) = stream.items(1)
    assert not first["redelivered"]
    stream.cancel()
    (second,) = hub.invoke("Receive", queue, {"waitMs": 10_000, "ack": "auto"})
    assert (second["body"], second["redelivered"]) == ("again", True)


@pytest.mark.line("`Nack`, and the message comes again")
def test_what_is_refused_comes_again(hub, queue):
    hub.invoke("Publish", queue, "twice")
    stream = hub.stream("Subscribe", queue, MANUAL)
    (first,) = stream.items(1)
    assert hub.invoke("Nack", first["tag"]) == 1
    (second,) = stream.items(1)
    assert (first["redelivered"], second["redelivered"]) == (False, True)
    assert second["offset"] == first["offset"]
    assert hub.invoke("Ack", second["tag"]) == 1
    hub.invoke("Unsubscribe", queue)
    stream.end()


@pytest.mark.line("`SubscribePush`: calls of `ReceiveMessage`")
def test_messages_come_as_calls(hub, queue):
    hub.listen("ReceiveMessage")
    subscription = hub.invoke("SubscribePush", queue, MANUAL)["subscriptionId"]
    hub.invoke("Publish", queue, {"text": "pushed"})
    name, delivery = hub.called()
    assert (name, delivery["body"]) == (queue, {"text": "pushed"})
    assert hub.invoke("Ack", [delivery["tag"]]) == 1
    assert hub.invoke("Unsubscribe", subscription) is True
    assert hub.invoke("QueueInfo", queue)["consumers"] == 0


@pytest.mark.line("what a handler returns is the ack")
def test_a_result_of_the_client_settles(hub, needs, queue):
    needs("client results")
    hub.listen("Accept", True)
    hub.listen("Reject", False)
    hub.invoke("Publish", queue, "first rejected")
    subscription = hub.invoke("SubscribePush", queue, {"ack": "result", "method": "Reject", "prefetch": 1})
    _, rejected = hub.called()
    hub.invoke("Unsubscribe", subscription["subscriptionId"])
    hub.invoke("SubscribePush", queue, {"ack": "result", "method": "Accept"})
    _, accepted = hub.called()
    assert (accepted["offset"], accepted["redelivered"]) == (rejected["offset"], True)
    while hub.invoke("QueueInfo", queue)["unacked"]:
        pass  # the result is on its way
    assert hub.invoke("QueueInfo", queue)["messages"] == 0
    hub.invoke("Unsubscribe", queue)


BODIES = [None, True, 17, -2.5, "plain", "Grüße 🐰", "", ["a", 1], {"deep": {"er": [None]}}]


@pytest.mark.line("bodies of every kind")
def test_bodies_come_back_as_they_were(hub, flavour, queue):
    hub.invoke("PublishBatch", queue, [{"body": body} for body in BODIES])
    if flavour.encoding == "messagepack":
        hub.invoke("Publish", queue, b"\x00\xff\x1e")
    else:
        hub.invoke("Publish", queue, "AP8e", {"encoding": "base64"})
    received = hub.invoke("Receive", queue, {"max": len(BODIES) + 1, "ack": "auto"})
    assert bodies(received[:-1]) == BODIES
    if flavour.encoding == "messagepack":
        assert received[-1]["body"] == b"\x00\xff\x1e"
    else:
        assert (received[-1]["body"], received[-1]["encoding"]) == ("AP8e", "base64")
    if flavour.encoding == "messagepack":
        body: dict[str, Any] = {"bytes": b"\x00\xff\x1e", "more": [b"", 1]}
        if flavour.client == "microsoft_signalr":
            body["at"] = {"$date": "2023-11-14T15:51:28.123Z"}
        hub.invoke("Publish", queue, body)
        [delivery] = hub.invoke("Receive", queue, {"ack": "auto"})
        assert (delivery["body"], delivery["contentType"]) == (body, "application/msgpack")


@pytest.mark.line("`ReadStream`, which takes nothing away")
def test_a_log_is_read_from_an_offset(hub, queue):
    hub.invoke("CreateQueue", queue, {"type": "stream"})
    for number in range(10):
        hub.invoke("Publish", queue, number)
    for _ in range(2):
        stream = hub.stream("ReadStream", queue, {"from": 7, "max": 3})
        items = stream.items(3)
        assert bodies(items) == [7, 8, 9]
        assert [item["offset"] for item in items] == [7, 8, 9]
        stream.end()


@pytest.mark.line("errors say what and why")
def test_errors_have_a_code_and_words(hub, flavour, queue):
    with pytest.raises(Refused, match=f"QUEUE_NOT_FOUND: Queue '{queue}' does not exist"):
        hub.invoke("QueueInfo", queue)
    with pytest.raises(Refused, match="Unknown hub method 'Juggle'"):
        hub.invoke("Juggle", 3)
    with pytest.raises(Refused, match="target expects 2"):
        hub.invoke("Publish", queue)
    stream = hub.stream("ReadStream", queue)
    with pytest.raises(Refused, match="QUEUE_NOT_FOUND"):
        stream.end()


@pytest.mark.line("an access token")
def test_a_token_lets_in(programs, served, client, flavour):
    program = programs.start(client)
    with pytest.raises(Refused):
        program.connect(**way(flavour), url=served.url, token="made-up")
    program = programs.start(client)
    program.connect(**way(flavour), url=served.url, token=served.token())
    assert program.invoke("ServerInfo")["name"] == "VibeMQ"


@pytest.mark.line("user and password")
def test_a_password_lets_in(programs, served, needs, client, flavour):
    needs("headers")
    needs(("headers", flavour.transport))
    program = programs.start(client)
    with pytest.raises(Refused):
        program.connect(**way(flavour), url=served.url, user=READER, password="wrong")
    program = programs.start(client)
    program.connect(**way(flavour), url=served.url, user=READER, password=READER_PASSWORD)
    assert program.invoke("ServerInfo")["name"] == "VibeMQ"


@pytest.mark.line("a refused permission is reported")
def test_who_may_only_read_is_told_so(programs, served, hub, client, flavour, queue):
    hub.invoke("CreateQueue", queue, {"type": "stream"})
    hub.invoke("Publish", queue, "for all")
    reader = programs.start(client)
    reader.connect(**way(flavour), url=served.url, **served.login(flavour, READER, READER_PASSWORD))
    assert bodies(reader.stream("ReadStream", queue).items(1)) == ["for all"]
    with pytest.raises(Refused, match="NOT_AUTHORIZED: User 'reader' lacks the permission"):
        reader.invoke("Publish", queue, "mine")


@pytest.mark.line("TLS")
def test_over_tls(programs, served, client, flavour, queue):
    program = programs.start(client)
    program.connect(**way(flavour), url=served.tls_url, **served.login(flavour))
    program.invoke("Publish", queue, "secret")
    stream = program.stream("Subscribe", queue)
    assert bodies(stream.items(1)) == ["secret"]


def subscribed_again(program: HubProgram, queue: str) -> dict[str, Any]:
    """The first message, after the program is back."""
    program.event("reconnected")
    (delivery,) = program.stream("Subscribe", queue, MANUAL).items(1)
    return delivery


def is_connected_as_before(program: HubProgram) -> bool:
    """False: the client has begun another connection."""
    for _ in range(2):  # a call may go to a socket of which the client had not noticed that it was cut
        with suppress(Refused):
            program.invoke("ServerInfo")
            break
    return not any(line["event"] == "reconnecting" for line in program.said)


@pytest.mark.line("goes on after its connection was cut")
def test_what_was_not_acknowledged_comes_on_the_next_connection(programs, served, needs, client, flavour, queue):
    needs("reconnecting")
    with network(served.running.ports["signalr"]) as between:
        program = programs.start(client)
        url = f"http://127.0.0.1:{between.port}/hub"
        program.connect(**way(flavour), url=url, reconnect=True, **served.login(flavour))
        program.invoke("Publish", queue, "kept")
        (first,) = program.stream("Subscribe", queue, MANUAL).items(1)
        between.cut()
        if flavour in MAY_ASK_AGAIN and is_connected_as_before(program):
            assert program.invoke("Ack", first["tag"]) == 1
            return
        second = subscribed_again(program, queue)
        assert (second["body"], second["redelivered"]) == ("kept", True)
        assert program.invoke("Ack", second["tag"]) == 1


@pytest.mark.line("goes on after its worker was killed")
def test_nothing_confirmed_is_lost_with_a_worker(programs, fragile, needs, client, flavour, queue):
    needs("reconnecting")
    needs(("reconnecting", flavour.transport))
    program = programs.start(client)
    program.connect(**way(flavour), url=fragile.url, reconnect=True, **fragile.login(flavour))
    program.invoke("Publish", queue, "kept")
    (first,) = program.stream("Subscribe", queue, MANUAL).items(1)
    for pid in fragile.running.worker_pids():
        os.kill(pid, signal.SIGKILL)
    second = subscribed_again(program, queue)
    assert (second["body"], second["offset"]) == ("kept", first["offset"])
    assert program.invoke("Ack", second["tag"]) == 1


@pytest.mark.timeout(240)
@pytest.mark.line("goes on through an orderly restart of the broker, under load")
def test_nobody_is_stranded_by_an_orderly_restart(programs, ending, needs, client, queue):
    """In each way in which the client connects: publishers with calls on their way, and consumers."""
    needs("reconnecting")
    needs("outlasting a restart")
    served = Served(ending.running, "")
    flavours = [
        one for one in FLAVOURS if one.client == client and ("reconnecting", one.transport) not in LACKS[client]
    ]
    loads = [Load(programs.start(client), served, flavour, f"{queue}-{flavour}") for flavour in flavours]
    for load in loads:
        load.begin()
    for load in loads:
        load.has_begun()
    ending.restart()
    for load in loads:
        load.goes_on()


class Load:
    """A program that consumes, and publishes from `begin` on."""

    def __init__(self, program: HubProgram, served: Served, flavour: Flavour, queue: str) -> None:
        self.program, self.queue = program, queue
        program.connect(**way(flavour), url=served.url, reconnect=True, **served.login(flavour))
        program.invoke("Publish", queue, "before")
        assert bodies(program.stream("Subscribe", queue, MANUAL).items(1)) == ["before"]
        self.calls: dict[str, int] = {}

    def begin(self) -> None:
        for call in range(CALLS):
            self.calls[self.program.tell("invoke", method="Publish", arguments=[self.queue, call])] = call

    def has_begun(self) -> None:
        self.program.wait(lambda line: line["event"] == "result" and line.get("as") in self.calls)

    def goes_on(self) -> None:
        """It is connected again, and consumes all that was confirmed: none of it was acknowledged."""
        self.program.event("reconnected")
        self.program.invoke("Publish", self.queue, "after")
        said = [line for line in self.program.said if line["event"] == "result" and line.get("as") in self.calls]
        missing = {"before", "after", *(self.calls[line["as"]] for line in said)}
        stream = self.program.stream("Subscribe", self.queue, {"ack": "auto"})
        while missing:
            missing.difference_update(bodies(stream.items(1)))


@pytest.mark.line("stateful reconnect: a cut goes unnoticed")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_connection_outlives_its_socket(programs, served, needs, client, encoding):
    needs("stateful reconnect")
    queue = f"outlives-{client}-{encoding}"
    with network(served.running.ports["signalr"]) as between:
        program = programs.start(client)
        url = f"http://127.0.0.1:{between.port}/hub"
        flavour = Flavour(client, "WebSockets", encoding)
        program.connect(**way(flavour), url=url, stateful=True, **served.login(flavour))
        stream = program.stream("Subscribe", queue, MANUAL)
        for round in range(3):
            program.invoke("Publish", queue, round)
            (delivery,) = stream.items(1)
            assert (delivery["body"], delivery["redelivered"]) == (round, False)
            between.cut()
            if client == "aiosignalr":
                program.event("reconnected")  # before that it sends nothing, and holds nothing back
            assert program.invoke("Ack", delivery["tag"]) == 1
        assert not program.has_closed()


def test_the_readme_shows_what_was_shown_here(outcomes):
    """After a run of every line with every client; `make interop` writes it."""
    outcomes.check()
