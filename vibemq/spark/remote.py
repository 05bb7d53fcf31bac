# SPDX-License-Identifier: Apache-2.0
"""The object store as a process of Spark's reaches it: a bucket for each process, on an event loop of its own.

Credentials come from where the process runs: its environment, a profile, the machine's role. Options name no secret, so
that none lies in a plan, a pickle or a checkpoint. What a forked child inherits is never used in it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from vibemq.errors import ConfigError, RemoteError, StorageError, VibeMQError

if TYPE_CHECKING:
    from vibemq.remote.objects import Kind
    from vibemq.spark.options import Options
    from vibemq.storage.metadata import Metadata

#: A snapshot that was replaced while it was read, or changes that went with it: the next look finds the newer one.
ATTEMPTS = 3
#: What options of a store are called that are secrets, whatever the cloud.
SECRET = re.compile(r"secret|token|password|access_key|account_key|service_account|credential|authority_key|\bsas")
PAIRS = re.compile(r"([a-z_]+=[^,]*(,[a-z_]+=[^,]*)*)?")
#: What the bucket's messages call their settings, and what these are here.
WORDS = {
    "remote.url": "option remote",
    "remote.options": "option remoteOptions",
    "remote.encryption_keys": "option remoteKeys",
}

#: Of the copies of metadata, one for each process, in the system's folder for such things.
FOLDER = "vibemq-spark-"

T = TypeVar("T")


def check(options: Options) -> None:
    """ConfigError where the options about the bucket cannot be."""
    if not options.remote:
        if options.remote_options or options.remote_keys:
            raise ConfigError("options remoteOptions and remoteKeys: they need remote, the bucket")
        return
    if ":" not in options.remote:
        raise ConfigError(
            f"option remote: {options.remote!r} is no URL: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
            "az://CONTAINER/PREFIX or file:///FOLDER"
        )
    if not PAIRS.fullmatch(options.remote_options):
        raise ConfigError("option remoteOptions: it is KEY=VALUE,KEY=VALUE, as the broker's remote.options")
    for pair in filter(None, options.remote_options.split(",")):
        name = pair.partition("=")[0]
        if SECRET.search(name):
            raise ConfigError(
                f"option remoteOptions: {name} is a secret, which would lie in plans and logs; leave it to the "
                "environment of Spark's processes (as AWS_ACCESS_KEY_ID), a profile or the machine's role"
            )
    if not options.endpoints and options.filter_values:
        raise ConfigError("option filterValues: it needs endpoints, a broker that looks at the chunks' filters")


class Store:
    """One bucket in one process. `run` is for any thread but the loop's own."""

    def __init__(self, options: Options) -> None:
        from vibemq.config import Remote
        from vibemq.remote.bucket import Bucket  # only who reads a bucket pays for it

        self.url = options.remote
        if self.url.startswith("file://") and not os.path.isdir(unquote(urlsplit(self.url).path)):
            raise ConfigError(f"option remote: there is no folder {self.url}")
        try:
            self.bucket = Bucket(
                Remote(url=options.remote, options=options.remote_options, encryption_keys=options.remote_keys)
            )
        except VibeMQError as failed:
            raise in_words(failed) from None
        self._loop = asyncio.new_event_loop()
        self._locks: dict[str, asyncio.Lock] = {}
        self._metadata: Metadata | None = None
        self.folder = ""
        self.kept: dict[str, Any] = {}  # what planners know of it, by their names
        threading.Thread(target=self._loop.run_forever, name="vibemq-remote", daemon=True).start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. Every request in it has a limit of its own. Raises RemoteError with the words of the options."""
        try:
            result: T = self.begin(work).result()
        except VibeMQError as failed:
            raise in_words(failed) from None
        return result

    async def part(self, key: str, kind: Kind, start: int, end: int) -> memoryview:
        """Bytes of a body; that the object is whole is looked at once, before its first part."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            await self.bucket.prepare(key, kind)
        return await self.bucket.read_part(key, kind, start, end)

    async def metadata(self) -> Metadata:
        """A copy of the cluster's metadata, as of now. For the loop's thread."""
        from vibemq.remote.bucket import Away, Missing
        from vibemq.remote.opening import catch_up, newest_snapshot, restore_metadata
        from vibemq.storage.metadata import Metadata

        for again in range(ATTEMPTS):
            try:
                if self._metadata is None:
                    number = await newest_snapshot(self.bucket)
                    if number is None:
                        raise RemoteError(
                            f"no broker has used the bucket {self.url}: it has no metadata",
                            hint="remote is the broker's remote.url, its prefix included",
                        )
                    path = os.path.join(self._new_folder(), "meta.db")
                    await restore_metadata(self.bucket, number, path)
                    self._metadata = Metadata(path)
                await catch_up(self.bucket, self._metadata)
                return self._metadata
            except Away:
                raise
            except (StorageError, RemoteError) as problem:
                # The copy may be older than what is left of the changes, or the snapshot went while it was read.
                is_stale = self._metadata is not None or isinstance(problem, Missing)
                self.close()
                if again == ATTEMPTS - 1 or not is_stale:
                    raise
        raise AssertionError("the last attempt gives or raises")

    def _new_folder(self) -> str:
        for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):  # Spark ends its workers without a word
            if not Path("/proc", left.name.split("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)
        self.folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-")  # its mode is 0700
        return self.folder

    def close(self) -> None:
        """Forget the copy: it has the hashes of users' passwords."""
        if self._metadata is not None:
            self._metadata.close()
            self._metadata = None
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = ""


_stores: dict[tuple[Any, ...], Store] = {}


def store(options: Options) -> Store:
    """This process's for these options."""
    key = (os.getpid(), options.remote, options.remote_options, options.remote_keys)
    if key not in _stores:
        _stores[key] = Store(options)
    return _stores[key]


def close_all() -> None:
    """Take away this process's copies of metadata; whoever looks again makes them anew."""

    async def close(each: Store) -> None:
        each.close()

    for (pid, *_), each in _stores.items():
        if pid == os.getpid():
            each.run(close(each))


@atexit.register
def _forget() -> None:
    """The copies' files; their connections belong to another thread."""
    for (pid, *_), each in _stores.items():
        if pid == os.getpid() and each.folder:
            shutil.rmtree(each.folder, ignore_errors=True)


def in_words(failed: VibeMQError) -> VibeMQError:
    """The same as the user of options knows it, with its hint in the message: Spark shows nothing else."""
    message, hint = failed.message, failed.hint or ""
    if hint and hint not in message:
        message = f"{message}. {hint}"
    for said, meant in WORDS.items():
        message = message.replace(said, meant)
    failed.message, failed.args = message, (message,)
    return failed
