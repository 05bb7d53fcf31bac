# SPDX-License-Identifier: Apache-2.0
"""``vibemq users``: who may come in, and who may do what with which queue.

Only ``add`` makes a data directory: everything else would answer a misspelt --data-dir as if it
were an empty one.  What ``add`` makes as root in a directory of another account is given to that
account, because the broker that runs as it could not open the database otherwise.
"""

import json
import os
from typing import TYPE_CHECKING, TypeVar

import click

from vibemq.errors import UserError
from vibemq.terminal import ask_password, json_option, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vibemq.access.permissions import Operation
    from vibemq.storage.metadata import Metadata

Result = TypeVar("Result")

TELL_TIMEOUT_S = 5.0  # for a line in the broker's log: the change itself is done by then

config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    envvar="VIBEMQ_CONFIG",
    help="TOML file with options; `vibemq config` prints a commented sample.",
)
data_dir_option = click.option("--data-dir", metavar="DIR", help="Where logs, streams and users are kept.")
_password_option = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")


@click.group()
def users() -> None:
    """Add, list and remove users, change passwords, and grant permissions.

    Changes hold at once, also while the broker runs.  Here are the permissions of the native door;
    `vibemq ctl set_permissions` gives those of the streams door.
    """


@users.command("add")
@click.argument("name")
@click.option("--superuser", is_flag=True, help="May do everything.  The first user is one anyway.")
@_password_option
@json_option
@config_option
@data_dir_option
def users_add(
    name: str, superuser: bool, password_stdin: bool, as_json: bool, config_path: str | None, data_dir: str | None
) -> None:
    """Make a user; asks for the password.

    The first user of all is a superuser.  Others may do nothing but what `vibemq users grant` lets
    them on the native door, and `vibemq ctl set_permissions` on the streams door.
    """
    from vibemq.access.users import add_user

    path = data_path(config_path, data_dir)
    password = ask_password(name, password_stdin, twice=True)  # before anything is made
    is_superuser = make_and_keep_owner(
        path, lambda metadata: add_user(metadata, name, password, is_superuser=superuser or None)
    )
    why = "" if superuser else ", because it is the first user"
    done = f"added as a superuser{why}" if is_superuser else "added"
    _say(path, f"user {name} {done}", {"user": name, "result": "added", "superuser": is_superuser} if as_json else None)
    if not is_superuser:
        click.echo(
            f"  hint: {name} may do nothing yet: `vibemq users grant` lets it use queues, "
            f"`vibemq ctl set_permissions {name} '.*' '.*' '.*'` streams",
            err=True,
        )


@users.command("list")
@json_option
@config_option
@data_dir_option
def users_list(as_json: bool, config_path: str | None, data_dir: str | None) -> None:
    """Show all users, except the built-in guest."""
    metadata = open_metadata(config_path, data_dir)
    counts = metadata.permission_counts()
    found = [
        {
            "user": user.name,
            "superuser": user.is_superuser,
            "permissions": counts.get(user.name, 0),
            "created": _when(user.created_ms),
        }
        for user in metadata.users()
    ]
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo("there are no users; `vibemq users add NAME` makes one")
    else:
        rows = [
            (str(user["user"]), "yes" if user["superuser"] else "", str(user["permissions"]), str(user["created"]))
            for user in found
        ]
        print_table(("user", "superuser", "permissions", "created"), rows)


@users.command("remove")
@click.argument("name")
@json_option
@config_option
@data_dir_option
def users_remove(name: str, as_json: bool, config_path: str | None, data_dir: str | None) -> None:
    """Remove a user and all permissions.  Open connections of this user are closed."""
    metadata = open_metadata(config_path, data_dir)
    had_superuser = metadata.has_superuser()
    metadata.delete_user(name)
    _say_done(as_json, metadata, name, "removed")
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
@json_option
@config_option
@data_dir_option
def users_passwd(name: str, password_stdin: bool, as_json: bool, config_path: str | None, data_dir: str | None) -> None:
    """Change a user's password; asks for it."""
    from vibemq.access.users import change_password

    metadata = open_metadata(config_path, data_dir)
    change_password(metadata, name, ask_password(name, password_stdin, twice=True))
    _say_done(as_json, metadata, name, "has a new password")


