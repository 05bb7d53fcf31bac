# SPDX-License-Identifier: Apache-2.0
"""No call of the native client waits for good, and what runs out of time says whether it may have been done."""

import asyncio
import inspect
import math
import pickle
import threading

import pytest
from peers.native_server import NativeServer

from vibemq.client import aconnect, aio, connect, micromsg2, streams, sync
from vibemq.errors import ConfigError, ConnectionClosed, NotAuthorized, PublishTimeout, ServerFailed, TimeoutExceeded
from vibemq.protocols.native.spec import Command, ErrorCode

LATER = {"reconnect_initial_delay_s": 300}  # until the test lets it
QUICK = {"reconnect_initial_delay_s": 0.01, "reconnect_max_delay_s": 0.02}


@pytest.fixture
def server():
    with NativeServer() as running:
        yield running


def await_state(client, state):
    """Ends as soon as the client has it; its loop tells us."""

    async def wait():
        while client.state.value != state:
            await asyncio.sleep(0)

    client._call(wait())


def lose(server, client):
    server.accepting = False
    server.drop()
    await_state(client, "reconnecting")


CALLS = {
    "publish": lambda client: client.publish("q", 1, timeout_s=0.05),
    "publish_many": lambda client: client.publish_many("q", range(3), timeout_s=0.05),
    "flush": lambda client: _flush(client),
    "full window": lambda client: _fill(client),
}
COMMANDS = {
    "create_queue": lambda client: client.create_queue("q", timeout_s=0.05),
    "declare_queue": lambda client: client.declare_queue("q", timeout_s=0.05),
    "delete_queue": lambda client: client.delete_queue("q", timeout_s=0.05),
    "purge_queue": lambda client: client.purge_queue("q", timeout_s=0.05),
    "queue_info": lambda client: client.queue_info("q", timeout_s=0.05),
    "list_queues": lambda client: client.list_queues(timeout_s=0.05),
    "create_user": lambda client: client.create_user("ada", "secret 1", timeout_s=0.05),
    "grant": lambda client: client.grant("ada", "*", "Publish", timeout_s=0.05),
    "open": lambda client: client.consume("q").open(0.05),
    "subscribe": lambda client: client.subscribe("q", print, timeout_s=0.05),
}


def _fill(client):
    publisher = client.publisher("q", window=1)
    for number in range(2):
        publisher.publish(number, timeout_s=0.05)


def _flush(client):
    publisher = client.publisher("q")
    publisher.publish(1)
    publisher.flush(0.05)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_publishing_without_a_connection_ends_and_says_that_nothing_was_sent(server, call):
    with connect(server.url, **LATER) as client:
        lose(server, client)
        with pytest.raises(PublishTimeout, match=r"never sent: for 0\.05 s there was no connection") as raised:
            call(client)
    assert not raised.value.may_be_stored
    assert raised.value.unsent > 0
    assert raised.value.unanswered == 0
    assert "publish it again" in raised.value.hint


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_message_without_an_answer_may_be_stored(server, call):
    server.replies[Command.PUBLISH] = lambda connection, frame: []
    with connect(server.url) as client, pytest.raises(PublishTimeout, match="sent, and not acknowledged") as raised:
        call(client)
    assert raised.value.may_be_stored
    assert raised.value.unanswered > 0
    assert "may store it twice" in raised.value.hint
    assert isinstance(raised.value, TimeoutError)


def test_the_default_is_the_settings_own(server):
    with connect(server.url, command_timeout_s=0.05, **LATER) as client:
        lose(server, client)
        with pytest.raises(PublishTimeout):
            client.publish("q", 1)
        with pytest.raises(TimeoutExceeded, match=r"LIST_QUEUES \(43\) was never sent"):
            client.list_queues()


@pytest.mark.parametrize("id", [None, "order-1"], ids=["numbered", "named"])
@pytest.mark.parametrize("answered", [True, False], ids=["never-sent", "unanswered"])
def test_what_ran_out_of_time_is_not_sent_with_the_next_connection(server, id, answered):
    if not answered:
        server.replies[Command.PUBLISH] = lambda connection, frame: []
    with connect(server.url, **QUICK) as client:
        if answered:
            lose(server, client)
        with pytest.raises(PublishTimeout):
            client.publish("q", "late", id=id, timeout_s=0.05)
        if not answered:
            server.await_frames(Command.PUBLISH)
        before = len(server.of(Command.PUBLISH))
        server.replies.clear()
        server.accepting = True
        server.drop()
        client.publish("q", "next")
    assert [frame.payload for frame in server.of(Command.PUBLISH)[before:]] == [b'"next"']


def test_a_publisher_goes_on_after_it_ran_out_of_time(server):
    with connect(server.url, **QUICK) as client:
        lose(server, client)
        publisher = client.publisher("q")
        publisher.publish("late")
        with pytest.raises(PublishTimeout):
            publisher.flush(0.05)
        assert publisher.in_flight == 0
        server.accepting = True
        publisher.publish("next")
        assert publisher.flush().published == 1
    assert [frame.payload for frame in server.of(Command.PUBLISH)] == [b'"next"']


