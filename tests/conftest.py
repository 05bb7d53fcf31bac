# SPDX-License-Identifier: Apache-2.0
"""Which tests run here, and how `make test` deals them out to the processes of pytest-xdist.

A file stays in one process, which starts its brokers once.  Files that share what is expensive, or whose tests add up
to one result, stay in one process together.  What takes longest comes first, so that no process ends long after the
others.  Most tests wait for servers, so there is one process more than twice the processors.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
CLASSES = HERE.parent / "build" / "spark.jsa"
#: Files that stay together, by what they share: those of a pattern where a fixture is asked for, the first that fits.
TOGETHER = {
    "clients of streams": (r"tests/interop/streams/", ""),  # one matrix, of what all of them showed
    "clients of hubs": (r"tests/interop/signalr/", ""),  # another one
    "programs with Spark": (r"tests/spark/test_spark_(commands|ingest)\.", ""),  # and a session to look with
    "a Spark session": (r"tests/spark/", "spark"),
    "doors": (r"tests/doors/", "exchange"),  # one broker, and another Spark session
}
#: What takes longest, in that order; not all that compute much at once.
FIRST = (
    "tests/packaging/",
    "a Spark session",
    "clients of streams",
    "clients of hubs",
    "programs with Spark",
    "tests/cli/test_readme",
    "doors",
    "tests/spark/test_spark_cluster",
    "tests/doors/",
    "tests/spark/test_spark_killed",
    "tests/broker/",
    "tests/cli/",
    "tests/protocols/streams/",
    "tests/net/",
    "tests/benchmarks/",
    "tests/remote/",
    "tests/server/",
)
PROCESSES_MAX = 8  # each collects every test before it begins
#: What takes minutes and downloads: it runs where CI or VIBEMQ_INTEROP is set, and where its folder is named.
ASKED_FOR = ("packaging", "interop")
IS_ASKED = bool(os.environ.get("CI") or os.environ.get("VIBEMQ_INTEROP"))
#: For Spark's Java: what runs for seconds is not worth being compiled twice, nor threads that collect its garbage.  Its
#: classes come parsed and checked if `make test` has made an archive of them; another Java passes over that silently.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
if CLASSES.is_file() and CLASSES.stat().st_size:
    JAVA_OPTIONS += f" -XX:SharedArchiveFile={CLASSES} -Xlog:disable -Xlog:all=error:stderr"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)
# An example that took 200 ms, or examples that are long in the making, say how busy the machine is, not what is wrong.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
names = itertools.count()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Of certificates for the tests of one file."""
    return Authority(tmp_path_factory.mktemp("authority"))


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
    return min(2 * (os.cpu_count() or 1) + 1, PROCESSES_MAX)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid.partition("::")[0]))


@functools.cache
def rank(file: str) -> int:
    unit = unit_of(file)
    return next((at for at, first in enumerate(FIRST) if unit.startswith(first)), len(FIRST))


@functools.cache
def unit_of(file: str) -> str:
    """The file itself, or what it shares."""
    fitting = (unit for unit, (files, fixture) in TOGETHER.items() if re.match(files, file) and asks_for(fixture, file))
    return next(fitting, file)


def asks_for(fixture: str, file: str) -> bool:
    """Whether it is among the arguments of a function: the process that deals out knows only the names of tests."""
    asking = rf"def \w+\((?:[^)]*\W)?{fixture}\b"
    return not fixture or re.search(asking, (HERE.parent / file).read_text(encoding="utf-8")) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Dealer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # by the number of tests, which says little about the time they take
    return Dealer(config, log)
