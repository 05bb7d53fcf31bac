# SPDX-License-Identifier: Apache-2.0
"""A caller of the management API over real HTTP, as a tool is."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from running import Running

DEADLINE_S = 30.0
#: What makes a stream, as tools send it.
STREAM = {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "stream"}}


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Http:
    """Each call is a connection of its own."""

    def __init__(
        self, running: Running, user: str = "guest", password: str = "guest", address: str = "127.0.0.1"
    ) -> None:
        self.running, self.address = running, address
        self.login = base64.b64encode(f"{user}:{password}".encode()).decode()

    def call(self, method: str, *parts: str, body: object = None, query: str = "", **headers: str) -> Reply:
        """``call("PUT", "queues", "/", "q")`` is PUT /api/queues/%2F/q."""
        path = "/api" + "".join(f"/{quote(part, safe='')}" for part in parts)
        return self.raw(method, path + query, None if body is None else json.dumps(body), **headers)

    def raw(self, method: str, path: str, body: str | bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection(
            self.running.host, self.running.admin_port, timeout=DEADLINE_S, source_address=(self.address, 0)
        )
        sent = {"Authorization": f"Basic {self.login}", **{name.replace("_", "-"): v for name, v in headers.items()}}
        try:
            connection.request(method, path, body, sent)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, *parts: str, query: str = "") -> Any:
        reply = self.call("GET", *parts, query=query)
        assert reply.status == 200, reply.text
        return reply.json

    def status(self, method: str, *parts: str, body: object = None, query: str = "", **headers: str) -> int:
        return self.call(method, *parts, body=body, query=query, **headers).status


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    """Poll until something another process does has happened; what it gave."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)
    return found
