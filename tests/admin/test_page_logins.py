# SPDX-License-Identifier: Apache-2.0
"""A login that was ended at the page stays ended, however many others end after it."""

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
