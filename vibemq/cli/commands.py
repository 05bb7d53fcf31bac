# SPDX-License-Identifier: Apache-2.0
"""The commands of ``vibemq``.

Expected errors are one line on standard error, with a hint where there is one, and exit code
1; wrong usage is 2; a broker whose place another one has taken ends with 3; Ctrl-C ends any command but ``serve`` with
130.  A traceback therefore always means a
mistake of ours.  A command's module is imported when it is called: ``vibemq serve`` must not wait for the clients.
"""

import importlib
from pathlib import Path
from typing import IO, Any, ClassVar

import click
from click.shell_completion import CompletionItem

from vibemq.cli import EXIT_INTERRUPTED
from vibemq.cli.groups import Commands
from vibemq.errors import UserError, VibeMQError


class _Shown(click.ClickException):
    """A VibeMQError on its way to the terminal."""

    def __init__(self, error: VibeMQError) -> None:
        super().__init__(str(error))
        self.hint = "" if error.hint in str(error) else error.hint  # where it has to be in the message, once is enough
        self.exit_code = error.exit_code  # type: ignore[misc]  # which click reads of the instance

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"vibemq: {self.message}", err=True, file=file)
        if self.hint:
            click.echo(f"  hint: {self.hint}", err=True, file=file)


class Group(Commands):
    """Shows our errors in one line, and ends with EXIT_INTERRUPTED after Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except VibeMQError as error:
            raise _Shown(error) from error
        except UnicodeError as problem:
            if (text := _not_utf8(problem)) is None:
                raise
            raise _Shown(UserError(f"{text!r} is not UTF-8 and cannot be used here")) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except click.Abort as ended:
            if not isinstance(ended.__context__, KeyboardInterrupt):  # as click makes one at the end of the input
                raise
            click.echo(err=True)  # the cursor is behind the question
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def _not_utf8(problem: UnicodeError) -> str | None:
    """The argument, variable or line that has bytes which are no UTF-8: Python keeps each as a lone surrogate."""
    found = problem.object if isinstance(problem, UnicodeEncodeError | UnicodeTranslateError) else ""
    if not any("\udc80" <= character <= "\udcff" for character in found):
        return None
    return found.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class _Main(Group):
    """Loads a command only when it is called."""

    # command -> the module that has a function of its name, and its line in --help
    lazy: ClassVar[dict[str, tuple[str, str]]] = {
        "backup": ("vibemq.cli.backup", "Copy the data directory, also while the broker runs."),
        "bench": ("vibemq.bench.cli", "Measure a broker: rates, latencies, CPU."),
        "completion": ("vibemq.cli.shell", "Print what completes these commands in bash, zsh or fish."),
        "config": ("vibemq.cli.serve", "Print every option with its default, unit and reason, as a file for --config."),
        "consume": ("vibemq.cli.consume", "Print a queue's messages, and acknowledge them."),
        "ctl": ("vibemq.cli.ctl", "Manage a broker with the words of rabbitmqctl and rabbitmq-streams."),
        "ingest": ("vibemq.cli.spark", "Write streams into Parquet, Delta or Iceberg with Spark, each message once."),
        "install-service": ("vibemq.cli.service", "Make a systemd service of this installation."),
        "log": ("vibemq.cli.log", "Find and look into the files of streams and queues."),
        "man": ("vibemq.cli.shell", "Write a man page for each command."),
        "publish": ("vibemq.cli.publish", "Publish a message, or each line of a file or of a pipe, to a queue."),
        "queues": ("vibemq.cli.queues", "The queues of a broker, wherever it is."),
        "remote": ("vibemq.cli.remote", "Look into the object store: list, verify, prune, check."),
        "restore": ("vibemq.cli.backup", "Check a backup, and make a data directory of it."),
        "serve": ("vibemq.cli.serve", "Run the broker until SIGTERM or Ctrl-C."),
        "spark-check": ("vibemq.cli.spark", "Try what Spark needs here, on its executors and of the broker."),
        "streams": ("vibemq.cli.streams", "The streams of a broker, wherever it is."),
        "users": ("vibemq.cli.users", "Add, list and remove users, change passwords, and grant permissions."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.lazy])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ctx.meta["vibemq.listing"] = True
        super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        ctx.meta["vibemq.listing"] = True
        return super().shell_complete(ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, line = self.lazy[cmd_name]
        if ctx.meta.get("vibemq.listing"):
            return click.Command(cmd_name, short_help=line)
        try:
            command: click.Command = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        except ModuleNotFoundError as problem:
            missing = UserError(
                f"{cmd_name} needs the module {problem.name}, which is not installed",
                hint="install VibeMQ and its dependencies again",
            )
            raise _Shown(missing) from problem
        return command


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    import platform

    from vibemq import __version__, build_facts

    written = Path(__file__).parent.parent / "COMMIT"  # by setup.py, into what is shipped
    commit = (
        written.read_text(encoding="utf-8").strip() if written.is_file() else "not known: used from a folder of sources"
    )
    click.echo(f"vibemq {__version__}")
    click.echo(f"commit: {commit}")
    click.echo(f"Python: {platform.python_version()} ({platform.python_implementation()}, {platform.machine()})")
    click.echo(f"compiler: {build_facts.compiler()}")
    click.echo(f"instruction sets: {', '.join(build_facts.instruction_sets()) or 'none beyond the baseline'}")
    click.echo(f"checksums by: {build_facts.checksums_by()}")
    ctx.exit()


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and facts of the build, and exit.",
)
def main() -> None:
    """VibeMQ: a message broker for Linux, and a high-rate way into Spark."""
