# SPDX-License-Identifier: Apache-2.0
"""How this door refuses: the error that a hub method raises, and lines in the log, one a minute with their number."""

from __future__ import annotations

import logging

from vibemq.once_a_minute import OnceAMinute

#: Requests and handshakes; subjects are (address, what).
refusing = OnceAMinute(logging.getLogger("vibemq.protocols.signalr.http"), logging.INFO)
#: Hub connections that end by their peer's doing.
closing = OnceAMinute(logging.getLogger("vibemq.protocols.signalr.hub"), logging.INFO)
#: Logins, which operators look for.
logins = OnceAMinute(logging.getLogger("vibemq.protocols.signalr.http"), logging.WARNING)


class HubError(Exception):
    """A method refuses: a stable code for programs, and for people what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
