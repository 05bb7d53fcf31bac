# SPDX-License-Identifier: Apache-2.0
"""Test the properties of a store on which all confirms rest, at each start and for `vibemq remote check`.

A store that ignores `If-None-Match: *` overwrites the last write-ahead object with a seal, and confirmed messages are
lost without an error. So each start proves that property before it creates any other object: the same key twice, and
one key by several creators at once. Probe objects lie below `probe/`. Each start deletes its own, and those of killed
starts when they are an hour old.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from vibemq.errors import ConfigError, RemoteError, VibeMQError
from vibemq.remote.bucket import PART_BYTES, Bucket, Missing, Taken, Unsupported
from vibemq.remote.objects import PROBE_PREFIX, Kind

#: Creators of one key at a time.  A store that checks and then writes fails with two.
CREATORS = 8
ROUNDS_TO_CHECK = 20  # of `vibemq remote check`; a start makes one
#: A round in which the store refused every creator (S3 answers 409 then) proves nothing and is repeated.
ROUNDS_WITHOUT_WINNER_MAX = 5
#: Older probes are those of killed starts; a running start has deleted its own long before.
LEFT_OVER_S_MIN = 3600.0
#: S3 refuses requests of a clock that is 15 minutes wrong.
CLOCK_SKEW_S_MAX = 300.0
#: Two parts, the second one small.
MULTIPART_BYTES = PART_BYTES + 4096
ADVICE = (
    "no message can be confirmed safely there: use a store, or a version of it, that creates objects conditionally; "
    "`vibemq remote check URL` tests one"
)

log = logging.getLogger("vibemq.remote")


class Unfit(ConfigError):
    """The store lacks a property that VibeMQ needs."""


async def prove_create_only(bucket: Bucket) -> None:
    """Raise Unfit if the store overwrites an object or cannot create conditionally.  Raises RemoteError."""
    prefix = _new_prefix()
    keys: list[str] = []
    try:
        await _create_twice(bucket, prefix, keys)
        await _create_at_once(bucket, prefix, keys)
    finally:
        with contextlib.suppress(Unfit):
            await _delete(bucket, keys)


def _new_prefix() -> str:
    return f"{PROBE_PREFIX}{secrets.token_hex(8)}-"


async def _create_twice(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    """Create one object twice: the second creator must be refused."""
    key = f"{prefix}twice"
    keys.append(key)
    first = secrets.token_bytes(16)
    try:
        await bucket.create(key, Kind.PROBE, first)
    except Unsupported as problem:
        raise Unfit(f"the object store does not support conditional creation: {problem}", hint=ADVICE) from None
    try:
        await bucket.create(key, Kind.PROBE, secrets.token_bytes(16))
    except Taken:
        pass
    else:
        raise Unfit(
            f"the object store has overwritten an object ({key} in {bucket.url}) although the request allowed only a "
            "creation: it ignores If-None-Match",
            hint=ADVICE,
        )
    if bytes(await bucket.read(key, Kind.PROBE)) != first:
        raise Unfit(f"the object store has refused to overwrite {key} in {bucket.url} and replaced it", hint=ADVICE)
    return "the second creator was refused"


async def _create_at_once(bucket: Bucket, prefix: str, keys: list[str], rounds: int = 1) -> str:
    """Create one object by several requests at once: exactly one must succeed, and its object is read."""
    without_winner = 0
    for number in range(rounds + ROUNDS_WITHOUT_WINNER_MAX):
        if number >= rounds + without_winner:
            break
        key = f"{prefix}at-once-{number}"
        keys.append(key)
        bodies = [secrets.token_bytes(16) for _ in range(CREATORS)]
        results = await asyncio.gather(
            *(bucket.create(key, Kind.PROBE, body) for body in bodies), return_exceptions=True
        )
        strange = [one for one in results if isinstance(one, BaseException) and not isinstance(one, RemoteError)]
        if strange:
            raise strange[0]
        winners = [body for body, result in zip(bodies, results, strict=True) if result is None]
        if len(winners) > 1:
            raise Unfit(
                f"{len(winners)} of {CREATORS} creators of {key} in {bucket.url} succeeded at once: "
                "the object store checks and writes in two steps",
                hint=ADVICE,
            )
        if not winners:
            without_winner += 1
            continue
        if bytes(await bucket.read(key, Kind.PROBE)) != winners[0]:
            raise Unfit(f"{key} in {bucket.url} is not the object of its one creator", hint=ADVICE)
    if without_winner >= ROUNDS_WITHOUT_WINNER_MAX:
        raise next(one for one in results if isinstance(one, BaseException))
    return f"one of {CREATORS} creators succeeded, in {rounds} rounds"


async def _delete(bucket: Bucket, keys: list[str]) -> None:
    """Delete these probes, and old ones of killed starts.  A broker without the right to delete continues."""
    try:
        listed = await bucket.listed(PROBE_PREFIX)
        now_s = max((one.written_s for one in listed), default=0.0)  # by the store's clock
        old = [one.key for one in listed if now_s - one.written_s > LEFT_OVER_S_MIN]
        await bucket.delete([*keys, *old])
    except RemoteError as problem:
        log.error("probe objects below %s stay in the bucket: %s", PROBE_PREFIX, problem)


# ---- vibemq remote check ----


class Result(NamedTuple):
    check: str
    is_passed: bool
    detail: str


Check = Callable[[Bucket, str, list[str]], Awaitable[str]]


async def check_store(bucket: Bucket) -> list[Result]:
    """Test each property that VibeMQ needs of a store; a failure ends no other check."""
    prefix = _new_prefix()
    keys: list[str] = []
    results = []
    for name, check in CHECKS.items():
        try:
            results.append(Result(name, True, await check(bucket, prefix, keys)))
        except VibeMQError as problem:
            results.append(Result(name, False, str(problem)))
    await _delete(bucket, keys)
    return results


async def _at_once_often(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    return await _create_at_once(bucket, prefix, keys, ROUNDS_TO_CHECK)


async def _listed(bucket: Bucket) -> dict[str, float]:
    """Return all probe objects, with the store's time of writing."""
    return {one.key: one.written_s for one in await bucket.listed(PROBE_PREFIX)}


