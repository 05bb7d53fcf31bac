# SPDX-License-Identifier: Apache-2.0
"""All that the hub offers: importing this fills the table of its methods."""

import vibemq.protocols.signalr.message_methods
import vibemq.protocols.signalr.publishing
import vibemq.protocols.signalr.pulls
import vibemq.protocols.signalr.queue_methods  # noqa: F401
from vibemq.protocols.signalr.methods import METHODS

__all__ = ["METHODS"]
