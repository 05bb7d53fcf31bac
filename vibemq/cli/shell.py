# SPDX-License-Identifier: Apache-2.0
"""``vibemq completion`` and ``vibemq man``: what a shell, and who reads at one, wants to know of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from vibemq.errors import UserError

COMMAND = "vibemq"
MANUAL = "VibeMQ manual"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what completes these commands in SHELL.

    \b
    bash: vibemq completion bash > ~/.local/share/bash-completion/completions/vibemq
    zsh:  vibemq completion zsh > a file _vibemq in a folder of $fpath
    fish: vibemq completion fish > ~/.config/fish/completions/vibemq.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click brings all three"
    click.echo(found(ctx.find_root().command, {}, COMMAND, "_VIBEMQ_COMPLETE").source())


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.pass_context
def man(ctx: click.Context, folder: Path) -> None:
    """Write a man page for each command into FOLDER, for instance ~/.local/share/man/man1.

    Then `man vibemq` shows the first one, and `man vibemq-serve` that of a command.
    """
    main = ctx.find_root().command
    pages = {context.command_path.replace(" ", "-"): page(context) for context in contexts(main, COMMAND)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (folder / f"{name}.1").write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UserError(f"cannot write man pages into {folder}: {problem.strerror}") from problem
    click.echo(f"{len(pages)} man pages written into {folder}")


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """The command's, and then those of all commands below it; hidden ones have none."""
    context = click.Context(command, info_name=name, parent=parent)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from contexts(found, below, context)


def page(context: click.Context) -> str:
    """In the macros of man(7)."""
    from vibemq import __version__

    command, name = context.command, context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f'.TH "{name.upper()}" "1" "" "VibeMQ {__version__}" "{MANUAL}"']
    lines += [".SH NAME", rf"{literal(name)} \- {literal(command.get_short_help_str(200))}"]
    lines += [".SH SYNOPSIS", rf"\fB{literal(context.command_path)}\fR {literal(usage)}"]
    if command.help:
        lines += [".SH DESCRIPTION", *paragraphs(command.help)]
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    if shown := [record for option in options if (record := option.get_help_record(context))]:
        lines += [".SH OPTIONS"]
        for option, what in shown:
            lines += [".TP", rf"\fB{literal(option)}\fR", literal(what)]
    if isinstance(command, click.Group):
        lines += [".SH COMMANDS"]
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                lines += [".TP", rf"\fB{literal(f'{name}-{below}')}\fR(1)", literal(found.get_short_help_str(200))]
    return "\n".join(lines) + "\n"


def paragraphs(text: str) -> Iterator[str]:
    """Of a command's help: what click leaves as it is written begins with a line of only ``\\b``."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.partition("\f")[0].strip("\n"))):
        if number:
            yield ".PP"
        first, _, rest = paragraph.partition("\n")
        if first.strip() == "\b":
            yield from (".nf", literal(rest), ".fi")
        else:
            yield literal(paragraph)


def literal(text: str) -> str:
    """Shown as it is, whatever it holds: a backslash, hyphens that can be copied, lines that begin as requests do."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\`")
    return re.sub(r"^\.", r"\&.", "\n".join(line.strip() for line in text.split("\n")), flags=re.M)
