# SPDX-License-Identifier: Apache-2.0
"""The ``vibemq`` command.

Expected errors are one line on standard error, with a hint where there is one, and exit code
1; wrong usage is 2.  A traceback therefore always means a mistake of ours.  What a
subcommand needs is imported inside it: ``vibemq serve`` must not wait for the clients, nor ``--help`` for Spark.
"""

import contextlib
import importlib
import json
import os
from typing import IO, TYPE_CHECKING, Any, ClassVar

import click

from vibemq.cli_users import config_option, data_dir_option, open_metadata, users
from vibemq.errors import UserError, VibeMQError
from vibemq.terminal import json_option

if TYPE_CHECKING:
    from vibemq.config import Config


class _Shown(click.ClickException):
    """A VibeMQError on its way to the terminal."""

    def __init__(self, error: VibeMQError) -> None:
        super().__init__(str(error))
        self.hint = error.hint

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"vibemq: {self.message}", err=True, file=file)
        if self.hint:
            click.echo(f"  hint: {self.hint}", err=True, file=file)


class _Main(click.Group):
    """Shows our errors in one line, and loads the commands of other packages only when called."""

    # command -> where it is, what it needs installed, its line in --help
    elsewhere: ClassVar[dict[str, tuple[str, str, str, str]]] = {
        "bench": ("vibemq.bench.cli", "bench", "vibemq", "Measure a broker: rates, latencies, CPU."),
        "consume": ("vibemq.cli_queues", "consume", "vibemq", "Print a queue's messages, and acknowledge them."),
        "ctl": (
            "vibemq.ctl.cli",
            "ctl",
            "vibemq",
            "Manage a broker with the words of rabbitmqctl and rabbitmq-streams.",
        ),
        "publish": ("vibemq.cli_queues", "publish", "vibemq", "Publish arguments, or lines, into a queue."),
        "queues": ("vibemq.cli_queues", "queues", "vibemq", "The queues of a broker, wherever it is."),
        "streams": ("vibemq.cli_streams", "streams", "vibemq", "The streams of a broker, wherever it is."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.elsewhere])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ctx.meta["vibemq.listing"] = True
        super().format_commands(ctx, formatter)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.elsewhere:
            return super().get_command(ctx, cmd_name)
        module, attribute, package, line = self.elsewhere[cmd_name]
        if ctx.resilient_parsing or ctx.meta.get("vibemq.listing"):
            return click.Command(cmd_name, short_help=line)
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as problem:
            raise _Shown(
                UserError(
                    f"{cmd_name} needs the module {problem.name}, which is not installed",
                    hint=f"pip install '{package}'",
                )
            ) from problem
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except VibeMQError as error:
            raise _Shown(error) from error


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib import metadata

    try:
        click.echo(f"vibemq {metadata.version('vibemq')}")
    except metadata.PackageNotFoundError:
        click.echo("vibemq (used from its source folder, not installed)")
    ctx.exit()


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """VibeMQ: a message broker for Linux, and a high-rate way into Spark."""


main.add_command(users)


# ---- serve ----


