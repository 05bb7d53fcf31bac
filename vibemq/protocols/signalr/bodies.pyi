# SPDX-License-Identifier: Apache-2.0
from typing import Any

def encode_message(body: bytes, encoding: int, options: dict[str, Any] | None = None) -> bytes: ...
