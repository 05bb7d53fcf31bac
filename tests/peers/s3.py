# SPDX-License-Identifier: Apache-2.0
"""An S3 server for tests, a process of its own: moto's, or versitygw where VIBEMQ_S3=versitygw asks for it.

moto keeps everything in memory and believes every signature; versitygw keeps files and checks them.  A test has its
objects below a prefix of its own, and may damage them by hand: `store.overwrite(key, ...)`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from running import wait_until

from benchmarks.servers import free_port
from vibemq.config import Remote

BUCKET = "vibemq-tests"
REGION = "us-east-1"
KEY_ID, SECRET = "test-key-id", "test-secret-of-nobody"
START_S_MAX = 60  # a second, where nobody else wants the processor


@dataclass(eq=False)
class Store:
    """Objects below a prefix of a bucket, as a broker is told of them, and for a test's own hands."""

    endpoint: str
    prefix: str

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def options(self) -> str:
        """As `remote.options` takes them."""
        return f"endpoint={self.endpoint},allow_http=true,virtual_hosted_style_request=false,region={REGION}"

    @property
    def environ(self) -> dict[str, str]:
        """What a broker needs in its environment; a proxy for the internet knows nothing of this machine."""
        return {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "NO_PROXY": "127.0.0.1"}

    @property
    def through(self) -> tuple[str, ...]:
        """The environment, as `running.broker(through=...)` takes it."""
        return ("env", *(f"{name}={value}" for name, value in self.environ.items()))

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `vibemq serve`."""
        return ("--set", f"remote.url={self.url}", "--set", f"remote.options={self.options}")

    def remote(self, options: str = "", **fields: Any) -> Remote:
        """The configuration, with credentials: for a Bucket in this process.  ``options``: more of them."""
        credentials = f"access_key_id={KEY_ID},secret_access_key={SECRET}"
        given = ",".join(filter(None, (self.options, credentials, options)))
        return Remote(url=self.url, options=given, **fields)

    def below(self, prefix: str) -> Store:
        return Store(self.endpoint, f"{self.prefix}/{prefix}".strip("/"))

    # ---- by hand ----

    def keys(self, prefix: str = "") -> list[str]:
        obstore, store = self._opened()
        return sorted(one["path"] for page in obstore.list(store, prefix or None) for one in page)

    def read(self, key: str) -> bytes:
        obstore, store = self._opened()
        return bytes(obstore.get(store, key).bytes())

    def overwrite(self, key: str, content: bytes) -> None:
        obstore, store = self._opened()
        obstore.put(store, key, content)

    def delete(self, key: str) -> None:
        obstore, store = self._opened()
        obstore.delete(store, key)

    def _opened(self) -> tuple[Any, Any]:
        import obstore
        from obstore.store import S3Store

        store = S3Store(
            BUCKET,
            prefix=self.prefix or None,
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": "30s"},
        )
        return obstore, store


class S3Server(Store):
    """`with S3Server() as server:` has an empty bucket; without such a server the test is skipped and says why."""

    def __init__(self, kind: str = os.environ.get("VIBEMQ_S3", "moto")) -> None:
        if importlib.util.find_spec("obstore") is None:
            pytest.skip("the Python package obstore is not installed (the extra remote)")
        super().__init__("", "")
        self._folder = Path(tempfile.mkdtemp(prefix="vibemq-s3-"))
        self._output = (self._folder / "output").open("w+")
        try:
            assert kind in ("moto", "versitygw"), f"VIBEMQ_S3={kind}, known are moto and versitygw"
            self.endpoint = f"http://127.0.0.1:{self._start_moto() if kind == 'moto' else self._start_versitygw()}"
        except BaseException:
            self.stop()
            raise

    def _start_moto(self) -> int:
        if importlib.util.find_spec("moto") is None:
            pytest.skip("moto[server] is not installed (the extra test), nor does VIBEMQ_S3 ask for versitygw")
        program = str(Path(__file__).with_name("s3_moto.py"))
        # -P: what lies beside it, peers/http.py, would be taken for Python's own.
        self._spawn(sys.executable, "-P", program, BUCKET, stdout=subprocess.PIPE)
        line = self.process.stdout.readline() if self.process.stdout else ""
        assert line.strip().isdigit(), f"moto did not start: {line}{self._said()}"
        return int(line)

    def _start_versitygw(self) -> int:
        if shutil.which("versitygw") is None:
            pytest.skip("VIBEMQ_S3=versitygw, but there is no such command: see github.com/versity/versitygw")
        files = self._folder / "files"
        (files / BUCKET).mkdir(parents=True)  # a bucket is a folder to it
        port = free_port()
        self._spawn("versitygw", "--port", f"127.0.0.1:{port}", "--region", REGION, "posix", str(files))

        def serves() -> bool:
            assert self.process.poll() is None, f"versitygw did not start: {self._said()}"
            with socket.socket() as attempt:
                return attempt.connect_ex(("127.0.0.1", port)) == 0

        wait_until(serves, "versitygw accepts", START_S_MAX)
        return port

    def _spawn(self, *command: str, stdout: Any = None) -> None:
        credentials = {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET, "AWS_DEFAULT_REGION": REGION}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # when this process ends, however it does, moto's notices it
            stdout=stdout or self._output,
            stderr=self._output,
            text=True,
            env={**os.environ, **self.environ, **credentials},
        )

    def _said(self) -> str:
        self._output.flush()
        return (self._folder / "output").read_text()

    def stop(self) -> None:
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> S3Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
