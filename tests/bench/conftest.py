# SPDX-License-Identifier: Apache-2.0
"""What the load generator is tested on: our own broker."""

import pytest
from running import broker


@pytest.fixture(scope="session")
def own_port(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("vibemq") / "data") as running:
        yield running.port
