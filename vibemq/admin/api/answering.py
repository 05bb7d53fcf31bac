# SPDX-License-Identifier: Apache-2.0
"""How a request of the management API is answered: its route is found, who asks is checked, and errors are worded.

What a route calls may block, so each request runs in a thread.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from typing import Any

from vibemq import errors
from vibemq.admin.api.calls import (
    ADMINISTRATOR,
    MANAGEMENT,
    MONITORING,
    Answer,
    Call,
    Caller,
    Refused,
    Upload,
    not_authorised,
)
from vibemq.admin.api.routes import find
from vibemq.admin.api.service import Api
from vibemq.admin.api.shown import shown
from vibemq.admin.workers import NoAnswer
from vibemq.broker.arguments import BadArgument
from vibemq.broker.limits import count_refused
from vibemq.once_a_minute import OnceAMinute

log = logging.getLogger("vibemq.admin")
failing = OnceAMinute(log, logging.ERROR)

#: What an error of ours is in HTTP: the first that fits.
_STATUS: tuple[tuple[tuple[type[Exception], ...], int, str], ...] = (
    ((errors.UserNotFound, errors.VhostNotFound, errors.StreamNotFound, errors.ExchangeNotFound), 404, "not_found"),
    ((errors.UserExists,), 409, "conflict"),
    ((errors.StreamExists, errors.LimitExceeded, errors.UserError, BadArgument), 400, "bad_request"),
    ((NoAnswer,), 503, "unavailable"),
)


def handle(
    api: Api, method: str, path: str, caller: Caller, query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None, reason: str = "", upload: Upload | None = None,
) -> Answer:  # fmt: skip
    """``path`` as it came, percent-encoded, without the prefix; may be called from several threads."""
    query = query or {}
    try:
        level, handler, names = find(method, path)
        if caller.level < level:
            raise not_authorised(missing_tag(caller, level))
        answer = handler(api, Call(caller, names, query, body or {}, reason, upload))
        if isinstance(answer, Answer):
            return answer
        if method == "GET":
            return Answer(200, shown(answer, query))
        return Answer(201 if answer else 204)
    except Refused as refused:
        return refused.answer
    except (BadArgument, errors.VibeMQError) as problem:
        if isinstance(problem, errors.LimitExceeded):
            count_refused()
        for kinds, status, error in _STATUS:
            if isinstance(problem, kinds):
                return Refused(status, error, str(problem)).answer
        failing.say((method, type(problem)), "%s %s failed: %s", method, path, problem)
        return Refused(500, "internal_error", str(problem)).answer


def missing_tag(caller: Caller, level: int) -> str:
    """RabbitMQ's words for what the caller is not, and how it may become that."""
    tag = {MANAGEMENT: "management", MONITORING: "monitoring"}.get(level, "administrator")
    said = "Not administrator user" if level == ADMINISTRATOR else "User not authorised"
    if caller.access is not None:
        return f"{said}: its token has no tag '{tag}' (a scope such as rabbitmq.tag:{tag}), which its provider gives"
    command = shlex.join(["vibemq", "ctl", "set_user_tags", caller.name, *caller.tags, tag])
    return f"{said}: it has no tag '{tag}', which `{command}` gives"