@users.command("token")
@click.argument("name")
@click.option(
    "--for",
    "lifetime_s",
    type=click.IntRange(1, 31_536_000),
    default=3600,
    metavar="SECONDS",
    help="How long it holds.",
)
@json_option
@config_option
@data_dir_option
def users_token(name: str, lifetime_s: int, as_json: bool, config_path: str | None, data_dir: str | None) -> None:
    """Print an access token: who has it is the user NAME for a while (3600 s unless told).

    SignalR clients give it instead of a password, browsers as ?access_token=.  It ends early when the user is
    removed or gets another password.
    """
    from vibemq.access.tokens import Tokens

    token = Tokens(open_metadata(config_path, data_dir), None).issue(name, lifetime_s)
    click.echo(json.dumps({"accessToken": token, "expiresIn": lifetime_s}) if as_json else token)
    _tell_broker(data_path(config_path, data_dir), f"user {name} has an access token for {lifetime_s} s")


# ---- permissions ----


@users.command("grant")
@click.argument("name")
@click.argument("pattern")
@click.argument("operations", nargs=-1, required=True, metavar="OPERATION...")
@json_option
@config_option
@data_dir_option
def users_grant(
    name: str, pattern: str, operations: tuple[str, ...], as_json: bool, config_path: str | None, data_dir: str | None
) -> None:
    """Let a user do OPERATIONs with the queues that PATTERN matches.

    In PATTERN, * stands for any run of characters (quote it for the shell).  OPERATION is Publish,
    Subscribe, CreateQueue, DeleteQueue, PurgeQueue, GetQueueInfo or ListQueues.  What was granted by the
    same pattern before is replaced.
    """
    from vibemq.access.permissions import check_pattern

    wanted = _operations(operations)
    check_pattern(pattern)
    metadata = open_metadata(config_path, data_dir)
    rights = metadata.rights(name)
    before = {} if rights is None else {entry.pattern: entry.operations for entry in rights.permissions}
    metadata.grant(name, pattern, wanted)
    names, replaced = _names(wanted), _names(before.get(pattern, ()))
    told = f"user {name} may {', '.join(names)} where the queue is {pattern}"
    if replaced and replaced != names:
        told += f", instead of {', '.join(replaced)}"
    done = {"user": name, "result": "granted", "pattern": pattern, "operations": names, "replaced": replaced}
    _say(_directory(metadata), told, done if as_json else None)


@users.command("revoke")
@click.argument("name")
@click.argument("pattern")
@json_option
@config_option
@data_dir_option
def users_revoke(name: str, pattern: str, as_json: bool, config_path: str | None, data_dir: str | None) -> None:
    """Take back what was granted by exactly this PATTERN."""
    metadata = open_metadata(config_path, data_dir)
    if not metadata.revoke(name, pattern):
        raise UserError(
            f"user {name!r} has no permission with the pattern {pattern!r}",
            hint=f"`vibemq users permissions {name}` shows all",
        )
    done = {"user": name, "result": "revoked", "pattern": pattern}
    _say(_directory(metadata), f"user {name} has no permission by {pattern} any more", done if as_json else None)


@users.command("permissions")
@click.argument("name")
@json_option
@config_option
@data_dir_option
def users_permissions(name: str, as_json: bool, config_path: str | None, data_dir: str | None) -> None:
    """Show what a user may do with which queues."""
    from vibemq.storage.users import no_user

    metadata = open_metadata(config_path, data_dir)
    rights = metadata.rights(name)
    if rights is None:
        raise no_user(name)
    found = [(entry.pattern, _names(entry.operations)) for entry in rights.permissions]
    if as_json:
        entries = [{"pattern": pattern, "operations": names} for pattern, names in found]
        click.echo(json.dumps({"user": name, "superuser": rights.is_superuser, "permissions": entries}))
        return
    if rights.is_superuser:
        click.echo(f"user {name} is a superuser and may do everything")
    elif not found:
        click.echo(f"user {name} has no permission; `vibemq users grant {name} PATTERN OPERATION...` gives one")
    if found:
        print_table(("queues", "operations"), [(pattern, ", ".join(names)) for pattern, names in found])


