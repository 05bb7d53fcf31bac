# SPDX-License-Identifier: Apache-2.0
"""The program of signalrcore, which has threads of its own: ../README.md has what it does."""

from __future__ import annotations

import threading
from typing import Any

from signalrcore.hub import base_hub_connection
from signalrcore.hub.handlers import StreamHandler
from signalrcore.hub_connection_builder import HubConnectionBuilder
from signalrcore.subject import Subject
from signalrcore.types import HttpTransportType, HubProtocolEncoding
from talk import authorization, commands, say

ENCODINGS = {"json": HubProtocolEncoding.text, "messagepack": HubProtocolEncoding.binary}


class PatientHandler(StreamHandler):
    """An item may come before `subscribe` has said who wants it: it waits for that."""

    def __init__(self, event: str, invocation_id: str) -> None:
        super().__init__(event, invocation_id)
        program.calls[invocation_id] = program.number
        self.known = threading.Event()
        self.next_callback = lambda item: self.known.wait() and self.next_callback(item)
        self.complete_callback = lambda message: self.known.wait() and self.complete_callback(message)

    def subscribe(self, callbacks: dict[str, Any]) -> None:
        super().subscribe(callbacks)
        self.known.set()


base_hub_connection.StreamHandler = PatientHandler


class Program:
    def __init__(self) -> None:
        self.connection: Any = None
        self.number = 0  # of the command
        self.calls: dict[str, int] = {}  # invocation id -> number of its command

    def connect(
        self,
        number: int,
        url: str,
        transport: str,
        encoding: str,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        reconnect: bool = False,
        stateful: bool = False,
    ) -> None:
        options: dict[str, Any] = {"transport": HttpTransportType(transport), "headers": {}}
        if token and transport == "LongPolling":
            url += f"?access_token={token}"  # its polls bear no header
        elif token:
            options["access_token_factory"] = lambda: token
        else:
            options["headers"] = authorization(None, user, password)
        builder = HubConnectionBuilder().with_url(url, options).with_hub_protocol(ENCODINGS[encoding])
        if reconnect:
            builder.with_automatic_reconnect({"type": "raw", "keep_alive_interval": 1, "reconnect_interval": 1})
        self.connection = connection = builder.build()
        opened = threading.Event()
        connection.on_open(opened.set)
        connection.on_close(lambda: say("closed", text=""))
        connection.on_reconnect(lambda: say("reconnected"))
        connection.on_error(self._failed)
        connection.start()
        if not opened.wait(20):
            raise TimeoutError("it was not opened")
        say("connected", **{"as": number})

    def _failed(self, completion: Any) -> None:
        """A call was refused."""
        say("refused", **{"as": self.calls.get(completion.invocation_id), "text": completion.error})

    def invoke(self, number: int, method: str, arguments: list[Any]) -> None:
        def completed(completion: Any) -> None:
            say("result", **{"as": number, "value": completion.result})

        id = f"call-{number}"
        self.calls[id] = number
        self.connection.invoke(method, arguments, completed, id)

    def stream(self, number: int, method: str, arguments: list[Any]) -> None:
        handler = self.connection.stream(method, arguments)
        handler.subscribe(
            {
                "next": lambda item: say("item", **{"as": number, "value": item}),
                "complete": lambda _: say("end", **{"as": number}),
                "error": lambda problem: say("refused", **{"as": number, "text": str(problem)}),
            }
        )

    def upload(self, number: int, method: str, arguments: list[Any], items: list[Any]) -> None:
        subject = Subject()
        self.connection.send(method, subject)
        for item in items:
            subject.next(item)
        subject.complete()
        say("sent", **{"as": number})

    def listen(self, number: int, method: str, answer: Any = None) -> None:
        self.connection.on(method, lambda arguments: say("called", method=method, arguments=arguments))
        say("listening", **{"as": number})

    def stop(self, number: int) -> None:
        self.connection.stop()
        say("stopped", **{"as": number})


program = Program()
for name, options in commands():
    program.number = number = options.pop("as")
    try:
        getattr(program, name)(number, **options)
    except Exception as problem:
        say("refused", **{"as": number, "text": f"{type(problem).__name__}: {problem}"})
