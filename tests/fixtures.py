# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several folders make for themselves, each with what it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from running import Running, broker

IMPATIENT_S = 2  # who must be served there may stand still for a second


def shared_broker(folder: str, *flags: str, workers: int = 2) -> Any:
    """One broker for all tests that leave it as they found it: things are told apart by name, and nobody is killed."""

    @pytest.fixture(scope="session")
    def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
        with broker(tmp_path_factory.mktemp(folder) / "data", *flags, workers=workers) as running:
            yield running

    return served


def impatient_broker(*options: str) -> Any:
    """As shared_broker, for tests in which a peer is given up: it has so long for each of these options, and no longer.

    It is a broker of its own, because who is stopped for so long anywhere else would be given up as well.
    """
    flags = [word for option in options for word in ("--set", f"{option}={IMPATIENT_S}")]
    return shared_broker("impatient", *flags, workers=1)


def connection(connect: Callable[[Running], AbstractContextManager[Any]]) -> Any:
    """A connection to the folder's broker, for each test."""

    @pytest.fixture
    def peer(served: Running) -> Iterator[Any]:
        with connect(served) as peer:
            yield peer

    return peer


def spark_session(name: str, **options: str) -> Any:
    """One Spark session, or the reason why there is none."""

    @pytest.fixture(scope="session")
    def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
        pytest.importorskip("pyspark", reason="pyspark is not installed")
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        from vibemq.errors import SetupError
        from vibemq.spark import local_session

        folder = tmp_path_factory.mktemp("spark")
        config = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse"), **options}
        # The workers import nothing from here, but must find the package where it is not installed.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
        try:
            session = local_session(name, cores=2, log_file=folder / "jvm.log", config=config)
        except SetupError as missing:
            pytest.skip(str(missing))
        yield session
        session.stop()

    return spark
