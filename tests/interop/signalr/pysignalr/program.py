# SPDX-License-Identifier: Apache-2.0
"""The program of pysignalr: ../README.md has what it does.

Its access_token_factory is asked only when the connection is negotiated already, so the token goes into the headers.
Its ``run`` ends where nobody listens when it negotiates again, which is up to chance while a broker restarts: who wants
to be connected again calls it again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from pysignalr.client import SignalRClient
from pysignalr.protocol.json import JSONProtocol
from pysignalr.protocol.messagepack import MessagepackProtocol
from talk import authorization, say, serve

PROTOCOLS = {"json": JSONProtocol, "messagepack": MessagepackProtocol}
RECONNECT_S = 0.2


class Program:
    client: SignalRClient
    reconnects: bool
    running: asyncio.Task[None]

    async def connect(
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
        self.reconnects = reconnect
        self.client = client = SignalRClient(
            url,
            PROTOCOLS[encoding](),
            headers=authorization(token, user, password),
            retry_sleep=RECONNECT_S,
            retry_count=100 if reconnect else 1,
        )
        opened = asyncio.Event()

        async def on_open() -> None:
            if opened.is_set():
                say("reconnected")
            opened.set()

        async def on_close() -> None:
            say("reconnecting", text="")

        async def on_error(completion: Any) -> None:
            """A refused call comes here too; its own callback says so."""

        client.on_open(on_open)
        client.on_close(on_close)
        client.on_error(on_error)
        self.running = asyncio.create_task(self._run())
        waiting = asyncio.create_task(opened.wait())
        await asyncio.wait({waiting, self.running}, return_when=asyncio.FIRST_COMPLETED)
        if self.running.done():
            waiting.cancel()
            self.running.result()
        say("connected", **{"as": number})

    async def _run(self) -> None:
        while True:
            try:
                await self.client.run()
            except Exception as problem:
                if self.reconnects and isinstance(problem, OSError):
                    await asyncio.sleep(RECONNECT_S)
                    continue
                say("closed", text=f"{type(problem).__name__}: {problem}")
                raise

    async def invoke(self, number: int, method: str, arguments: list[Any]) -> None:
        async def completed(completion: Any) -> None:
            if completion.error:
                say("refused", **{"as": number, "text": completion.error})
            else:
                say("result", **{"as": number, "value": completion.result})

        await self.client.send(method, arguments, completed)

    async def send(self, number: int, method: str, arguments: list[Any]) -> None:
        await self.client.send(method, arguments)
        say("sent", **{"as": number})

    async def stream(self, number: int, method: str, arguments: list[Any]) -> None:
        async def item(value: Any) -> None:
            say("item", **{"as": number, "value": value})

        async def completed(completion: Any) -> None:
            say("end", **{"as": number})

        async def failed(completion: Any) -> None:
            say("refused", **{"as": number, "text": completion.error})

        await self.client.stream(method, arguments, item, completed, failed)

    async def upload(self, number: int, method: str, arguments: list[Any], items: list[Any]) -> None:
        async with self.client.client_stream(method) as upload:
            for item in items:
                await upload.send(item)
        say("sent", **{"as": number})

    async def listen(self, number: int, method: str, answer: Any = None) -> None:
        async def called(arguments: list[Any]) -> Any:
            say("called", method=method, arguments=arguments)
            return answer

        self.client.on(method, called)
        say("listening", **{"as": number})

    async def stop(self, number: int) -> None:
        """It has no call for that."""
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running
        say("stopped", **{"as": number})


serve(Program())
