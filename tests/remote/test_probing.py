# SPDX-License-Identifier: Apache-2.0
"""Each start proves that the store creates an object only once; `vibemq remote check` tests every property."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from peers.faulty import FaultyStore
from running import ENVIRONMENT, SERVE, broker

pytest.importorskip("obstore", reason="needs the extra remote")

import obstore

from vibemq.cli.commands import main
from vibemq.config import Remote
from vibemq.once_a_minute import OnceAMinute
from vibemq.remote import bucket as bucket_module
from vibemq.remote import probing
from vibemq.remote.bucket import Away, Bucket, Counts
from vibemq.remote.objects import PROBE_PREFIX, Kind, sealed
from vibemq.remote.probing import Unfit, check_store, prove_create_only

START_S_MAX = 50  # less than the minute for which a start waits for a store that is away


def start(store: FaultyStore, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*store.through, *SERVE, f"--data-dir={folder}", *store.flags]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=START_S_MAX)


def test_a_start_refuses_a_store_that_ignores_if_none_match_and_creates_nothing_there(tmp_path, faulty):
    faulty.ignore_conditions()
    refused = start(faulty, tmp_path / "data")
    assert refused.returncode == 1 and "it ignores If-None-Match" in refused.stderr, refused.stderr
    assert "use a store" in refused.stderr and "Traceback" not in refused.stderr
    assert faulty.keys() == []


def test_a_start_refuses_a_store_that_begins_to_ignore_if_none_match_before_it_seals_anything(tmp_path, faulty):
    with broker(tmp_path / "data", *faulty.flags, through=faulty.through, workers=1):
        pass
    names = faulty.keys()
    before = [faulty.read(key) for key in names]
    faulty.ignore_conditions()
    refused = start(faulty, tmp_path / "data")
    assert refused.returncode == 1 and "it ignores If-None-Match" in refused.stderr
    assert faulty.keys() == names and [faulty.read(key) for key in names] == before


def test_a_start_reports_at_once_a_store_without_conditional_requests(tmp_path, faulty):
    faulty.answer(501, "PUT")
    refused = start(faulty, tmp_path / "data")
    assert refused.returncode == 1 and "does not support conditional creation" in refused.stderr, refused.stderr
    assert "is the store up" not in refused.stderr


class TwoSteps:
    """A store that checks whether an object exists, and writes it a moment later."""

    exceptions = obstore.exceptions

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put_async(self, store: Any, key: str, body: Any, **_: object) -> None:
        if key in self.objects:
            raise self.exceptions.AlreadyExistsError(key)
        await asyncio.sleep(0)
        self.objects[key] = bytes(body)

    async def get_async(self, store: Any, key: str) -> Any:
        async def bytes_async() -> bytes:
            return self.objects[key]

        return SimpleNamespace(bytes_async=bytes_async)

    async def delete_async(self, store: Any, keys: list[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def list(self, store: Any, prefix: str, **_: object) -> Any:
        yield []


def test_a_store_that_checks_and_writes_in_two_steps_is_refused():
    store = TwoSteps()
    bucket = Bucket.__new__(Bucket)
    bucket._obstore, bucket._store, bucket.url, bucket.keys = store, None, "test", None
    bucket.counts, bucket._trailers, bucket._cluster = Counts(), {}, None
    with pytest.raises(Unfit, match="checks and writes in two steps"):
        asyncio.run(prove_create_only(bucket))
    assert store.objects == {}


def test_a_proof_leaves_nothing_and_deletes_the_probes_of_starts_that_were_killed(tmp_path):
    async def run() -> list[str]:
        bucket = Bucket(Remote(url=f"file://{tmp_path}/bucket"))
        for name in ("old", "new"):
            await bucket.create(f"{PROBE_PREFIX}{name}", Kind.PROBE, b"x")
        os.utime(tmp_path / "bucket/probe/old", (1, 1))
        await prove_create_only(bucket)
        return [one.key for one in await bucket.listed("")]

    assert asyncio.run(run()) == ["probe/new"]


def test_a_proof_needs_no_right_to_delete(faulty):
    async def run() -> None:
        await prove_create_only(Bucket(faulty.remote()))

    faulty.answer(403, "DELETE")
    faulty.answer(403, "POST")  # many at once
    asyncio.run(run())
    assert len(faulty.keys("probe/")) == 2


def test_a_store_that_is_away_for_a_moment_is_asked_again_by_a_start(tmp_path, faulty):
    refused = faulty.answer(503, "PUT", "probe/", times=12)
    with broker(tmp_path / "data", *faulty.flags, through=faulty.through, workers=1):
        assert refused.met == 12
    assert faulty.keys("probe/") == []


@pytest.mark.parametrize("trouble", ["truncate", "cut_before", "cut_after", "answer"])
def test_a_patient_bucket_reads_again_after_an_incomplete_answer(faulty, monkeypatch, trouble):
    monkeypatch.setattr(bucket_module, "RETRY_S", 0.0)

    async def run(patience_s: float) -> bytes:
        bucket = Bucket(faulty.remote(), patience_s)
        return bytes(await bucket.read("format", Kind.FORMAT))

    faulty.overwrite("format", sealed("format", Kind.FORMAT, b"x" * 1000))
    rule = getattr(faulty, trouble)
    given = {"truncate": (1, "GET"), "answer": (503, "GET")}.get(trouble, ("GET",))
    rule(*given, times=7)
    with pytest.raises(Away):
        asyncio.run(run(0.0))
    assert asyncio.run(run(60.0)) == b"x" * 1000


def test_a_start_reads_an_incomplete_answer_again(tmp_path, faulty):
    """Each object that it reads, in its middle, more often than the store's client tries by itself."""
    with broker(tmp_path / "data", *faulty.flags, through=faulty.through, workers=1):
        pass
    cut = [faulty.truncate(20, "GET", path, times=4) for path in ("/format", "snapshot-", "meta/0")]
    with broker(tmp_path / "other", *faulty.flags, through=faulty.through, workers=1):
        assert [rule.met for rule in cut] == [4, 4, 4]


