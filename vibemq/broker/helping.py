# SPDX-License-Identifier: Apache-2.0
"""Work that would keep the loop, done by a helper thread while the session that wants it takes no more frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def in_helper(
    session: Any,
    work: Callable[[], Any],
    done: Callable[[Any, BaseException | None], None],
    submit: Callable[..., None] | None = None,
    left: Callable[[Any], None] | None = None,
) -> None:
    """Run ``work`` in a helper thread and ``done(result, error)`` in the loop, unless the peer has left.

    Then ``left(result)`` is called instead, for what has to follow even so, if there was no error.
    `session`: a broker.client.ClientSession, of which a command waits for this and the next ones for its answer.
    """

    def finish(result: Any, problem: BaseException | None) -> None:
        if session.state == "closed":
            if left is not None and problem is None:
                left(result)
            return
        session.set_idle()  # before `done`, which may be busy again
        try:
            done(result, problem)
        except Exception as later:
            session.command_failed(later)
        session.read_on()

    session.set_busy()
    (submit or session.door.helpers.submit)(work, finish)
