# SPDX-License-Identifier: Apache-2.0
"""``vibemq install-service``: a systemd service of the installation that the command belongs to."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from vibemq.errors import SetupError

ACCOUNT = "vibemq"
CONFIG = Path("etc/vibemq.toml")
UNIT = Path("etc/systemd/system/vibemq.service")
TEMPLATE = Path(__file__).with_name("vibemq.service")
IN_TEMPLATE = "/opt/vibemq/bin/vibemq"
#: Where the unit's ProtectHome= lets nobody look, nor do other accounts get in.
HOMES = tuple(map(Path, ("/home", "/root", "/run/user")))

_INSTALL = "install it from the folder of its sources: `{} install FOLDER`"


@click.command()
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Only write the files, below this folder: for an image of a machine.",
)
def install_service(root: Path | None) -> None:
    """Make a systemd service of this installation.

    As root: makes the account vibemq, writes /etc/vibemq.toml unless there is one, and
    /etc/systemd/system/vibemq.service.  It starts nothing, and done again it brings the unit up to date.
    """
    text = unit(Path(sys.executable).with_name("vibemq"))
    if root is None:
        if os.geteuid() != 0:
            command = f"`sudo {shlex.quote(sys.executable)} -m vibemq.cli install-service`"
            raise SetupError("a service is made by root", hint=command)
        if not Path("/run/systemd/system").is_dir():
            raise SetupError("systemd does not run this machine", hint="--root DIR writes the files for another one")
        _make_account()
    from vibemq.config import sample

    base = root or Path("/")
    if not (base / CONFIG).exists():
        _write(base / CONFIG, sample(), 0o640)  # it may come to hold a password
        if root is None:
            shutil.chown(base / CONFIG, "root", ACCOUNT)
    _write(base / UNIT, text, 0o644)
    click.echo(f"written: {base / UNIT}; options are in {base / CONFIG}")
    if root is None:
        _call("systemctl", "daemon-reload")
        click.echo("start it, now and with the machine: systemctl enable --now vibemq")


def unit(executable: Path) -> str:
    """The unit file for a command.  Raises SetupError where the service could not start it."""
    where = executable.resolve(strict=False)
    if not os.access(executable, os.X_OK):
        raise SetupError(
            f"there is no command {executable}: VibeMQ is not installed here",
            hint="install it into this Python: `pip install FOLDER`, that of its sources",
        )
    if any(where.is_relative_to(home) for home in HOMES) or any(executable.is_relative_to(home) for home in HOMES):
        raise SetupError(
            f"{executable} is in somebody's home, where the service may not look",
            hint="`python3 -m venv /opt/vibemq`, then " + _INSTALL.format("/opt/vibemq/bin/pip"),
        )
    if set(str(executable)) & set(" \t\"'\\%$"):
        raise SetupError(f"{executable}: a unit file cannot name this path", hint="install it below /opt/vibemq")
    return TEMPLATE.read_text(encoding="utf-8").replace(IN_TEMPLATE, str(executable))


def _make_account() -> None:
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        _call("useradd", "--system", "--no-create-home", "--home-dir", "/var/lib/vibemq",
              "--shell", "/usr/sbin/nologin", ACCOUNT)  # fmt: skip


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
        part.rename(path)
    except OSError as problem:
        raise SetupError(f"cannot write {path}: {problem.strerror}") from problem


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SetupError(f"{' '.join(command)}: {problem}") from problem
