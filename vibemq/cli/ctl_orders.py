# SPDX-License-Identifier: Apache-2.0
"""What a command of `vibemq ctl` is, and how it asks the broker: an ``Order`` is what was typed of a ``Command``.

What is refused becomes ``Refused``, with the exit code and the words of RabbitMQ's tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from vibemq.cli.data import DataDir, Failed

#: Exit codes as RabbitMQ's tools have them (sysexits.h).
USAGE, DATA, NO_USER, UNAVAILABLE, SOFTWARE = 64, 65, 67, 69, 70
#: For an HTTP status: the exit code, what is said, perhaps a hint; with what was typed, as in a banner.
Codes = Mapping[int, tuple[int, str] | tuple[int, str, str]]
NO_CODES: Codes = {}


class Refused(Exception):
    """The command failed; ``code`` is the exit code."""

    def __init__(self, code: int, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Order:
    """What was typed: ``words`` by the names in the command's usage, and the options."""

    data: DataDir
    words: Mapping[str, str]
    more: tuple[str, ...]  # columns, tags
    options: Mapping[str, Any]

    @property
    def typed(self) -> Mapping[str, Any]:
        """All by name; ``name`` is the first word, of what the command is about."""
        first = next(iter(self.words.values()), "")
        return {**self.options, "name": first, "more": ", ".join(self.more), **self.words}

    def ask(self, request: str, *, codes: Codes = NO_CODES, **how: Any) -> Any:
        """``"DELETE /users/{username}"``, as DataDir.ask, with RabbitMQ's exit codes and words for what is refused."""
        method, path = request.split()
        typed = self.typed
        where = re.sub(r"{(\w+)}", lambda named: quote(typed[named[1]], safe=""), path)
        try:
            return self.data.ask(method, where, **how)
        except Failed as failed:
            code, reason, *hint = codes.get(failed.status, (SOFTWARE if failed.status == 500 else UNAVAILABLE, ""))
            if str(failed) == "vhost_not_found":
                reason, hint = "Virtual host {vhost} does not exist", ["`vibemq ctl list_vhosts` lists all"]
            raise Refused(code, reason.format_map(typed) or str(failed), *hint) from failed


@dataclass(frozen=True, slots=True)
class Command:
    """Lists have spaces between.  A column that has another name in the rows is ``column=name`` or ``=name.name``."""

    typed: str  # its name and words in <>, perhaps [<one>] that may be missing, [<column> ...] for more at the end
    about: str
    banner: str  # may name words, {vhost} and options
    asks: str | Callable[[Order], Any]  # the request, or what gives rows, text, one object or nothing
    codes: Codes = field(default_factory=dict)
    body: Callable[[Order], dict[str, Any]] | None = None
    columns: str = ""  # shown unless others are asked for
    also: str = ""  # which may be asked for as well
    formatter: str = "table"
    options: str = ""  # of its own
    says: str | None = None  # when it is done
    needs_broker: bool = False
    makes_data: bool = False

    @property
    def name(self) -> str:
        return self.typed.partition(" ")[0]

    @property
    def words(self) -> list[str]:
        return [word.strip("<>") for word in self.typed.split() if word.startswith("<") and word.endswith(">")]

    @property
    def optional_words(self) -> list[str]:
        return [word.strip("[]<>") for word in self.typed.split() if word.startswith("[<") and word.endswith(">]")]

    @property
    def places(self) -> dict[str, str]:
        """Where each column stands in a row."""
        pairs = [column.partition("=") for column in f"{self.columns} {self.also}".split()]
        return {name: place or name for name, _, place in pairs}

    @property
    def shown(self) -> list[str]:
        """The names of the columns that are shown unless others are asked for."""
        return [column.partition("=")[0] for column in self.columns.split()]

    @property
    def takes_more(self) -> bool:
        return "..." in self.typed

    def run(self, order: Order) -> Any:
        if not isinstance(self.asks, str):
            return self.asks(order)
        sent = None if self.body is None else self.body(order)
        how = {"needs_broker": self.needs_broker, "makes_data": self.makes_data}
        answer = order.ask(self.asks, codes=self.codes, body=sent, reason=order.words.get("explanation", ""), **how)
        return answer if self.says is None else self.says.format_map(order.typed)
