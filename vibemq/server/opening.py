# SPDX-License-Identifier: Apache-2.0
"""Before the workers start: the bucket is opened, and what is missing here is brought back from it.

In a process of its own, because the store's client makes threads and the supervisor, which forks, has one.
"""

import asyncio
import importlib
import json
import os
from collections.abc import Callable

from vibemq.config import Config
from vibemq.errors import ConfigError, RemoteError, Superseded, VibeMQError
from vibemq.server.processes import ends_with, fork
from vibemq.storage.metadata import Metadata

KINDS = {kind.__name__: kind for kind in (Superseded, ConfigError, RemoteError)}


def open_bucket(config: Config, require: Callable[[Metadata], None], make: Callable[[Metadata], None]) -> int:
    """Returns the epoch that the archiver begins with.  Raises one of KINDS with what that process has to say.

    ``require(metadata)`` may refuse the start by raising one: before this broker takes the place of another.
    ``make(metadata)`` may change it, afterwards.  They run in that process.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    ours = os.getpid()
    pid = fork("opening", lambda: os.close(read_end), lambda: _run(config, require, make, write_end, ours))
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        answer = json.loads(pipe.read() or "{}")
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        return int(answer["epoch"])
    said = answer.get("message", "the object store could not be opened: see the lines above")
    raise KINDS[answer.get("kind", "RemoteError")](said, hint=answer.get("hint", ""))


def _run(
    config: Config, require: Callable[[Metadata], None], make: Callable[[Metadata], None], pipe: int, parent_pid: int
) -> int:
    opening = importlib.import_module("vibemq.remote.opening")

    async def open_it() -> int:
        watch = asyncio.create_task(ends_with(parent_pid, grace_s=0.0))
        epoch: int = await opening.open_bucket(config, require, make)
        watch.cancel()
        return epoch

    answer: dict[str, object]
    try:
        answer = {"epoch": asyncio.run(open_it())}
    except VibeMQError as problem:
        kind = next((name for name, kind in KINDS.items() if isinstance(problem, kind)), "RemoteError")
        answer = {"message": str(problem), "hint": problem.hint, "kind": kind}
    os.write(pipe, json.dumps(answer).encode())
    return 0 if "epoch" in answer else 1
