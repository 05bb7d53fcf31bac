# SPDX-License-Identifier: Apache-2.0
"""DATA/identity: a damaged one is known for it, and never taken for another data directory's."""

import os

import pytest

from vibemq.errors import SetupError
from vibemq.server import datadir
from vibemq.storage import identity


def test_each_flipped_bit_is_told(tmp_path):
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


def test_one_of_an_older_broker_is_read_as_it_is(tmp_path):
    path = tmp_path / identity.FILE
    path.write_text(f"{'0123456789abcdef' * 2}\n")
    datadir.identify(str(tmp_path), has_bucket=True)
    assert identity.read(str(tmp_path)) == "0123456789abcdef" * 2


def test_a_damaged_one_is_refused_where_a_bucket_knows_it_and_else_made_anew(tmp_path, caplog):
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
