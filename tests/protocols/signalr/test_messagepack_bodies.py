# SPDX-License-Identifier: Apache-2.0
"""Values that only MessagePack carries are delivered byte for byte, by each method of publishing and receiving."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec import Raw
from peers.signalr import HubPeer, fresh
from running import Running

from vibemq.protocols.signalr.codec import elements_of, parts_of
from vibemq.protocols.signalr.spec import Encoding, MessageType

TICKS = bytes.fromhex("d7ff0000019065539780")  # 2023-11-14T15:51:28.0000001Z
DATE_MAX = bytes.fromhex("c70cff3b9ac99c0000003afff4417f")  # .NET's DateTime.MaxValue
BODIES = [
    msgspec.msgpack.encode({"bytes": b"\0\xff", "n": 1}),
    b"\x81\xa2at" + TICKS,
    TICKS,
    DATE_MAX,
    msgspec.msgpack.encode({1: "one", 2: "two"}),
    b"\xcb\x7f\xf8\0\0\0\0\0\0",
    b"\x81\x91\x01\xd4\x05x",
]
IN_JSON = [
    {"bytes": "AP8=", "n": 1},
    {"at": "2023-11-14T15:51:28.0000001Z"},
    "2023-11-14T15:51:28.0000001Z",
    "9999-12-31T23:59:59.9999999Z",
    {"1": "one", "2": "two"},
    "NaN",
    {"kQE=": [5, "eA=="]},
]


def publish(hub: HubPeer, queue: str) -> None:
    for body in BODIES:
        hub.ask("Publish", queue, Raw(body))


def publish_batch(hub: HubPeer, queue: str) -> None:
    hub.ask("PublishBatch", queue, [Raw(body) for body in BODIES])


def publish_batch_with_options(hub: HubPeer, queue: str) -> None:
    hub.ask("PublishBatch", queue, [{"body": Raw(body), "headers": {"n": 1}} for body in BODIES])


def publish_stream(hub: HubPeer, queue: str) -> None:
    id = hub.begin("PublishStream", queue, stream_ids=["u"])
    for body in BODIES:
        hub.send(MessageType.STREAM_ITEM, id="u", payload=Raw(body))
    hub.send(MessageType.COMPLETION, id="u")
    assert hub.answer(id).payload["count"] == len(BODIES)


def body_of(delivery: bytes) -> bytes:
    parts = elements_of(delivery, Encoding.MESSAGEPACK, True)
    return dict(zip(map(msgspec.msgpack.decode, parts[::2]), parts[1::2], strict=True))["body"]  # type: ignore[no-any-return]


def parts_until(hub: HubPeer, wanted: MessageType) -> tuple:  # type: ignore[type-arg]
    while True:
        parts = parts_of(hub.next_raw(), Encoding.MESSAGEPACK)
        if parts[0] == wanted:
            return parts


def streamed(method: str) -> Callable[[HubPeer, str], list[bytes]]:
    def read(hub: HubPeer, queue: str) -> list[bytes]:
        hub.stream(method, queue, *([{"from": "first"}] if method == "ReadStream" else []))
        return [body_of(parts_until(hub, MessageType.STREAM_ITEM)[7]) for _ in BODIES]

    return read


def received(hub: HubPeer, queue: str) -> list[bytes]:
    hub.begin("Receive", queue, {"max": len(BODIES), "ack": "auto"})
    found = elements_of(parts_until(hub, MessageType.COMPLETION)[7], Encoding.MESSAGEPACK)
    return [body_of(delivery) for delivery in found]


def pushed(hub: HubPeer, queue: str) -> list[bytes]:
    hub.begin("SubscribePush", queue)
    calls = [parts_until(hub, MessageType.INVOCATION)[3] for _ in BODIES]
    return [body_of(elements_of(arguments, Encoding.MESSAGEPACK)[1]) for arguments in calls]


WAYS_IN = (publish, publish_batch, publish_batch_with_options, publish_stream)
WAYS_OUT = {
    "Subscribe": streamed("Subscribe"),
    "ReadStream": streamed("ReadStream"),
    "Receive": received,
    "push": pushed,
}


@pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.__name__)
@pytest.mark.parametrize("way_out", WAYS_OUT.values(), ids=WAYS_OUT)
def test_a_body_that_json_cannot_carry_comes_out_as_it_went_in(
    served: Running,
    way_in: Callable[[HubPeer, str], None],
    way_out: Callable[[HubPeer, str], list[bytes]],
) -> None:
    queue = fresh()
    with HubPeer(served, encoding=Encoding.MESSAGEPACK) as hub:
        hub.ask("CreateQueue", queue)
        way_in(hub, queue)
        assert way_out(hub, queue) == BODIES


def test_a_json_client_gets_its_json(served: Running) -> None:
    queue = fresh()
    with HubPeer(served, encoding=Encoding.MESSAGEPACK) as hub, HubPeer(served) as reader:
        hub.ask("CreateQueue", queue)
        publish(hub, queue)
        found = reader.ask("Receive", queue, {"max": len(BODIES), "ack": "auto"})
        assert [(each["body"], each["contentType"]) for each in found] == [
            (json, "application/msgpack") for json in IN_JSON
        ]
        assert not any("encoding" in each for each in found)
