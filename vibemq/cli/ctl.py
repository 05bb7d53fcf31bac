# SPDX-License-Identifier: Apache-2.0
"""``vibemq ctl``: reads the words and options as RabbitMQ's tools do, which take options anywhere on the line, and
prints rows in their forms: columns with tabs, boxes, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from vibemq.admin.api.shown import at
from vibemq.cli import ctl_remote
from vibemq.cli.ctl_commands import COMMANDS, STANDARD_OUTPUT, UNITS
from vibemq.cli.ctl_orders import UNAVAILABLE, USAGE, Command, Order, Refused
from vibemq.cli.data import DataDir, data_options
from vibemq.cli.management import Management
from vibemq.cli.terminal import Seconds
from vibemq.errors import VibeMQError

FORMATTERS = ("table", "pretty_table", "json", "csv")
TIMEOUT_MAX_S = 86_400.0  # nobody waits longer, and the kernel takes no endless ones
#: Options that only some commands take.
_OWN_OPTIONS = {option for command in COMMANDS.values() for option in command.options.split()}
_LINE = "vibemq.cli.ctl.line"  # in click's context: the words as they were typed


def _option(parameter: click.Parameter) -> str:
    """By the name that it has in the table of commands."""
    return str(parameter.name).replace("_", "-")


class _Ctl(click.Command):
    """Lists the commands below the options; with a command on the line, --help is about that one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_LINE] = list(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        typed, _, _ = self.make_parser(ctx).parse_args(list(ctx.meta[_LINE]))
        name = typed.get("command")
        command = COMMANDS.get(name) if isinstance(name, str) else None
        if command is None:
            super().format_help(ctx, formatter)
            return
        formatter.write_usage(ctx.command_path, f"{command.typed} [OPTIONS]")
        formatter.write_paragraph()
        formatter.write_text(command.about)
        if command.columns:
            with formatter.section("Columns"):
                formatter.write_text(f"{', '.join(command.shown)}{'; also:' if command.also else ''}")
                if command.also:
                    formatter.write_text(", ".join(list(command.places)[len(command.shown) :]))
        for title, own in (("Options of this command", True), ("Options of all commands", False)):
            shown = []
            for option in self.get_params(ctx):
                of_own = command.options.split()
                belongs = _option(option) in of_own if own else _option(option) not in _OWN_OPTIONS
                if isinstance(option, click.Option) and belongs and (record := option.get_help_record(ctx)):
                    words, about = record[0], record[1].removeprefix(f"{name}: ")
                    shown.append((words, about[:1].upper() + about[1:]))
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(command.typed, command.about) for command in COMMANDS.values()])


def _timeout(_: click.Context, __: click.Parameter, value: float) -> float:
    if not value > 0:  # nor for what is no number at all
        raise click.BadParameter("more than 0 seconds, or infinity, is needed")
    return min(value, TIMEOUT_MAX_S)


def _price(what: str, default: float, of: str) -> Any:
    about = f"remote_status: price of {of}."
    kind = click.FloatRange(min=0)
    return click.option(f"--{what}-price", type=kind, default=default, show_default=True, metavar="MONEY", help=about)


