# SPDX-License-Identifier: Apache-2.0
"""A data directory that a newer vibemq has written in part: what is not understood is refused and left alone."""

import hashlib
import json
import re
import struct
import sys
import time
import urllib.request
import zlib
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pytest
from other_boot import write_in_another_boot
from running import broker

import vibemq.client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import ServerFailed, StorageError, VibeMQError
from vibemq.storage.metadata import Metadata

DEADLINE_S = 60
ORDER = {"little": "<", "big": ">"}[sys.byteorder]
#: Of each kind of file: its name, the order of its integers, and where its check lies.
FILES = {
    "control": ("control", ORDER, 84),
    "tracking": ("tracking", ORDER, 60),
    "offsets": ("offsets", ">", 16),
    "segment": (f"{0:020}.segment", ">", 60),
    "index": (f"{0:020}.index", ">", 28),
}


LEDGER = ("ledger", ORDER, 124)


def version_of(path: Path, order: str) -> int:
    version: int = struct.unpack_from(f"{order}I", path.read_bytes(), 4)[0]
    return version


def raise_version(path: Path, order: str, check_at: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(f"{order}I", data, 4, version_of(path, order) + 1)
    checked = data[:check_at]
    if order == ORDER:  # it is mapped, and the check covers magic and version
        checked = struct.pack(">II", *struct.unpack_from(f"{order}II", data))
    struct.pack_into(f"{order}I", data, check_at, zlib.crc32(checked))
    path.write_bytes(data)


def bytes_of(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def directories(data: Path) -> dict[str, Path]:
    metadata = Metadata(str(data / "meta.db"))
    found = {record.name: Path(record.directory) for record in metadata.streams()}
    metadata.close()
    return found


def native(served):
    return vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}")


def listed(served) -> dict[str, dict]:
    request = urllib.request.Request(f"http://{served.host}:{served.admin_port}/api/queues")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return {each["name"]: each for each in json.load(answer)}


def wait_for_a_look_of_housekeeping(connection: StreamsConnection) -> None:
    """Nobody publishes to `aging`, so only housekeeping begins its next segment and drops this one."""
    deadline = time.monotonic() + DEADLINE_S
    while connection.first_offset("aging") == 0:
        assert time.monotonic() < deadline, "housekeeping has not looked at any stream"
        time.sleep(0.05)


def write(data: Path) -> None:
    with broker(data) as served, StreamsConnection.connect(served.host, served.port) as connection:
        for kind in (*FILES, "fine", "aging"):
            connection.create(kind, {"max-age": "1s"} if kind != "fine" else None)
            with connection.publisher(kind, "publisher") as publisher:
                publisher.publish([b"one", b"two"])
            connection.store_offset("reader", kind, 1)
            assert connection.query_offset("reader", kind) == 1
        with native(served) as client:
            client.publish_many("ledger", [1, 2, 3])
            with client.consume("ledger") as consumer:
                next(consumer).ack()
                client.queue_info("ledger")  # answered after the acknowledgement was read


@pytest.mark.parametrize("boot", ["this", "another"])
def test_a_log_with_one_newer_file_is_refused_untouched_and_the_others_are_served(tmp_path, capfd, boot):
    write(tmp_path)
    found = directories(tmp_path)
    kept = {name: {path.name: path.read_bytes() for path in found[name].iterdir()} for name in (*FILES, "ledger")}
    for name in (*FILES, "ledger"):
        if boot == "another":
            write_in_another_boot(found[name])
        if name in FILES:
            file, order, check_at = FILES[name]
            raise_version(found[name] / file, order, check_at)
    file, order, check_at = LEDGER
    raise_version(found["ledger"] / file, order, check_at)
    before = {name: bytes_of(found[name]) for name in kept}

    capfd.readouterr()
    with broker(tmp_path, "--set", "store.retention_interval_s=1") as served:
        with StreamsConnection.connect(served.host, served.port) as connection:
            for name in FILES:
                for use in (connection.publisher, connection.next_offset, partial(connection.query_offset, "reader")):
                    with pytest.raises(VibeMQError, match="STREAM_NOT_AVAILABLE"):
                        use(name)
                with pytest.raises(VibeMQError, match="INTERNAL_ERROR"):
                    connection.delete(name)
            with connection.publisher("fine") as publisher:
                publisher.publish([b"three"])
            assert connection.next_offset("fine") == 3
            wait_for_a_look_of_housekeeping(connection)
        with native(served) as client:
            with pytest.raises(ServerFailed, match="start the newer vibemq"):
                client.publish("ledger", 4)
            with pytest.raises(ServerFailed, match="start the newer vibemq"):
                next(client.consume("ledger", timeout_s=DEADLINE_S))
            client.publish("other", 1)
        states = {name: each["state"] for name, each in listed(served).items()}
        assert states == {**dict.fromkeys(kept, "down"), "fine": "running", "aging": "running", "other": "running"}
    told = capfd.readouterr().err
    for name, directory in found.items():
        if name in kept:
            file, order, _ = FILES.get(name, LEDGER)
            path = directory / file
            newer = version_of(path, order)
            assert bytes_of(directory) == before[name], name
            line = next(line for line in told.splitlines() if f"stream '{name}'" in line and "cannot be used" in line)
            assert f"{path} at byte 4: version {newer}, known is version {newer - 1}" in line
            assert "start the newer vibemq, or restore the files" in line

    for name, files in kept.items():  # somebody has started the newer one, or restored a copy
        for file, data in files.items():
            (found[name] / file).write_bytes(data)
    with broker(tmp_path) as served, StreamsConnection.connect(served.host, served.port) as connection:
        assert {name: connection.next_offset(name) for name in kept} == {**dict.fromkeys(FILES, 2), "ledger": 3}
        assert listed(served)["ledger"]["messages"] == 2


def test_every_file_of_a_data_directory_is_in_the_table_of_versions(tmp_path):
    pytest.importorskip("obstore", reason="needs the extra remote")
    table = (Path(__file__).parents[2] / "csrc/log/FORMAT.md").read_text().partition("## A stream")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    patterns = {f"streams/*/{name}" if name in ("offsets", "tracking") or name[0] == "*" else name for name in named}
    write(tmp_path / "data")
    assert (tmp_path / "data" / "audit.log").exists()
    with broker(tmp_path / "data") as served, native(served) as client:
        client.create_queue("fan-out", mode="fan_out_with_ack")
        client.publish("fan-out", 1)
        with client.consume("fan-out") as consumer:
            next(consumer).ack()
    with broker(tmp_path / "data", "--set", f"remote.url=file://{tmp_path}/bucket"):
        assert (tmp_path / "data" / "remote.sock").exists() and (tmp_path / "data" / "ctl.sock").exists()
        found = [path.relative_to(tmp_path / "data") for path in (tmp_path / "data").rglob("*") if not path.is_dir()]
    assert "members" in {path.name for path in found}
    strangers = [str(path) for path in found if not any(fnmatch(str(path), pattern) for pattern in patterns)]
    assert len(found) > 40 and strangers == []


def test_serve_refuses_metadata_of_a_newer_schema_and_leaves_every_byte(tmp_path):
    write(tmp_path)
    metadata = Metadata(str(tmp_path / "meta.db"))
    known = metadata._connection().execute("PRAGMA user_version").fetchone()[0]
    metadata._connection().execute("PRAGMA user_version = 99")
    # What a kill leaves: the newest schema lies in the write-ahead log only.
    left = {path.name: path.read_bytes() for path in tmp_path.glob("meta.db*")}
    metadata.close()
    for killed in (True, False):
        for name, data in left.items():
            if killed:
                (tmp_path / name).write_bytes(data)
        if killed:
            assert (tmp_path / "meta.db-wal").stat().st_size > 0
        else:
            (tmp_path / "meta.db-wal").unlink(missing_ok=True)
            (tmp_path / "meta.db-shm").unlink(missing_ok=True)
            raw = bytearray(left["meta.db"])
            struct.pack_into(">I", raw, 60, 99)
            (tmp_path / "meta.db").write_bytes(raw)
        names = ["meta.db", *(["meta.db-wal"] if killed else [])]
        before = [(tmp_path / name).read_bytes() for name in names]
        with pytest.raises(StorageError) as raised:
            list(Metadata(str(tmp_path / "meta.db")).streams())
        assert raised.value.code == "ERR_VERSION"
        assert f"schema version 99, but this VibeMQ knows only versions up to {known}" in str(raised.value)
        with pytest.raises(AssertionError, match="no ready line: ''"), broker(tmp_path):
            pass
        assert [(tmp_path / name).read_bytes() for name in names] == before
        assert (tmp_path / "meta.db-wal").exists() == killed
