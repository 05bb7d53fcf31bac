# SPDX-License-Identifier: Apache-2.0
"""Limits of the whole broker: connections over all workers, and streams of a virtual host."""

import contextlib
from types import SimpleNamespace

import pytest
from peers.streams import Peer, connected, kill
from running import broker, wait_until

from vibemq.protocols.streams import codec, replies, spec, streams
from vibemq.protocols.streams.spec import Code, Key

CONNECTIONS_MAX = 6


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    settings = {
        "streams.connections_max": CONNECTIONS_MAX,
        "streams.login_failure_delay_s": 2,
        "store.streams_per_virtual_host_max": 3,
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with broker(tmp_path_factory.mktemp("limited") / "data", *flags) as running:
        yield running


def opened(running):
    """A connection, or None when its Open was refused as one too many."""
    peer = Peer(running)
    peer.log_in()
    peer.send(
        codec.encode_request(Key.TUNE, frame_max=0, heartbeat=0), codec.encode_request(Key.OPEN, 4, virtual_host="/")
    )
    frame = peer.next_frame()
    if frame.decoded().code == Code.OK:
        return peer
    assert (frame.key, frame.body) == (0x8015, bytes.fromhex("00000004 000c"))
    assert peer.rest() == b""
    peer.socket.close()
    return None


def soon(running):
    """A connection as soon as the broker has noticed that others ended."""
    found = []

    def noticed():
        found.append(opened(running))
        return found[-1] is not None

    wait_until(noticed, "room for a connection")
    return found[-1]


def test_one_connection_too_many_is_12_whichever_worker_it_meets_and_room_is_found_again(limited):
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(limited)) for _ in range(CONNECTIONS_MAX)]
        assert [opened(limited) for _ in range(2)] == [None] * 2
        peers[0].code(Key.CLOSE, code=1, reason="done")
        assert peers[0].rest() == b""
        peers.append(stack.enter_context(soon(limited)))
        assert opened(limited) is None
        before = set(limited.worker_pids())
        for pid in before:
            kill(pid)
        for peer in peers[1:]:
            assert peer.rest() == b""
        wait_until(lambda: len(set(limited.worker_pids()) - before) == len(before), "new workers")
        for _ in range(CONNECTIONS_MAX):
            stack.enter_context(soon(limited))
        assert opened(limited) is None


def test_a_virtual_host_has_so_many_streams_and_a_super_stream_is_made_whole_or_not_at_all(limited):
    with soon(limited) as peer:
        peer.create("a")
        parts = {"partitions": ["p0", "p1", "p2"], "binding_keys": ["0", "1", "2"], "arguments": {}}
        assert peer.code(Key.CREATE_SUPER_STREAM, name="super", **parts) == Code.PRECONDITION_FAILED
        peer.create("b")
        peer.create("c")
        assert peer.code(Key.CREATE, stream="d", arguments={}) == Code.PRECONDITION_FAILED
        assert peer.code(Key.CREATE, stream="c", arguments={}) == Code.STREAM_ALREADY_EXISTS
        assert peer.code(Key.DELETE, stream="a") == Code.OK
        peer.create("d")


def test_metadata_of_very_many_streams_is_answered_up_to_a_limit(peer):
    names = [f"{at}" for at in range(spec.METADATA_STREAMS_COUNT_MAX)]
    assert [found.stream for found in peer.ask(Key.METADATA, streams=names).streams] == names
    peer.send(peer.command(Key.METADATA, streams=[*names, "more"]))
    assert peer.expect(Key.CLOSE).code == Code.UNKNOWN_FRAME


def test_what_stops_a_long_metadata_is_what_ends_the_connection():
    """Its answer has no place for a code.  The session is played here."""
    problem, ended = OSError("no"), []

    def submit(work, done):
        with pytest.raises(OSError) as raised:
            work()
        done(None, raised.value)

    def find_stream(virtual_host, name):
        raise problem

    nothing, yes = lambda: None, lambda name: True
    session = SimpleNamespace(
        state="open",
        virtual_host="/",
        rights=SimpleNamespace(read=yes, write=yes),
        door=SimpleNamespace(
            table=SimpleNamespace(metadata=SimpleNamespace(find_stream=find_stream)),
            helpers=SimpleNamespace(submit=submit),
        ),
        set_busy=nothing,
        set_idle=nothing,
        read_on=nothing,
        command_failed=ended.append,
    )
    request = codec.Metadata(1, [f"{at}" for at in range(streams.LOOKUPS_IN_LOOP_MAX + 1)])
    replies.obey(session, Key.METADATA, request, streams.metadata)
    assert ended == [problem]


def test_a_command_too_long_to_be_decoded_in_one_go_ends_the_connection(peer):
    peer.send(peer.command(Key.METADATA, streams=[""] * (spec.COMMAND_SIZE_MAX_BYTES // 2)))
    assert peer.expect(Key.CLOSE).code == Code.UNKNOWN_FRAME
