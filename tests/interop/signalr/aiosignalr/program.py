# SPDX-License-Identifier: Apache-2.0
"""The program of aiosignalr: ../README.md has what it does."""

from __future__ import annotations

import asyncio
from typing import Any

from aiosignalr.client import HubConnection, RetryPolicy
from talk import authorization, say, serve

RECONNECT_S = 0.2


class Again(RetryPolicy):
    def next_retry_delay(self, context: Any) -> float:
        return RECONNECT_S


class Program:
    connection: HubConnection

    def __init__(self) -> None:
        self.streams: dict[int, asyncio.Task[None]] = {}

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
        self.connection = connection = HubConnection(protocol=encoding)
        if reconnect:
            connection.with_retry_policy(Again())
        if stateful:
            connection.with_stateful_reconnect()
        connection.on_close = lambda problem: say("closed", text=str(problem or ""))
        connection.on_reconnecting = lambda problem: say("reconnecting", text=str(problem or ""))
        connection.on_reconnected = lambda: say("reconnected")
        await connection.start(
            url,
            transports={transport},
            access_token_factory=(lambda: token) if token else None,
            headers=authorization(None, user, password),
        )
        say("connected", **{"as": number})

    async def invoke(self, number: int, method: str, arguments: list[Any]) -> None:
        value = await self.connection.invoke(method, *arguments)
        say("result", **{"as": number, "value": value})

    async def send(self, number: int, method: str, arguments: list[Any]) -> None:
        await self.connection.send(method, *arguments)
        say("sent", **{"as": number})

    async def stream(self, number: int, method: str, arguments: list[Any]) -> None:
        items = await self.connection.stream(method, *arguments)

        async def read() -> None:
            try:
                async for item in items:
                    say("item", **{"as": number, "value": item})
            except asyncio.CancelledError:
                await items.aclose()  # type: ignore[attr-defined]
            except Exception as problem:
                say("refused", **{"as": number, "text": str(problem)})
                return
            say("end", **{"as": number})

        self.streams[number] = asyncio.create_task(read())

    async def cancel(self, number: int, of: int) -> None:
        self.streams[of].cancel()

    async def upload(self, number: int, method: str, arguments: list[Any], items: list[Any]) -> None:
        async with self.connection.client_stream(method, *arguments) as upload:
            for item in items:
                await upload.send_item(item)
        say("result", **{"as": number, "value": upload.result})

    async def listen(self, number: int, method: str, answer: Any = None) -> None:
        def called(*arguments: Any) -> Any:
            say("called", method=method, arguments=arguments)
            return answer

        self.connection.on(method, called)
        say("listening", **{"as": number})

    async def stop(self, number: int) -> None:
        await self.connection.stop()
        say("stopped", **{"as": number})


serve(Program())
