# SPDX-License-Identifier: Apache-2.0
"""Types of what Python calls."""

from typing import Any

from OpenSSL import SSL

SIGNATURES: dict[str, str]
library: Any

def check(connection: SSL.Connection) -> None: ...
def expect(connection: SSL.Connection, host: str) -> None: ...
def reason(connection: SSL.Connection) -> str: ...
