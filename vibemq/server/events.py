# SPDX-License-Identifier: Apache-2.0
"""x"""
import logging


def event_of(record: logging.LogRecord) -> str:
    return "x"
