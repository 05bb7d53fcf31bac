# SPDX-License-Identifier: Apache-2.0
"""How the programs of the Python clients talk to the tests: a line of JSON in for each thing to do, a line of JSON out
for each thing that happened (README.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

LOCK = threading.Lock()


def pack(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [pack(member) for member in value]
    if isinstance(value, dict):
        return {name: pack(member) for name, member in value.items()}
    return value


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(member) for member in value]
    if not isinstance(value, dict):
        return value
    if "$base64" in value:
        return base64.b64decode(value["$base64"])
    return {name: unpack(member) for name, member in value.items()}


def say(event: str, **fields: Any) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"event": event} | pack(fields)) + "\n")
        sys.stdout.flush()


def commands() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, options) until there are no more."""
    for line in sys.stdin:
        command = unpack(json.loads(line))
        yield command.pop("do"), command


def authorization(token: str | None, user: str | None, password: str | None) -> dict[str, str]:
    """The header for whichever is given."""
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    return {}


def serve(program: Any) -> None:
    """Run the coroutines of ``program`` that the commands name."""
    asyncio.run(_serve(program))


async def _serve(program: Any) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    async def run(name: str, options: dict[str, Any]) -> None:
        try:
            await getattr(program, name)(options.get("as"), **{k: v for k, v in options.items() if k != "as"})
        except Exception as problem:
            say("refused", **{"as": options.get("as"), "text": f"{type(problem).__name__}: {problem}"})

    def read() -> None:
        for name, options in commands():
            asyncio.run_coroutine_threadsafe(run(name, options), loop)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, daemon=True).start()
    await over.wait()
