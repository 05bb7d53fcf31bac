# SPDX-License-Identifier: Apache-2.0
"""The command: what it prints, where, and with which exit code."""

import subprocess
import sys

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT

from vibemq import config
from vibemq.cli.commands import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("VIBEMQ_SERVER_DATA_DIR", str(tmp_path / "data"))
    return lambda *arguments, **options: CliRunner().invoke(main, arguments, prog_name="vibemq", **options)


def test_config_prints_the_sample(run):
    assert run("config").stdout == config.sample()


def test_version(run):
    assert run("--version").stdout.startswith("vibemq ")


def test_help_lists_every_command_without_loading_any(run):
    result = run("--help")
    assert result.exit_code == 0
    for command in ("bench", "config", "ctl", "log", "serve", "users"):
        assert f"  {command} " in result.stdout


def test_help_is_there_before_anything_heavy_is_loaded():
    heavy = "{'pyarrow', 'pyspark', 'rich', 'sqlite3'}"
    code = f"import sys; from vibemq.cli.commands import main; print(*{heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize(
    "arguments", [["serve", "--nonsense"], ["nonsense"], ["serve", "--set", "workers"], ["serve", "--workers", "many"]]
)
def test_wrong_usage_is_exit_code_2(run, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage: vibemq" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "65"], "--workers: server.workers must be an integer from 0 to 64, but is 65"),
        (["--durability", "ram"], '--durability: store.durability must be one of "os", "disk"'),
        (["--set", "streams.prt=1"], "--set streams.prt=1: there is no option 'prt'"),
        (["--set", "stream.port=1"], "--set stream.port=1: there is no section 'stream'"),
        (["--config", "/no/such.toml"], "cannot read the configuration /no/such.toml"),
        (["--config", "/"], "cannot read the configuration /: Is a directory\n  hint: name the file in it"),
    ],
)
def test_serve_refuses_wrong_options_by_the_name_they_were_given(run, arguments, message):
    result = run("serve", *arguments)
    assert result.exit_code == 1
    assert f"vibemq: {message}" in result.stderr
