# SPDX-License-Identifier: Apache-2.0
"""SharpMessaging and its kin: peers of minor version 1, which read less than the protocol allows.

Its observed conversations are played against the broker byte for byte; the rest is what it is known to need.
"""

import json
import threading
import time
from pathlib import Path

import pytest
from peers.micromsg2 import DEADLINE_S, ExtensionFrame, Message, Micromsg2Peer, connected
from running import broker, restartable, wait_until

from vibemq.protocols.micromsg2.codec import Handshake, decode_frame, decode_handshake, encode_message
from vibemq.protocols.micromsg2.extensions import agree, lists_of

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
CONVERSATIONS = VECTORS["observed_conversations"]
PATIENT = "ack:MessagesPerAck=5,AckExpireTime=60000"  # half of it is longer than any test waits
HASTY = "ack:MessagesPerAck=5,AckExpireTime=20"


def sharp(running, extensions, **more):
    """A connection, of which every frame is looked at: there is no ERROR among them."""
    return connected(running, extensions, minor=1, **more)


# ---- the conversations ----


@pytest.mark.parametrize("conversation", CONVERSATIONS[:4], ids=lambda one: one["name"])
def test_an_observed_conversation_ends_with_its_messages_kept(served, other, conversation):
    other.ask("delete", destination="commands")
    sent = []
    with Micromsg2Peer(served) as peer:
        steps = [(step["direction"], bytes.fromhex(step["hex"])) for step in conversation["steps"]]
        c1, s1, c2 = (data for _, data in steps[:3])
        peer.write(c1)
        answer = peer.answered()
        assert isinstance(answer, Handshake)
        theirs, _ = decode_handshake(s1)
        named = {item.name for item in lists_of(theirs).required}
        assert named <= {item.name for item in lists_of(answer).required}, "its client fails without"
        peer.write(c2)
        peer.agreed = agree(decode_handshake(c2)[0])
        for direction, data in steps[3:]:
            if direction == "C->S":
                peer.write(data)
                frame, _ = decode_frame(data)
                if isinstance(frame, Message):
                    sent.append(frame)
            else:
                assert peer.next() == decode_frame(data)[0]
        wait_until(lambda: other.ask("info", destination="commands").get("messages") == str(len(sent)), "all are kept")
        if peer.agreed.ack_id and len(sent) % peer.agreed.window:
            assert isinstance(peer.next(), ExtensionFrame)  # what came behind the last window, when it was idle
    other.subscribe("commands")
    for frame in sent:
        got = other.deliver()
        assert (got.destination, got.payload) == (b"commands", frame.payload)
        assert got.properties.startswith(frame.properties)


def test_it_acknowledges_four_deliveries_as_it_was_seen_to(served, other, name):
    steps = CONVERSATIONS[4]["steps"]
    c2 = decode_handshake(bytes.fromhex(steps[2]["hex"]))[0].required.decode()
    with sharp(served, f"{c2};x-subscribe:destination={name}") as peer:
        assert peer.agreed.ids[:3] == tuple(CONVERSATIONS[4]["extension_order"])
        wait_until(lambda: other.ask("info", destination=name).get("consumers") == "1", "it has subscribed")
        for at in range(4):
            other.publish(name, b"%d" % at)
        assert [peer.deliver(ack=False).payload for _ in range(3)] == [b"0", b"1", b"2"]
        peer.write(bytes.fromhex(steps[4]["hex"]))
        assert peer.deliver(ack=False).payload == b"3"
        peer.write(bytes.fromhex(steps[5]["hex"]))
        wait_until(lambda: other.info(name) == {"messages": 0, "in-flight": 0, "consumers": 1}, "all are settled")


@pytest.mark.parametrize("conversation", CONVERSATIONS[5:], ids=lambda one: one["name"])
def test_answers_at_which_it_fails_are_never_given(served, conversation):
    c1, s1 = (bytes.fromhex(step["hex"]) for step in conversation["steps"])
    with Micromsg2Peer(served) as peer:
        peer.write(c1)
        answer = peer.answered()
        wanted, bad = (lists_of(decode_handshake(data)[0]).required for data in (c1, s1))
        given = {item.name for item in lists_of(answer).required}
        assert {item.name for item in wanted} == given != {item.name for item in bad}
        assert (answer.major, answer.minor) == (1, 0)


def test_acknowledgements_that_it_only_offers_are_required(served):
    with Micromsg2Peer(served) as peer:
        s1 = peer.hello("json;dotnet", "ack:MessagesPerAck=3,AckExpireTime=500", minor=1)
        assert s1.required == b"json;dotnet;ack:MessagesPerAck=3,AckExpireTime=500"
    with Micromsg2Peer(served) as peer:
        assert peer.hello("json", minor=1).required == b"json", "and not those that it did not speak of"


# ---- what it sends ----


