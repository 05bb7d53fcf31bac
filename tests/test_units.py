# SPDX-License-Identifier: Apache-2.0
"""Sizes and times with units, wherever an option has bytes or time."""

import pytest
from click.testing import CliRunner

from vibemq import config, units
from vibemq.bench.cli import WithUnit
from vibemq.cli.commands import main
from vibemq.cli.terminal import Seconds, WholeSeconds
from vibemq.config import load
from vibemq.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "text", "number"),
    [
        ("size_max_bytes", "30MB", 30_000_000),
        ("size_max_bytes", "1.5GiB", 3 << 29),
        ("size_max_bytes", " 20 gb ", 20_000_000_000),
        ("size_max_bytes", "0.1B", None),
        ("size_max_bytes", "30", None),
        ("size_max_bytes", "3XB", None),
        ("size_max_bytes", "3s", None),
        ("timeout_s", "1h", 3600),
        ("timeout_s", "1500ms", None),
        ("timeout_s", "2000ms", 2),
        ("timeout_ms", "1.5s", 1500),
        ("timeout_ms", "7d", 604_800_000),
        ("workers", "3s", None),
        ("size_max_bytes", "9" * 18 + "TB", int("9" * 18) * 10**12),
        ("size_max_bytes", "9" * 99 + "TB", None),
    ],
)
def test_a_text_with_a_unit_is_a_number_of_the_options_own(option, text, number):
    assert units.of_option(option, text) == number


def test_every_option_of_bytes_or_time_takes_its_default_with_a_unit(tmp_path):
    path = tmp_path / "vibemq.toml"
    lines = []
    for section, options in config.OPTIONS.items():
        lines.append(f"[{section}]")
        for option in options:
            default = getattr(getattr(config.Config(), section), option)
            for ending, unit in (("_bytes", "B"), ("_ms", "ms"), ("_s", "s")):
                if option.endswith(ending):
                    lines.append(f'{option} = "{default}{unit}"')
                    break
    assert len(lines) > 60
    path.write_text("\n".join(lines))
    assert load(str(path), environ={}) == config.Config()


@pytest.mark.parametrize("origin", ["file", "environment", "flag"])
def test_each_source_of_the_configuration_takes_units(tmp_path, origin):
    path, environ, overrides = None, {}, {}
    if origin == "file":
        path = str(tmp_path / "vibemq.toml")
        (tmp_path / "vibemq.toml").write_text('[server]\nshutdown_timeout_s = "2m"\n')
    elif origin == "environment":
        environ = {"VIBEMQ_SERVER_SHUTDOWN_TIMEOUT_S": "2m"}
    else:
        overrides = {("server", "shutdown_timeout_s"): ("2m", "--shutdown-timeout")}
    assert load(path, environ=environ, overrides=overrides).server.shutdown_timeout_s == 120


@pytest.mark.parametrize(("text", "said"), [("2d", "from 1 to 3600"), ("x", "such as 30s"), ("10MB", "such as 30s")])
def test_what_is_no_time_of_an_option_is_said_with_an_example(text, said):
    with pytest.raises(ConfigError, match=said):
        load(environ={"VIBEMQ_SERVER_SHUTDOWN_TIMEOUT_S": text})


def test_options_of_commands_take_units():
    assert Seconds(min=0).convert("1h", None, None) == 3600.0
    assert Seconds(min=0).convert("2.5", None, None) == 2.5
    assert WholeSeconds(min=0).convert("2m", None, None) == 120
    assert WithUnit("size_bytes", int).convert("1KiB", None, None) == 1024
    assert WithUnit("timeout_s", float).convert("1.5", None, None) == 1.5
    for arguments in (
        ["queues", "create", "q", "--ttl", "1x"],
        ["ctl", "-t", "1x", "list_users"],
        ["consume", "q", "--subscriber-ttl", "1500ms"],
        ["bench", "--size", "3s"],
        ["users", "token", "ada", "--for", "1x"],
    ):
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code == 2 and "such as" in result.stderr) or "whole number" in result.stderr, result.stderr
    done = CliRunner().invoke(main, ["serve", "--shutdown-timeout", "1x"])
    assert done.exit_code == 1 and "--shutdown-timeout: server.shutdown_timeout_s must be" in done.stderr
