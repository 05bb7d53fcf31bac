# SPDX-License-Identifier: Apache-2.0
"""``vibemq users``: who may come in, and who may do what with which queue.

Only ``add`` makes a data directory.
"""

import json
import os
import shlex
from datetime import UTC, datetime

import click

from vibemq.access.permissions import check_pattern, operation_names, operations_named
from vibemq.access.tokens import Tokens
from vibemq.access.users import add_user, change_password, check_name
from vibemq.cli.data import DataDir, json_data_options
from vibemq.cli.groups import Commands
from vibemq.cli.terminal import WholeSeconds, ask_password, print_rows, print_table
from vibemq.errors import UserError, VibeMQError
from vibemq.storage.ownership import account_name
from vibemq.storage.users import no_user

TELL_TIMEOUT_S = 5.0  # for a line in the broker's log: the change itself is done by then

_password_option = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")


@click.group(cls=Commands)
def users() -> None:
    """Add, list and remove users, change passwords, and grant permissions.

    Changes hold at once, also while the broker runs.  Here are the permissions of the native door;
    `vibemq ctl set_permissions` gives those of the streams door.
    """


@users.command("add")
@click.argument("name")
@click.option("--superuser", is_flag=True, help="May do everything.  The first user is one anyway.")
@_password_option
@json_data_options
def users_add(name: str, superuser: bool, password_stdin: bool, as_json: bool, data: DataDir) -> None:
    """Make a user; asks for the password.

    The first user of all is a superuser.  Others may do nothing but what `vibemq users grant` lets
    them on the native door, and `vibemq ctl set_permissions` on the streams door.
    """
    check_name(name)
    _ = data.path  # before the password is asked for
    password = ask_password(name, password_stdin, twice=True)  # before anything is made
    is_superuser = data.make(lambda metadata: add_user(metadata, name, password, is_superuser=superuser or None))
    why = "" if superuser else ", because it is the first user"
    done = f"added as a superuser{why}" if is_superuser else "added"
    _say(data, as_json, f"user {name} {done}", user=name, result="added", superuser=is_superuser)
    if not is_superuser:
        click.echo(
            f"  hint: {name} may do nothing yet: `vibemq users grant` lets it use queues, "
            f"`vibemq ctl set_permissions {shlex.quote(name)} CONFIGURE WRITE READ` streams, and "
            f"`vibemq ctl set_user_tags {shlex.quote(name)} monitoring` the management page and /metrics, to look at",
            err=True,
        )


