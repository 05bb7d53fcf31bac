# SPDX-License-Identifier: Apache-2.0
"""What all commands share before a terminal: options, asking for a password or whether one is sure, tables."""

import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Sequence

import click

from vibemq.errors import UserError

EXIT_INTERRUPTED = 130  # as a shell says it of a command that SIGINT ended


def _sure(context: click.Context, _: click.Parameter, yes: bool) -> bool:
    if not yes and not context.resilient_parsing and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask whether you are sure: add --yes")
    return yes


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
user_option = click.option("--user", metavar="NAME", help="Who we are, if not said in the URL.")
password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from the first line of standard input."
)
yes_option = click.option("--yes", is_flag=True, callback=_sure, help="Do not ask; needed where there is no terminal.")


def ask_password(name: str, from_stdin: bool, *, twice: bool = False) -> str:
    """The password of `name`, from the first line of standard input or typed unseen; `twice` where it is a new one."""
    if from_stdin:
        # Not by way of the text layer, which reads ahead: what follows may be messages, and is read as bytes.
        return sys.stdin.buffer.readline().decode("utf-8", "surrogateescape").rstrip("\n")
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask for the password", hint="pipe it in, with --password-stdin")
    answer: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=twice, err=True)
    return answer


def ask_login(
    named: str | None, has_password: bool, user: str | None, from_stdin: bool
) -> tuple[str | None, str | None]:
    """Who we are, and the password where it was to be asked for.  `named` is the user of the URL, perhaps with one."""
    who = user or named
    if from_stdin and who is None:
        raise click.UsageError("--password-stdin needs --user, or a user in the URL")
    if who is not None and (from_stdin or user is not None or not has_password):
        return who, ask_password(who, from_stdin)
    return who, None


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as it is: a pattern may look like markup
    Console().print(table)


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
