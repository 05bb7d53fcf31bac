# SPDX-License-Identifier: Apache-2.0
"""How `vibemq ctl` reaches the broker: the admin process's socket in the data directory, or else the files there.

Either way it is the management API that answers (vibemq.admin.api), so there is one meaning of each request.
"""

from __future__ import annotations

import http.client
import socket
from typing import Any
from urllib.parse import quote

from vibemq.admin import ctl_socket
from vibemq.errors import UserError, VibeMQError

TIMEOUT_DEFAULT_S = 60.0


class Failed(VibeMQError):
    """The broker refused; ``status`` is HTTP's number for why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def path(*parts: str) -> str:
    """``path("queues", "/", "a b")`` is /queues/%2F/a%20b."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


class Link:
    """To one broker's data directory.  ``needs_broker`` commands refuse to work on the files alone."""

    def __init__(self, config_path: str | None, data_dir: str | None, timeout_s: float = TIMEOUT_DEFAULT_S) -> None:
        from vibemq.cli_users import data_path

        self._config_path = config_path
        self._data_dir = data_dir
        self._timeout_s = timeout_s
        self.directory = data_path(config_path, data_dir)

    def get(self, *parts: str, needs_broker: bool = False) -> Any:
        return self.ask("GET", *parts, needs_broker=needs_broker)

    def ask(
        self,
        method: str,
        *parts: str,
        body: dict[str, Any] | None = None,
        reason: str = "",
        needs_broker: bool = False,
        makes_data: bool = False,
    ) -> Any:
        """The answer's body; ``makes_data``: a data directory that is missing is made.  Raises Failed, UserError."""
        connection = ctl_socket.connect(self.directory, self._timeout_s)
        if connection is None:
            if needs_broker:
                raise UserError(
                    f"no broker serves from {self.directory}",
                    hint="is it the right directory (--data-dir)?  `vibemq serve` starts a broker",
                )
            status, answer = self._offline(method, path(*parts), body, makes_data)
        else:
            status, answer = self._online(connection, method, path(*parts), body, reason)
        if status >= 300:
            raise Failed(status, str((answer or {}).get("reason", f"status {status}")))
        return answer

    # ---- with a broker ----

    def _online(self, link: socket.socket, method: str, where: str, body: Any, reason: str) -> tuple[int, Any]:
        headers = {"X-Reason": " ".join(reason.split()).encode("ascii", "backslashreplace").decode()}
        try:
            return ctl_socket.request(link, self._timeout_s, method, where, body, headers)
        except (OSError, http.client.HTTPException) as problem:
            raise Failed(503, f"the broker did not answer: {problem}") from problem

    # ---- without ----

    def _offline(self, method: str, where: str, body: Any, makes_data: bool) -> tuple[int, Any]:
        from vibemq import config
        from vibemq.admin.api.calls import OWNER
        from vibemq.admin.api.service import Api
        from vibemq.admin.workers import Workers
        from vibemq.cli_users import make_and_keep_owner, open_metadata
        from vibemq.storage.metadata import Metadata

        options = config.load(self._config_path, overrides={("server", "data_dir"): (self.directory, "--data-dir")})

        def work(metadata: Metadata) -> Any:
            api = Api(options, metadata, Workers([]), "rabbit@localhost", {}, 0)
            return api.handle(method, where, OWNER, {}, body)

        if method == "GET":
            answer = work(open_metadata(self._config_path, self._data_dir))
        else:
            if not makes_data:
                open_metadata(self._config_path, self._data_dir).close()
            answer = make_and_keep_owner(self.directory, work)
        return answer.status, answer.body