def test_it_is_acknowledged_at_the_whole_window_and_not_before(served, name):
    with sharp(served, f"{PATIENT};x-reply") as peer:
        peer.create(name)
        for _ in range(4):
            peer.send(name)
            peer.ping()
        peer.send(name)
        peer.acked(5)
        peer.send(name)
        peer.ping()
        assert peer.info(name)["messages"] == 6


def test_it_is_acknowledged_when_nothing_more_comes(served, name):
    with sharp(served, f"{HASTY};x-reply") as peer:
        peer.create(name)
        for _ in range(3):
            peer.publish(name)


def test_deliveries_to_it_do_not_put_its_acknowledgement_off(served, peer, name):
    extensions = f"ack:MessagesPerAck=1000,AckExpireTime=1000;x-subscribe:destination={name}"
    with sharp(served, extensions) as both:
        wait_until(lambda: peer.ask("info", destination=name).get("consumers") == "1", "it has subscribed")
        number = both.send(f"{name}-in")

        def acknowledged():
            peer.publish(name)
            frame = both.next()
            if isinstance(frame, Message):
                both.ack()
                return False
            return frame == ExtensionFrame(both.agreed.ack_id, number.to_bytes(2, "big"))

        wait_until(acknowledged, "the acknowledgement has come among deliveries", 15)


def test_it_may_send_more_than_the_window_that_was_agreed(served, name):
    with sharp(served, "ack:MessagesPerAck=3,AckExpireTime=20;x-reply") as peer:
        peer.create(name)
        peer.write(*(peer.message(name) for _ in range(500)))
        peer.acked(500)
        assert peer.info(name)["messages"] == 500


def test_what_it_sends_again_with_the_same_number_is_dropped_and_acknowledged_again(served, name):
    with sharp(served, f"{HASTY};x-reply") as peer:
        peer.create(name)
        peer.publish(name)
        for _ in range(3):
            peer.write(encode_message(1, name.encode(), b"1"))
            peer.acked(1)
        assert peer.info(name)["messages"] == 1


def test_what_it_sends_again_before_it_was_acknowledged_is_stored_once(served, name):
    with sharp(served, f"{PATIENT};x-reply") as peer:
        peer.create(name)
        for number in (1, 2, 1, 2, 3, 1, 4):
            peer.write(encode_message(number, name.encode(), b"1"))
            peer.ping()
        peer.write(encode_message(5, name.encode(), b"1"))
        peer.acked(5)
        assert peer.info(name)["messages"] == 5


def test_payloads_of_70000_bytes_come_in_one_frame(served, other, name):
    with sharp(served, HASTY) as peer:
        peer.publish(name, b"x" * 70_000)
        peer.publish(name, b"x" * 300)
    other.subscribe(name)
    assert [len(payload) for payload in other.delivers(2)] == [70_000, 300]


def test_when_the_broker_stops_what_is_kept_is_acknowledged_first(tmp_path):
    with broker(tmp_path, workers=1) as running, sharp(running, f"{PATIENT};x-reply") as peer:
        peer.create("q")
        peer.write(peer.message("q"), peer.message("q"))
        peer.ping()
        running.process.terminate()
        assert [frame.payload for frame in peer.rest()] == [b"\0\2"]


# ---- what it is not told ----


@pytest.mark.parametrize("destination", ["a\nb", ""])
def test_a_refused_message_ends_its_connection_without_a_word(served, name, destination):
    with sharp(served, HASTY) as peer:
        peer.publish(name)
        peer.send(destination)
        assert peer.rest() == []


def test_other_refusals_are_silent(served, name):
    with sharp(served, f"{HASTY};x-reply") as peer:
        peer.command("launch")
        peer.ping()
        peer.publish(name)
        peer.write(b"\x20")
        assert peer.rest() == []


@pytest.mark.parametrize("wrong", ["filter=k", "from=%ff", "prefetch=0", "group=g"])
def test_a_refused_subscription_of_the_handshake_ends_its_connection(served, name, wrong):
    """It would wait for messages for ever, and nobody would know why none come."""
    with sharp(served, f"{HASTY};x-subscribe:destination={name},{wrong}") as peer:
        assert peer.rest() == []


@pytest.mark.parametrize("id", ["!" * 20_000, "%80"])
def test_a_subscription_of_the_handshake_has_no_id(served, other, name, id):
    """It is no command that is answered, so an id that no answer could hold is none of its concern."""
    with connected(served, f"ack;x-reply;x-subscribe:destination={name},id={id}", minor=1) as peer:
        wait_until(lambda: other.ask("info", destination=name).get("consumers") == "1", "it has subscribed")
        other.publish(name, b"served")
        assert peer.deliver().payload == b"served"


def test_before_that_it_gets_one_which_it_understands(served):
    with Micromsg2Peer(served) as peer:
        assert peer.hello("telepathy", minor=1).text == ("Server does not support the following extensions: telepathy")


