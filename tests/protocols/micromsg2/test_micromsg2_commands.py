# SPDX-License-Identifier: Apache-2.0
"""Commands and their answers: what each one does, and every way in which it can fail."""

import pytest
from peers.micromsg2 import USUAL, Micromsg2Peer, code, connected
from running import wait_until

import vibemq.client
from vibemq.protocols.micromsg2.codec import encode_command

# ---- answers ----


def test_an_answer_bears_the_id_of_its_command_and_answers_keep_the_order_of_commands(peer, name):
    peer.write(*(encode_command("create", {"id": f"c{at}", "destination": f"{name}-{at}"}) for at in range(20)))
    frames = [peer.next() for _ in range(20)]
    assert [(frame.name, dict(frame.pairs)) for frame in frames] == [
        ("ok", {"id": f"c{at}", "created": "true"}) for at in range(20)
    ]


def test_names_and_keys_match_in_any_case_and_values_are_percent_encoded(peer):
    text = b"CREATE;Destination=caf%c3%a9%2Dx%5Fy,ID=a%2c%3b;"
    peer.write(bytes([1, len(text)]), text)
    frame = peer.next()
    assert (frame.name, dict(frame.pairs)) == ("ok", {"id": "a,;", "created": "true"})
    assert peer.tell("info", destination="café-x_y")["destination"] == "queue/café-x_y"


@pytest.mark.parametrize("alias", ["destination", "queue", "to", "name"])
def test_a_destination_has_several_names(peer, name, alias):
    assert peer.tell("create", **{alias: f"queue/{name}"}) == {"created": "true"}
    assert peer.tell("info", **{alias: name})["destination"] == f"queue/{name}"


@pytest.mark.parametrize("prefix", ["", "topic/"])
def test_topic_as_a_key_adds_its_prefix(peer, name, prefix):
    peer.tell("create", topic=prefix + name)
    assert peer.tell("info", destination=name)["destination"] == f"topic/{name}"


def test_without_an_id_success_is_silent_and_failure_an_error(peer, name):
    peer.command("create", destination=name)
    peer.command("create", destination=name)
    peer.command("delete", destination=f"{name}-missing")
    assert code(peer.error()) == "QUEUE_NOT_FOUND"
    assert peer.info(name)["messages"] == 0


def test_without_x_reply_an_id_changes_nothing(served, other, name):
    with connected(served, "batch-ack;pub-sub") as peer:
        peer.command("create", destination=name, id=1)
        peer.command("info", destination=name, id=2)
        assert code(peer.error()) == "NOT_SUPPORTED"
        peer.command("subscribe", destination=name, id=3)
        other.publish(name, b"m")
        assert peer.delivers(1) == [b"m"]


def test_answers_of_a_peer_to_commands_that_nobody_sent_are_ignored(peer):
    peer.command("ok", id=1)
    peer.command("error", id=1, code="X", text="y")
    peer.ping()


# ---- what is wrong ----


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b";",
        b"no words",
        b"create;destination",
        b"create;=x",
        b"create;a=b;c=d",
        b"\xff",
        b"create;destination=%ff",
    ],
)
def test_bytes_that_are_no_command_close_the_connection(served, peer, payload):
    with connected(served) as raw:
        raw.write(bytes([1, len(payload)]), payload)
        assert code(raw.ended()) == "BAD_COMMAND"
    peer.ping()