@pytest.mark.parametrize("call", COMMANDS.values(), ids=COMMANDS)
def test_a_command_without_a_connection_was_never_sent(server, call):
    with connect(server.url, **LATER) as client:
        lose(server, client)
        with pytest.raises(TimeoutExceeded, match="was never sent"):
            call(client)


@pytest.mark.parametrize("call", COMMANDS.values(), ids=COMMANDS)
def test_a_command_without_an_answer_may_have_been_done(server, call):
    for command in Command:
        server.replies[command] = lambda connection, frame: []
    del server.replies[Command.CONNECT]
    with connect(server.url) as client, pytest.raises(TimeoutExceeded, match="nothing came within") as raised:
        call(client)
    assert "may have been done" in raised.value.hint


def test_a_subscription_that_ran_out_of_time_is_taken_back(server):
    """The broker may have made it all the same, and its messages would go to nobody."""
    server.replies[Command.SUBSCRIBE] = lambda connection, frame: []
    with connect(server.url) as client:
        with pytest.raises(TimeoutExceeded):
            client.consume("q").open(0.05)
        assert [frame.queue for frame in server.await_frames(Command.UNSUBSCRIBE)] == ["q"]


def test_an_unsubscribe_that_fails_does_not_hide_what_went_wrong_before(server):
    server.replies[Command.UNSUBSCRIBE] = lambda connection, frame: connection.refuse(frame, ErrorCode.SERVER_ERROR)

    async def with_asyncio():
        async with aconnect(server.url) as client, client.consume("q"):
            raise KeyError("first")

    with pytest.raises(KeyError, match="first") as raised:
        asyncio.run(with_asyncio())
    with pytest.raises(KeyError, match="first") as also_raised, connect(server.url) as client, client.consume("q"):
        raise KeyError("first")
    for caught in (raised, also_raised):
        assert ["UNSUBSCRIBE (24) q: No." in note for note in caught.value.__notes__] == [True]
    with (
        pytest.raises(ServerFailed, match=r"UNSUBSCRIBE .* q: No\."),
        connect(server.url) as client,
        client.consume("q"),
    ):
        pass


def test_who_may_not_consume_a_queue_any_more_loses_that_consumer_and_not_the_connection(server):
    with connect(server.url, **QUICK) as client, client.consume("q") as consumer:
        server.await_frames(Command.SUBSCRIBE)
        server.replies[Command.SUBSCRIBE] = lambda connection, frame: connection.refuse(frame, ErrorCode.NOT_AUTHORIZED)
        server.drop()
        client.publish("other", 1)
        with pytest.raises(NotAuthorized):
            next(consumer)


def test_who_waits_while_another_thread_closes_the_client_is_told(server):
    told = []

    def ask(client):
        try:
            client.list_queues(timeout_s=math.inf)
        except ConnectionClosed as problem:
            told.append(problem)

    client = connect(server.url, **LATER)
    lose(server, client)
    threads = [threading.Thread(target=ask, args=(client,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join(20)
    assert len(told) == len(threads)


def test_a_consumer_may_wait_for_ever(server):
    with connect(server.url) as client:
        client.publish("q", 1)
        assert next(client.consume("q", timeout_s=math.inf)).payload == 1


def test_asyncio_calls_end_as_well(server):
    async def publish():
        async with aconnect(server.url, **LATER) as client:
            server.accepting = False
            server.drop()
            while client.state.value == "connected":
                await asyncio.sleep(0)
            with pytest.raises(PublishTimeout):
                await client.publish("q", 1, timeout_s=0.05)
            with pytest.raises(TimeoutExceeded, match="never sent"):
                await client.list_queues(timeout_s=0.05)

    asyncio.run(publish())


def test_for_ever_is_possible_and_no_time_is_not(server):
    with connect(server.url) as client:
        client.publish("q", 1, timeout_s=math.inf)
        assert client.list_queues(timeout_s=math.inf) == ["q"]
        with pytest.raises(ConfigError, match="needed more than 0 seconds, had 0"):
            client.list_queues(timeout_s=0)


NEVER_WAIT = {"stop", "consume", "detach"}


@pytest.mark.parametrize(
    "kind",
    [
        *(sync.Client, sync.Publisher, sync.Consumer, sync.Subscription),
        *(aio.AsyncClient, aio.AsyncPublisher, aio.AsyncConsumer, aio.AsyncSubscription),
        *(streams.StreamsConnection, streams.Publisher, streams.Subscription, micromsg2.Micromsg2Client),
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_call_that_waits_for_the_broker_takes_a_timeout(kind):
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        waits = name not in NEVER_WAIT and (name, kind.__module__ == streams.__name__) != ("publisher", False)
        if not name.startswith("_") and waits:
            assert "timeout_s" in inspect.signature(method).parameters, name


def test_a_timeout_goes_from_process_to_process():
    error = PublishTimeout("where", unsent=1, unanswered=2, hint="do")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.hint, again.unsent, again.unanswered) == ("where", "do", 1, 2)
