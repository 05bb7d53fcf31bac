# SPDX-License-Identifier: Apache-2.0
"""What a command of `vibemq ctl` is, what it is given, and how it says no: as in rabbitmqctl and rabbitmq-streams.

A command is a function of an ``Order`` that returns rows, text, one object or nothing.  It asks the management API and
gives its answers RabbitMQ's names; what is refused becomes ``Refused`` with the exit code and the words of RabbitMQ's
tools.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vibemq.cli.data import DataDir, Failed

#: Exit codes as RabbitMQ's tools have them (sysexits.h).
USAGE, DATA, NO_USER, UNAVAILABLE, SOFTWARE = 64, 65, 67, 69, 70

STANDARD_OUTPUT = "-"  # and standard input, where a file is read

#: For an HTTP status: the exit code, what is said, perhaps a hint.
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
    def vhost(self) -> str:
        return str(self.options["vhost"])

    def get(self, *parts: str, codes: Codes = NO_CODES, needs_broker: bool = False) -> Any:
        return self.ask("GET", *parts, codes=codes, needs_broker=needs_broker)

    def ask(self, method: str, *parts: str, codes: Codes = NO_CODES, **how: Any) -> Any:
        """As DataDir.ask, with RabbitMQ's exit codes and words for what is refused."""
        try:
            return self.data.ask(method, *parts, **how)
        except Failed as failed:
            code, reason, *hint = codes.get(failed.status, (SOFTWARE if failed.status == 500 else UNAVAILABLE, ""))
            if str(failed) == "vhost_not_found":
                reason, hint = f"Virtual host {self.vhost} does not exist", ["`vibemq ctl list_vhosts` lists all"]
            raise Refused(code, reason or str(failed), *hint) from failed


@dataclass(frozen=True, slots=True)
class Command:
    run: Callable[[Order], Any]
    usage: str  # words in <>, perhaps [<one>] that may be missing, [<column> ...] for more at the end
    about: str
    banner: str  # may name words, {vhost} and options
    columns: tuple[str, ...]  # shown unless others are asked for
    also: tuple[str, ...]  # which may be asked for as well
    formatter: str
    options: tuple[str, ...]  # of its own

    @property
    def words(self) -> list[str]:
        return [word.strip("<>") for word in self.usage.split() if word.startswith("<") and word.endswith(">")]

    @property
    def optional_words(self) -> list[str]:
        return [word.strip("[]<>") for word in self.usage.split() if word.startswith("[<") and word.endswith(">]")]

    @property
    def takes_more(self) -> bool:
        return "..." in self.usage


#: By name, in the order of the help.
COMMANDS: dict[str, Command] = {}


def command(
    usage: str, banner: str, *, columns: str = "", also: str = "", formatter: str = "table", options: str = ""
) -> Callable[[Callable[[Order], Any]], Callable[[Order], Any]]:
    """Makes a command of a function: of its name, and about what its first line says.  Lists have spaces between."""

    def add(run: Callable[[Order], Any]) -> Callable[[Order], Any]:
        about = (inspect.getdoc(run) or "").partition("\n")[0]
        COMMANDS[run.__name__] = Command(
            run, usage, about, banner, tuple(columns.split()), tuple(also.split()), formatter, tuple(options.split())
        )
        return run

    return add
