# SPDX-License-Identifier: Apache-2.0
"""A login that was ended at the page stays ended, however many others end after it."""

import time

import pytest

from vibemq.access.users import GUEST, Authenticator
from vibemq.admin.page import logins
from vibemq.admin.page.logins import Logins
from vibemq.storage.metadata import Metadata

KEPT = 3


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(logins, "ENDED_MAX", KEPT)
    metadata = Metadata(str(tmp_path / "meta.db"))
    authenticator = Authenticator(metadata, True)
    authenticator.check(GUEST, GUEST, True)
    yield Logins(metadata, authenticator)
    metadata.close()


def test_a_login_that_was_ended_stays_ended_behind_many_others(made):
    first = made.begin(GUEST)
    assert made.user_of(first, True) == GUEST
    ended = [first]
    made.end(first)
    for _ in range(5 * KEPT):
        token = made.begin(GUEST)
        assert made.user_of(token, True) == GUEST
        made.end(token)
        ended.append(token)
    assert [made.user_of(token, True) for token in ended] == [None] * len(ended)
    assert made.user_of(made.begin(GUEST), True) == GUEST


def test_a_login_of_a_clock_that_was_ahead_is_none_and_keeps_nobody_out(made, monkeypatch):
    with monkeypatch.context() as ahead:
        years_s = time.time() + 80 * 365 * 86_400
        ahead.setattr(made._tokens, "_clock", lambda: years_s)
        late = [made.begin(GUEST)]
        for _ in range(KEPT + 1):  # more than are kept: a time is kept in their place
            made.end(late[-1])
            late.append(made.begin(GUEST))
    assert [made.user_of(token, True) for token in late] == [None] * len(late)
    assert made.user_of(made.begin(GUEST), True) == GUEST
