# SPDX-License-Identifier: Apache-2.0
"""The command: what it prints, where, and with which exit code."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT

from vibemq import config
from vibemq.cli import main
from vibemq.storage.metadata import Metadata


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
    for command in ("bench", "config", "ingest", "log", "serve", "users"):
        assert f"  {command} " in result.stdout


def test_help_is_there_before_anything_heavy_is_loaded():
    code = (
        "import sys; from vibemq.cli import main; print(*{'pyarrow', 'pyspark', 'rich', 'sqlite3'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert result.stdout.strip() == ""


def test_users_are_added_listed_changed_and_removed(run, tmp_path):
    assert "there are no users" in run("users", "list").stdout
    assert run("users", "add", "bob", "--password-stdin", input="sesame open\n").stdout == "user bob added\n"
    metadata = Metadata(str(tmp_path / "data" / "meta.db"))
    before = metadata.find_user("bob")
    [listed] = json.loads(run("users", "list", "--json").stdout)
    assert listed["user"] == "bob"
    assert "bob" in run("users", "list").stdout
    result = run("users", "passwd", "bob", "--password-stdin", "--json", input="other words\n")
    assert json.loads(result.stdout) == {"user": "bob", "result": "has a new password"}
    assert metadata.find_user("bob").password_hash != before.password_hash
    assert run("users", "remove", "bob").exit_code == 0
    assert metadata.users() == []


def test_expected_errors_are_one_line_with_a_hint_and_exit_code_1(run):
    result = run("users", "remove", "bob")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "vibemq: there is no user 'bob'\n  hint: `vibemq users list` shows all\n"


def test_a_password_is_never_read_from_where_it_could_be_echoed(run):
    result = run("users", "add", "bob", input="sesame open\n")
    assert result.exit_code == 1
    assert "--password-stdin" in result.stderr


def test_guest_cannot_be_added(run):
    result = run("users", "add", "guest", "--password-stdin", input="sesame open\n")
    assert result.exit_code == 1
    assert "built in" in result.stderr


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
    ],
)
def test_serve_refuses_wrong_options_by_the_name_they_were_given(run, arguments, message):
    result = run("serve", *arguments)
    assert result.exit_code == 1
    assert f"vibemq: {message}" in result.stderr


def test_a_data_directory_that_cannot_be_is_a_sentence(run):
    result = run("users", "list", "--data-dir", "/proc/vibemq")
    assert result.exit_code == 1
    assert "vibemq: cannot use the data directory /proc/vibemq" in result.stderr
