# SPDX-License-Identifier: Apache-2.0
"""Before the workers start: the bucket is opened, and what is missing here is brought back from it.

In a process of its own, because the store's client makes threads and the supervisor, which forks, has one.
"""

import asyncio
import importlib
import json
import os

from vibemq.config import Config
from vibemq.errors import ConfigError, RemoteError, VibeMQError
from vibemq.server.processes import ends_with, fork


def open_bucket(config: Config) -> None:
    """Raises ConfigError or RemoteError with what that process has to say."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    ours = os.getpid()
    pid = fork("opening", lambda: os.close(read_end), lambda: _run(config, write_end, ours))
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        return
    problem = json.loads(said) if said else {"message": "the object store could not be opened: see the lines above"}
    kind = ConfigError if problem.get("is_config") else RemoteError
    raise kind(problem["message"], hint=problem.get("hint", ""))


def _run(config: Config, pipe: int, parent_pid: int) -> int:
    opening = importlib.import_module("vibemq.remote.opening")

    async def open_it() -> None:
        watch = asyncio.create_task(ends_with(parent_pid, grace_s=0.0))
        await opening.open_bucket(config)
        watch.cancel()

    try:
        asyncio.run(open_it())
    except VibeMQError as problem:
        is_config = isinstance(problem, ConfigError)
        os.write(pipe, json.dumps({"message": str(problem), "hint": problem.hint, "is_config": is_config}).encode())
        return 1
    return 0
