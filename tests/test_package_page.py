# SPDX-License-Identifier: Apache-2.0
"""What an index of packages shows: its metadata, and a page whose links and examples work there."""

import re
from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import read_configuration

from vibemq.cli.commands import main
from vibemq.config import Config

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def project():
    return read_configuration(ROOT / "pyproject.toml", expand=False)["project"]


@pytest.fixture(scope="module")
def page(project) -> str:
    return (ROOT / project["readme"]).read_text(encoding="utf-8")


def test_the_metadata_says_who_made_it_and_what_it_is_for(project):
    assert project["authors"] and project["keywords"] and project["license"] == "Apache-2.0"
    assert any(line.startswith("Operating System") for line in project["classifiers"])


def test_every_link_and_picture_of_the_page_is_absolute(page):
    """An index shows the page alone: a path in the repository leads nowhere there."""
    targets = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)|<(?:img|a)\s[^>]*(?:src|href)=\"([^\"]+)", page)
    assert [target for pair in targets for target in pair if target and not target.startswith("https://")] == []


def test_the_page_is_in_the_source_distribution(project):
    assert project["readme"] in (ROOT / "MANIFEST.in").read_text(encoding="utf-8")


def test_commands_extras_and_ports_of_the_page_are_there(page, project):
    for command in re.findall(r"^vibemq ([a-z-]+)", page, re.M):
        assert command in main.lazy, command
    for extras in re.findall(r"vibemq\[([a-z,-]+)\]", page):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
    config = Config()
    ports = {getattr(config, door).port for door in ("streams", "native", "signalr", "micromsg2", "admin")}
    assert {int(port) for port in re.findall(r"\b(?:2\d{3}|55\d\d)\b", page)} == ports


def test_the_example_of_the_page_uses_names_that_are_there(page):
    import vibemq

    for name in re.findall(r"\bvibemq\.(\w+)\(", page):
        assert callable(getattr(vibemq, name))
