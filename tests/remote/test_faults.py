# SPDX-License-Identifier: Apache-2.0
"""The bucket over S3 that is slow, refuses, loses answers or hands out what nobody wrote."""

import asyncio
import errno
import os
import time

import pytest

from vibemq.config import Remote
from vibemq.errors import RemoteError
from vibemq.remote import bucket as module
from vibemq.remote.bucket import PART_BYTES, Bucket, Missing, Taken
from vibemq.remote.objects import Kind, change_key, offsets_section
from vibemq.remote.write_ahead import WriteAhead

pytest.importorskip("obstore", reason="needs the extra remote")

KEY = change_key(1)
SEGMENT = "streams/00ff00ff00ff00ff/a.segment"


@pytest.fixture(params=["plain", "encrypted"])
def keys(request, tmp_path):
    """A file of encryption keys, or none."""
    if request.param == "plain":
        return ""
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("1 " + "11" * 32)
    return str(path)


def requests(bucket):
    """One of each kind."""
    return [
        lambda: bucket.create(KEY, Kind.CHANGE, b"mine"),
        lambda: bucket.read(KEY, Kind.CHANGE),
        lambda: bucket.listed("meta/"),
        lambda: bucket.delete([change_key(number) for number in range(100)]),
        lambda: bucket.write(SEGMENT, Kind.SEGMENT, [b"mine"]),
    ]


def test_of_twenty_creators_one_wins(s3, keys):
    async def race():
        buckets = [Bucket(s3.remote(encryption_keys=keys)) for _ in range(20)]
        bodies = [b"creator %02d" % number for number in range(20)]
        results = await asyncio.gather(
            *(bucket.create(KEY, Kind.CHANGE, body) for bucket, body in zip(buckets, bodies, strict=True)),
            return_exceptions=True,
        )
        won = [body for body, result in zip(bodies, results, strict=True) if result is None]
        assert [type(result) for result in results if result is not None] == [Taken] * 19
        assert bytes(await buckets[0].read(KEY, Kind.CHANGE)) == won[0] and len(won) == 1

    asyncio.run(race())


def test_one_answer_that_is_lost_is_not_noticed(faulty, keys):
    async def create():
        bucket = Bucket(faulty.remote(encryption_keys=keys))
        lost = faulty.cut_after("PUT", times=1)
        await bucket.create(KEY, Kind.CHANGE, b"mine")
        assert lost.met == 1 and faulty.requests["PUT"] == 2
        assert bytes(await bucket.read(KEY, Kind.CHANGE)) == b"mine"

    asyncio.run(create())


def test_who_heard_nothing_for_long_finds_that_it_created_the_object(faulty, keys):
    async def create():
        bucket = Bucket(faulty.remote(encryption_keys=keys))
        faulty.cut_after("PUT")
        with pytest.raises(RemoteError, match=KEY) as lost:
            await bucket.create(KEY, Kind.CHANGE, b"mine")
        assert not isinstance(lost.value, Taken) and bucket.counts.trouble_since_s is not None
        faulty.up()
        await bucket.create(KEY, Kind.CHANGE, b"mine")
        assert bucket.counts.trouble_since_s is None
        with pytest.raises(Taken):
            await bucket.create(KEY, Kind.CHANGE, b"hers")

    asyncio.run(create())


def test_a_lost_answer_to_a_creation_that_came_second_is_taken(faulty, keys):
    async def create():
        bucket = Bucket(faulty.remote(encryption_keys=keys))
        await bucket.create(KEY, Kind.CHANGE, b"hers")
        faulty.cut_after("PUT", times=1)
        with pytest.raises(Taken):
            await bucket.create(KEY, Kind.CHANGE, b"mine")
        assert bytes(await bucket.read(KEY, Kind.CHANGE)) == b"hers"

    asyncio.run(create())


def test_a_sequence_whose_answers_are_lost_goes_on(faulty, keys):
    async def send():
        config = faulty.remote(encryption_keys=keys)
        ahead, told = WriteAhead(Bucket(config), config, 1), []
        faulty.cut_after("PUT", times=7)  # more than one creation tries
        for number in range(5):
            made = await ahead.begin()
            made.put(offsets_section("00ff00ff00ff00ff", {b"reader": number}))
            made.marks.append(lambda number=number: told.append(number))
            ahead.send(made)
        await ahead.close(60)
        assert not ahead.failure.done() and told == [0, 1, 2, 3, 4] and len(faulty.keys()) == 5

    asyncio.run(send())