@click.command(cls=_Ctl, options_metavar="[OPTIONS]")
@click.argument("command")
@click.argument("words", nargs=-1, metavar="[WORDS]...")
@click.option("-p", "--vhost", default="/", metavar="VHOST", help="Virtual host, where a command is about one.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the result.")
@click.option("-s", "--silent", is_flag=True, help="As --quiet, and no names of columns.")
@click.option("--no-table-headers", is_flag=True, help="No names of columns.")
@click.option("--formatter", type=click.Choice(FORMATTERS), help="How results are written.")
@click.option(
    "-t",
    "--timeout",
    type=Seconds(),
    default=DataDir.timeout_s,
    callback=_timeout,
    metavar="SECONDS",
    help="How long to wait for each answer of the broker.",
)
@click.option("-n", "--node", metavar="NODE", help="Taken and not used: the data directory says which broker.")
@click.option("-l", "--longnames", is_flag=True, help="Taken and not used.")
@click.option("--priority", type=int, default=0, metavar="N", help="set_policy: the highest that matches holds.")
@click.option("--apply-to", default="all", metavar="WHAT", help="set_policy: all, queues, streams, classic_queues ...")
@click.option("--partitions", type=int, metavar="N", help="add_super_stream: how many (3 unless told).")
@click.option("--binding-keys", metavar="A,B", help="add_super_stream: one partition for each key.")
@click.option("--routing-keys", metavar="A,B", help="The same, as older tools call it.")
@click.option("--max-length-bytes", metavar="BYTES", help="add_super_stream: retention of each partition.")
@click.option("--max-age", metavar="AGE", help="add_super_stream: such as 12h.")
@click.option("--stream-max-segment-size-bytes", metavar="BYTES", help="add_super_stream: size of segments.")
@click.option("--leader-locator", "queue_leader_locator", metavar="NAME", help="add_super_stream: taken and kept.")
@click.option("--initial-cluster-size", metavar="N", help="add_super_stream: taken and kept.")
@click.option("--stream", metavar="STREAM", help="list_stream_group_consumers: of which stream.")
@click.option("--reference", metavar="NAME", help="list_stream_group_consumers: of which group.")
@click.option("--user", metavar="USER", help="list_user_limits: of which user.")
@click.option("--description", metavar="TEXT", help="add_vhost: for people.")
@click.option("--tags", metavar="A,B", help="add_vhost: for tools.")
@click.option("--interval", type=Seconds(min=0.1), default=2.0, metavar="SECONDS", help="top: between two looks.")
@_price("put", ctl_remote.PUT_PRICE, "1000 PUT and LIST requests; defaults: dollars of S3 Standard, us-east-1, 2025")
@_price("get", ctl_remote.GET_PRICE, "1000 GET requests")
@_price("storage", ctl_remote.STORAGE_PRICE, "a GB and month")
@click.option(
    "--url",
    envvar="VIBEMQ_ADMIN_URL",
    metavar="URL",
    help="A broker elsewhere: https://USER@HOST[:2936]; the password is VIBEMQ_PASSWORD, or asked for.",
)
@click.option("--ca-file", metavar="FILE", help="With --url: trust these authorities instead of the system's.")
@click.option("--certificate", metavar="FILE", help="With --url: our certificate, for a broker that asks for one.")
@click.option("--key", metavar="FILE", help="With --url: the key of --certificate, if that has none in it.")
@data_options
@click.pass_context
def ctl(ctx: click.Context, command: str, words: tuple[str, ...], data: DataDir, **options: Any) -> None:
    """Manage a broker with the words of rabbitmqctl and rabbitmq-streams.

    Reaches the broker through its data directory, without a password.  Where no broker runs, users, virtual
    hosts, permissions and policies are changed all the same.  With --url it is asked over HTTPS, as a user whose tags
    say what it may do.
    """
    try:
        found = COMMANDS.get(command)
        if found is None:
            near = get_close_matches(command, COMMANDS, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise Refused(USAGE, f"Command '{command}' not found; {meant}`vibemq ctl --help` lists all")
        _refuse_options_of_others(ctx, found)
        if options["url"] is not None:
            data.management = Management(*(options[name] for name in ("url", "ca_file", "certificate", "key")))
        elif options["ca_file"] or options["certificate"] or options["key"]:
            raise Refused(USAGE, "--ca-file, --certificate and --key need --url")
        _run(found, words, data, options)
    except (Refused, VibeMQError) as problem:
        hint = f"\n  hint: {problem.hint}" if problem.hint else ""
        click.echo(f"Error:\n{problem}{hint}", err=True)
        ctx.exit(problem.code if isinstance(problem, Refused) else UNAVAILABLE)


def _run(command: Command, words: Sequence[str], data: DataDir, options: dict[str, Any]) -> None:
    order = _ordered(command, words, data, options)
    columns = _columns(command, order.more)
    formatter = options["formatter"] or command.formatter
    is_read_by_programs = formatter in ("json", "csv") or order.words.get("file") == STANDARD_OUTPUT
    quiet = options["quiet"] or options["silent"] or is_read_by_programs
    data.timeout_s = options["timeout"]
    _ = data.path  # or the configuration is refused, before anything is said
    if not quiet:
        click.echo(command.banner.format_map(order.typed))
    result = command.run(order)
    if columns:
        rows = [{column: at(row, command.places[column]) for column in columns} for row in result]
        headers = not (options["silent"] or options["no_table_headers"])
        for line in lines(rows, columns, formatter, headers):
            click.echo(line)
    elif isinstance(result, dict) and formatter == "json":
        click.echo(_compact(result))
    elif isinstance(result, dict):
        for part, value in result.items():
            click.echo(f"{_titled(part)}: {value if isinstance(value, str) else json.dumps(value)}")
    elif result is not None and not quiet:
        click.echo(result)


def _titled(part: str) -> str:
    unit = UNITS.get(part)
    return part.replace("_", " ") + (f" ({unit})" if unit else "")


def _refuse_options_of_others(ctx: click.Context, command: Command) -> None:
    """An option that would be passed over in silence may be a slip that matters."""
    for parameter in ctx.command.params:
        option = _option(parameter)
        given = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and option in _OWN_OPTIONS and option not in command.options.split():
            raise Refused(USAGE, f"Invalid options for this command: {parameter.opts[0]}")


def _ordered(command: Command, words: Sequence[str], data: DataDir, options: dict[str, Any]) -> Order:
    """The words by their names, and those that come after."""
    wanted = command.words + command.optional_words
    if len(words) < len(command.words):
        raise Refused(USAGE, f"not enough arguments.\n{_usage(command)}")
    if len(words) > len(wanted) and not command.takes_more:
        raise Refused(USAGE, f"too many arguments.\n{_usage(command)}")
    return Order(data, dict(zip(wanted, words, strict=False)), tuple(words[len(wanted) :]), options)


def _usage(command: Command) -> str:
    """With the options of its own: what was typed as a word may be meant for one of them."""
    own = [option for option in ctl.params if _option(option) in command.options.split()]
    return " ".join(["Usage: vibemq ctl", command.typed, *(f"[{option.opts[0]} {option.metavar}]" for option in own)])


def _columns(command: Command, more: Sequence[str]) -> Sequence[str]:
    if not command.columns or not more:
        return command.shown
    asked = [column for word in more for column in word.split(",") if column]
    unknown = [column for column in asked if column not in command.places]
    if unknown:
        known = ", ".join(sorted(command.places))
        raise Refused(USAGE, f"Info key(s) {', '.join(unknown)} are not supported; known are {known}")
    return asked


# ---- how rows are written ----


def lines(rows: Sequence[dict[str, Any]], columns: Sequence[str], formatter: str, headers: bool) -> list[str]:
    """``columns`` in their order; ``headers``: with their names above."""
    if formatter == "json":
        texts = [_compact({column: row.get(column) for column in columns}) for row in rows]
        return ["[", *(f",{text}" if number else text for number, text in enumerate(texts)), "]"]
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if formatter == "pretty_table":
        return _boxes([list(columns), *cells]) if rows else []  # as RabbitMQ's: no box around nothing
    titled = [list(columns), *cells] if headers else cells
    if formatter == "csv":
        page = io.StringIO()
        csv.writer(page, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(titled)
        return page.getvalue().split("\n")[:-1]  # no cell has a line break in it
    return ["\t".join(row) for row in titled]


def _boxes(cells: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rules = ["─" * (width + 2) for width in widths]
    texts = ["│".join(f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True)) for row in cells]
    between = f"│\n├{'┼'.join(rules)}┤\n│".join(texts)
    return f"┌{'┬'.join(rules)}┐\n│{between}│\n└{'┴'.join(rules)}┘".split("\n")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_cell, value))}]"
    if isinstance(value, dict):  # as RabbitMQ's tools print a map, which others parse: [{"key","value"},...]
        return f"[{','.join(f'{{{json.dumps(key)},{_compact(value)}}}' for key, value in value.items())}]"
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(value))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
