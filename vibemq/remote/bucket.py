# SPDX-License-Identifier: Apache-2.0
"""The bucket: objects by key, each checked as it is read, over obstore (S3, Google Cloud Storage, Azure, a folder).

All that is asked of a store: create an object only if there is none of that key, list, read, read a part, delete.  What
a store answers becomes a RemoteError that says which object and what to do; `Taken` and `Missing` are answers, too.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from vibemq.config import Remote
from vibemq.errors import ConfigError, RemoteError, SetupError
from vibemq.extras import install
from vibemq.once_a_minute import OnceAMinute
from vibemq.remote import cipher
from vibemq.remote.objects import (
    FORMAT_KEY,
    Buffer,
    Damaged,
    Kind,
    Trailer,
    damaged,
    from_json,
    opened,
    read_trailer,
    seal,
    tail_bytes,
)
from vibemq.storage.tail import crc32

#: Of one request; who waits for it has a limit of his own.
REQUEST_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 5
#: Pause between two attempts of a bucket with `patience_s`.
RETRY_S = 1.0
#: Reads, with a pause between, before an object counts as damaged: one answer may have been incomplete.
READS_MAX, READ_AGAIN_S = 3, 0.2
LIST_TIMEOUT_S = 600  # of all pages: a million names take a minute
WRITE_TIMEOUT_S = 3600  # of all parts: 3 GB, the largest segment, in that time are 7 Mbit/s; each part is a request
#: Within obstore, for what may be repeated without a thought; beyond that whoever asked decides.
RETRIES, RETRY_TIMEOUT_S = 2, 10
#: Of what is sent in several parts: S3 takes 10,000 parts of 5 MiB or more.
PART_BYTES = 16 << 20
PARTS_AT_A_TIME = 2
LISTED_AT_A_TIME = 1000
SAID_MAX = 600  # characters of what a store says: a line of a log that one still reads
#: Of an object that is read from one end to the other without having it whole.
READ_PIECES = 4
#: What obstore takes as settings of the HTTP client rather than of the store.
CLIENT_OPTIONS = {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout"}
#: Known by what stores say: for a list that is denied, and for a bucket that is not there, obstore has no error of its
#: own; who has no credentials at all asks for some at an address that only a machine of a cloud reaches.
DENIED = re.compile(r"status code: 40[13]\b|//169\.254\.169\.254/|Permission denied \(os|Read-only file system")
FULL = re.compile(r"status code: 507\b|No space left on device|Disk quota exceeded|<Code>\w*(Quota|StorageFull)\w*<")
#: S3 servers without conditional requests (Backblaze B2) answer 501; file systems without hard links refuse the link.
UNSUPPORTED = re.compile(
    r"status code: 501\b|<Code>NotImplemented<|not yet implemented by|"
    r"Operation not (permitted|supported) \(os|Function not implemented \(os"
)
NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)<|specified bucket does not exist")
WRITES = ("create", "write", "write beside")
WRITE_TRIED_AGAIN_S = 120.0  # or whoever wanted it has given up: no answer within its time, and a pause
ADVICE_AWAY = "is the store up, and can this machine reach it?"
ADVICE_DENIED = "look at the credentials and the rights on the bucket"
ADVICE_FULL = "make room in the store, or raise its quota"
ADVICE_ELSEWHERE = (
    "is the file system mounted there? Nothing is confirmed before the folder is that of this broker again"
)
ADVICE_UNSUPPORTED = "choose another store: `vibemq remote check URL` tests one"
ADVICE_NO_BUCKET = "create the bucket, or name another one in remote.url"

log = logging.getLogger("vibemq.remote")
waiting = OnceAMinute(log)  # waiting requests repeat the line each second
Result = TypeVar("Result")


class Taken(RemoteError):
    """An object of this key exists, and is not what was to be created."""


class Missing(RemoteError):
    """There is no object of this key."""


class Away(RemoteError):
    """The store did not answer, or could not just now: the same request may succeed later."""


class Unsupported(RemoteError):
    """The store does not support such a request."""


class Listed(NamedTuple):
    key: str
    size: int
    written_s: float = 0.0  # since 1970, by the store's clock


@dataclass
class Counts:
    """What was asked of the store since this process started."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    errors: int = 0
    last_error: str = ""
    advice: str = ""  # what to do about it
    # By the loop's clock. None: the last request was answered and, where that only looked, the last write was as well.
    trouble_since_s: float | None = None
    _refused_write_s: float | None = None

    def answered(self, what: str, now_s: float) -> None:
        """A full store lists and reads as ever, and whoever was refused tries again soon."""
        refused_s = self._refused_write_s
        if what not in WRITES and refused_s is not None and now_s - refused_s < WRITE_TRIED_AGAIN_S:
            return
        self.trouble_since_s = self._refused_write_s = None

    def failed(self, what: str, said: str, advice: str, now_s: float) -> None:
        self.errors += 1
        self.last_error, self.advice = said, advice
        if what in WRITES:
            self._refused_write_s = now_s
        if self.trouble_since_s is None:
            self.trouble_since_s = now_s