@pytest.mark.parametrize(
    ("name_", "pairs", "refusal"),
    [
        ("launch", {}, "BAD_COMMAND"),
        ("create", {}, "BAD_COMMAND"),
        ("create", {"destination": ""}, "NO_DESTINATION"),
        ("create", {"destination": "topic/"}, "INVALID_NAME"),
        ("create", {"destination": "a\nb"}, "INVALID_NAME"),
        ("create", {"destination": "amq.q"}, "INVALID_NAME"),
        ("create", {"destination": "x" * 256}, "INVALID_NAME"),
        ("create", {"destination": "NAME", "colour": "red"}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "durable": 0}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "mode": "best"}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "max-messages": "-1"}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "max-messages": "1e9"}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "max-messages": "9" * 30}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "overflow": "explode"}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "dead-letter": "perhaps"}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "ack-timeout-ms": "0"}, "BAD_COMMAND"),
        ("create", {"destination": "NAME", "durability": "none"}, "BAD_COMMAND"),
        ("create", {"destination": "topic/NAME", "mode": "round-robin"}, "BAD_COMMAND"),
        ("create", {"destination": "queue/NAME", "mode": "fan-out-with-ack"}, "BAD_COMMAND"),
        ("delete", {"destination": "NAME"}, "QUEUE_NOT_FOUND"),
        ("delete", {}, "BAD_COMMAND"),
        ("info", {"destination": "NAME"}, "QUEUE_NOT_FOUND"),
        ("subscribe", {}, "BAD_COMMAND"),
        ("subscribe", {"destination": "NAME", "group": "g"}, "NOT_SUPPORTED"),
        ("subscribe", {"destination": "NAME", "prefetch": "0"}, "BAD_COMMAND"),
        ("subscribe", {"destination": "NAME", "prefetch": "many"}, "BAD_COMMAND"),
        ("subscribe", {"destination": "topic/NAME", "filter": "a"}, "BAD_FILTER"),
        ("subscribe", {"destination": "topic/NAME", "filter": "a<=Tx"}, "BAD_FILTER"),
        ("subscribe", {"destination": "topic/NAME", "filter": "a=N1;" * 70}, "BAD_FILTER"),
        ("subscribe", {"destination": "queue/NAME", "filter": "a=N1"}, "NOT_SUPPORTED"),
        ("unsubscribe", {"destination": "NAME"}, "QUEUE_NOT_FOUND"),
    ],
)
def test_what_cannot_be_is_answered_and_the_connection_goes_on(peer, name, name_, pairs, refusal):
    pairs = {key: str(value).replace("NAME", name) for key, value in pairs.items()}
    peer.write(encode_command(name_, {"id": "x", **pairs}))
    frame = peer.next()
    answer = dict(frame.pairs)
    assert (frame.name, answer["id"], answer["code"]) == ("error", "x", refusal)
    assert answer["text"]
    peer.write(encode_command(name_, pairs))
    text = peer.error()
    assert code(text) == ("NOT_SUPPORTED" if name_ == "info" else refusal)
    assert len(text.encode()) <= 255
    peer.ping()
    assert name_ == "subscribe" or peer.denied("info", destination=name) == "QUEUE_NOT_FOUND", "nothing was made"


def test_a_prefix_that_contradicts_what_is_there_is_refused_by_every_command(peer, name):
    peer.create(f"topic/{name}")
    for command in ("create", "delete", "info", "subscribe"):
        assert peer.denied(command, destination=f"queue/{name}") == "WRONG_KIND"
    assert peer.denied("subscribe", destination=f"queue/{name}", from_="first") == "WRONG_KIND"
    peer.tell("delete", destination=f"topic/{name}")
    peer.create(f"queue/{name}")
    for command in ("create", "delete", "info", "subscribe"):
        assert peer.denied(command, destination=f"topic/{name}") == "WRONG_KIND"
    assert peer.denied("subscribe", destination=f"topic/{name}", from_="first") == "WRONG_KIND"
    peer.tell("delete", destination=name)


def test_other_frames_than_messages_cannot_be_continued(peer):
    peer.write(bytes([1 | 16, 4]), b"list")
    assert code(peer.ended()) == "PROTOCOL_ERROR"


def test_a_command_above_64_kib_is_too_large(peer):
    peer.write(b"\x09\x00\x01\x00\x01")
    assert code(peer.ended()) == "MESSAGE_TOO_LARGE"


def test_a_long_command_may_use_the_long_form(served, peer, name):
    text = ("create;destination=" + "".join(f"%{byte:02x}" for byte in name.encode()) + ",id=1").encode()
    for data in (text, text + b"," + b"id=1," * 200 + b"id=1"):
        peer.write(b"\x09", len(data).to_bytes(4, "big"), data)
        assert peer.next().name == "ok"


def test_a_flood_of_refused_commands_is_answered_in_order_and_nobody_waits(peer, other):
    count = 5_000
    peer.write(*(encode_command("launch", {"id": at}) for at in range(count)))
    other.ping()
    assert [dict(peer.next().pairs)["id"] for _ in range(count)] == [str(at) for at in range(count)]


# ---- create, delete, info, list ----


def test_create_says_whether_it_has_made_the_queue_and_keeps_the_first_options(served, peer, name):
    options = {
        "mode": "priority-based",
        "max-messages": 77,
        "message-ttl-ms": 3_600_000,
        "dead-letter": "true",
        "overflow": "drop-newest",
        "attempts-max": 9,
        "ack-timeout-ms": 5_000,
        "backoff-ms": 10,
        "backoff-max-ms": 20,
        "durability": "disk",
        "durable": 1,
    }
    assert peer.tell("create", destination=name, **options) == {"created": "true"}
    assert peer.tell("create", destination=name, max_messages=5) == {"created": "false"}
    with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
        info = client.queue_info(name).raw
    expected = {
        "deliveryMode": 3,
        "maxSize": 77,
        "messageTtl": "01:00:00",
        "enableDeadLetterQueue": True,
        "overflowStrategy": 1,
        "maxRetryAttempts": 9,
        "ackTimeoutMs": 5000,
        "backoffMs": 10,
        "backoffMaxMs": 20,
        "durability": "disk",
    }
    assert info | expected == info


