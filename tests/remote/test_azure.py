# SPDX-License-Identifier: Apache-2.0
"""Azure Blob Storage: what S3 is asked for in the other tests is asked of azurite here (npm install -g azurite)."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flows import NativeQueue, Streams, native
from running import ENVIRONMENT, Running, broker, wait_until
from test_failures import Lost, kill

from benchmarks.servers import free_port
from vibemq.client.streams import StreamsConnection

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(120)

PROGRAM = os.environ.get("VIBEMQ_AZURITE") or shutil.which("azurite-blob")
ACCOUNT = "devstoreaccount1"  # azurite's, with the key that its documentation prints
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "vibemq-tests"
START_S_MAX = 60


def make_container(port: int) -> None:
    """obstore makes none.  https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key"""
    path, date = f"/{ACCOUNT}/{CONTAINER}", email.utils.formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    text = "PUT" + "\n" * 12 + f"{headers}/{ACCOUNT}{path}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    given = dict(line.split(":", 1) for line in headers.splitlines())
    given |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    connection.request("PUT", f"{path}?restype=container", headers=given)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Its port."""
    if PROGRAM is None:
        pytest.skip("there is no azurite-blob on the path, and VIBEMQ_AZURITE names none: npm install -g azurite")
    folder = tmp_path_factory.mktemp("azurite")
    port = free_port()
    command = [PROGRAM, "--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    output = (folder / "output").open("w+")
    process = subprocess.Popen([*command, "--skipApiVersionCheck"], stdout=output, stderr=output)

    def serves() -> bool:
        assert process.poll() is None, (folder / "output").read_text()
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(serves, "azurite accepts", START_S_MAX)
        make_container(port)
        yield port
    finally:
        process.kill()
        process.wait()
        output.close()


def settings(port: int) -> list[str]:
    options = f"endpoint=http://127.0.0.1:{port}/{ACCOUNT},allow_http=true"
    return ["--set", f"remote.url=az://{CONTAINER}/vibemq", "--set", f"remote.options={options}"]


def environ() -> dict[str, str]:
    return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY, "NO_PROXY": "127.0.0.1"}


@contextmanager
def serving(folder: Path, port: int) -> Iterator[Running]:
    small = ("--set", "store.segment_size_bytes=65536", "--set", "store.durability=remote")
    through = ("env", *(f"{name}={value}" for name, value in environ().items()))
    with broker(folder, *settings(port), *small, "--set", "remote.interval_ms=10", through=through) as running:
        yield running


def said(port: int, *words: str) -> str:
    """By `vibemq remote`."""
    command = [sys.executable, "-m", "vibemq.cli", "remote", words[0], *settings(port), *words[1:]]
    done = subprocess.run(command, env=ENVIRONMENT | environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def segments(port: int) -> int:
    return sum(stream["segments"] for stream in json.loads(said(port, "list", "--json"))["streams"])


def test_a_machine_that_is_lost_is_restored_from_azure(tmp_path, azurite):
    events, tasks = Streams("events"), NativeQueue("tasks")
    with pytest.raises(Lost), serving(tmp_path / "data", azurite) as running:
        with events.open(running) as publish, tasks.open(running) as publish_tasks:
            for _ in range(120):
                events.publish(publish)
            for _ in range(4):
                tasks.publish(publish_tasks)
        with tasks.taking(running) as take:
            for number, ack in take():
                tasks.came(number)
                ack()
                if number >= 100:
                    break
        wait_until(lambda: segments(azurite) > 0, "a closed segment is in the store")
        kill(running)
        shutil.rmtree(tmp_path / "data")
        raise Lost
    with serving(tmp_path / "data", azurite) as running:
        for flow in (events, tasks):
            flow.check(running, random.Random(1), is_thorough=True)
        assert said(azurite, "verify").startswith("all is well")
        with StreamsConnection.connect(running.host, running.port) as connection:
            connection.delete("events")
        with native(running) as client:
            client.delete_queue("tasks")
        wait_until(lambda: segments(azurite) == 0, "objects of what was deleted go")