def test_requests_that_wait_for_the_store_at_the_same_time_log_one_line(faulty, caplog, monkeypatch):
    monkeypatch.setattr(bucket_module, "RETRY_S", 0)
    monkeypatch.setattr(bucket_module, "waiting", OnceAMinute(bucket_module.log))
    refused = faulty.answer(503, "PUT", "probe/", times=40)
    asyncio.run(prove_create_only(Bucket(faulty.remote(), patience_s=START_S_MAX)))
    assert refused.met == 40
    assert [one.getMessage() for one in caplog.records if "does not answer yet" in one.msg][1:] == []
    assert "does not answer yet" in caplog.text


def check(store: FaultyStore, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*store.through, sys.executable, "-m", "vibemq.cli", "remote", "check", store.url, *words]
    command += ["--set", f"remote.options={store.options}"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


def test_remote_check_passes_a_store_with_all_properties_and_leaves_no_object(s3, tmp_path):
    done = check(s3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" pass ") == len(probing.CHECKS) and "FAIL" not in done.stdout
    assert s3.keys() == []
    (tmp_path / "bucket").mkdir()
    done = CliRunner().invoke(main, ["remote", "check", f"file://{tmp_path}/bucket", "--json"])
    assert done.exit_code == 0, done.output
    assert [one["check"] for one in json.loads(done.stdout) if one["passed"]] == list(probing.CHECKS)
    assert not [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("trouble", "failed"),
    [
        (lambda faulty: faulty.ignore_conditions(), {"create only once", "create by one of several"}),
        (lambda faulty: faulty.answer(501, "PUT"), set(probing.CHECKS) - {"put in parts"}),
        (lambda faulty: faulty.answer(403, "POST", "uploads"), {"put in parts"}),
    ],
    ids=["ignores the condition", "501", "no multipart"],
)
def test_remote_check_names_the_property_that_a_store_lacks(faulty, trouble, failed):
    trouble(faulty)
    done = check(faulty, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert failed <= {one["check"] for one in results if not one["passed"]}
    assert {one["check"] for one in results} == set(probing.CHECKS)


def test_remote_check_names_a_clock_that_is_wrong(tmp_path, monkeypatch):
    (tmp_path / "bucket").mkdir()
    now_s = probing.time.time
    monkeypatch.setattr(probing, "time", SimpleNamespace(time=lambda: now_s() + 1000))

    async def run() -> dict[str, probing.Result]:
        return {one.check: one for one in await check_store(Bucket(Remote(url=f"file://{tmp_path}/bucket")))}

    results = asyncio.run(run())
    assert not results["clock"].is_passed and " s ahead of the store's" in results["clock"].detail
    assert all(one.is_passed for name, one in results.items() if name != "clock")
