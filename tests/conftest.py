# SPDX-License-Identifier: Apache-2.0
"""Which tests run here, and how `make test` deals them out to the processes of pytest-xdist.

A file stays in one process, which starts its brokers once.  Folders whose fixtures are expensive, or whose tests add up
to one result, stay in one process as a whole.  What takes longest comes first, so that no process ends long after the
others.  Most tests wait for servers, so there are two processes more than processors.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TOGETHER = (
    "tests/spark/",  # one Java runtime
    "tests/interop/streams/",  # one matrix, of what all of them showed
    "tests/interop/signalr/",  # another one
    "tests/doors/",  # one broker, and another Java runtime
)
FIRST = (
    "tests/packaging/",
    *TOGETHER,
    "tests/cli/",
    "tests/protocols/streams/",
    "tests/net/",
    "tests/broker/",
    "tests/benchmarks/",
)
PROCESSES_MAX = 8  # each collects every test before it begins
#: What takes minutes and downloads: it runs where CI or VIBEMQ_INTEROP is set, and where its folder is named.
ASKED_FOR = ("packaging", "interop")
IS_ASKED = bool(os.environ.get("CI") or os.environ.get("VIBEMQ_INTEROP"))
#: For Spark's Java: what runs for seconds is not worth being compiled twice, nor threads that collect its garbage.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
names = itertools.count()


@pytest.fixture
def name() -> str:
    """Of a queue, a stream or whatever else, that nobody else uses."""
    return f"name-{next(names)}"


def left_out(config: pytest.Config) -> list[str]:
    """Folders below what this run was told to collect."""
    told = [Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args]
    above = [folder for folder in ASKED_FOR if any(path in (HERE / folder).parents for path in told)]
    within = [folder for folder in ASKED_FOR if any(path.is_relative_to(HERE / folder) for path in told)]
    return [] if IS_ASKED else [folder for folder in above if folder not in within]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.parent == HERE and collection_path.name in left_out(config) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Not in the header, which `-q` does not show."""
    for folder in left_out(config):
        terminalreporter.write_line(f"LEFT OUT tests/{folder}: name it, or set CI=true or VIBEMQ_INTEROP=1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`."""
    return min((os.cpu_count() or 1) + 2, PROCESSES_MAX)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


def rank(nodeid: str) -> int:
    return next((at for at, folder in enumerate(FIRST) if nodeid.startswith(folder)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Dealer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # by the number of tests, which says little about the time they take
    return Dealer(config, log)
