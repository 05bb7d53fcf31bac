# SPDX-License-Identifier: Apache-2.0
"""The command: what it prints, where, and with which exit code."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT

import vibemq
import vibemq.client
from vibemq import config
from vibemq.cli.commands import main
from vibemq.extras import PACKAGES

PROJECT = Path(vibemq.__file__).parent.parent / "pyproject.toml"


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
    ("arguments", "said"),
    [
        (["queus", "list"], "did you mean vibemq queues?"),
        (["queues", "lst"], "did you mean vibemq queues list?"),
        (["streams", "subscribe"], "there are create, "),
        (["users", "adduser"], "did you mean vibemq users add?"),
        (["remote", "verfy"], "did you mean vibemq remote verify?"),
    ],
)
def test_a_command_that_is_not_there_is_answered_with_the_nearest(run, arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2 and said in result.stderr


def test_the_package_is_a_command_and_has_the_clients_connect():
    command = [sys.executable, "-m", "vibemq", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout.startswith(f"vibemq {vibemq.__version__}\n")
    assert vibemq.connect is vibemq.client.connect and vibemq.aconnect is vibemq.client.aconnect
    with pytest.raises(AttributeError):
        vibemq.conect  # noqa: B018


def test_packages_of_an_extra_are_those_of_the_project():
    """A hint names them, because an extra needs a release on an index."""
    declared = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted = {name: set(packages) for name, packages in declared["optional-dependencies"].items()}
    wanted["spark-local"] = wanted["spark-local"] - {"vibemq[spark]"} | wanted["spark"]
    wanted["tls"] = {package for package in declared["dependencies"] if package.startswith("pyopenssl")}
    assert {name: set(packages) for name, packages in PACKAGES.items()} == {name: wanted[name] for name in PACKAGES}


def test_no_message_asks_an_index_for_a_release():
    sources = [*PROJECT.parent.glob("vibemq/**/*.py"), *PROJECT.parent.glob("vibemq/**/*.pyx")]
    asks = re.compile(r"pip install (--upgrade )?['\"]*vibemq")
    assert not [path.name for path in sources if asks.search(path.read_text(encoding="utf-8"))]


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
