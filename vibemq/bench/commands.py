# SPDX-License-Identifier: Apache-2.0
"""What the commands of `vibemq bench` have in common: a default command, and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class RunByDefault(click.Group):
    """`vibemq bench --mode pub` means `vibemq bench run --mode pub`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def all_of(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator for several options, which --help shows in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def load_options(defaults: Any, modes: dict[str, str]) -> Callable[[Any], Any]:
    """--mode and --messages."""
    return all_of(
        click.option(
            "--mode",
            type=click.Choice(sorted(modes)),
            default=defaults.mode,
            show_default=True,
            help="; ".join(f"{mode}: {meaning}" for mode, meaning in modes.items()) + ".",
        ),
        click.option("-n", "--messages", type=int, default=defaults.messages, show_default=True, help="In all."),
    )


def timeout_option(defaults: Any) -> Callable[[Any], Any]:
    return click.option("--timeout", "timeout_s", type=float, default=defaults.timeout_s, show_default=True, help="s")


broker_pid_option = click.option(
    "--broker-pid", type=int, default=0, help="Also report the CPU of this process and its descendants."
)
