# SPDX-License-Identifier: Apache-2.0
"""What other processes ask of the archiver, over a Unix socket in the data directory (asking.py has the frames).

| do | what | answer |
|---|---|---|
| change | `number`, `body`: create this change of the metadata | `taken`: the body of the one that is there |
| fetch | `log`, `segment`, `from`, `to`: have them here, of a cold segment; none: a reader reads on there | |
| index | `log`, `segment`: have its index here | |
| status | | what `vibemq ctl remote_status` shows |

The socket is for this account only, and every question has a limit; a peer that does not end its frame is let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any

from vibemq.errors import RemoteError, VibeMQError
from vibemq.remote.asking import FRAME_MAX_BYTES, LENGTH, SOCKET
from vibemq.remote.bucket import Bucket, Taken
from vibemq.remote.objects import Kind, change_key, from_json, to_json
from vibemq.remote.tier import Tier
from vibemq.remote.write_ahead import Tenure

#: A question comes in one go; who is slower than this is not one of ours.
QUESTION_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 1024
#: Whoever changes the metadata holds its lock meanwhile, and people wait.
CHANGE_TIMEOUT_S = 10.0
_INCARNATION = re.compile(r"[0-9a-f]{16}")

log = logging.getLogger("vibemq.remote")


class Service:
    def __init__(
        self, data_dir: str, bucket: Bucket, tier: Tier, tenure: Tenure, status: Callable[[], dict[str, object]]
    ) -> None:
        self.data_dir, self.bucket, self.tier, self.tenure, self.status = data_dir, bucket, tier, tenure, status
        self._server: asyncio.Server | None = None
        self._open = 0
        self._do: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, object]]]] = {
            "change": self._change,
            "fetch": self._fetch,
            "index": self._index,
            "status": self._status,
        }

    async def listen(self) -> None:
        folder = os.open(self.data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=folder)
            address = f"/proc/self/fd/{folder}/{SOCKET}"
            self._server = await asyncio.start_unix_server(self._answer, address, backlog=128)
            os.chmod(SOCKET, 0o600, dir_fd=folder)
        finally:
            os.close(folder)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.data_dir, SOCKET))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: question, answer, question, ..."""
        self._open += 1
        try:
            while self._open <= CONNECTIONS_MAX:
                question = await self._question(reader)
                if question is None:
                    return
                answer = json.dumps(await self._reply(question)).encode()
                writer.write(LENGTH.pack(len(answer)) + answer)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return  # it has gone, or is none of ours
        finally:
            self._open -= 1
            writer.close()

    async def _question(self, reader: asyncio.StreamReader) -> bytes | None:
        head = await reader.read(1)  # between two questions it may take its time
        if not head:
            return None

        async def rest() -> bytes:
            (size,) = LENGTH.unpack(head + await reader.readexactly(LENGTH.size - 1))
            if size > FRAME_MAX_BYTES:
                raise OSError(f"a question of {size} bytes")
            return await reader.readexactly(size)

        return await asyncio.wait_for(rest(), QUESTION_TIMEOUT_S)

    async def _reply(self, question: bytes) -> dict[str, object]:
        try:
            asked = json.loads(question)
            found = await self._do[asked["do"]](asked)
            return {"ok": True, **found}
        except VibeMQError as problem:
            return {"ok": False, "why": str(problem), "hint": problem.hint}
        except (ValueError, KeyError, TypeError) as problem:
            return {"ok": False, "why": f"a question that is none: {type(problem).__name__} {problem}"}
        except Exception as problem:
            log.exception("while answering %r", question[:200])
            return {"ok": False, "why": f"{type(problem).__name__}: {problem}"}

    async def _change(self, asked: dict[str, Any]) -> dict[str, object]:
        """Create the object; return only if no newer epoch existed then, so that a newer broker has it."""
        self.tenure.require()
        key, epoch = change_key(int(asked["number"])), self.tenure.epoch
        change = from_json(key, asked["body"].encode()) | {"broker": self.tenure.name, "epoch": epoch}
        gone = self.tier.deleted_by(change["changes"])

        async def made() -> dict[str, object]:
            try:
                await self.bucket.create(key, Kind.CHANGE, to_json(**change))
            except Taken:
                there = from_json(key, await self.bucket.read(key, Kind.CHANGE))
                await self.tenure.check()
                return {"taken": json.dumps(there), "epoch": epoch}
            await self.tenure.check()
            return {"epoch": epoch}

        try:
            answer = await asyncio.wait_for(made(), CHANGE_TIMEOUT_S)
        except TimeoutError:
            raise RemoteError(f"the object store has not taken {key} within {CHANGE_TIMEOUT_S:.0f} s") from None
        if "taken" not in answer:
            self.tier.forget(gone)
        return answer

    async def _fetch(self, asked: dict[str, Any]) -> dict[str, object]:
        await self.tier.cache.fetch(self._log(asked), int(asked["segment"]), int(asked["from"]), int(asked["to"]))
        return {}

    async def _index(self, asked: dict[str, Any]) -> dict[str, object]:
        await self.tier.cache.fetch_index(self._log(asked), int(asked["segment"]))
        return {}

    async def _status(self, asked: dict[str, Any]) -> dict[str, object]:
        return {"status": self.status()}

    def _log(self, asked: dict[str, Any]) -> str:
        """An incarnation, and no path."""
        name = str(asked["log"])
        if _INCARNATION.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no incarnation")
        return name
