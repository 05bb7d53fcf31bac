# SPDX-License-Identifier: Apache-2.0
"""Work in a helper thread, and what becomes of its result; the thread and the session are played here."""

from types import SimpleNamespace

from vibemq.broker.helping import in_helper


class Session:
    def __init__(self):
        self.state, self.said, self.finish = "open", [], None
        self.door = SimpleNamespace(helpers=SimpleNamespace(submit=self._submit))

    def _submit(self, work, finish):
        self.finish = lambda: finish(*work())

    def set_busy(self):
        self.said.append("busy")

    def set_idle(self):
        self.said.append("idle")

    def read_on(self):
        self.said.append("resumed")

    def command_failed(self, problem):
        self.said.append(problem)


def begun(work, done=None, left=None):
    session = Session()
    in_helper(session, work, done or (lambda *what: session.said.append(what)), left=left)
    return session


def test_a_session_is_busy_until_the_result_has_come():
    session = begun(lambda: ("result", None))
    session.finish()
    assert session.said == ["busy", "idle", ("result", None), "resumed"]


def test_what_done_raises_ends_the_session():
    problem = ValueError("no")

    def done(*_):
        raise problem

    session = begun(lambda: ("result", None), done)
    session.finish()
    assert session.said == ["busy", "idle", problem, "resumed"]


def test_what_has_to_follow_does_though_the_peer_has_left():
    results = []
    session = begun(lambda: ("result", None), left=results.append)
    session.state = "closed"
    session.finish()
    assert results == ["result"] and session.said == ["busy"]


def test_nothing_follows_work_that_failed_for_a_peer_that_has_left():
    results = []
    session = begun(lambda: (None, OSError("no")), left=results.append)
    session.state = "closed"
    session.finish()
    assert results == [] and session.said == ["busy"]
