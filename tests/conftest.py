# SPDX-License-Identifier: Apache-2.0
"""How `make test` deals the tests out to the processes of pytest-xdist; without `-n` none of it matters.

A file stays in one process, which starts its brokers once.  Folders whose fixtures are expensive, or whose tests add up
to one result, stay in one process as a whole.  What takes longest comes first, so that no process ends long after the
others.  Most tests wait for servers, so there are two processes more than processors.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

TOGETHER = (
    "tests/spark/",  # one Java runtime
    "tests/interop/",  # one matrix, of what all of them showed
    "tests/signalr_clients/",  # another one
    "tests/doors/",  # one broker, and another Java runtime
)
FIRST = ("tests/packaging/", *TOGETHER, "tests/cli/", "tests/broker/", "tests/queues/", "tests/benchmarks/")
PROCESSES_MAX = 8  # each collects every test before it begins
#: For Spark's Java: what runs for seconds is not worth being compiled twice, nor threads that collect its garbage.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


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