def test_it_gets_no_command_unless_it_asked_for_answers(served, name):
    with sharp(served, f"{HASTY};pub-sub") as peer:
        peer.command("create", destination=name, id=1)
        peer.command("info", destination=name, id=2)
        peer.publish(name)


# ---- what it can read ----


def consumer(served, other, name, extensions="ack:MessagesPerAck=50,AckExpireTime=60000"):
    reader = sharp(served, f"{extensions};x-subscribe:destination={name}")
    wait_until(lambda: other.ask("info", destination=name).get("consumers") == "1", "it has subscribed")
    return reader


def test_it_gets_one_property_of_256_bytes_at_most(served, other, name):
    with consumer(served, other, name) as reader:
        for properties, seen in (
            (b"a:T1;b:T2;", b"a:T1;"),
            (b"a:T%b;b:N2;c:N3;" % (b"x" * 300), b"b:N2;"),
            (b"a:T%b;" % (b"x" * 300), b""),
            (b"plain:text;", b"plain:text;"),
            (b"", b""),
        ):
            other.publish(name, b"1", properties)
            got = reader.deliver().properties
            assert got.replace(b"plain:Ttext", b"plain:text") == seen


@pytest.mark.parametrize(("serializer", "most"), [("", 16_384), ("json;", 255)])
def test_what_it_cannot_read_goes_to_the_dead_letters(served, other, name, serializer, most):
    other.create(name, dead_letter=1, attempts_max=1)
    extensions = f"{serializer}ack:MessagesPerAck=50,AckExpireTime=60000"
    with consumer(served, other, name, extensions) as reader:
        for size in (most, most + 1, 1):
            other.publish(name, b"x" * size)
        assert [len(reader.deliver().payload) for _ in range(2)] == [most, 1]
    other.subscribe(f"{name}.dlq")
    assert len(other.deliver().payload) == most + 1


def test_without_acknowledgements_it_is_served_as_well(served, other, name):
    with consumer(served, other, name, "dotnet") as reader:
        for at in range(5):
            other.publish(name, b"%d" % at)
        assert reader.delivers(5) == [b"%d" % at for at in range(5)]
        wait_until(lambda: other.info(name)["in-flight"] == 0, "all are settled")


# ---- a restart ----

AGAIN_S = 0.1  # before it connects again, so that the broker has the processor to start
LOAD = 50  # messages acknowledged and consumed before it, and again afterwards


class Load:
    """Publishes and consumes in threads, each of which connects again when its connection has ended, and sends again
    what was not acknowledged."""

    def __init__(self, running):
        self.running, self.ends, self.changed = running, False, threading.Condition()
        self.acknowledged, self.consumed, self.broken = [], set(), []
        self.threads = [threading.Thread(target=self.run, args=(use,)) for use in (self.publish, self.consume)]
        for thread in self.threads:
            thread.start()

    def run(self, use):
        try:
            while not self.ends:
                try:
                    use()
                except (ConnectionError, TimeoutError):
                    time.sleep(AGAIN_S)  # it has ended, or nobody listens now
        except BaseException as why:
            with self.changed:
                self.broken.append(why)
                self.changed.notify_all()
            raise

    def publish(self):
        with sharp(self.running, HASTY) as peer:
            while not self.ends:
                peer.publish("q", b"%d" % len(self.acknowledged))
                with self.changed:
                    self.acknowledged.append(len(self.acknowledged))
                    self.changed.notify_all()

    def consume(self):
        with sharp(self.running, f"{HASTY};x-subscribe:destination=q") as peer:
            while not self.ends or self.missing():
                payload = peer.deliver().payload
                with self.changed:
                    self.consumed.add(int(payload))
                    self.changed.notify_all()

    def missing(self):
        return set(self.acknowledged) - self.consumed

    def wait(self, holds):
        with self.changed:
            assert self.changed.wait_for(lambda: self.broken or holds(), DEADLINE_S), "it is stranded"
        assert not self.broken, self.broken

    def goes_on(self):
        """LOAD more are acknowledged, and consumed."""
        enough = len(self.acknowledged) + LOAD
        self.wait(lambda: len(self.acknowledged) >= enough and enough - 1 in self.consumed)

    def end(self):
        """All that was acknowledged is consumed."""
        self.ends = True
        self.threads[0].join(DEADLINE_S)
        self.wait(lambda: not self.missing())


def test_it_comes_back_after_an_orderly_restart_under_load_and_nothing_acknowledged_is_lost(tmp_path):
    with restartable(tmp_path / "data") as broker:
        load = Load(broker.running)
        try:
            load.goes_on()
            broker.restart()
            load.goes_on()
            load.end()
        finally:
            load.ends = True
    for thread in load.threads:
        thread.join(DEADLINE_S)
