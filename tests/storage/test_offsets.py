# SPDX-License-Identifier: Apache-2.0
"""Stored offsets as Python sees them; the file itself is tested in csrc/tests/offsets_test.c."""

import logging
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import exit_code, forked

from vibemq.errors import LimitExceeded, StorageError
from vibemq.storage.offsets import REFERENCE_BYTES_MAX, REFERENCES_MAX, OffsetFiles, StoredOffsets

REFERENCES = st.one_of(st.sampled_from([b"", b"a", b"b"]), st.binary(max_size=REFERENCE_BYTES_MAX))
OFFSETS = st.integers(0, 2**64 - 1)


@given(stores=st.lists(st.tuples(st.integers(0, 2), REFERENCES, OFFSETS), max_size=40))
def test_handles_agree_on_the_last_store_of_each_reference(tmp_path_factory, stores):
    directory = str(tmp_path_factory.mktemp("stream"))
    handles = [StoredOffsets(directory) for _ in range(3)]
    expected: dict[bytes, int] = {}
    for who, reference, offset in stores:
        handles[who].store(reference, offset)
        expected[reference] = offset
        assert handles[(who + 1) % 3].get(reference) == offset
    for handle in (*handles, StoredOffsets(directory)):
        assert handle.all() == expected
        assert handle.get(b"never stored" * 25) is None


def test_nothing_is_made_by_asking(tmp_path):
    offsets = StoredOffsets(str(tmp_path))
    assert offsets.get(b"a") is None
    assert offsets.all() == {}
    assert os.listdir(tmp_path) == []


def test_a_reference_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(LimitExceeded):
        StoredOffsets(str(tmp_path)).store(b"r" * (REFERENCE_BYTES_MAX + 1), 1)


def test_a_store_for_a_stream_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(StorageError) as problem:
        StoredOffsets(str(tmp_path / "gone")).store(b"a", 1)
    assert problem.value.code == "ERR_NOT_FOUND"


def test_a_closed_handle_says_so(tmp_path):
    offsets = StoredOffsets(str(tmp_path))
    offsets.close()
    offsets.close()
    with pytest.raises(ValueError, match="closed"):
        offsets.get(b"a")


def test_one_reference_too_many_is_told_once_and_not_for_each(tmp_path, caplog):
    offsets = StoredOffsets(str(tmp_path))
    for number in range(REFERENCES_MAX + 20):
        offsets.store(b"%d" % number, number)
    assert len(offsets.all()) == REFERENCES_MAX
    assert offsets.get(b"%d" % (REFERENCES_MAX + 19)) == REFERENCES_MAX + 19
    assert len([record for record in caplog.records if "made room" in record.message]) == 1


def test_damage_is_logged_and_costs_one_reference(tmp_path, caplog):
    offsets = StoredOffsets(str(tmp_path))
    offsets.store(b"a", 1)
    offsets.store(b"b", 2)
    with open(tmp_path / "offsets", "r+b") as file:
        file.seek(512 + 30)
        file.write(b"x")
    with caplog.at_level(logging.ERROR):
        assert StoredOffsets(str(tmp_path)).all() == {b"b": 2}
    assert "1 stored offsets are damaged" in caplog.text


def test_what_a_process_stored_before_it_was_killed_is_there(tmp_path):
    offsets = StoredOffsets(str(tmp_path))

    def store():
        StoredOffsets(str(tmp_path)).store(b"a", 7)
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(forked(store)) == -signal.SIGKILL
    assert offsets.get(b"a") == 7


def test_a_worker_keeps_few_handles(tmp_path):
    files = OffsetFiles(most=2)
    directories = [str(tmp_path / name) for name in "abc"]
    for directory in directories:
        os.mkdir(directory)
        files.of(directory).store(b"r", 1)
    assert list(files.held) == directories[1:]
    assert [files.of(directory).get(b"r") for directory in directories] == [1, 1, 1]


def test_a_descriptor_goes_with_the_last_who_has_a_use_for_it(tmp_path):
    files, directory = OffsetFiles(), str(tmp_path)
    for _ in range(2):
        files.attach(directory)
    files.of(directory).store(b"r", 1)
    files.detach(directory)
    assert list(files.held) == [directory]
    files.detach(directory)
    assert not files.held and not files.users
    files.attach(directory)
    files.detach(directory)  # nothing was stored
    assert not files.held and not files.users
