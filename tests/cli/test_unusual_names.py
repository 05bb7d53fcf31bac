# SPDX-License-Identifier: Apache-2.0
"""An account without a name and a home, as containers have it, and arguments that are not UTF-8."""

import os
import shutil
import subprocess
import sys

import pytest
from running import ENVIRONMENT

from vibemq import config
from vibemq.errors import ConfigError

#: Inside it, this process's files are those of a user and a group that are in no list of accounts.
UNNAMED = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]


def reason() -> str:
    """Why not here; "" where a namespace of users may be made."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run([*UNNAMED, "true"], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


def unnamed(folder, *words: str, **environment: str) -> subprocess.CompletedProcess:
    left_out = ("HOME", "USER", "LOGNAME", "VIBEMQ_SERVER_DATA_DIR")
    given = {name: value for name, value in ENVIRONMENT.items() if name not in left_out} | environment
    command = [*UNNAMED, sys.executable, "-m", "vibemq.cli", *words]
    return subprocess.run(
        command, cwd=folder, env=given, input="a long secret\n", capture_output=True, text=True, timeout=60
    )


@pytest.mark.skipif(bool(why := reason()), reason=f"no namespace of users can be made: {why}")
class TestWithoutAName:
    @pytest.mark.parametrize("command", ["serve", "users add u --password-stdin", "ctl add_vhost v", "log list"])
    def test_without_a_home_the_data_directory_has_to_be_named(self, tmp_path, command):
        done = unnamed(tmp_path, *command.split())
        assert done.returncode == (69 if command.startswith("ctl") else 1)
        assert "server.data_dir is ~/.local/share/vibemq, and no home directory is known" in done.stderr
        assert "--data-dir /var/lib/vibemq" in done.stderr and "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_its_uid_is_in_the_audit_log(self, tmp_path):
        done = unnamed(tmp_path, "users", "add", "u", "--password-stdin", VIBEMQ_SERVER_DATA_DIR=str(tmp_path / "data"))
        assert (done.returncode, done.stderr) == (0, "")
        assert "vibemq users of uid 54321" in (tmp_path / "data/audit.log").read_text()


def test_a_data_directory_that_is_not_utf8_is_refused(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/na\xffme")
    with pytest.raises(ConfigError, match=r"/na\\xffme is not UTF-8"):
        _ = config.load(None, environ={"VIBEMQ_SERVER_DATA_DIR": path}).data_path


@pytest.mark.parametrize(
    "command", ["users remove NAME", "ctl add_vhost NAME", "ctl add_user NAME secret", "backup NAME", "serve"]
)
def test_a_name_that_is_not_utf8_is_refused_in_words(tmp_path, command):
    data = str(tmp_path / "data")
    made = [sys.executable, "-m", "vibemq.cli", "ctl", "add_vhost", "v", "--data-dir", data]
    subprocess.run(made, env=ENVIRONMENT, capture_output=True, check=True, timeout=60)
    words = [b"na\xffme" if word == "NAME" else word.encode() for word in command.split()]
    folder = data.encode() + b"\xff" if command == "serve" else data.encode()
    command = [sys.executable.encode(), b"-m", b"vibemq.cli", *words, b"--data-dir", folder]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"\\xff" in done.stderr and b"is not UTF-8" in done.stderr and b"Traceback" not in done.stderr
