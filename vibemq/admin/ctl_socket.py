# SPDX-License-Identifier: Apache-2.0
"""The socket of the admin process in the data directory, from outside: how `vibemq ctl` and `vibemq users` reach it."""

import http.client
import json
import os
import socket
from typing import Any

from vibemq.errors import SetupError

SOCKET_NAME = "ctl.sock"
OWN_FILES = "/proc/self/fd"


def connect(directory: str, timeout_s: float) -> socket.socket | None:
    """None: nobody listens.  Raises SetupError."""
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _unreachable(directory, problem) from None
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(timeout_s)
    try:
        # Through the descriptor, because an address has room for 107 bytes and paths are longer.
        link.connect(f"{OWN_FILES}/{folder}/{SOCKET_NAME}")
        return link
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        if not os.path.isdir(OWN_FILES):  # else a broker that runs would be taken for none
            raise SetupError(
                f"cannot look for the broker in {directory}: {OWN_FILES} is needed, and /proc is not there",
                hint="mount it (`mount -t proc proc /proc`), and let a container see it",
            ) from None
        return None
    except OSError as problem:
        link.close()
        raise _unreachable(directory, problem) from None
    finally:
        os.close(folder)


def request(
    link: socket.socket, timeout_s: float, method: str, where: str, body: Any, headers: dict[str, str]
) -> tuple[int, Any]:
    """Status and body of the answer; ``where`` is below /api.  Raises OSError, http.client.HTTPException."""
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = link
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, f"/api{where}", text, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        read = response.read()
    finally:
        connection.close()
    return response.status, json.loads(read) if read else None


def _unreachable(directory: str, problem: OSError) -> SetupError:
    return SetupError(
        f"cannot reach the broker in {directory}: {problem.strerror}",
        hint="run this as the account that serves, or as root",
    )