@main.command()
@config_option
@data_dir_option
@click.option("--workers", type=int, metavar="N", help="Worker processes; 0: one for each core.")
@click.option("--host", metavar="HOST", help="Address to listen on (default 127.0.0.1).")
@click.option("--streams-port", type=int, metavar="PORT", help="Port of the streams door; 0 picks a free one.")
@click.option("--native-port", type=int, metavar="PORT", help="Port of the native door; 0 picks a free one.")
@click.option("--signalr-port", type=int, metavar="PORT", help="Port of the SignalR door; 0 picks a free one.")
@click.option("--micromsg2-port", type=int, metavar="PORT", help="Port of the MicroMsg2 door; 0 picks a free one.")
@click.option("--admin-port", type=int, metavar="PORT", help="Port of the management API; 0 picks a free one.")
@click.option("--advertised-host", metavar="HOST", help="Address that stream clients are told, behind NAT or a proxy.")
@click.option("--advertised-port", type=int, metavar="PORT", help="Port that stream clients are told.")
@click.option("--durability", metavar="os|disk", help="What a confirm means where a stream does not say.")
@click.option("--shutdown-timeout", type=int, metavar="SECONDS", help="How long workers may finish at shutdown.")
@click.option("--user", metavar="NAME", help="Account to continue as, when started as root.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.OPTION=VALUE", help="Any other option; repeatable.")
@click.pass_context
def serve(ctx: click.Context, config_path: str | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints one line on standard output once every worker accepts; logs to standard error.
    """
    overrides = _overrides(settings, flags)

    def load() -> "Config":
        from vibemq import config

        return config.load(config_path, overrides=overrides)

    config = load()
    from vibemq.server import supervisor

    ctx.exit(supervisor.serve(config, reload=load))


_FLAGS = {
    "data_dir": ("server", "data_dir"),
    "workers": ("server", "workers"),
    "host": ("server", "host"),
    "shutdown_timeout": ("server", "shutdown_timeout_s"),
    "user": ("server", "user"),
    "log_level": ("server", "log_level"),
    "streams_port": ("streams", "port"),
    "native_port": ("native", "port"),
    "signalr_port": ("signalr", "port"),
    "micromsg2_port": ("micromsg2", "port"),
    "admin_port": ("admin", "port"),
    "advertised_host": ("streams", "advertised_host"),
    "advertised_port": ("streams", "advertised_port"),
    "durability": ("store", "durability"),
}


def _overrides(settings: tuple[str, ...], flags: dict[str, Any]) -> dict[tuple[str, str], tuple[object, str]]:
    from vibemq import config

    found = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or "." not in name:
            raise click.UsageError(f"--set {setting}: SECTION.OPTION=VALUE is needed, for instance server.workers=4")
        section, _, option = name.partition(".")
        found[section, option] = (config.from_text(section, option, text, f"--set {setting}"), f"--set {setting}")
    for flag, value in flags.items():
        if value is not None:
            found[_FLAGS[flag]] = (value, f"--{flag.replace('_', '-')}")
    return found


@main.command("config")
def print_config() -> None:
    """Print every option with its default, unit and reason, as a file for --config."""
    from vibemq import config

    click.echo(config.sample(), nl=False)


# ---- log ----


@main.group("log")
def log_group() -> None:
    """Find and look into the files of streams and queues."""


@log_group.command("list")
@json_option
@config_option
@data_dir_option
def log_list(as_json: bool, config_path: str | None, data_dir: str | None) -> None:
    """Show which directory has the log of which stream or queue, also while the broker runs.

    Sizes are those of the segments, with all that retention has not yet removed.
    """
    found = []
    for record in open_metadata(config_path, data_dir).streams():
        segments, size = _segments(record.directory)
        kind = "stream" if record.queue is None else "queue"
        found.append(
            {
                "name": record.name,
                "vhost": record.vhost,
                "kind": kind,
                "segments": segments,
                "bytes": size,
                "directory": record.directory,
            }
        )
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo("there are no streams and no queues")
    for each in [] if as_json else sorted(found, key=lambda each: str(each["name"])):
        # The path last and never broken, so that it can be copied.
        click.echo(f"{each['kind']:<6}  {each['bytes']:>15,} bytes  {each['name']:<24}  {each['directory']}")


def _segments(directory: str) -> tuple[int, int]:
    """How many segments are in a log's directory, and their bytes; what goes meanwhile is not counted."""
    count = size = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as files:
        for file in files:
            if file.name.endswith(".segment"):
                with contextlib.suppress(FileNotFoundError):
                    size += file.stat().st_size
                    count += 1
    return count, size


@log_group.command("dump")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--entries", is_flag=True, help="Show each entry of each chunk, too.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Stop after N chunks, records or ledger entries.",
)
def log_dump(file: str, entries: bool, limit: int) -> None:
    """Print a segment, index, tracking, control or ledger file; `vibemq log list` says where they lie."""
    from vibemq.storage import log

    log.dump(file, entries, limit, click.echo)


@log_group.command("verify")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
def log_verify(directory: str) -> None:
    """Check every chunk of the log in DIRECTORY against its checksum."""
    from vibemq.errors import StorageError
    from vibemq.storage import log

    names = sorted(name for name in os.listdir(directory) if name.endswith(".segment"))
    if not names:
        raise UserError(f"{directory} holds no segment", hint="a stream's log is a folder below DATA/streams")
    damaged = 0
    for name in names:
        try:
            log.dump(os.path.join(directory, name), False, 0, lambda _: None)
            click.echo(f"{name}: intact")
        except StorageError as problem:
            damaged += 1
            click.echo(f"{name}: {problem}")
    if damaged:
        raise UserError(f"{damaged} of {len(names)} segments are damaged")


if __name__ == "__main__":
    main()
