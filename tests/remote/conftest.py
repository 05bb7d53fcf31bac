# SPDX-License-Identifier: Apache-2.0
"""An S3 server for each file of tests that asks for one, which takes it a second, and a prefix of it for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from peers.faulty import FaultyStore
from peers.s3 import S3Server, Store

prefixes = itertools.count(1)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> Store:
    """A store that is empty."""
    return s3_server.below(f"test-{next(prefixes)}")


@pytest.fixture
def faulty(s3: Store) -> Iterator[FaultyStore]:
    """The same store, by a way on which a test may put anything."""
    with FaultyStore(s3) as proxy:
        yield proxy
