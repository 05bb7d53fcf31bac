# SPDX-License-Identifier: Apache-2.0
"""The data directory that --config and --data-dir name: its database, and the broker that serves from it.

The broker is asked through the admin process's socket in the directory, and where none runs its files are worked on:
either way it is the management API (vibemq.admin.api) that answers.  Only what is told to makes a data directory, or a
misspelt --data-dir would seem to be an empty one.  What root makes in a directory of another account is given to that
account, because the broker that runs as it could not open the database otherwise.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vibemq.cli.terminal import json_option, options_as, with_options
from vibemq.errors import SetupError, UserError, VibeMQError

if TYPE_CHECKING:
    from vibemq.cli.management import Management
    from vibemq.config import Config
    from vibemq.storage.metadata import Metadata

Result = TypeVar("Result")


config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    envvar="VIBEMQ_CONFIG",
    help="TOML file with options; `vibemq config` prints a commented sample.",
)
settings_option = click.option(
    "--set", "settings", multiple=True, metavar="SECTION.OPTION=VALUE", help="Any other option; repeatable."
)
data_dir_option = click.option("--data-dir", metavar="DIR", help="Where logs, streams and users are kept.")


def settings_overrides(settings: tuple[str, ...]) -> dict[tuple[str, str], tuple[object, str]]:
    """What --set says, each with the words that said it.  Raises ConfigError."""
    from vibemq.config import from_text

    found: dict[tuple[str, str], tuple[object, str]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or "." not in name:
            raise click.UsageError(f"--set {setting}: SECTION.OPTION=VALUE is needed, for instance server.workers=4")
        section, _, option = name.partition(".")
        found[section, option] = (from_text(section, option, text, f"--set {setting}"), f"--set {setting}")
    return found


class Failed(VibeMQError):
    """The broker refused; ``status`` is HTTP's number for why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class DataDir:
    """One data directory; nothing is looked at before it is needed."""

    timeout_s = 60.0  # for each answer of the broker
    management: Management | None = None  # asked instead, wherever the broker is

    def __init__(self, config_path: str | None, data_dir: str | None) -> None:
        self._config_path = config_path
        self._data_dir = data_dir
        self._is_looked_at = False  # the database was checked before its first use by this process

    @functools.cached_property
    def config(self) -> Config:
        from vibemq import config

        overrides: dict[tuple[str, str], tuple[object, str]] = {}
        if self._data_dir is not None:
            overrides["server", "data_dir"] = (self._data_dir, "--data-dir")
        return config.load(self._config_path, overrides=overrides)

    @property
    def path(self) -> str:
        """Raises ConfigError."""
        return self.config.data_path

    # ---- the database ----

    def open(self) -> Metadata:
        """It must exist."""
        from vibemq.server.datadir import metadata_path

        found = metadata_path(self.path)
        try:
            os.stat(found)
        except (FileNotFoundError, NotADirectoryError):
            why = f"there is no {os.path.basename(found)} in it"
            hint = "is it the right one (--data-dir)?  `vibemq users add NAME` and `vibemq serve` make it"
        except OSError as problem:
            why, hint = str(problem.strerror), "run this as the account that serves, or as root"
        else:
            return self._metadata()
        raise UserError(f"cannot use the data directory {self.path}: {why}", hint=hint)

    def make(self, add: Callable[[Metadata], Result]) -> Result:
        """Make the directory and its database where they are missing, and ``add`` to it."""
        from vibemq.server.datadir import metadata_path, prepare

        path = self.path
        ours = [f"{path}/streams", *(metadata_path(path) + suffix for suffix in ("", "-wal", "-shm"))]
        made_directory = not os.path.isdir(path)
        missing = [name for name in ours if not os.path.lexists(name)]
        prepare(path)
        metadata = self._metadata()
        try:
            return add(metadata)
        finally:
            metadata.close()
            if os.geteuid() == 0:
                owner = os.stat(path)
                for name in missing:
                    if os.path.lexists(name):
                        os.chown(name, owner.st_uid, owner.st_gid, follow_symlinks=False)
                if made_directory:
                    click.echo(
                        f"  hint: {path} is new and belongs to root: serve as root with --user NAME, "
                        f"or `chown -R NAME {shlex.quote(path)}` and serve as that account",
                        err=True,
                    )

    def _metadata(self) -> Metadata:
        from vibemq.remote.asking import publisher
        from vibemq.server.datadir import boot_id, is_served, metadata_path, require_unserved
        from vibemq.storage.metadata import Metadata

        metadata = Metadata(metadata_path(self.path))
        metadata.publish = publisher(self.path)
        metadata.before_upgrade = functools.partial(require_unserved, self.path)
        if not self._is_looked_at and not is_served(self.path):
            metadata.require_whole(boot_id())
            if os.path.exists(metadata.path):
                metadata.require_access()
        self._is_looked_at = True
        return metadata

    # ---- the broker ----

    def ask(
        self, method: str, where: str, *, body: Any = None, reason: str = "", needs_broker: bool = False,
        makes_data: bool = False,
    ) -> Any:  # fmt: skip
        """The answer's body; ``makes_data``: a data directory that is missing is made.  Raises Failed, UserError.

        ``where`` is below /api, with its parts quoted.
        """
        found = self._ask_broker(method, where, body, reason)
        if found is None and needs_broker:
            raise UserError(
                f"no broker serves from {self.path}",
                hint="is it the right directory (--data-dir)?  `vibemq serve` starts a broker",
            )
        return _body(*(found or self._ask_files(method, where, body, makes_data)))

    def tell(self, method: str, where: str, body: dict[str, Any]) -> bool:
        """As ``ask``, where a broker serves from here; False where none does."""
        if found := self._ask_broker(method, where, body):
            _body(*found)
        return found is not None

    def _ask_broker(self, method: str, where: str, body: Any, reason: str = "") -> tuple[int, Any] | None:
        """Status and body of its answer; None: there is no broker."""
        import http.client  # late: `vibemq serve` does not wait for it

        said = " ".join(reason.split()).encode("ascii", "backslashreplace").decode()
        headers = {"Content-Type": "application/json", "X-Reason": said}
        if self.management is not None:
            return self.management.ask(method, f"/api{where}", body, headers, self.timeout_s)
        link = self._connect()
        if link is None:
            return None
        connection = http.client.HTTPConnection("localhost", timeout=self.timeout_s)
        connection.sock = link
        try:
            connection.request(method, f"/api{where}", None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            read = response.read()
        except (OSError, http.client.HTTPException) as problem:
            raise Failed(503, f"the broker did not answer: {problem}") from problem
        finally:
            connection.close()
        return response.status, json.loads(read) if read else None

    def _connect(self) -> socket.socket | None:
        """None: no broker serves from here.  Raises SetupError."""
        from vibemq.server.datadir import CTL_SOCKET, OWN_FILES

        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(self.timeout_s)
        try:
            folder = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Through the descriptor, because an address has room for 107 bytes and paths are longer.
                link.connect(f"{OWN_FILES}/{folder}/{CTL_SOCKET}")
                return link
            finally:
                os.close(folder)
        except (FileNotFoundError, ConnectionRefusedError):
            link.close()
            if os.path.isdir(self.path) and not os.path.isdir(OWN_FILES):  # a broker that runs would be taken for none
                raise SetupError(
                    f"cannot look for the broker in {self.path}: {OWN_FILES} is needed, and /proc is not there",
                    hint="mount it (`mount -t proc proc /proc`), and let a container see it",
                ) from None
            return None
        except OSError as problem:
            link.close()
            raise SetupError(
                f"cannot reach the broker in {self.path}: {problem.strerror}",
                hint="run this as the account that serves, or as root",
            ) from None

    def _ask_files(self, method: str, where: str, body: Any, makes_data: bool) -> tuple[int, Any]:
        from vibemq.admin.api.answering import handle
        from vibemq.admin.api.calls import OWNER
        from vibemq.admin.api.changes import audit_files
        from vibemq.admin.api.service import Api
        from vibemq.admin.workers import Workers

        def work(metadata: Metadata) -> tuple[int, Any]:
            api = Api(self.config, metadata, Workers([]), "rabbit@localhost", {}, 0)
            answer = handle(api, method, where, OWNER, {}, body)
            if answer.status < 300:
                audit_files(self.config.audit, self.path, method, where, body or {})
            return answer.status, answer.body

        if method == "GET":
            return work(self.open())
        if not makes_data:
            self.open().close()
        return self.make(work)


def _body(status: int, answer: Any) -> Any:
    if status >= 300:
        raise Failed(status, str((answer or {}).get("reason", f"status {status}")))
    return answer


data_options = options_as("data", DataDir, config_option, data_dir_option)
json_data_options = with_options(json_option, data_options)
