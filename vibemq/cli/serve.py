# SPDX-License-Identifier: Apache-2.0
"""``vibemq serve`` and ``vibemq config``."""

from functools import partial
from typing import Any

import click

from vibemq.cli.data import config_option, data_dir_option, settings_option, settings_overrides
from vibemq.cli.terminal import with_options


def _port(door: str, title: str) -> Any:
    return click.option(f"--{door}-port", type=int, metavar="PORT", help=f"Port of the {title}; 0 picks a free one.")


@click.command()
@config_option
@data_dir_option
# Each is named by its section and option.
@click.option("--workers", "server_workers", type=int, metavar="N", help="Worker processes; 0: one for each core.")
@click.option("--host", "server_host", metavar="HOST", help="Address to listen on (default 127.0.0.1).")
@_port("streams", "streams door")
@_port("native", "native door")
@_port("signalr", "SignalR door")
@_port("micromsg2", "MicroMsg2 door")
@_port("admin", "management API")
@with_options(
    click.option("--advertised-host", "streams_advertised_host", metavar="HOST",
                 help="Address that stream clients are told, behind NAT or a proxy."),
    click.option("--advertised-port", "streams_advertised_port", type=int, metavar="PORT",
                 help="Port that stream clients are told."),
    click.option("--durability", "store_durability", metavar="os|disk|remote",
                 help="What a confirm means where a stream does not say."),
    click.option("--shutdown-timeout", "server_shutdown_timeout_s", metavar="SECONDS",
                 help="How long workers may finish at shutdown."),
)  # fmt: skip
@click.option("--user", "server_user", metavar="NAME", help="Account to continue as, when started as root.")
@click.option("--log-level", "server_log_level", metavar="LEVEL", help="debug, info, warning or error.")
@settings_option
@click.pass_context
def serve(
    ctx: click.Context, config_path: str | None, data_dir: str | None, settings: tuple[str, ...], **flags: Any
) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints one line on standard output once every worker accepts; logs to standard error.
    """
    from vibemq.config import load

    read = partial(load, config_path, overrides=_overrides(ctx, settings, data_dir, flags))
    config = read()
    from vibemq.server import supervisor

    ctx.exit(supervisor.serve(config, reload=read))


def _overrides(
    ctx: click.Context, settings: tuple[str, ...], data_dir: str | None, flags: dict[str, Any]
) -> dict[tuple[str, str], tuple[object, str]]:
    """What the command line says, each with the words that said it."""
    from vibemq.config import from_text

    found = settings_overrides(settings)
    typed = {option.name: option.opts[0] for option in ctx.command.params}
    for name, value in {"server_data_dir": data_dir, **flags}.items():
        if value is not None:
            section, _, option = name.partition("_")
            origin = typed.get(name, "--data-dir")
            found[section, option] = (from_text(section, option, str(value), origin), origin)
    return found


@click.command()
def config() -> None:
    """Print every option with its default, unit and reason, as a file for --config."""
    from vibemq.config import sample

    click.echo(sample(), nl=False)