def test_info_counts_what_waits_what_is_in_flight_and_consumers_on_every_worker(served, peer, other, name):
    for at in range(5):
        peer.publish(name, b"%d" % at)
    other.subscribe(name, prefetch=2)
    other.delivers(2, ack=False)
    peers = [connected(served) for _ in range(6)]
    for asking in (peer, *peers):
        wait_until(
            lambda asking=asking: asking.info(name) == {"messages": 3, "in-flight": 2, "consumers": 1}, "it is counted"
        )
    for asking in peers:
        asking.socket.close()


def test_delete_takes_messages_and_subscriptions_along(peer, other, name):
    other.subscribe(name)
    peer.publish(name)
    other.deliver(ack=False)
    peer.tell("delete", destination=name)
    assert other.error().startswith(f"QUEUE_NOT_FOUND: the subscription to '{name}' has ended")
    other.ack()  # late, and of nothing
    other.ping()
    other.subscribe(name)
    assert other.info(name) == {"messages": 0, "in-flight": 0, "consumers": 1}
    peer.publish(name, b"new")
    assert other.delivers(1) == [b"new"]


def test_list_names_queues_in_order_and_by_pattern(peer, name):
    queues = [f"{name}-{suffix}" for suffix in ("b", "Z", "a", "ä", "x.y_z", "10")]
    for queue in queues:
        peer.create(queue)
    answer = peer.tell("list", pattern=f"{name.upper()}-*")
    assert answer["names"].split("\n") == sorted(queues)
    assert answer["count"] == "6"
    assert set(queues) <= set(peer.tell("list")["names"].split("\n"))


def test_an_answer_that_no_frame_can_hold_is_refused(served, name):
    with connected(served) as peer:
        long = [f"{name}-{at:03}-" + "é" * 110 for at in range(100)]
        for queue in long:
            peer.create(queue)
        assert peer.denied("list", pattern=f"{name}*") == "LIMIT_EXCEEDED"
        assert peer.tell("list", pattern=f"{name}-00*")["names"].split("\n") == long[:10]
        for queue in long:
            peer.tell("delete", destination=queue)


def test_many_make_the_same_queue_at_once_and_one_has_made_it(served, name):
    peers = [connected(served) for _ in range(8)]
    try:
        for peer in peers:
            peer.command("create", destination=name, id=1)
        answers = [dict(peer.next().pairs)["created"] for peer in peers]
        assert sorted(answers) == ["false"] * 7 + ["true"]
    finally:
        for peer in peers:
            peer.socket.close()


# ---- x-subscribe ----


def test_a_subscription_by_handshake_needs_no_command(served, peer, name):
    text = f"batch-ack;x-subscribe:destination=topic%2F{name},filter=age%3E%3DN18"
    with connected(served, text) as reader:
        wait_until(lambda: peer.ask("info", destination=name).get("consumers") == "1", "it has subscribed")
        peer.publish(f"topic/{name}", b"young", b"age:N17;")
        peer.publish(f"topic/{name}", b"old", b"age:N18;")
        message = reader.deliver()
        assert (message.destination.decode(), message.payload) == (f"topic/{name}", b"old")


@pytest.mark.parametrize(
    ("properties", "refusal"),
    [
        ("", "BAD_COMMAND"),
        (":destination=", "NO_DESTINATION"),
        (":destination=a%0ab", "INVALID_NAME"),
        (":destination=a,group=g", "NOT_SUPPORTED"),
        (":destination=topic%2Fa,filter=%3D", "BAD_FILTER"),
        (":destination=a,id=%ff,group=g", "NOT_SUPPORTED"),
    ],
)
def test_one_that_cannot_be_is_told_and_the_connection_is_open(served, name, properties, refusal):
    with connected(served, f"batch-ack;x-subscribe{properties}") as peer:
        assert code(peer.error()) == refusal
        peer.publish(name)


# ---- between the frames of others ----


def test_commands_are_acted_upon_in_their_place_among_messages(served, name):
    with Micromsg2Peer(served) as peer:
        peer.handshake(USUAL)
        data = b"".join(
            encode_command("create", {"destination": f"{name}-{at}"}) + peer.message(f"{name}-{at}", b"%d" % at)
            for at in range(50)
        )
        peer.write(data)
        peer.acked(50)
        for at in range(50):
            assert peer.info(f"{name}-{at}")["messages"] == 1


@pytest.mark.parametrize(
    ("destination", "meant"),
    [
        ("queues/orders", "'queue/orders' was probably meant"),
        ("Topics/orders", "'topic/orders' was probably meant"),
        ("/orders", "'queue/orders' was probably meant"),
        ("a/b", "its destination is queue/NAME or topic/NAME"),
        ("queue/a b", "its destination is queue/NAME or topic/NAME"),
    ],
)
def test_a_name_that_no_other_door_could_bear_makes_no_queue(peer, destination, meant):
    assert peer.refused(destination) == "INVALID_NAME"
    for command in ("create", "subscribe"):
        refused = peer.ask(command, destination=destination)
        assert refused["reply"] == "error" and refused["code"] == "INVALID_NAME" and meant in refused["text"]