def _operations(names: tuple[str, ...]) -> "list[Operation]":
    from vibemq.access.permissions import Operation, operation_named

    found = set()
    for name in names:
        operation = operation_named(name)
        if operation is None:
            known = ", ".join(known.name for known in Operation)
            raise click.UsageError(f"there is no operation {name!r}; known are {known}")
        found.add(operation)
    return sorted(found)


def _names(operations: "Iterable[int]") -> list[str]:
    from vibemq.access.permissions import Operation

    return [Operation(number).name for number in operations]


# ---- the data directory ----


def data_path(config_path: str | None, data_dir: str | None) -> str:
    from vibemq import config

    overrides: dict[tuple[str, str], tuple[object, str]] = {}
    if data_dir is not None:
        overrides["server", "data_dir"] = (data_dir, "--data-dir")
    return config.load(config_path, overrides=overrides).data_path


def open_metadata(config_path: str | None, data_dir: str | None) -> "Metadata":
    """The database, which must exist."""
    from vibemq.server.context import metadata_path
    from vibemq.storage.metadata import Metadata

    path = data_path(config_path, data_dir)
    found = metadata_path(path)
    try:
        os.stat(found)
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError | NotADirectoryError)
        raise UserError(
            f"cannot use the data directory {path}: "
            + (f"there is no {os.path.basename(found)} in it" if missing else f"{problem.strerror}"),
            hint="is it the right one (--data-dir)?  `vibemq users add NAME` and `vibemq serve` make it"
            if missing
            else "run this as the account that serves, or as root",
        ) from None
    return Metadata(found)


def make_and_keep_owner(path: str, add: "Callable[[Metadata], Result]") -> "Result":
    """Make the data directory and its database where they are missing, and ``add`` to it."""
    from vibemq.server import datadir
    from vibemq.server.context import metadata_path
    from vibemq.storage.metadata import Metadata

    ours = [f"{path}/streams", *(metadata_path(path) + suffix for suffix in ("", "-wal", "-shm"))]
    made_directory = not os.path.isdir(path)
    missing = [name for name in ours if not os.path.lexists(name)]
    datadir.prepare(path)
    metadata = Metadata(metadata_path(path))
    try:
        return add(metadata)
    finally:
        metadata.close()
        if os.geteuid() == 0:
            _give(path, missing)
            if made_directory:
                click.echo(
                    f"  hint: {path} is new and belongs to root: serve as root with --user NAME, "
                    f"or `chown -R NAME {path}` and serve as that account",
                    err=True,
                )


def _give(path: str, made: list[str]) -> None:
    """To the directory's owner, what root has just made in it."""
    owner = os.stat(path)
    for name in made:
        if os.path.lexists(name):
            os.chown(name, owner.st_uid, owner.st_gid, follow_symlinks=False)


# ---- answering ----


def _say_done(as_json: bool, metadata: "Metadata", name: str, done: str) -> None:
    _say(_directory(metadata), f"user {name} {done}", {"user": name, "result": done} if as_json else None)


def _say(path: str, told: str, as_json: "Mapping[str, object] | None") -> None:
    """What was done; a person also hears where, because another broker may have been meant."""
    click.echo(f"{told} (data directory {path})" if as_json is None else json.dumps(as_json))
    _tell_broker(path, told)


def _tell_broker(path: str, told: str) -> None:
    """For its log, where it runs: it would notice the change without knowing what was changed, and by whom."""
    import getpass
    import http.client

    from vibemq.admin import ctl_socket

    try:
        link = ctl_socket.connect(path, TELL_TIMEOUT_S)
        if link is None:
            return
        body = {"change": told, "by": f"vibemq users of {getpass.getuser()}"}
        status, answer = ctl_socket.request(link, TELL_TIMEOUT_S, "POST", "/changes", body, {})
        problem = "" if status < 300 else str((answer or {}).get("reason", status))
    except (UserError, OSError, http.client.HTTPException) as failed:
        problem = str(failed)
    if problem:
        click.echo(f"vibemq: it is done, but the broker could not be told for its log: {problem}", err=True)


def _directory(metadata: "Metadata") -> str:
    return os.path.dirname(metadata.path)


def _when(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms // 1000, UTC).isoformat()
