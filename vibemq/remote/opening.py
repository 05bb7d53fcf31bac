# SPDX-License-Identifier: Apache-2.0
"""Opening the bucket at a start, before any worker lives.

It reads like this. **whose**: the data directory belongs to the bucket's cluster, or is empty and is to be that
broker again, or the bucket is empty and is theirs from now on; anything else is refused before a byte is written.
**metadata**: restored from the newest snapshot, and brought up to the last change. **allowed**: what the start needs of
it, users where other machines can come in, is there. **alone**: an epoch is taken and all before it are sealed, so what
lies in the bucket now is all that was ever confirmed. **made**: what the configuration says is to be in the metadata.
**logs**: see restoring.py.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable

import zstandard

from vibemq.config import Config
from vibemq.errors import ConfigError, RemoteError, Superseded
from vibemq.remote.asking import change_body
from vibemq.remote.bucket import Bucket, Listed, Missing, Taken
from vibemq.remote.epochs import Epochs, Outdated
from vibemq.remote.objects import FORMAT_KEY, Damaged, Kind, change_key, from_json, snapshot_key, to_json
from vibemq.remote.probing import prove_create_only
from vibemq.remote.restoring import HARMED, READS_AT_A_TIME, restore_logs
from vibemq.storage.changes import Changes, NumberTaken
from vibemq.storage.metadata import Metadata, restore

#: A store that does not answer for so long keeps the broker from starting: who supervises it tries again.
ANSWER_TIMEOUT_S = 60.0
RETRY_S = 1.0
#: Changes behind the newest snapshot, at a start, with which another one is made.
SNAPSHOT_EACH = 256
SNAPSHOTS_KEPT = 3
#: Size of a fence at most: JSON with names of limited length, and the object's key behind it.
FENCE_BYTES_MAX = 512
META_DB_MAX_BYTES = 1 << 32
#: A file in the data directory as long as it is being restored: who finds it begins again.
RESTORING = "restoring"

log = logging.getLogger("vibemq.remote")


async def open_bucket(config: Config, require: Callable[[Metadata], None], make: Callable[[Metadata], None]) -> int:
    """Returns the epoch that the archiver begins with.  Raises ConfigError, Superseded, RemoteError, StorageError.

    ``require`` is shown the metadata that the broker would begin with, before this takes the place of another broker,
    and raises where it may not.  ``make`` changes what is missing of it, afterwards.
    """
    bucket = Bucket(config.remote, ANSWER_TIMEOUT_S)
    cluster, is_proven = await _patiently(bucket)
    path = os.path.join(config.data_path, "meta.db")
    metadata = Metadata(path)
    goes_on = await _own(config, bucket, cluster, metadata, path, require)
    epochs = Epochs(bucket, config.remote.name, config.data_path)
    try:
        if goes_on:
            await epochs.check_newest()  # what others changed is nothing to one that may not go on
        await catch_up(bucket, metadata)  # users may be newer than a snapshot, or than what a killed broker committed
        require(metadata)
        if not is_proven:  # only now: a refused start writes nothing
            await prove_create_only(bucket)
        epoch = await epochs.take(goes_on)
    except Outdated as problem:
        raise Superseded(str(problem), hint=problem.hint) from None
    await catch_up(bucket, metadata)
    await _snapshot(bucket, metadata)
    await _fence(bucket, metadata, epoch)
    await _make(bucket, metadata, make, epoch)
    half_made = os.path.join(config.data_path, RESTORING)
    harmed = await restore_logs(bucket, epochs, metadata, os.path.exists(half_made), config.remote.puts_max)
    if harmed:
        with open(os.path.join(config.data_path, HARMED), "a", encoding="utf-8") as file:
            file.writelines(f"{one}\n" for one in harmed)
    metadata.close()
    if (by := await epochs.newer_than(epoch)) is not None:  # a restore may take long
        raise Superseded(
            f"object {by['key']}: a broker {config.remote.name!r} on {by.get('host')} was started while this one was",
            hint="only one may live: stop that one and start this one again, or leave this one stopped",
        )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(half_made)
    return epoch


async def _fence(bucket: Bucket, metadata: Metadata, epoch: int) -> None:
    """Create a fence, an empty change. Changes of an earlier epoch behind it are void.

    Acknowledged changes of an earlier epoch lie before it, because a broker checks for a newer epoch before it answers.
    """
    while True:
        await catch_up(bucket, metadata)
        bound = metadata.binding()
        assert bound is not None
        number = bound.number + 1
        try:
            body = change_body([], broker=bound.name, epoch=epoch)
            await bucket.create(change_key(number), Kind.CHANGE, body.encode())
        except Taken:
            continue
        metadata.apply(number, [], epoch)
        return


async def _make(bucket: Bucket, metadata: Metadata, make: Callable[[Metadata], None], epoch: int) -> None:
    """``make`` changes the metadata, on a thread: the loop puts the changes into the bucket, for no archiver lives."""
    loop = asyncio.get_running_loop()

    async def create(number: int, body: bytes) -> None:
        key = change_key(number)
        try:
            await bucket.create(key, Kind.CHANGE, body)
        except Taken:
            raise NumberTaken(number, from_json(key, await bucket.read(key, Kind.CHANGE))) from None

    bound = metadata.binding()
    assert bound is not None

    def publish(number: int, changes: Changes) -> int:
        body = change_body(changes, broker=bound.name, epoch=epoch)
        asyncio.run_coroutine_threadsafe(create(number, body.encode()), loop).result()
        return epoch

    def work() -> None:
        try:
            make(metadata)
        finally:
            metadata.close()  # this thread's connection

    metadata.publish = publish
    await asyncio.to_thread(work)


async def _patiently(bucket: Bucket) -> tuple[str, bool]:
    """Return the cluster of the bucket, and whether the store has just proved that it creates an object only once.

    An empty bucket gets a cluster after that proof.  Raises RemoteError, Unfit.
    """
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    is_proven = False
    while True:
        try:
            try:
                return await bucket.cluster(), is_proven
            except Missing:
                if not is_proven:
                    await prove_create_only(bucket)
                    is_proven = True
                await bucket.create(FORMAT_KEY, Kind.FORMAT, to_json(cluster=secrets.token_hex(8)))
        except Taken:
            continue  # somebody else has just made it
        except Damaged as problem:
            raise RemoteError(
                f"the bucket {bucket.url} cannot be told from another cluster's: {problem}",
                hint=f"put the object `{FORMAT_KEY}` back from a version or a copy of the bucket; nothing was changed",
            ) from None
        except RemoteError as problem:
            if time.monotonic() >= deadline_s:
                raise
            log.warning("the object store does not answer yet: %s", problem)
            await asyncio.sleep(RETRY_S)


async def _own(
    config: Config, bucket: Bucket, cluster: str, metadata: Metadata, path: str, require: Callable[[Metadata], None]
) -> bool:
    """Bind the data directory to the bucket, or restore it from there; does it go on as it was?  Raises ConfigError."""
    name, found = config.remote.name, metadata.binding() if os.path.exists(path) else None
    if found is not None:
        if (found[0], found[1]) != (cluster, name):
            raise ConfigError(
                f"{config.data_path} belongs to broker {found[1]!r} of cluster {found[0]}, but remote.url and "
                f"remote.name say broker {name!r} of cluster {cluster}",
                hint="set both as they were, or give this broker a data directory of its own",
            )
        if not os.path.exists(os.path.join(config.data_path, RESTORING)):
            return True
    newest = await newest_snapshot(bucket)
    if newest is None:
        if found is not None:
            return False
        if changes := await bucket.listed("meta/"):  # a first start makes a snapshot before any change
            raise RemoteError(
                f"the bucket has no snapshot of the metadata, and there is {changes[0].key}",
                hint="put the newest object `meta/snapshot-...` back from a version or a copy of the bucket, or "
                "start the broker that has its data directory",
            )
        require(metadata)  # while `vibemq users add` needs no broker that runs; the bucket begins with what there is
        metadata.own_all(name, 1)
        metadata.bind(cluster, name)
        log.info("%s is the bucket of %s from now on, cluster %s", config.remote.url, config.data_path, cluster)
        return False
    if os.path.exists(path):
        # Bound: of a restore that was begun, and since then changes behind its snapshot may have gone.
        if found is None and (next(metadata.streams(), None) is not None or metadata.users()):
            raise ConfigError(
                f"{config.data_path} has streams or users of its own, and the bucket {config.remote.url} belongs to "
                f"cluster {cluster}",
                hint="start with an empty data directory to be that broker again, or give this one an empty prefix",
            )
        metadata.close()
        for suffix in ("-wal", "-shm", ""):
            if os.path.exists(path + suffix):
                os.unlink(path + suffix)
    log.warning("%s is empty: restoring broker %r of cluster %s", config.data_path, name, cluster)
    with open(os.path.join(config.data_path, RESTORING), "w") as file:
        os.fsync(file.fileno())
    folder = os.open(config.data_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the mark is there before what it speaks of
    finally:
        os.close(folder)
    await restore_metadata(bucket, newest, path)
    bound = metadata.binding()
    if bound is None or bound[1] != name:
        raise ConfigError(
            f"the bucket's broker is {bound and bound[1]!r}, and remote.name is {name!r}",
            hint="set remote.name to that",
        )
    return False


async def restore_metadata(bucket: Bucket, number: int, path: str) -> None:
    """Of snapshot ``number`` or, where that is damaged, of an older one: the changes behind it are kept as well."""
    for older in [one for one in reversed(await _snapshots(bucket)) if one <= number]:
        try:
            await _restore_snapshot(bucket, snapshot_key(older), path)
            return
        except Damaged as problem:
            log.error("a snapshot of the metadata cannot be used: %s", problem)
            last = problem
    raise last


async def _restore_snapshot(bucket: Bucket, key: str, path: str) -> None:
    copy = f"{path}.restored"
    body = await bucket.read(key, Kind.SNAPSHOT)
    with open(copy, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        left = META_DB_MAX_BYTES
        with zstandard.ZstdDecompressor().stream_reader(bytes(body)) as plain:
            while piece := plain.read(1 << 20):
                left -= len(piece)
                if left < 0:
                    raise RemoteError(f"object {key} is larger than {META_DB_MAX_BYTES} bytes when it is unpacked")
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    restore(copy, path)
    os.unlink(copy)


async def newest_snapshot(bucket: Bucket) -> int | None:
    return max(await _snapshots(bucket), default=None)


async def _snapshots(bucket: Bucket) -> list[int]:
    prefix = snapshot_key(0).rpartition("-")[0]
    listed = await bucket.listed("meta/", after=prefix)
    return sorted(int(one.key.rpartition("-")[2]) for one in listed if one.key.startswith(prefix))


async def catch_up(bucket: Bucket, metadata: Metadata) -> None:
    """Apply the changes that others made, or this broker before it was cut off."""
    bound = metadata.binding()
    assert bound is not None
    number = bound[2]
    for one in await bucket.listed("meta/", after=change_key(number)):
        if one.key.startswith("meta/snapshot-"):
            continue
        if one.key != change_key(number + 1):
            raise RemoteError(
                f"object {change_key(number + 1)} is missing in the bucket, and {one.key} is there",
                hint="the metadata cannot be brought up to date without it: restore that object",
            )
        body = from_json(one.key, await bucket.read(one.key, Kind.CHANGE))
        metadata.apply(number + 1, body["changes"], body.get("epoch", 0))
        number += 1


async def _snapshot(bucket: Bucket, metadata: Metadata) -> None:
    """So that a restore need not read every change since the beginning."""
    bound, there = metadata.binding(), await _snapshots(bucket)
    assert bound is not None
    if there and bound[2] - there[-1] < SNAPSHOT_EACH:
        return
    copy = f"{metadata.path}.snapshot"
    metadata.snapshot_to(copy)
    try:
        with open(copy, "rb") as file:
            packed = zstandard.ZstdCompressor().compress(file.read())
    finally:
        os.unlink(copy)
    try:
        await bucket.create(snapshot_key(bound[2]), Kind.SNAPSHOT, packed)
    except Taken:
        raise ConfigError(
            "another broker has begun to use this bucket at the same moment", hint="start this one again"
        ) from None
    old = there[: -(SNAPSHOTS_KEPT - 1)]
    if old:
        superfluous = [one for one in await bucket.listed("meta/") if one.key <= change_key(old[-1])]
        fences = await fences_among(bucket, superfluous)
        await bucket.delete([*({one.key for one in superfluous} - fences), *map(snapshot_key, old)])


async def fences_among(bucket: Bucket, changes: list[Listed]) -> set[str]:
    """Return the keys of fences. They stay, so that no suspended broker creates a change under such a number."""
    reads = asyncio.Semaphore(READS_AT_A_TIME)

    async def is_fence(one: Listed) -> bool:
        if one.size > FENCE_BYTES_MAX:
            return False
        async with reads:
            try:
                return not from_json(one.key, await bucket.read(one.key, Kind.CHANGE)).get("changes", True)
            except (Damaged, Missing) as problem:
                log.error("a change of the metadata may be a fence, so it is not deleted: %s", problem)
                return True

    are = await asyncio.gather(*map(is_fence, changes))
    return {one.key for one, is_one in zip(changes, are, strict=True) if is_one}
