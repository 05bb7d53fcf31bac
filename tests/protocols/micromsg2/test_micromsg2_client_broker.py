# SPDX-License-Identifier: Apache-2.0
"""The MicroMsg2 client and the broker that it is for."""

import doctest
from datetime import UTC, datetime

import pytest
from running import wait_until

from vibemq.access.users import add_user
from vibemq.client import _micromsg2, micromsg2
from vibemq.client.micromsg2 import Micromsg2Client, Refused
from vibemq.errors import ConnectionClosed, ProtocolError, TimeoutExceeded

MIB = 1 << 20
USER, PASSWORD = "zoe", "her pässword, which is long"


@pytest.fixture
def connect(served):
    """A client of the broker that asks nobody who he is."""
    clients = []

    def make(**more):
        clients.append(Micromsg2Client(served.host, served.ports["micromsg2"], **{"timeout_s": 30.0, **more}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def guarded_for_zoe(guarded):
    """The broker where everybody logs in, and one who can."""
    add_user(guarded.metadata, USER, PASSWORD, is_superuser=True)
    return guarded


def login(guarded, user, password, **more):
    running = guarded.running
    port = running.ports["micromsg2-tls" if "tls" in more else "micromsg2"]
    return Micromsg2Client("localhost" if "tls" in more else running.host, port, user=user, password=password, **more)


def comes_to_have(client, destination, **counts):
    """Another worker may decide for the queue, and hear of it a little later."""

    def has():
        info = client.command("info", destination=destination)
        return all(info[name.replace("_", "-")] == str(count) for name, count in counts.items())

    wait_until(has, f"{destination} has {counts}")


# ---- messages ----


def test_what_is_sent_is_received(connect, name):
    client = connect()
    assert client.server.startswith("vibemq/")
    assert (client.agreed.serializer, client.agreed.window) == (None, 1000)
    at = datetime(2014, 10, 13, 11, 0, 0, 500_000, tzinfo=UTC)
    properties = {
        "number": -5,
        "float": 1.5,
        "at": at,
        "text": "Hello, »world«; 100%",
        "none": None,
        "large": 2**64 - 1,
    }
    client.subscribe(name)
    client.send(name, b'{"a":1}', properties, dotnet_type="Order, shop")
    client.send(name, b"")
    client.flush()
    first, second = client.receive(30), client.receive(30)
    del properties["none"]
    assert first == (name, b'{"a":1}', properties, "Order, shop", first.sequence)
    assert second == (name, b"", {}, None, second.sequence)


def test_the_example_does_what_it_says(connect, monkeypatch):
    (example,) = (test for test in doctest.DocTestFinder().find(micromsg2, "micromsg2") if test.examples)
    monkeypatch.setattr(micromsg2, "Micromsg2Client", lambda port: connect())
    output = []
    assert doctest.DocTestRunner(verbose=False).run(example, out=output.append).failed == 0, "".join(output)


def test_thousands_of_messages_pass_the_window_in_order(connect, name):
    sender, receiver = connect(), connect()
    receiver.subscribe(name)
    for number in range(5000):
        sender.send(name, f"{number}", {"n": number})
    sender.flush()
    for number in range(5000):
        message = receiver.receive(30)
        assert (message.payload, message.properties) == (f"{number}".encode(), {"n": number})
    assert receiver.receive(0) is None
    receiver.ack()
    comes_to_have(receiver, name, messages=0, in_flight=0)


@pytest.mark.parametrize("offer", [("ack", "pub-sub", "x-reply"), micromsg2.OFFERS])
def test_a_large_payload_comes_whole_with_any_window(connect, name, offer):
    payload = bytes(range(256)) * (MIB // 256 * 7 // 2)
    client = connect(offer=offer)
    client.subscribe(name)
    client.send(name, payload, {"k": "v"})
    client.send(name, b"small")
    message = client.receive(30)
    assert (message.payload == payload, message.properties) == (True, {"k": "v"})
    assert client.receive(30).payload == b"small"
    client.flush()


def test_without_acknowledgements_messages_come_too(connect, name):
    client = connect(offer=("pub-sub", "x-reply"))
    assert client.agreed.window == 0
    client.subscribe(name)
    for number in range(100):
        client.send(name, f"{number}")
    assert [client.receive(30).payload for _ in range(100)] == [f"{n}".encode() for n in range(100)]


def test_what_was_not_acknowledged_comes_again(connect, name):
    first = connect(auto_ack=False)
    first.subscribe(name)
    for payload in ("a", "b", "c"):
        first.send(name, payload)
    messages = [first.receive(30) for _ in range(3)]
    first.ack(messages[0])
    first.close()
    second = connect()
    second.subscribe(name)
    assert [second.receive(30).payload, second.receive(30).payload] == [b"b", b"c"]


def test_a_topic_goes_to_all_of_whom_it_suits(connect, name):
    sender, everything, adults = connect(), connect(), connect()
    everything.subscribe(f"topic/{name}")
    adults.subscribe(f"topic/{name}", "age>=N18;first_name<Tto")
    for payload, properties in (
        ("1", {"age": 20, "first_name": "tomas"}),
        ("2", {"age": 17, "first_name": "tomas"}),
        ("3", {"age": 30, "first_name": "Tomas"}),
        ("4", {"age": 18.5, "first_name": "to"}),
    ):
        sender.send(f"topic/{name}", payload, properties)
    sender.flush()
    assert [everything.receive(30).payload for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert [adults.receive(30).payload for _ in range(2)] == [b"1", b"4"]
    adults.unsubscribe(f"topic/{name}")
    sender.send(f"topic/{name}", "5", {"age": 20, "first_name": "tomas"})
    sender.flush()
    assert everything.receive(30).payload == b"5"
    assert adults.receive(0) is None


# ---- commands and refusals ----


def test_queues_are_made_shown_and_deleted(connect, name):
    client = connect()
    assert client.command("create", destination=f"queue/{name}", max_messages=5, dead_letter=False) == {
        "created": "true"
    }
    assert client.command("create", destination=f"queue/{name}") == {"created": "false"}
    client.send(name, b"1")
    client.flush()
    comes_to_have(client, name, messages=1)
    assert client.command("list", pattern=name) == {"count": "1", "names": name}
    assert client.command("delete", destination=name) == {}
    with pytest.raises(Refused) as caught:
        client.command("info", destination=name)
    assert caught.value.code == "QUEUE_NOT_FOUND"


def test_a_refused_message_is_told_and_others_go_on(connect, name):
    client = connect()
    client.command("create", destination=f"queue/{name}")
    client.send(f"topic/{name}", b"no")
    client.send(name, b"yes")
    client.send(f"topic/{name}", b"no")
    with pytest.raises(Refused) as caught:
        client.flush()
    assert caught.value.code == "WRONG_KIND" and len(caught.value.others) == 1
    client.send(name, b"again")
    client.flush()
    comes_to_have(client, name, messages=2)


def test_a_filter_that_is_none_is_refused(connect, name):
    with pytest.raises(Refused) as caught:
        connect().subscribe(f"topic/{name}", "first_name<=Tto")
    assert caught.value.code == "BAD_FILTER"


def test_leaving_waits_until_everything_is_accepted(connect, served, name):
    with Micromsg2Client(served.host, served.ports["micromsg2"], offer=("json",)) as client:
        client.send(name, b"1")
    with Micromsg2Client(served.host, served.ports["micromsg2"]) as client:
        client.send(name, b"2")
        comes_to_have(client, name, messages=2)
    with pytest.raises(ConnectionClosed):
        client.send(name, b"3")


# ---- login ----


def test_who_does_not_say_who_he_is_is_told_what_is_missing(guarded_for_zoe):
    with pytest.raises(Refused, match="Server requires the following extensions: microauth") as refused:
        Micromsg2Client(guarded_for_zoe.running.host, guarded_for_zoe.running.ports["micromsg2"])
    assert refused.value.hint.endswith("lets nobody in without a login: give `user` and `password`.")


@pytest.mark.parametrize("door", ["native", "signalr", "streams", "admin", "micromsg2-tls"])
def test_whoever_takes_another_port_is_told_which_it_was_and_which_it_should_be(guarded_for_zoe, door):
    port = guarded_for_zoe.running.ports[door]
    with pytest.raises((ConnectionClosed, ProtocolError, TimeoutExceeded)) as refused:
        Micromsg2Client("127.0.0.1", port, timeout_s=3.0)
    assert refused.value.hint.startswith("Is this the MicroMsg2 port?")
    assert "MicroMsg2 2928 (TLS 2938)" in refused.value.hint


def test_a_password_opens_from_this_machine_and_over_tls(guarded_for_zoe, name):
    for more in ({}, {"tls": guarded_for_zoe.authority.client_context()}):
        with login(guarded_for_zoe, USER, PASSWORD, **more) as client:
            client.send(name, b"x" * MIB * 2)
            client.subscribe(name)
            assert len(client.receive(30).payload) == 2 * MIB


def test_a_proof_opens_from_anywhere(guarded_for_zoe, name, monkeypatch):
    class FarTransport(_micromsg2.Transport):
        def __init__(self, *where):
            super().__init__(*where)
            self.is_private = False

    monkeypatch.setattr(_micromsg2, "Transport", FarTransport)
    with login(guarded_for_zoe, USER, PASSWORD, timeout_s=30.0) as client:
        client.send(name, b"1")
        client.flush()
    with pytest.raises(Refused, match="AUTH_FAILED: wrong user or password"):
        login(guarded_for_zoe, USER, "wrong", timeout_s=30.0)


@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD), (USER, "")])
def test_a_wrong_password_is_told_at_once(guarded_for_zoe, user, password):
    with pytest.raises(Refused) as caught:
        login(guarded_for_zoe, user, password, timeout_s=30.0)
    assert caught.value.code == "AUTH_FAILED"


def test_a_consumer_is_told_that_its_subscription_has_ended_and_a_publisher_is_not(connect, name):
    client, other = connect(), connect()
    client.subscribe(f"queue/{name}")
    other.command("delete", destination=name)
    with pytest.raises(Refused, match=r"QUEUE_NOT_FOUND: the subscription to '.*' has ended: it was deleted"):
        client.receive(30)
    client.subscribe(f"queue/{name}")
    other.command("delete", destination=name)
    client.send(f"queue/{name}-other", b"1")
    client.flush()
    with pytest.raises(Refused, match="has ended"):
        client.receive(30)
