# SPDX-License-Identifier: Apache-2.0
"""DATA/identity: damage is recognized, and never counts as another data directory's identity."""

import os

import pytest

from vibemq.errors import SetupError
from vibemq.server import datadir
from vibemq.storage import identity


def test_each_flipped_bit_is_found(tmp_path):
    assert identity.make(str(tmp_path)) and not identity.make(str(tmp_path))
    path = tmp_path / identity.FILE
    whole = path.read_bytes()
    assert identity.is_whole(str(tmp_path))
    for at in range(len(whole) - 1):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert not identity.is_whole(str(tmp_path)), (at, bit)
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        assert not identity.is_whole(str(tmp_path)), size


def test_the_identity_of_an_older_broker_is_read(tmp_path):
    path = tmp_path / identity.FILE
    path.write_text(f"{'0123456789abcdef' * 2}\n")
    datadir.identify(str(tmp_path), has_bucket=True)
    assert identity.read(str(tmp_path)) == "0123456789abcdef" * 2


def test_a_damaged_identity_is_refused_with_a_bucket_and_else_created_again(tmp_path, caplog):
    datadir.identify(str(tmp_path), has_bucket=True)
    path = tmp_path / identity.FILE
    damaged = path.read_text().replace("-", "=")
    path.write_text(damaged)
    with pytest.raises(SetupError, match="identity is damaged") as refused:
        datadir.identify(str(tmp_path), has_bucket=True)
    assert "restore it from a backup" in refused.value.hint and path.read_text() == damaged
    datadir.identify(str(tmp_path), has_bucket=False)
    assert f"{path} was damaged and is created again" in caplog.text
    assert identity.is_whole(str(tmp_path)) and identity.read(str(tmp_path)) + "\n" == path.read_text()
    os.unlink(path)
    (tmp_path / "meta.db").touch()
    datadir.identify(str(tmp_path), has_bucket=True)
    assert f"{path} was missing and is created again" in caplog.text
