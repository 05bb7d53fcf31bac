# SPDX-License-Identifier: Apache-2.0
"""All that the hub offers: importing this fills the table of its methods."""

from vibemq.protocols.signalr import message_methods, publishing, pulls, queue_methods
from vibemq.protocols.signalr.methods import METHODS

PARTS = (message_methods, publishing, pulls, queue_methods)

__all__ = ["METHODS", "PARTS"]