def test_a_store_that_lets_nobody_create_it_for_a_moment_is_asked_again(faulty):
    async def create():
        bucket = Bucket(faulty.remote())
        faulty.answer(409, "PUT")
        with pytest.raises(RemoteError, match=KEY) as conflict:
            await bucket.create(KEY, Kind.CHANGE, b"mine")
        assert not isinstance(conflict.value, Taken | Missing)
        faulty.up()
        await bucket.create(KEY, Kind.CHANGE, b"mine")

    asyncio.run(create())


@pytest.mark.parametrize("status", [500, 503])
def test_a_store_that_refuses_for_a_while_is_asked_again(faulty, status):
    async def create():
        bucket = Bucket(faulty.remote())
        rule = faulty.answer(status, times=2)
        await bucket.create(KEY, Kind.CHANGE, b"mine")  # tried again within
        assert rule.met == 2 and bucket.counts.errors == 0
        faulty.answer(status)
        with pytest.raises(RemoteError, match=str(status)):
            await bucket.read(KEY, Kind.CHANGE)
        assert bucket.counts.errors == 1 and str(status) in bucket.counts.last_error
        faulty.up()
        assert bytes(await bucket.read(KEY, Kind.CHANGE)) == b"mine"

    asyncio.run(create())


def test_a_store_that_denies_says_where_to_look(faulty):
    async def denied():
        bucket = Bucket(faulty.remote())
        faulty.overwrite(KEY, b"")
        faulty.answer(403)
        for ask in requests(bucket):
            with pytest.raises(RemoteError, match="AccessDenied") as problem:
                await ask()
            assert "credentials" in (problem.value.hint or ""), problem.value

    asyncio.run(denied())


def test_a_bucket_that_is_not_there_is_neither_empty_nor_without_the_object(s3):
    async def ask():
        bucket = Bucket(Remote(url="s3://nobodys-bucket/x", options=s3.remote().options))
        for request in requests(bucket):
            with pytest.raises(RemoteError, match="NoSuchBucket") as problem:
                await request()
            assert "create the bucket" in (problem.value.hint or "") and not isinstance(problem.value, Missing)

    asyncio.run(ask())


def test_an_answer_that_is_cut_is_never_taken_for_an_object(faulty, keys):
    body = os.urandom(200_000)

    async def read():
        bucket = Bucket(faulty.remote(encryption_keys=keys))
        await bucket.create(SEGMENT, Kind.SEGMENT, body)
        for size in (0, 1, 100_000, len(body) - 1, len(body) + 1):
            for times in (1, None):
                rule = faulty.truncate(size, times=times)
                for read in (bucket.read(SEGMENT, Kind.SEGMENT), bucket.read_part(SEGMENT, Kind.SEGMENT, 0, len(body))):
                    try:
                        assert bytes(await read) == body
                    except RemoteError as problem:
                        assert SEGMENT in str(problem)
                rule.remove()
        assert bytes(await bucket.read(SEGMENT, Kind.SEGMENT)) == body

    asyncio.run(read())


def test_an_object_that_was_damaged_is_named_and_not_returned(s3, keys):
    async def read():
        bucket = Bucket(s3.remote(encryption_keys=keys))
        await bucket.create(KEY, Kind.CHANGE, b"what was promised")
        whole = s3.read(KEY)
        for damage in (b"", whole[:-1], whole + b"\0", b"x" + whole[1:], whole[:-1] + b"x", b"<html>"):
            s3.overwrite(KEY, damage)
            with pytest.raises(RemoteError, match=KEY):
                await bucket.read(KEY, Kind.CHANGE)
        s3.overwrite(change_key(2), whole)
        with pytest.raises(RemoteError, match=change_key(2)):
            await bucket.read(change_key(2), Kind.CHANGE)
        s3.delete(KEY)
        with pytest.raises(Missing, match=KEY):
            await bucket.read(KEY, Kind.CHANGE)

    asyncio.run(read())


