# SPDX-License-Identifier: Apache-2.0
"""What is waited for before something counts, and who may ask for the object store."""

from types import SimpleNamespace

import pytest

from vibemq import config
from vibemq.broker import durable
from vibemq.broker.arguments import BadArgument, require_store
from vibemq.broker.durable import remote_deadline, wait_durable
from vibemq.broker.transactions import _durability
from vibemq.errors import StorageError


class Remote(SimpleNamespace):
    """A log of which the object store has one message more at each look."""

    directory, is_disk_durable, is_remote, is_deleted, at, most = "log", False, True, False, 0, 100

    def stats(self):
        return SimpleNamespace(next_offset=5)

    @property
    def remote_offset(self):
        self.at = min(self.at + 1, self.most)
        return self.at


def test_each_durability_is_waited_for_as_it_is(monkeypatch):
    monkeypatch.setattr(durable, "REMOTE_LOOK_S", 0)
    assert wait_durable(Remote(is_remote=False)) == 5
    assert wait_durable(Remote(is_remote=False, is_disk_durable=True, sync=lambda: 4)) == 4
    log = Remote()
    assert wait_durable(log) == 5 and log.at == 5


def test_an_object_store_that_is_away_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(durable, "REMOTE_WAIT_S", 0)
    until = remote_deadline()
    with pytest.raises(StorageError, match=r"what is below offset [1-3], and what is below 5 is needed"):
        wait_durable(Remote(most=3), until)
    with pytest.raises(StorageError, match="was deleted"):
        wait_durable(Remote(most=3, is_deleted=True))


def test_what_is_decided_for_several_is_as_safe_as_the_safest():
    def of(*durabilities):
        return _durability([SimpleNamespace(durability=each) for each in durabilities])

    assert (of(), of("os", "disk"), of("disk", "remote", "os")) == ("os", "disk", "remote")


def test_without_an_object_store_nobody_is_promised_one():
    require_store("disk", config.Remote())
    require_store("remote", config.Remote(url="file:///bucket"))
    with pytest.raises(BadArgument, match=r"no object store: needs os or disk, or remote\.url"):
        require_store("remote", config.Remote())
