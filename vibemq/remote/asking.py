# SPDX-License-Identifier: Apache-2.0
"""How other processes ask the archiver: JSON in frames over a Unix socket in the data directory.

A frame is a length (u32, big-endian) and a JSON object. A question has `do`, and what that needs; an answer has `ok`,
and `why` where that is false. What readers of cold segments ask is asked in C (csrc/log), in the same words.
"""

import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from vibemq.errors import MetadataUnsure, RemoteError
from vibemq.storage.changes import Changes, NumberTaken

SOCKET = "remote.sock"
FRAME_MAX_BYTES = 64 << 20  # a change of the metadata may make a thousand streams
LENGTH = struct.Struct(">I")
#: The archiver may have to wait for the store; whoever asks has his own limit above this one.
ANSWER_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0  # it is being started, or started again
_POLL_S = 0.05


def ask(
    data_dir: str, do: str, timeout_s: float = ANSWER_TIMEOUT_S, connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **what: object,
) -> dict[str, Any]:  # fmt: skip
    """Blocks.  Raises RemoteError where there is no answer; an answer that is not ``ok`` is returned as it is."""
    question = json.dumps({"do": do, **what}).encode()
    try:
        with _connected(data_dir, connect_timeout_s) as channel:
            channel.settimeout(timeout_s)
            channel.sendall(LENGTH.pack(len(question)) + question)
            (size,) = LENGTH.unpack(_exactly(channel, LENGTH.size))
            if size > FRAME_MAX_BYTES:
                raise OSError(f"an answer of {size} bytes")
            answer: dict[str, Any] = json.loads(_exactly(channel, size))
    except (OSError, ValueError) as problem:
        raise RemoteError(
            f"the archiver of {data_dir} did not answer: {problem}",
            hint="is the broker running, and does the object store answer? `vibemq ctl remote_status` says",
        ) from None
    return answer


def change_body(changes: Changes, **by: object) -> str:
    """Make a change with a random number, so that its author recognizes it.  ``by``: `broker` and `epoch`."""
    return json.dumps({"writer": secrets.token_hex(16), "changes": changes, **by}, sort_keys=True)


def _writer(body: str) -> str:
    return str(json.loads(body)["writer"])


def publisher(data_dir: str) -> Callable[[int, Changes], int]:
    """What `Metadata.publish` is to be: changes are made objects of the bucket by the archiver.  Blocks."""

    def publish(number: int, changes: Changes) -> int:
        body = change_body(changes)
        try:
            answer = ask(data_dir, "change", number=number, body=body)
        except RemoteError as problem:
            raise MetadataUnsure("ERR_IO", str(problem), hint=problem.hint) from problem
        if not answer["ok"]:
            raise MetadataUnsure(
                "ERR_IO",
                f"the object store has not said that it took a change of the metadata: {answer['why']}",
                hint=answer.get("hint")
                or "when the store answers again, look whether the change was made; if not, repeat it",
            )
        if (taken := answer.get("taken")) is not None and (made := json.loads(taken))["writer"] != _writer(body):
            raise NumberTaken(number, made)
        return int(answer["epoch"])

    return publish


def _connected(data_dir: str, timeout_s: float) -> socket.socket:
    """Waits a moment for an archiver that is being started."""
    deadline_s = time.monotonic() + timeout_s
    folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            channel.settimeout(timeout_s)  # its queue of connections may be full
            try:
                # Through the descriptor, because an address has room for 107 bytes and paths are longer.
                channel.connect(f"/proc/self/fd/{folder}/{SOCKET}")
                return channel
            except (FileNotFoundError, ConnectionRefusedError):
                channel.close()
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(_POLL_S)
            except BaseException:
                channel.close()
                raise
    finally:
        os.close(folder)


def _exactly(channel: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        more = channel.recv(min(size - len(got), 1 << 20))
        if not more:
            raise OSError("the connection was closed")
        got += more
    return bytes(got)
