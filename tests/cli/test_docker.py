# SPDX-License-Identifier: Apache-2.0
"""The Docker files of examples/docker: what they name of the broker and of this repository is there, and works."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT, broker

from vibemq import config
from vibemq.cli.commands import main
from vibemq.config import OPTIONS, Config

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "examples/docker"


def instructions() -> list[tuple[str, str]]:
    """Of the image that is run, the last one."""
    text = re.sub(r"^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    found = [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def the(word: str) -> str:
    (found,) = [rest for name, rest in instructions() if name == word]
    return found


def seconds(text: str) -> int:
    (number,) = re.fullmatch(r"(\d+)s?", text).groups()
    return int(number)


def test_the_image_starts_a_command_with_options_that_the_broker_has():
    program, command = json.loads(the("ENTRYPOINT")) + json.loads(the("CMD"))
    assert program == "vibemq" and CliRunner().invoke(main, [command, "--help"]).exit_code == 0
    said = dict(word.split("=", 1) for word in shlex.split(the("ENV")))
    loaded = config.load(None, environ=said)
    assert loaded.server.data_dir == the("VOLUME") and loaded.server.host == loaded.admin.host == "0.0.0.0"


def test_the_image_has_the_ports_of_all_doors_and_no_other():
    defaults = Config()
    ports = {
        getattr(getattr(defaults, section), name)
        for section, options in OPTIONS.items()
        for name in ("port", "tls_port")
        if name in options
    }
    assert {int(port) for port in the("EXPOSE").split()} == ports - {0}


def test_its_health_check_tells_a_broker_that_lives_from_none(tmp_path):
    words = json.loads(the("HEALTHCHECK").partition(" CMD ")[2])
    port = f":{Config().admin.port}/"
    assert words[0] == "python" and port in words[-1]

    def code() -> int:
        command = [sys.executable, *words[1:-1], words[-1].replace(port, f":{running.admin_port}/")]
        return subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=60).returncode

    with broker(tmp_path / "data") as running:
        assert code() == 0
    assert code() == 1


def test_what_the_image_is_built_of_is_here():
    kept = re.findall(r"^!(.+)$", (DOCKER / "Dockerfile.dockerignore").read_text(), re.M)
    assert [name for name in kept if not (ROOT / name).exists()] == []
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", (DOCKER / "Dockerfile").read_text())
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_compose_file_names_files_options_and_ports_that_are_there():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    whole = yaml.safe_load((DOCKER / "compose.yml").read_text())
    services = whole["services"]
    ours = services["vibemq"]
    assert (DOCKER / ours["build"]["context"]).resolve() == ROOT
    assert (ROOT / ours["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")
    loaded = config.load(None, environ=ours["environment"]).native
    assert (loaded.superuser_name, loaded.superuser_password) == tuple(ours["environment"].values())
    assert ours["volumes"] == [f"vibemq:{the('VOLUME')}"]
    inside = {int(port.split(":")[-1]) for port in ours["ports"]}
    assert inside <= {int(port) for port in the("EXPOSE").split()}
    assert seconds(ours["stop_grace_period"]) > Config().server.shutdown_timeout_s
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in whole["volumes"] or (DOCKER / source).is_file(), volume
        for kind in ("configs", "secrets"):
            used = [one if isinstance(one, str) else one["source"] for one in service.get(kind, ())]
            assert [name for name in used if name not in whole[kind]] == []
    scraped = yaml.safe_load(whole["configs"]["prometheus"]["content"])
    (job,) = scraped["scrape_configs"]
    assert job["job_name"] == "vibemq", "the rules ask for it"
    assert job["static_configs"] == [{"targets": [f"vibemq:{Config().admin.port}"]}]
    mounted = [volume.split(":")[1] for volume in services["prometheus"]["volumes"]]
    assert set(scraped["rule_files"]) <= set(mounted)
    (board,) = yaml.safe_load(whole["configs"]["dashboards"]["content"])["providers"]
    assert any(volume.split(":")[1].startswith(board["options"]["path"]) for volume in services["grafana"]["volumes"])
