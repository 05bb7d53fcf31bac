# SPDX-License-Identifier: Apache-2.0
"""Regular expressions that users write and that the broker's loop matches: permissions and policies.

A pattern matches where it is found anywhere in the name, as in RabbitMQ; ``^`` and ``$`` bind it to the
ends, and the empty pattern means ``^$``, no name at all.  RE2 does the matching, in time linear in the
name whatever the pattern is: one that backtracks could stop a worker for everybody.  The price
is that look-around and back references are refused, when the pattern is set.  Linear is not enough where a peer
gives the name: one that is longer than any that exists matches nothing but ``.*``.
"""

from functools import lru_cache
from typing import Any

from vibemq.errors import UserError

PATTERN_CHARACTERS_MAX = 1024
NAME_CHARACTERS_MAX = 255  # no stream, exchange or group has a longer name
_MEMORY_MAX_BYTES = 1 << 16  # of one compiled pattern: compiling it takes no millisecond, nor does looking for it
_PATTERNS_REMEMBERED_MAX = 1024
# The patterns that nearly every installation has; who uses no other never loads RE2.
_EVERYTHING = frozenset((".*", "^.*", ".*$", "^.*$"))
_NOTHING = frozenset(("", "^$"))


class Pattern:
    """One pattern, ready to be matched; equal texts share one by ``pattern()``."""

    __slots__ = ("_compiled", "_fixed", "text")

    def __init__(self, text: str) -> None:
        """Raises UserError when it is no pattern that can be matched."""
        self.text = text
        self._fixed = True if text in _EVERYTHING else False if text in _NOTHING else None
        self._compiled: Any = None if self._fixed is not None else _compile(text)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def matches(self, name: str) -> bool:
        """Never raises; names come from peers, and one that is not valid Unicode matches nothing."""
        if self._fixed is not None:
            return self._fixed or name == ""
        if len(name) > NAME_CHARACTERS_MAX:
            return False
        try:
            return self._compiled.search(name) is not None
        except UnicodeEncodeError:
            return False


@lru_cache(_PATTERNS_REMEMBERED_MAX)
def pattern(text: str) -> Pattern:
    """Raises UserError with what is wrong with it."""
    return Pattern(text)


def _compile(text: str) -> Any:
    import re2  # late: see _EVERYTHING

    if len(text) > PATTERN_CHARACTERS_MAX:
        raise UserError(f"the pattern has {len(text)} characters; at most {PATTERN_CHARACTERS_MAX} are allowed")
    options = re2.Options()
    options.max_mem = _MEMORY_MAX_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except UnicodeEncodeError:
        raise UserError("the pattern is not valid Unicode") from None
    except re2.error as problem:
        told = problem.args[0] if problem.args else ""
        reason = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        raise UserError(
            f"{text!r} is not a regular expression that can be used: {reason}",
            hint="look-around and back references are not supported; see https://github.com/google/re2/wiki/Syntax",
        ) from None