def test_a_store_that_is_silent_is_given_up_after_a_time(faulty):
    async def ask():
        bucket = Bucket(faulty.remote(options="timeout=300ms"))
        faulty.hang()
        for request in requests(bucket):
            began = time.monotonic()
            with pytest.raises(RemoteError):
                await request()
            assert time.monotonic() - began < 20
        faulty.up()
        bucket = Bucket(faulty.remote())
        await bucket.create(KEY, Kind.CHANGE, b"mine")

    asyncio.run(ask())


def test_a_client_that_does_not_keep_its_time_is_given_up_as_well(faulty, monkeypatch):
    async def ask():
        bucket = Bucket(faulty.remote())
        monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.1)
        faulty.hang()
        with pytest.raises(RemoteError, match=KEY):
            await bucket.read(KEY, Kind.CHANGE)
        assert bucket.counts.errors == 1 and bucket.counts.trouble_since_s is not None

    asyncio.run(ask())


def test_a_list_of_more_than_a_page_is_whole(s3):
    names = [change_key(number) for number in range(1, 1012)]

    async def list_all():
        bucket = Bucket(s3.remote())
        gate = asyncio.Semaphore(16)

        async def create(name):
            async with gate:
                await bucket.create(name, Kind.CHANGE, b"")

        await asyncio.gather(*map(create, names))
        assert [one.key for one in await bucket.listed("meta/")] == names
        assert [one.key for one in await bucket.listed("meta/", after=names[500])] == names[501:]
        await bucket.delete([*names, "meta/none"])
        assert await bucket.listed("") == []

    asyncio.run(list_all())


def test_who_deletes_what_is_partly_gone_deletes_the_rest(s3, tmp_path):
    names = [change_key(number) for number in range(50)]

    async def delete(remote):
        bucket = Bucket(remote)
        for name in names[1::2]:
            await bucket.create(name, Kind.CHANGE, b"")
        await bucket.delete(names)
        assert await bucket.listed("") == []

    asyncio.run(delete(s3.remote()))
    asyncio.run(delete(Remote(url=f"file://{tmp_path}/bucket")))


def test_what_is_written_in_parts_is_read_in_parts(faulty, keys):
    body = os.urandom(40 << 20)
    piece = 4 << 20
    places = [(0, 1), (PART_BYTES - 1, PART_BYTES + 1), (2 * PART_BYTES - 5, len(body)), (len(body) - 1, len(body) + 9)]

    async def write():
        bucket = Bucket(faulty.remote(encryption_keys=keys))
        faulty.answer(503, "PUT", "partNumber=2", times=1)
        await bucket.write(SEGMENT, Kind.SEGMENT, [body[at : at + piece] for at in range(0, len(body), piece)])
        assert faulty.requests["PUT"] == 4 and faulty.sent_bytes >= len(body)
        assert bytes(await bucket.read(SEGMENT, Kind.SEGMENT)) == body
        for start, end in places:
            assert bytes(await bucket.read_part(SEGMENT, Kind.SEGMENT, start, end)) == body[start:end]
        await bucket.write(SEGMENT, Kind.SEGMENT, [body])
        assert bytes(await bucket.read_part(SEGMENT, Kind.SEGMENT, 1, 9)) == body[1:9]

    asyncio.run(write())


@pytest.mark.parametrize("problem", [FileNotFoundError("of this machine"), OSError(errno.EIO, "of this machine")])
def test_a_file_that_cannot_be_read_here_is_no_matter_of_the_store(s3, problem):
    def pieces():
        yield bytes(20 << 20)
        raise problem

    async def write():
        bucket = Bucket(s3.remote())
        with pytest.raises(type(problem), match="of this machine"):
            await bucket.write(SEGMENT, Kind.SEGMENT, pieces())
        assert s3.keys() == []

    asyncio.run(write())


def test_a_write_in_parts_that_fails_leaves_no_object_and_no_parts_to_pay_for(faulty):
    body = os.urandom(20 << 20)

    async def write():
        bucket = Bucket(faulty.remote())
        faulty.answer(403, "PUT", "partNumber=2")
        with pytest.raises(RemoteError, match=SEGMENT):
            await bucket.write(SEGMENT, Kind.SEGMENT, [body])
        assert faulty.keys() == [] and faulty.requests["DELETE"] == 1
        faulty.up()
        await bucket.write(SEGMENT, Kind.SEGMENT, [body])
        assert bytes(await bucket.read(SEGMENT, Kind.SEGMENT)) == body

    asyncio.run(write())
