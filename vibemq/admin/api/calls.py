# SPDX-License-Identifier: Apache-2.0
"""A request of the management API and its answer, without HTTP: what the routes' functions take and give."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vibemq.access.scopes import TokenAccess
from vibemq.broker.audit import Author

T = TypeVar("T")


#: What a user needs to be for a route, each more than the one before; a superuser is an administrator.
NOBODY, MANAGEMENT, MONITORING, ADMINISTRATOR = range(4)
#: May do what MANAGEMENT may, and set policies.
POLICYMAKER_TAG = "policymaker"
LEVELS = {"management": MANAGEMENT, POLICYMAKER_TAG: MANAGEMENT, "monitoring": MONITORING,
          "administrator": ADMINISTRATOR}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    level: int
    tags: tuple[str, ...] = ()
    access: TokenAccess | None = None  # of who comes by a token; of others what the database says of the name

    @property
    def author(self) -> Author:
        """As whom it makes streams and queues."""
        return Author(self.name, "", "admin")

    @property
    def makes_policies(self) -> bool:
        return self.level >= ADMINISTRATOR or POLICYMAKER_TAG in self.tags


#: `vibemq ctl`: whoever may open the socket in the data directory could change the files as well.
OWNER = Caller("", ADMINISTRATOR, ("administrator",))


@dataclass(frozen=True, slots=True)
class Upload:
    """A request body that is not a JSON object, as received, and its headers; "" for a missing one."""

    body: bytes | bytearray
    content_type: str = ""
    encoding: str = ""
    publisher: str = ""
    sequence: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One request; ``path`` has the parts of the path that the route names."""

    caller: Caller
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""  # the header X-Reason
    upload: Upload | None = None  # of a route whose body is no object


class Pending(ABC):
    """A request that is answered later, in the event loop, and holds no thread until then."""

    @abstractmethod
    async def answer(self) -> Answer:
        """Wait for the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``body`` is sent as JSON, text as it is, None as an empty body.

    ``retry_s``: the value of Retry-After, in seconds; 0: no such header.  ``pending``: gives the answer to send later
    instead of this one.
    """

    status: int
    body: Any = None
    retry_s: int = 0
    pending: Pending | None = None


def values(call: Call, name: str) -> list[str]:
    """All that the query says of one name, as in ?vhost=a&vhost=b."""
    every = getattr(call.query, "getall", None)  # of what HTTP gives; a dict has one of each
    if every is not None:
        return list(every(name, ()))
    return [call.query[name]] if name in call.query else []


class Refused(Exception):
    """The request cannot be done; ``status`` and ``error`` are HTTP's and RabbitMQ's words for why."""

    def __init__(self, status: int, error: str, reason: str, retry_s: int = 0) -> None:
        super().__init__(reason)
        self.status, self.error, self.retry_s = status, error, retry_s

    @property
    def answer(self) -> Answer:
        return Answer(self.status, {"error": self.error, "reason": str(self)}, self.retry_s)


def too_many(reason: str, retry_s: float) -> Refused:
    """Not now; ``retry_s``: how long to wait."""
    seconds = max(1, math.ceil(retry_s))
    return Refused(429, "too_many_requests", f"{reason}: wait {seconds} s", seconds)


def not_found(what: str = "Not Found") -> Refused:
    return Refused(404, "Object Not Found", what)


def only(found: Iterable[T]) -> T:
    """The one that there is.  Raises Refused."""
    for each in found:
        return each
    raise not_found()


def chosen(call: Call, part: str, rows: list[dict[str, Any]]) -> Any:
    """All, or the one whose name stands in this part of the path.  Raises Refused."""
    return only(row for row in rows if row["name"] == call.path[part]) if part in call.path else rows


def bad_request(reason: str) -> Refused:
    return Refused(400, "bad_request", reason)


def not_authorised(reason: str) -> Refused:
    return Refused(401, "not_authorised", reason)


def json_object(body: bytes | bytearray) -> dict[str, Any]:
    """Raises Refused: for what is none, and for halves of characters, which neither the database nor a terminal takes.

    The reason begins as RabbitMQ's, which is one word, and says where, but nothing of what is there.
    """
    try:
        found = json.loads(body)
        json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        why = f"{problem.msg.strip(' :')}, line {problem.lineno}, column {problem.colno}"
    except UnicodeDecodeError as problem:
        why = f"no UTF-8 at byte {problem.start}"
    except UnicodeEncodeError:
        why = "a text has half of a character in it"
    except RecursionError:
        why = "nested too deeply"
    except ValueError:  # Python takes no integer of thousands of digits
        why = "a number has too many digits"
    else:
        if isinstance(found, dict):
            return found
        why = "an object is needed"
    raise bad_request(f"not_json: {why}")


def text(call: Call, name: str, otherwise: str | None = None) -> str:
    """A field of the body that must be text.  Raises Refused."""
    value = otherwise if name not in call.body else optional_text(call, name)
    if value is None:
        raise bad_request(f"key_missing: {name}")
    return value


def optional_text(call: Call, name: str) -> str | None:
    """Raises Refused."""
    value = call.body.get(name)
    if value is not None and not isinstance(value, str):
        raise bad_request(f"{name} must be text, but is {value!r}")
    return value


def texts(value: Any, refused: str) -> list[str]:
    """A list of texts.  Raises Refused, with these words."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise bad_request(refused)
    return value


def flag(call: Call, name: str, otherwise: bool) -> bool:
    """A field of the body that must be a boolean; rabbitmqadmin sends booleans as text.  Raises Refused."""
    value = call.body.get(name, otherwise)
    found = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise bad_request(f"{name} must be true or false, but is {value!r}")
    return found


def mapping(call: Call, name: str) -> dict[str, Any]:
    """A field of the body that must be an object; empty where it is missing.  Raises Refused."""
    value = call.body.get(name) or {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object, but is {value!r}")
    return value
