# SPDX-License-Identifier: Apache-2.0
"""VibeMQ: a message broker for Linux, an ingest tier in front of Spark."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "aconnect", "connect"]


def __getattr__(name: str) -> Any:
    """Load `connect` and `aconnect` of vibemq.client when they are first used: the broker needs neither."""
    if name in ("aconnect", "connect"):
        import importlib

        return getattr(importlib.import_module("vibemq.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
