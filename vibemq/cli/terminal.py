# SPDX-License-Identifier: Apache-2.0
"""What all commands share before a terminal: options, asking for a password or whether one is sure, answers."""

import contextlib
import inspect
import json
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce, wraps
from typing import Any, TypeVar

import click

from vibemq.errors import UserError
from vibemq.units import TIMES_MS, in_units

F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds, or a time with a unit, such as 500ms or 1h."""

    name = "number of seconds, nor a time such as 500ms or 1h"  # as click names it in its errors

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = in_units(value, TIMES_MS) if isinstance(value, str) else None
        return super().convert(value if found is None else found / 1000, param, ctx)


class WholeSeconds(Seconds):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found: float = super().convert(value, param, ctx)
        if found != int(found):
            self.fail(f"{value} is not a whole number of seconds", param, ctx)
        return int(found)


def _sure(context: click.Context, _: click.Parameter, yes: bool) -> bool:
    if not yes and not context.resilient_parsing and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask whether you are sure: add --yes")
    return yes


WIDTH_MAX = 1 << 20  # of a table in a pipe: names have 255 characters, arguments and headers more

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
yes_option = click.option("--yes", is_flag=True, callback=_sure, help="Do not ask; needed where there is no terminal.")


def with_options(*options: Any) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def options_as(
    name: str, make: Callable[..., Any], *options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options that a command gets as one argument of this name: what ``make`` makes of them, by their names."""
    own = inspect.signature(make).parameters

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @with_options(*options)
        @wraps(command)
        def run(*arguments: Any, **given: Any) -> Any:
            made = make(**{option: given.pop(option) for option in own})
            return command(*arguments, **given, **{name: made})

        return run

    return add


def named_values(_: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """The callback of an option that is NAME=VALUE and may be repeated."""
    found = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{option.opts[0]} {pair}: NAME=VALUE is needed")
        found[name] = value
    return found


def ask_password(
    name: str, from_stdin: bool, *, twice: bool = False, hint: str = "pipe it in, with --password-stdin"
) -> str:
    """The password of `name`, from the first line of standard input or typed unseen; `twice` where it is a new one.

    The `hint` is for who has no terminal.
    """
    if from_stdin:
        # Not by way of the text layer, which reads ahead: what follows may be messages, and is read as bytes.
        return sys.stdin.buffer.readline().decode("utf-8", "surrogateescape").rstrip("\n")
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask for the password", hint=hint)
    answer: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=twice, err=True)
    return answer


def say_done(as_json: bool, kind: str, name: str, done: str) -> None:
    click.echo(json.dumps({kind: name, "result": done}) if as_json else f"{kind} {name} {done}")


def cell(_: str, value: Any) -> str:
    """A value for people: nothing where there is none, or it is not so."""
    return "" if value is None or value is False else "yes" if value is True else str(value)


def print_rows(
    as_json: bool, found: Sequence[Mapping[str, Any]], columns: Mapping[str, str], nothing: str,
    shown: Callable[[str, Any], str] = cell,
) -> None:  # fmt: skip
    """A list: as JSON, or a table of the ``columns`` (title: key); ``nothing`` is said where it is empty."""
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo(nothing)
    else:
        print_table(tuple(columns), [[shown(key, row.get(key)) for key in columns.values()] for row in found])


def print_facts(as_json: bool, kind: str, facts: Mapping[str, Any], shown: Callable[[str, Any], str | None]) -> None:
    """All of one thing, which has a ``name``: as JSON, or a table without those for which nothing is ``shown``."""
    if as_json:
        click.echo(json.dumps(facts))
    else:
        cells = [(key.replace("_", " "), shown(key, value)) for key, value in facts.items() if key != "name"]
        print_table((kind, facts["name"]), [(key, text) for key, text in cells if text is not None])


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; no cell is cut: a terminal wraps it, and a pipe or a file has no width."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(title, overflow="fold") for title in columns))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as it is: a pattern may look like markup
    console = Console()
    if not console.is_terminal:
        options = console.options.update(max_width=WIDTH_MAX)
        console.width = max(console.width, console.measure(table, options=options).maximum)
    console.print(table)


@contextlib.contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[[int, int | None], object] | None]:
    """Shows how many are done, and of how many, to whoever watches a terminal; None: nobody does."""
    if not sys.stderr.isatty() or total == 1:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def nobody_reads() -> bool:
    """Whether standard output is a pipe whose other end is closed, as after `| head -1`: who waits would not notice."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # no file at all
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


def messages_text(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def watch_reader(gone: Callable[[], object]) -> None:
    """Calls `gone`, in a thread, as soon as nobody reads our standard output any more: `head` has what it wanted.

    A write would find that out as well, but the next message may be a long time coming.
    """
    try:
        output = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
    except (OSError, ValueError):  # it is no file
        return
    if is_pipe:
        poll = select.poll()
        poll.register(output, 0)  # an error is told without being asked for

        def watch() -> None:
            poll.poll()
            gone()

        threading.Thread(target=watch, name="vibemq output", daemon=True).start()
