# SPDX-License-Identifier: Apache-2.0
"""VibeMQ: a message broker for Linux, an ingest tier in front of Spark."""

__version__ = "0.1.0"