class Bucket:
    """One store with its prefix.  For one event loop."""

    #: A request that fails with Away is repeated for so long; 0: its caller decides.
    patience_s = 0.0

    def __init__(self, config: Remote, patience_s: float = 0.0) -> None:
        """Raises SetupError where obstore is not installed, ConfigError for a URL that is none."""
        self.patience_s = patience_s
        try:
            self._obstore = importlib.import_module("obstore")
            stores = importlib.import_module("obstore.store")
        except ImportError:
            raise SetupError(
                "remote.url is set, but the Python package obstore is not installed",
                hint=f"`{install('remote')}`",
            ) from None
        self.url = config.url
        self.keys = cipher.read_keys(config.encryption_keys) if config.encryption_keys else None
        self.counts = Counts()
        self._trailers: dict[str, Trailer] = {}  # of objects that parts are read of
        self._path = unquote(urlsplit(config.url).path) if config.url.startswith("file:") else ""
        self._cluster: str | None = None
        self._folder: tuple[int, int] | None = None
        given = dict(pair.split("=", 1) for pair in config.options.split(",") if pair)
        client: dict[str, Any] = {"timeout": f"{REQUEST_TIMEOUT_S}s", "connect_timeout": f"{CONNECT_TIMEOUT_S}s"}
        for name in CLIENT_OPTIONS & given.keys():
            value = given.pop(name)
            client[name] = value.lower() == "true" if value.lower() in ("true", "false") else value
        try:
            if self._path:
                # Its folders are made as objects need them.
                self._store = stores.LocalStore.from_url(config.url, mkdir=True)
            else:
                retry = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)}
                self._store = stores.from_url(config.url, config=given, client_options=client, retry_config=retry)
        except Exception as problem:
            raise ConfigError(
                f"remote.url {config.url!r} cannot be used: {_said(problem)}",
                hint="it is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER; "
                "remote.options are KEY=VALUE,KEY=VALUE as obstore names them",
            ) from None

    # ---- whose it is ----

    async def cluster(self) -> str:
        """Raises Missing where it is nobody's yet, RemoteError."""
        return str(from_json(FORMAT_KEY, await self.read(FORMAT_KEY, Kind.FORMAT))["cluster"])

    async def bind(self, cluster: str) -> None:
        """Raises RemoteError where this is not that cluster's bucket; once it was, nothing is put anywhere else.

        A folder whose file system is not mounted any more would be made anew, and hidden again later.
        """
        folder = self._folder_now()
        try:
            there = await self.cluster()
        except Missing as problem:
            raise self._failure("write beside", FORMAT_KEY, str(problem), ADVICE_ELSEWHERE) from None
        if there != cluster:
            said = f"this is the bucket of cluster {there}, and not of {cluster}"
            raise self._failure("write beside", FORMAT_KEY, said, ADVICE_ELSEWHERE)
        self._cluster, self._folder = cluster, folder
        if self.counts.advice == ADVICE_ELSEWHERE:
            self.counts.advice = ""
            self._answered("create")

    def _folder_now(self) -> tuple[int, int] | None:
        if not self._path:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    async def _put(
        self, what: str, key: str, request: Callable[[], Awaitable[Result]], limit_s: float | None = None
    ) -> None:
        if self._cluster is not None and self._folder_now() != self._folder:
            await self.bind(self._cluster)
        await self._ask(what, key, request, limit_s)
        if self._cluster is not None and self._folder_now() != self._folder:
            raise self._failure(what, key, "the folder is another one since", ADVICE_ELSEWHERE)

    # ---- one request ----

    async def _ask(
        self, what: str, key: str, request: Callable[[], Awaitable[Result]], limit_s: float | None = None
    ) -> Result:
        async def asked() -> Result:
            try:
                result = await asyncio.wait_for(request(), limit_s or REQUEST_TIMEOUT_S * (RETRIES + 1))
            except Exception as problem:
                raise self._problem(what, key, problem) from None
            self._answered(what)
            return result

        return await (asked() if what == "write" else self._patiently(asked))  # a write's parts are read once

    async def _patiently(self, asked: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat a request that the store did not answer, for `patience_s`; each may take effect more than once."""
        deadline_s = asyncio.get_running_loop().time() + self.patience_s
        while True:
            try:
                return await asked()
            except Away as problem:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                waiting.say(type(problem), "the object store does not answer yet: %s", problem)
            await asyncio.sleep(RETRY_S)

    def _answered(self, what: str) -> None:
        self.counts.answered(what, asyncio.get_running_loop().time())

    def _problem(self, what: str, key: str, problem: Exception) -> RemoteError:
        kinds, said = self._obstore.exceptions, _said(problem)
        is_missing = isinstance(problem, kinds.NotFoundError | FileNotFoundError)
        has_bucket = NO_BUCKET.search(said) is None
        if has_bucket and (is_missing or isinstance(problem, kinds.AlreadyExistsError)):
            self._answered(what)
            return Missing(f"object {key} does not exist in {self.url}") if is_missing else _taken(key)
        if not has_bucket:
            advice = ADVICE_NO_BUCKET
        elif isinstance(problem, kinds.NotSupportedError) or UNSUPPORTED.search(said):
            advice = ADVICE_UNSUPPORTED
        elif isinstance(problem, kinds.PermissionDeniedError | kinds.UnauthenticatedError) or DENIED.search(said):
            advice = ADVICE_DENIED
        else:
            advice = ADVICE_FULL if FULL.search(said) else ADVICE_AWAY
        return self._failure(what, key, said, advice)

    def _failure(self, what: str, key: str, said: str, advice: str) -> RemoteError:
        self.counts.failed(what, f"{what} {key}: {said}", advice, asyncio.get_running_loop().time())
        text = f"cannot {what} {key} in {self.url}: {said}"
        if advice in (ADVICE_AWAY, ADVICE_FULL):
            return Away(text, hint=f"it is tried again; {advice}")
        return (Unsupported if advice == ADVICE_UNSUPPORTED else RemoteError)(text, hint=advice)

    # ---- writing ----

    async def create(self, key: str, kind: Kind, body: Buffer) -> None:
        """Raises Taken where another object has the key; one with these very bytes is ours, whose answer was lost."""
        await self.create_parts(key, kind, bytearray(body), len(body))

    async def create_parts(self, key: str, kind: Kind, room: bytearray, size: int) -> None:
        """The same of the first ``size`` bytes of ``room``, which gets what follows them and must stay as it is."""
        whole = self._seal_in(key, kind, room, size)
        self.counts.puts += 1
        self.counts.sent_bytes += len(whole)
        put = self._obstore.put_async
        try:
            await self._put(
                "create", key, lambda: put(self._store, key, whole, mode="create", use_multipart=False)
            )  # fmt: skip
        except Taken:
            # Each encryption has bytes of its own, so it is what they mean that is compared.
            if not await self._is(key, kind, room[:size]):
                raise

    def _seal_in(self, key: str, kind: Kind, room: bytearray, size: int) -> memoryview:
        number, nonce = 0, bytes(12)
        if self.keys is not None:
            number, nonce, encrypted = self.keys.encrypt(key, memoryview(room)[:size])
            room, size = bytearray(encrypted), len(encrypted)
        crc = crc32(memoryview(room)[:size]) if size else 0
        tail = seal(key, kind, size, crc, number, nonce)
        room[size : size + len(tail)] = tail
        return memoryview(room)[: size + len(tail)]

    async def _is(self, key: str, kind: Kind, body: bytearray) -> bool:
        try:
            return bytes(await self.read(key, kind)) == body
        except Missing:
            raise RemoteError(
                f"object {key} could not be created, as if it existed, and cannot be read, as if it did not",
                hint="the store lets nobody create it while others try, or it was deleted meanwhile: it is tried again",
            ) from None

    async def write(self, key: str, kind: Kind, pieces: Iterable[Buffer]) -> None:
        """An object of any size, in parts; one that is there is the same and is written again.

        What is there afterwards is looked at: its size, and the CRC in its trailer.  Raises what ``pieces`` raise, too.
        """
        failures: list[Exception] = []
        sent: list[tuple[int, int]] = []
        parts = self._sealed_pieces(key, kind, _watched(pieces, failures), sent)
        put = self._obstore.put_async
        self.counts.puts += 1
        try:
            await self._put(
                "write",
                key,
                lambda: put(self._store, key, parts, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_A_TIME),
                WRITE_TIMEOUT_S,
            )
        except RemoteError:
            if failures:
                raise failures[0] from None
            raise
        finally:
            self._trailers.pop(key, None)  # encrypted again, it has another
        there = await self._trailer(key, kind)
        if (there.size, there.crc) != sent[-1]:
            raise damaged(key, "what is there is not what was just sent")

    def _sealed_pieces(
        self, key: str, kind: Kind, pieces: Iterator[Buffer], sent: list[tuple[int, int]]
    ) -> Iterator[Buffer]:
        """``sent``: gets the body's size and CRC at the end."""
        size = crc = number = 0
        nonce = bytes(12)
        if self.keys is not None:
            number, nonce, pieces = self.keys.encrypt_pieces(key, pieces)
        for piece in pieces:
            crc = crc32(piece, crc) if len(piece) else crc
            size += len(piece)
            yield piece
        self.counts.sent_bytes += size
        sent.append((size, crc))
        yield seal(key, kind, size, crc, number, nonce)

    async def delete(self, keys: list[str]) -> None:
        """Those that are not there are no error."""
        for at in range(0, len(keys), LISTED_AT_A_TIME):
            some = keys[at : at + LISTED_AT_A_TIME]
            for key in some:
                self._trailers.pop(key, None)
            try:
                await self._delete(some)
            except Missing:  # not S3, which takes many at once: the others of them may be there still
                for key in some:
                    with contextlib.suppress(Missing):
                        await self._delete([key])

    async def _delete(self, keys: list[str]) -> None:
        self.counts.deletes += 1
        await self._ask("delete", keys[0], lambda: self._obstore.delete_async(self._store, keys))

    # ---- reading ----

    async def read(self, key: str, kind: Kind) -> memoryview:
        """The whole body, checked.  Raises Missing, RemoteError."""

        async def get() -> Any:
            return await (await self._obstore.get_async(self._store, key)).bytes_async()

        async def checked() -> tuple[memoryview, memoryview]:
            self.counts.gets += 1
            whole = memoryview(await self._ask("read", key, get))
            self.counts.received_bytes += len(whole)
            return whole, opened(key, kind, whole)

        whole, body = await self._read_again(checked)
        trailer = read_trailer(key, kind, whole[-tail_bytes(key) :], len(whole))
        return memoryview(self._keys(key, trailer).decrypt(key, trailer, 0, body)) if trailer.key_number else body

    async def read_part(self, key: str, kind: Kind, start: int, end: int) -> memoryview:
        """Bytes [start, end) of a body, as far as it goes; checked is the object's trailer, and what is encrypted."""
        trailer = await self._trailer(key, kind)
        if not trailer.key_number:
            end = min(end, trailer.size)
            return await self._part(key, start, end) if start < end else memoryview(b"")
        first, last = cipher.span(start, end, trailer.size)
        plain = self._keys(key, trailer).decrypt(key, trailer, first, await self._part(key, first, last))
        begin = start - cipher.plain_position(first)
        return memoryview(plain)[begin : begin + end - start]

    def _keys(self, key: str, trailer: Trailer) -> "cipher.Keys":
        if self.keys is None:
            raise RemoteError(
                f"object {key} is encrypted with key {trailer.key_number}",
                hint="remote.encryption_keys names the file that has it",
            )
        return self.keys

    async def _part(self, key: str, start: int, end: int) -> memoryview:
        get = self._obstore.get_range_async

        async def checked() -> memoryview:
            self.counts.gets += 1
            found = memoryview(await self._ask("read", key, lambda: get(self._store, key, start=start, end=end)))
            self.counts.received_bytes += len(found)
            if len(found) != end - start:
                raise damaged(key, f"bytes {start} to {end} were asked for, {len(found)} came")
            return found

        return await self._read_again(checked)

    async def _read_again(self, checked: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of ``checked``.  After a wrong check the object is read again before it counts as damaged,
        because one answer may have been incomplete."""
        for _ in range(READS_MAX - 1):
            try:
                return await checked()
            except Damaged as problem:
                log.info("an answer of the object store may be incomplete, and is requested again: %s", problem)
            await asyncio.sleep(READ_AGAIN_S)
        return await checked()

    async def read_damaged_part(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes [start, end) of an object with a damaged trailer, zeros behind its end.

        Only for a body with its own checks, such as a segment's chunks.  Raises RemoteError.
        """
        there = min(end, await self.size(key))
        found = bytes(await self._part(key, start, there)) if start < there else b""
        return memoryview(found.ljust(end - start, b"\0"))

    async def size(self, key: str) -> int:
        """Of the object, in bytes.  Raises Missing."""
        self.counts.gets += 1
        return int((await self._ask("look at", key, lambda: self._obstore.head_async(self._store, key)))["size"])

    async def prepare(self, key: str, kind: Kind) -> None:
        """Look at an object's trailer before several ask for parts of it at once."""
        await self._trailer(key, kind)

    async def _trailer(self, key: str, kind: Kind) -> Trailer:
        found = self._trailers.get(key)
        if found is None:
            size = await self.size(key)
            tail = await self._part(key, max(0, size - tail_bytes(key)), size)
            found = self._trailers[key] = read_trailer(key, kind, tail, size)
        return found

    async def trailer(self, key: str, kind: Kind, size: int) -> Trailer:
        """Of an object of ``size`` bytes, as a listing says; not remembered."""
        tail = await self._part(key, max(0, size - tail_bytes(key)), size) if size else b""
        return read_trailer(key, kind, tail, size)

    async def pieces(self, key: str, trailer: Trailer, is_raw: bool = False) -> AsyncIterator[Buffer]:
        """The body in order, a few MiB at a time; behind the last one RemoteError where the CRC of all is wrong.

        ``is_raw``: what is encrypted stays so.
        """
        step, crc = READ_PIECES * (cipher.PIECE_BYTES + cipher.TAG_BYTES), 0
        keys = self._keys(key, trailer) if trailer.key_number and not is_raw else None
        for at in range(0, trailer.size, step):
            piece: Buffer = await self._part(key, at, min(at + step, trailer.size))
            crc = crc32(piece, crc)
            yield piece if keys is None else keys.decrypt(key, trailer, at, piece)
        if crc != trailer.crc:
            raise damaged(key, "its bytes are not those that were written (CRC)")

    async def plain_size(self, key: str, kind: Kind, size: int) -> int:
        """How many bytes an object of ``size`` bytes was made of; asks only where it may be encrypted."""
        if self.keys is None:
            return size - tail_bytes(key)
        trailer = await self._trailer(key, kind)
        return cipher.plain_size(trailer.size) if trailer.key_number else trailer.size

    async def listed(self, prefix: str, after: str = "") -> list[Listed]:
        """What is there below a prefix, by key; keys behind ``after`` only."""
        return await self._patiently(lambda: self._listed(prefix, after))

    async def _listed(self, prefix: str, after: str) -> list[Listed]:
        self.counts.lists += 1
        found: list[Listed] = []
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                pages = self._obstore.list(self._store, prefix, offset=after or None, chunk_size=LISTED_AT_A_TIME)
                async for page in pages:
                    # Not every store knows where to begin: azurite, for one, lists them all.
                    found += [
                        Listed(one["path"], one["size"], one["last_modified"].timestamp())
                        for one in page
                        if one["path"] > after
                    ]
        except Exception as problem:
            raise self._problem("list", prefix, problem) from None
        self._answered("list")
        return sorted(found)


def _watched(pieces: Iterable[Buffer], failures: list[Exception]) -> Iterator[Buffer]:
    """The pieces; what stops them is kept, lest a file that is not there is taken for an object that is not."""
    try:
        yield from pieces
    except Exception as problem:
        failures.append(problem)
        raise


def _taken(key: str) -> Taken:
    return Taken(f"object {key} exists already")


def _said(problem: BaseException) -> str:
    """One line; obstore's errors go on with pages for developers, and may begin with the names of 1000 objects."""
    if isinstance(problem, TimeoutError):
        return "it was not done in time"
    said = str(problem).partition("\n\nDebug source:")[0]
    said = " ".join(re.sub(r"<\?xml.*?\?>", "", said).split()) or type(problem).__name__
    return said if len(said) <= SAID_MAX else f"{said[: SAID_MAX // 3]} ... {said[-SAID_MAX * 2 // 3 :]}"
