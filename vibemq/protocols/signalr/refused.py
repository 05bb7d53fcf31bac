# SPDX-License-Identifier: Apache-2.0
"""What this door refuses, in the log: a flood of requests from one host is a line a minute with their number."""

from __future__ import annotations

import logging

from vibemq.once_a_minute import OnceAMinute

#: Requests and handshakes; subjects are (address, what).
refusing = OnceAMinute(logging.getLogger("vibemq.protocols.signalr.http"), logging.INFO)
#: Hub connections that end by their peer's doing.
closing = OnceAMinute(logging.getLogger("vibemq.protocols.signalr.hub"), logging.INFO)
#: Logins, which operators look for.
logins = OnceAMinute(logging.getLogger("vibemq.protocols.signalr.http"), logging.WARNING)
