# SPDX-License-Identifier: Apache-2.0
"""Workers that have stopped doing their work: found by the supervisor, which replaces them as any that died.

BEATS_PER_S times a second a worker's loop counts up a byte that it shares with the supervisor, which looks at it every
LOOK_S.  What a worker is silent for is counted in the time that it could have beaten in: between two looks no more than
twice LOOK_S, because the supervisor did not run either where it was longer (a machine that was suspended, or has no
time for anybody); of one that computes the processor time it had, so that one in an endless loop is found, and one that
gets no processor is not; and nothing of one that waits for the disk (state D, or a slow file system call is noted: a
file system in user space waits in state S), for which its successor would wait as well, or that a debugger has stopped
(state t).

Who hangs may hold what others wait for, so that they seem to hang too.  Therefore one is replaced at a time, a
stopped one first, and the others then have GRACE_S to show that it was not they.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

BEATS_PER_S = 2
LOOK_S = 1.0
GRACE_S = 2.0  # some beats
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STATES_THAT_COUNT_NOT = ("D", "t")


class Beats:
    """A byte for each worker, in memory that all processes share."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap.mmap(-1, count)

    def beat(self, worker: int) -> None:
        self._bytes[worker] = (self._bytes[worker] + 1) & 0xFF

    def read(self, worker: int) -> int:
        return self._bytes[worker]


@dataclass(slots=True)
class Pulse:
    """What is known of one worker."""

    pid: int
    beats: int
    computed_s: float
    silent_s: float = 0.0
    state: str = ""


class HangWatch:
    """``most_s``: how long a worker may be silent; 0: for ever.  ``is_asked``: whether any is well, all the same."""

    def __init__(
        self, beats: Beats, most_s: float, now_s: float, *, is_asked: bool = False,
        waits_for_disk: Callable[[int], bool] = lambda _: False,
    ) -> None:  # fmt: skip
        """``waits_for_disk``: is the loop of the worker with this index in a slow file system call?"""
        self._beats, self._most_s, self._waits_for_disk = beats, most_s, waits_for_disk
        self._pulses: dict[int, Pulse] = {}
        self._looked_s = now_s
        self.due: float | None = now_s + LOOK_S if most_s or is_asked else None

    def is_any_well(self, most_s: float) -> bool:
        """Has any worker been silent for less than that?"""
        return any(pulse.silent_s < most_s for pulse in self._pulses.values())

    def look(self, now_s: float, workers: Iterable[tuple[int, int]]) -> tuple[int, float] | None:
        """``workers``: (index, pid) of each that runs.  The index of one that hangs and is to be killed, and for how
        many seconds it has been silent; the next one is found at the next look."""
        step_s = min(now_s - self._looked_s, 2 * LOOK_S)
        self._looked_s, self.due = now_s, now_s + LOOK_S
        alive = set()
        for index, pid in workers:
            alive.add(index)
            self._count(index, pid, step_s)
        for index in self._pulses.keys() - alive:
            del self._pulses[index]
        hanging = [(pulse.state == "T", pulse.silent_s, index) for index, pulse in self._pulses.items()]
        hanging = [found for found in hanging if self._most_s and found[1] >= self._most_s]
        if not hanging:
            return None
        _, silent_s, found = max(hanging)
        del self._pulses[found]
        for pulse in self._pulses.values():
            pulse.silent_s = min(pulse.silent_s, max(self._most_s - GRACE_S, 0.0))
        return found, silent_s

    def _count(self, index: int, pid: int, step_s: float) -> None:
        beats = self._beats.read(index)
        state, computed_s = _process(pid)
        pulse = self._pulses.get(index)
        if pulse is None or pulse.pid != pid or pulse.beats != beats:
            self._pulses[index] = Pulse(pid, beats, computed_s, state=state)
            return
        if self._waits_for_disk(index):
            state = "D"
        if state == "R":
            pulse.silent_s += min(step_s, computed_s - pulse.computed_s)
        elif state not in _STATES_THAT_COUNT_NOT:
            pulse.silent_s += step_s
        pulse.state, pulse.computed_s = state, computed_s


def _process(pid: int) -> tuple[str, float]:
    """The state of a process, by its letter, and the processor time it has had; ("", 0.0) where nobody can say."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return words[0], (int(words[11]) + int(words[12])) / _TICKS_PER_S