async def _put_new(bucket: Bucket, key: str, keys: list[str]) -> bytes:
    body = secrets.token_bytes(1000)
    keys.append(key)
    await bucket.create(key, Kind.PROBE, body)
    return body


async def _read_after_put(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    body = await _put_new(bucket, key := f"{prefix}read", keys)
    if bytes(await bucket.read(key, Kind.PROBE)) != body:
        raise Unfit(f"{key} has other bytes than were put")
    if bytes(await bucket.read_part(key, Kind.PROBE, 10, 20)) != body[10:20]:
        raise Unfit(f"bytes 10 to 19 of {key} are other bytes than were put")
    return "whole and in part"


async def _replace(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    await _put_new(bucket, key := f"{prefix}replace", keys)
    body = secrets.token_bytes(1000)
    await bucket.write(key, Kind.PROBE, [body])
    if bytes(await bucket.read(key, Kind.PROBE)) != body:
        raise Unfit(f"{key} is an older object than the one that was put last")
    return "the newer object is read"


async def _list_after_put(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    made = [f"{prefix}list-{number}" for number in range(3)]
    for key in made:
        await _put_new(bucket, key, keys)
        if key not in await _listed(bucket):
            raise Unfit(f"{key} was created and is not listed")
    behind = [one.key for one in await bucket.listed(PROBE_PREFIX, after=made[0]) if one.key.startswith(prefix)]
    if [key for key in behind if key in made] != made[1:]:
        raise Unfit(f"behind {made[0]} the listing has {', '.join(behind) or 'nothing'}")
    return "at once, and from a key on"


async def _multipart(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    keys.append(key := f"{prefix}multipart")
    body = secrets.token_bytes(4096) * (MULTIPART_BYTES // 4096)
    await bucket.write(key, Kind.PROBE, [body[:PART_BYTES], body[PART_BYTES:]])
    if bytes(await bucket.read(key, Kind.PROBE)) != body:
        raise Unfit(f"{key} has other bytes than were put in parts")
    return f"{MULTIPART_BYTES:,} bytes in parts"


async def _delete_checked(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    made = [f"{prefix}delete-{number}" for number in range(3)]
    for key in made:
        await _put_new(bucket, key, keys)
    await bucket.delete([*made[:2], f"{prefix}never-there"])
    listed = await _listed(bucket)
    if left := [key for key in made[:2] if key in listed]:
        raise Unfit(f"{left[0]} was deleted and is still listed")
    with contextlib.suppress(Missing):
        await bucket.read(made[0], Kind.PROBE)
        raise Unfit(f"{made[0]} was deleted and can still be read")
    await bucket.read(made[2], Kind.PROBE)
    return "several at once, and a missing one"


async def _clock(bucket: Bucket, prefix: str, keys: list[str]) -> str:
    """Compare the clock with the time that the store gives a new object: its client hides the header `Date`."""
    began_s = time.time()
    await _put_new(bucket, key := f"{prefix}clock", keys)
    ended_s = time.time()
    written_s = (await _listed(bucket)).get(key)
    if written_s is None:
        raise Unfit(f"{key} was created and is not listed")
    wrong_s = max(began_s - 1.0 - written_s, written_s - ended_s, 0.0)  # the store's times may be whole seconds
    ahead = "ahead of" if written_s < began_s else "behind"
    said = f"this machine's clock is {wrong_s:.0f} s {ahead} the store's" if wrong_s >= 1.0 else "within a second"
    if wrong_s > CLOCK_SKEW_S_MAX:
        raise Unfit(f"{said}; S3 refuses requests of a clock that is 15 minutes wrong")
    return said


CHECKS: dict[str, Check] = {
    "create only once": _create_twice,
    "create by one of several": _at_once_often,
    "read after put": _read_after_put,
    "replace": _replace,
    "list after put": _list_after_put,
    "put in parts": _multipart,
    "delete": _delete_checked,
    "clock": _clock,
}
