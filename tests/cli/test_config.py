# SPDX-License-Identifier: Apache-2.0
"""Options: the sample file and the code agree, every source counts in its order, every error says where."""

import errno
import re

import msgspec
import pytest

from vibemq import config
from vibemq.config import Config, load
from vibemq.errors import ConfigError


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "vibemq.toml"
        path.write_text(text)
        return str(path)

    return write


def test_the_sample_is_exactly_the_defaults(written):
    assert load(written(config.sample()), environ={}) == Config()


def test_the_sample_names_every_option_in_its_section_with_a_comment_above():
    section, commented, seen = "", False, set()
    for line in config.sample().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif match := re.match(r"(\w+) = ", line):
            assert commented, f"{section}.{match[1]} has no comment"
            seen.add((section, match[1]))
        commented = line.startswith("#") or (commented and "=" in line)
    assert seen == {(section, option) for section, options in config.OPTIONS.items() for option in options}


def test_the_sample_tells_the_limits_that_hold():
    text = config.sample()
    for section, options in config.OPTIONS.items():
        for option, kind in options.items():
            meta = getattr(kind, "__metadata__", (msgspec.Meta(),))[0]
            if meta.ge is not None and option != "advertised_port":
                assert f"{meta.ge} to {meta.le}" in text.replace("\n# ", " "), f"{section}.{option}"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(written):
    path = written("[server]\nworkers = 1\nhost = '127.0.0.2'\nlog_level = 'debug'\n")
    environ = {"VIBEMQ_SERVER_WORKERS": "2", "VIBEMQ_SERVER_HOST": "127.0.0.3", "VIBEMQ_DEBUG": "1", "PATH": "/bin"}
    found = load(path, environ=environ, overrides={("server", "workers"): (3, "--workers")}).server
    assert (found.workers, found.host, found.log_level) == (3, "127.0.0.3", "debug")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("False", False)])
def test_switches_from_the_environment(text, value):
    assert load(environ={"VIBEMQ_STREAMS_ENABLED": text}).streams.enabled is value


@pytest.mark.parametrize(
    ("toml", "message", "hint"),
    [
        ("[server]\nworkrs = 1", "section [server]: there is no option 'workrs'", "did you mean 'workers'?"),
        ("[sever]\nworkers = 1", "there is no section 'sever'", "did you mean 'server'?"),
        ("[server]\nheartbeat_s = 1", "there is no option 'heartbeat_s'", "belongs in section [streams]"),
        ("[log]\nlevel = 'debug'", "there is no option 'level'", "'log_level' belongs in section [server]"),
        ("[server]\nxyz = 1", "there is no option 'xyz'", "known here: host, workers"),
        ("workers = 1", "there is no section 'workers'", ""),
        ("server = 1", "server must be a section", ""),
        ("[server]\nworkers = 65", "server.workers must be an integer from 0 to 64, but is 65", "vibemq config"),
        ("[server]\nworkers = '1'", "server.workers must be an integer from 0 to 64, but is '1'", ""),
        ("[server]\nworkers = true", "server.workers must be an integer from 0 to 64, but is True", ""),
        ("[server]\nhost = ''", "server.host must be text of 1 to 255 characters, but is ''", ""),
        ("[store]\ndurability = 'ram'", """store.durability must be one of "os", "disk", "remote", but is 'ram'""", ""),
        ("[streams]\nenabled = 1", "streams.enabled must be true or false, but is 1", ""),
        ("[streams]\nlogin_failure_delay_s = 0", "from 2 to 60, or one with a unit such as 30s, but is 0", ""),
        ("[streams]\nproduct_version = '4'", "streams.product_version must be text that matches", ""),
        ("[server\n", "is not valid TOML", ""),
    ],
)
def test_a_wrong_file_is_refused_saying_where_and_what(written, toml, message, hint):
    path = written(toml)
    with pytest.raises(ConfigError) as raised:
        load(path, environ={})
    assert path in str(raised.value)
    assert message in str(raised.value)
    assert hint in raised.value.hint


def test_a_wrong_environment_variable_is_named():
    with pytest.raises(ConfigError, match=r"environment variable VIBEMQ_STREAMS_PORT: streams\.port must be"):
        load(environ={"VIBEMQ_STREAMS_PORT": "high"})
    with pytest.raises(ConfigError, match="environment variable VIBEMQ_STREAMS_PROT: there is no option 'prot'"):
        load(environ={"VIBEMQ_STREAMS_PROT": "1"})


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="No such file") as raised:
        load(str(tmp_path / "none.toml"), environ={})
    assert "vibemq config >" in raised.value.hint


def test_a_directory_is_no_configuration_and_is_not_to_be_written_to(tmp_path):
    with pytest.raises(ConfigError, match=f"cannot read the configuration {tmp_path}: Is a directory") as raised:
        load(str(tmp_path), environ={})
    assert raised.value.hint == "name the file in it"


def test_a_file_that_may_not_be_read_is_a_matter_of_rights(written, monkeypatch):
    path = written("")

    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)  # root could read any file
    with pytest.raises(ConfigError, match=r"vibemq\.toml: Permission denied") as raised:
        load(path, environ={})
    assert "must be allowed to read it" in raised.value.hint


@pytest.mark.parametrize("content", [b"\xff\x00", b"x = " + b"[" * 100_000], ids=["no text", "nested"])
def test_a_file_that_is_no_toml_is_a_sentence(tmp_path, content):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path} is not valid TOML: ") as raised:
        load(str(path), environ={})
    assert len(str(raised.value).splitlines()) == 1


def test_there_is_a_worker_for_each_core_unless_told():
    assert Config().worker_count >= 1
    assert load(environ={"VIBEMQ_SERVER_WORKERS": "3"}).worker_count == 3
