# SPDX-License-Identifier: Apache-2.0
"""The hub clients that there are, what each of them cannot do, and one of them at work.

A program is told what to do line by line (README.md); what it says is waited for here, and nothing else is.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from foreign_clients import Client, Program, ProgramFailed, build_js, build_python
from talk import pack, unpack

HERE = Path(__file__).parent
PYTHON = (sys.executable, "{0}/program.py")
NODE = ("node", "{0}/program.js")

CLIENTS = (
    Client(
        HERE / "microsoft_signalr",
        "@microsoft/signalr 10.0.11 and @microsoft/signalr-protocol-msgpack 10.0.11 (npm)",
        ("node", "npm"),
        build_js,
        NODE,
    ),
    Client(HERE / "signalrcore", "signalrcore 1.0.2 (PyPI)", (), build_python, PYTHON),
    Client(HERE / "pysignalr", "pysignalr 1.3.3 (PyPI)", (), build_python, PYTHON),
    Client(HERE / "aiosignalr", "aiosignalr 0.1.1 (PyPI)", (), build_python, PYTHON),
    Client(
        HERE / "aspnet_alpha2",
        "@aspnet/signalr-client 1.0.0-alpha2-final (npm), of the early dialect",
        ("node", "npm"),
        build_js,
        NODE,
    ),
)
BY_NAME = {client.name: client for client in CLIENTS}

TRANSPORTS = ("WebSockets", "ServerSentEvents", "LongPolling")
ENCODINGS = ("json", "messagepack")


class Flavour(NamedTuple):
    """A client with one of the ways in which it connects."""

    client: str
    transport: str
    encoding: str

    def __str__(self) -> str:
        return "-".join(self)


WAYS = [(transport, encoding) for transport in TRANSPORTS for encoding in ENCODINGS]
NO_BINARY_EVENTS = "a released client refuses MessagePack over server-sent events"
#: What a client has not: of ways, and of capabilities.
LACKS: dict[str, dict[Any, str]] = {
    "microsoft_signalr": {("ServerSentEvents", "messagepack"): NO_BINARY_EVENTS},
    "signalrcore": {
        ("ServerSentEvents", "messagepack"): NO_BINARY_EVENTS,
        ("LongPolling", "messagepack"): "signalrcore's class for it cannot be constructed",
        (
            "headers",
            "LongPolling",
        ): "signalrcore's polls bear no header of one's own; it needs a token in the address",
        ("reconnecting", "LongPolling"): "signalrcore goes on polling for a connection that is gone",
        "outlasting a restart": "signalrcore gives up when nobody listens at its first attempt to connect again",
        "sending without an answer": "signalrcore gives every call an id",
        "cancelling": "signalrcore has no call that cancels a stream",
        "answers of uploads": "signalrcore uploads without an id, so nothing comes back",
        "client results": "signalrcore never answers the server",
        "stateful reconnect": "signalrcore does not know it",
    },
    "pysignalr": {
        ("ServerSentEvents", "json"): "pysignalr has WebSockets only",
        ("ServerSentEvents", "messagepack"): "pysignalr has WebSockets only",
        ("LongPolling", "json"): "pysignalr has WebSockets only",
        ("LongPolling", "messagepack"): "pysignalr has WebSockets only",
        "cancelling": "pysignalr has no call that cancels a stream",
        "answers of uploads": "pysignalr uploads without an id, so nothing comes back",
        "stateful reconnect": "pysignalr does not know it",
    },
    "aiosignalr": {("ServerSentEvents", "messagepack"): NO_BINARY_EVENTS},
    "aspnet_alpha2": dict.fromkeys(
        ("cancelling", "uploads", "client results", "reconnecting", "stateful reconnect"),
        "the early dialect, or its client, does not have this",
    )
    | {"headers": "this client gives no headers of one's own"},
}
FLAVOURS = [Flavour(client.name, *way) for client in CLIENTS for way in WAYS if way not in LACKS[client.name]]

#: A poll that was cut may simply be sent once more, and the connection goes on.
MAY_ASK_AGAIN = [
    one for one in FLAVOURS if one.client in ("signalrcore", "aiosignalr") and one.transport == "LongPolling"
]


class Refused(Exception):
    """A call was answered by an error, of which this is the text."""


class Stream:
    """A stream invocation that is going on."""

    def __init__(self, program: HubProgram, number: int) -> None:
        self.program, self.number = program, number

    def items(self, count: int) -> list[Any]:
        return [self.program.value(self.number, "item") for _ in range(count)]

    def cancel(self) -> None:
        self.program.tell("cancel", of=self.number)

    def end(self) -> None:
        """It ends, and nothing comes before that."""
        self.program.answer(self.number, "end")


class HubProgram(Program):
    """One run of a client's program, and its connection."""

    def __init__(self, command: list[str], errors: Path, **environment: str) -> None:
        super().__init__(command, errors, stdin=subprocess.PIPE, **environment)
        self.numbers = itertools.count(1)
        self.waiting: list[dict[str, Any]] = []  # said, and not asked for yet

    # ---- what it is told, and says ----

    def tell(self, do: str, **options: Any) -> int:
        number = next(self.numbers)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "as": number} | pack(options)).encode() + b"\n")
        self.process.stdin.flush()
        return number

    def wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line like that, said already or yet to come."""
        for line in self.waiting:
            if wanted(line):
                self.waiting.remove(line)
                return line
        for line in self.lines():
            if wanted(line):
                return line
            self.waiting.append(line)
        raise ProgramFailed(f"it ended; it had said {self.said[-5:]}{self.why()}")

    def event(self, name: str) -> dict[str, Any]:
        return self.wait(lambda line: line["event"] == name)

    def has_closed(self) -> bool:
        """Has it said that its connection is over?"""
        with suppress(ProgramFailed):  # what it has said until now
            self.waiting.extend(self.lines(0))
        return any(line["event"] == "closed" for line in self.said)

    def answer(self, number: int, event: str) -> dict[str, Any]:
        line = self.wait(lambda line: line.get("as") == number)
        if line["event"] == "refused":
            raise Refused(line["text"])
        assert line["event"] == event, line
        return line

    def value(self, number: int, event: str = "result") -> Any:
        return unpack(self.answer(number, event).get("value"))

    # ---- the hub ----

    def connect(self, **options: Any) -> None:
        self.answer(self.tell("connect", **options), "connected")

    def invoke(self, method: str, *arguments: Any) -> Any:
        return self.value(self.tell("invoke", method=method, arguments=arguments))

    def flood(self, count: int, method: str, *arguments: Any) -> int:
        """Begin so many calls at once; `flooded` says what became of them."""
        return self.tell("flood", method=method, arguments=arguments, count=count)

    def answered(self, number: int, least: int) -> None:
        """Wait until so many calls of a flood have come back."""
        self.wait(lambda line: line.get("of") == number and line["answered"] + line["refused"] >= least)

    def send(self, method: str, *arguments: Any) -> None:
        self.answer(self.tell("send", method=method, arguments=arguments), "sent")

    def stream(self, method: str, *arguments: Any) -> Stream:
        return Stream(self, self.tell("stream", method=method, arguments=arguments))

    def upload(self, method: str, items: list[Any], *arguments: Any, answered: bool = True) -> Any:
        number = self.tell("upload", method=method, arguments=arguments, items=items)
        return self.value(number) if answered else self.answer(number, "sent")

    def listen(self, method: str, answer: Any = None) -> None:
        options = {} if answer is None else {"answer": answer}
        self.answer(self.tell("listen", method=method, **options), "listening")

    def called(self) -> list[Any]:
        """The arguments of the next call of a method of the client's."""
        return unpack(self.event("called")["arguments"])

    def stop(self) -> None:
        self.answer(self.tell("stop"), "stopped")
