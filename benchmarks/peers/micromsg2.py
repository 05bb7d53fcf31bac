# SPDX-License-Identifier: Apache-2.0
"""The MicroMsg2 door under the queue load generator: batch-ack both ways, commands answered by `x-reply`.

The windows are those of the load: a publisher's `window`, a consumer's `prefetch`, 10,000 at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers._micromsg2_load import Micromsg2Audience, Micromsg2Consumer, Micromsg2Publisher
from benchmarks.peers.topic import TopicPeer
from vibemq.bench._flow import NUMBER_MARK, Consumer, Publisher, body
from vibemq.bench.load import Wire
from vibemq.errors import VibeMQError
from vibemq.protocols.micromsg2 import extensions
from vibemq.protocols.micromsg2.codec import (
    Command,
    ErrorFrame,
    decode_frame,
    decode_handshake,
    encode_command,
    encode_handshake,
    encode_message,
)
from vibemq.protocols.micromsg2.extensions import Extension
from vibemq.protocols.micromsg2.spec import (
    COUNT_KEY,
    PORT_DEFAULT,
    QUEUE_PREFIX,
    TOPIC_PREFIX,
    WINDOW_MAX,
    ExtensionName,
)

if TYPE_CHECKING:
    from vibemq.bench.queues import QueueLoad

COMMAND_ID = "c"
PROPERTIES = b"kind:Torder;size:N100;number:T" + NUMBER_MARK + b";"  # of messages to a topic


class Micromsg2Wire(Wire):
    """A connection whose handshake is over; `window` 0: without acknowledgements."""

    def __init__(self, load: QueueLoad, port: int, window: int) -> None:
        super().__init__(load.host, port, load.timeout_s)
        wanted = [Extension(ExtensionName.PUB_SUB), Extension(ExtensionName.REPLY)]
        if window:
            wanted.append(Extension(ExtensionName.BATCH_ACK, {COUNT_KEY: str(min(window, WINDOW_MAX))}))
        if load.user:
            wanted.append(Extension(ExtensionName.MICROAUTH, {"user": load.user, "password": load.password}))
        c1 = extensions.first(wanted)
        self.send(encode_handshake(extensions.handshake_of(c1)))
        c2 = extensions.handshake_of(extensions.answer(c1, self.taken(decode_handshake)))
        self.agreed = extensions.agree(c2)
        self.send(encode_handshake(c2))

    def taken(self, decode: Any) -> Any:
        """The next handshake message or frame."""
        while (found := decode(self.held)) is None:
            self.more()
        message, size = found
        del self.held[:size]
        if isinstance(message, ErrorFrame):
            raise VibeMQError(f"the server answered {message.text}")
        return message

    def command(self, name: str, **pairs: str | int) -> dict[str, str]:
        """What the answer says; nothing else may come before it."""
        self.send(encode_command(name, {"id": COMMAND_ID, **pairs}))
        answer = self.taken(decode_frame)
        if not isinstance(answer, Command) or answer.name != "ok":
            raise VibeMQError(f"{name}: the server answered {answer}")
        return dict(answer.pairs)


class Micromsg2(TopicPeer):
    """A queue with competing consumers, or a topic whose messages bear their number as a property."""

    port_default = PORT_DEFAULT

    def __init__(self, load: QueueLoad) -> None:
        super().__init__(load)
        self.destination = QUEUE_PREFIX + load.queue
        self.properties = b""
        self.control = self.connect(0)

    def connect(self, window: int) -> Micromsg2Wire:
        return Micromsg2Wire(self.load, self.load.port, window)

    def create(self) -> None:
        self.delete()
        options: dict[str, str | int] = {"max-messages": 0}
        if self.load.durability:
            options["durability"] = self.load.durability
        self.control.command("create", destination=self.destination, **options)

    def create_topic(self) -> None:
        self.destination = TOPIC_PREFIX + self.load.queue
        self.properties = PROPERTIES
        self.create()

    def delete(self) -> None:
        try:
            self.control.command("delete", destination=self.destination)
        except VibeMQError as problem:
            if "QUEUE_NOT_FOUND" not in str(problem):
                raise

    def info(self) -> dict[str, str]:
        return self.control.command("info", destination=self.destination)

    def left(self) -> int:
        info = self.info()
        return int(info["messages"]) + int(info["in-flight"])

    def publisher(self, number: int) -> Publisher:
        wire = self.connect(self.load.window)
        agreed = wire.agreed
        frame = encode_message(1, self.destination.encode(), body(self.load.size_bytes), self.properties)
        options = self.publishing(number) | {"window": agreed.window}
        return Micromsg2Publisher(**wire.handed_on(), frame=frame, ack_id=agreed.ack_id, **options)

    def consumer(self, number: int) -> Consumer:
        wire = self.connect(self.load.prefetch)
        wire.command("subscribe", destination=self.destination)
        return Micromsg2Consumer(
            **wire.handed_on(),
            ack_id=wire.agreed.ack_id,
            window=wire.agreed.window,
            **self.consuming(),
        )

    def subscriber(self, filter: str = "") -> Micromsg2Wire:
        wire = self.connect(0)
        wire.command("subscribe", destination=self.destination, **({"filter": filter} if filter else {}))
        return wire

    def subscribers(self) -> int:
        return int(self.info()["consumers"])

    def audience(self, **options: Any) -> Micromsg2Audience:
        return Micromsg2Audience(**options)
