# SPDX-License-Identifier: Apache-2.0
"""A group of commands of which one need not be named."""

import click


class RunByDefault(click.Group):
    """`vibemq bench --mode pub` means `vibemq bench run --mode pub`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)