@users.command("list")
@json_data_options
def users_list(as_json: bool, data: DataDir) -> None:
    """Show all users, except the built-in guest."""
    metadata = data.open()
    counts = metadata.permission_counts()
    found = [
        {
            "user": user.name,
            "superuser": user.is_superuser,
            "permissions": counts.get(user.name, 0),
            "created": datetime.fromtimestamp(user.created_ms // 1000, UTC).isoformat(),
        }
        for user in metadata.users()
    ]
    columns = {key: key for key in ("user", "superuser", "permissions", "created")}
    print_rows(as_json, found, columns, "there are no users; `vibemq users add NAME` makes one")


@users.command("remove")
@click.argument("name")
@json_data_options
def users_remove(name: str, as_json: bool, data: DataDir) -> None:
    """Remove a user and all permissions.  Open connections of this user are closed."""
    metadata = data.open()
    had_superuser = metadata.has_superuser()
    metadata.delete_user(name)
    _say(data, as_json, f"user {name} removed", user=name, result="removed")
    if not metadata.users():
        click.echo(
            "vibemq: that was the last user: on 127.0.0.1 the native door now lets everybody in without a password, "
            "on any other address nobody gets in and the broker does not start again",
            err=True,
        )
    elif had_superuser and not metadata.has_superuser():
        click.echo(
            "vibemq: that was the last superuser: through the broker nobody but guest may manage users now; "
            "`vibemq users add NAME --superuser` makes another",
            err=True,
        )


@users.command("passwd")
@click.argument("name")
@_password_option
@json_data_options
def users_passwd(name: str, password_stdin: bool, as_json: bool, data: DataDir) -> None:
    """Change a user's password; asks for it."""
    metadata = data.open()
    change_password(metadata, name, ask_password(name, password_stdin, twice=True))
    _say(data, as_json, f"user {name} has a new password", user=name, result="has a new password")


@users.command("token")
@click.argument("name")
@click.option("--for", "lifetime_s", type=WholeSeconds(1, 31_536_000), default=3600, metavar="SECONDS",
              help="How long it holds.")  # fmt: skip
@json_data_options
def users_token(name: str, lifetime_s: int, as_json: bool, data: DataDir) -> None:
    """Print an access token: who has it is the user NAME for a while (3600 s unless told).

    SignalR clients give it instead of a password, browsers as ?access_token=.  It ends early when the user is
    removed or gets another password.
    """
    token = Tokens(data.open(), None).issue(name, lifetime_s)
    click.echo(json.dumps({"accessToken": token, "expiresIn": lifetime_s}) if as_json else token)
    _tell_broker(data, f"user {name} has an access token for {lifetime_s} s")


# ---- permissions ----


@users.command("grant")
@click.argument("name")
@click.argument("pattern")
@click.argument("operations", nargs=-1, required=True, metavar="OPERATION...")
@json_data_options
def users_grant(name: str, pattern: str, operations: tuple[str, ...], as_json: bool, data: DataDir) -> None:
    """Let a user do OPERATIONs with the queues that PATTERN matches.

    In PATTERN, * stands for any run of characters (quote it for the shell).  OPERATION is Publish,
    Subscribe, CreateQueue, DeleteQueue, PurgeQueue, GetQueueInfo or ListQueues.  What was granted by the
    same pattern before is replaced.
    """
    try:
        wanted = operations_named(operations)
    except UserError as problem:
        raise click.UsageError(str(problem)) from None
    check_pattern(pattern)
    metadata = data.open()
    rights = metadata.rights(name)
    before = {} if rights is None else {entry.pattern: entry.operations for entry in rights.permissions}
    metadata.grant(name, pattern, wanted)
    names, replaced = operation_names(wanted), operation_names(before.get(pattern, ()))
    told = f"user {name} may {', '.join(names)} where the queue is {pattern}"
    if replaced and replaced != names:
        told += f", instead of {', '.join(replaced)}"
    _say(data, as_json, told, user=name, result="granted", pattern=pattern, operations=names, replaced=replaced)


@users.command("revoke")
@click.argument("name")
@click.argument("pattern")
@json_data_options
def users_revoke(name: str, pattern: str, as_json: bool, data: DataDir) -> None:
    """Take back what was granted by exactly this PATTERN."""
    if not data.open().revoke(name, pattern):
        raise UserError(
            f"user {name!r} has no permission with the pattern {pattern!r}",
            hint=f"`vibemq users permissions {shlex.quote(name)}` shows all",
        )
    told = f"user {name} has no permission by {pattern} any more"
    _say(data, as_json, told, user=name, result="revoked", pattern=pattern)


@users.command("permissions")
@click.argument("name")
@json_data_options
def users_permissions(name: str, as_json: bool, data: DataDir) -> None:
    """Show what a user may do with which queues."""
    rights = data.open().rights(name)
    if rights is None:
        raise no_user(name)
    found = [(entry.pattern, operation_names(entry.operations)) for entry in rights.permissions]
    if as_json:
        entries = [{"pattern": pattern, "operations": names} for pattern, names in found]
        click.echo(json.dumps({"user": name, "superuser": rights.is_superuser, "permissions": entries}))
        return
    if rights.is_superuser:
        click.echo(f"user {name} is a superuser and may do everything")
    elif not found:
        command = f"`vibemq users grant {shlex.quote(name)} PATTERN OPERATION...`"
        click.echo(f"user {name} has no permission; {command} gives one")
    if found:
        print_table(("queues", "operations"), [(pattern, ", ".join(names)) for pattern, names in found])


# ---- answering ----


def _say(data: DataDir, as_json: bool, told: str, **done: object) -> None:
    """What was done; a person also hears where, because another broker may have been meant."""
    click.echo(json.dumps(done) if as_json else f"{told} (data directory {data.path})")
    _tell_broker(data, told)


def _tell_broker(data: DataDir, told: str) -> None:
    """For its log, where it runs: it would notice the change without knowing what was changed, and by whom."""
    body = {"change": told, "by": f"vibemq users of {account_name(os.getuid())}"}
    data.timeout_s = TELL_TIMEOUT_S
    try:
        if not data.tell("POST", "/changes", body):
            from vibemq.admin.api.changes import audit_accounts

            audit_accounts(data.config.audit, data.path, body["by"], told)
    except VibeMQError as problem:
        click.echo(f"vibemq: it is done, but the broker could not be told for its log: {problem}", err=True)
