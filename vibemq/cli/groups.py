# SPDX-License-Identifier: Apache-2.0
"""Groups of commands."""

import click


class Commands(click.Group):
    """Names the nearest command, or all, where there is none of that name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        is_word = bool(name) and not name.startswith("-") and not ctx.resilient_parsing
        if is_word and self.get_command(ctx, name) is None:
            import difflib  # a shell waits for this module at every tab

            known = self.list_commands(ctx)
            near = difflib.get_close_matches(name.lower(), known, n=1)
            elsewhere = difflib.get_close_matches(name.lower(), [word for word in known if word in name.lower()], n=1)
            found = near or elsewhere
            meant = f"did you mean {ctx.command_path} {found[0]}?" if found else f"there are {', '.join(known)}"
            raise click.UsageError(f"there is no command {ctx.command_path} {name}; {meant}", ctx)
        return super().resolve_command(ctx, args)
