# SPDX-License-Identifier: Apache-2.0
"""Virtual hosts and rights: what each command needs, what is answered without it, and what goes when a right goes."""

import os
import signal
import time
from contextlib import closing

import pytest
from peers.streams import Peer, connected, managed, publish_frame, server_of
from running import broker, wait_until

from vibemq.access.users import add_user, change_password
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, ExtensionKey, Key, OffsetType
from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata

PASSWORD = "correct horse"
DELAY_S_MIN = 2.0
#: Users with one right each on streams of their own, and all rights on what is called free.
ONE_RIGHT = ("configure", "write", "read")
TUNE = codec.encode_request(Key.TUNE, frame_max=0, heartbeat=0)
SUPER = {"partitions": ["p-0", "p-1"], "binding_keys": ["0", "1"], "arguments": {}}


def login(user, password=PASSWORD):
    return f"\0{user}\0{password}".encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rights") / "data"


@pytest.fixture(scope="module")
def ruled(folder):
    with broker(folder, "--set", "streams.login_failure_delay_s=2") as running:
        yield running


@pytest.fixture(scope="module")
def metadata(ruled, folder):
    with closing(Metadata(metadata_path(str(folder)))) as metadata:
        for user in (*ONE_RIGHT, "all", "none", "partly"):
            add_user(metadata, user, PASSWORD, is_superuser=False)
        for user in ONE_RIGHT:
            rights = {right: "^s" if right == user else "^free" for right in ONE_RIGHT}
            metadata.set_permissions("/", user, **rights)
        metadata.set_permissions("/", "all", ".*", ".*", ".*")
        yield metadata


@pytest.fixture
def user(ruled, metadata):
    """Opens connections of a user."""
    peers = []

    def opened(name, virtual_host="/", **options):
        peers.append(connected(ruled, data=login(name), virtual_host=virtual_host, **options))
        return peers[-1]

    yield opened
    for peer in peers:
        peer.socket.close()


@pytest.fixture(scope="module")
def made(ruled, metadata):
    """A stream and a super stream that the users of one right may see a part of."""
    with connected(ruled) as peer:
        peer.create("s")
        peer.create("free")
        parts = {"partitions": ["s-super-0"], "binding_keys": ["0"], "arguments": {}}
        assert peer.code(Key.CREATE_SUPER_STREAM, name="s-super", **parts) == Code.OK


# ---- virtual hosts ----


@pytest.mark.parametrize(("who", "where"), [("none", "/"), ("all", "nowhere"), ("all", "closed"), ("all", "")])
def test_a_virtual_host_that_is_not_there_or_closed_is_12_late_and_without_a_map(ruled, metadata, who, where):
    metadata.add_vhost("closed")
    with Peer(ruled) as raw:
        raw.log_in(login(who))
        began = time.monotonic()
        raw.send(TUNE, codec.encode_request(Key.OPEN, 4, virtual_host=where))
        assert raw.rest() == bytes.fromhex("0000000a8015000100000004000c")
        assert time.monotonic() - began >= DELAY_S_MIN


def test_a_virtual_host_can_be_used_at_once_and_has_names_of_its_own(user, metadata):
    here = user("all")
    here.create("twice")
    metadata.add_vhost("other/ż")
    metadata.set_permissions("other/ż", "all", ".*", ".*", ".*")
    there = user("all", "other/ż")
    assert there.ask(Key.METADATA, streams=["twice"]).streams[0].code == Code.STREAM_DOES_NOT_EXIST
    there.create("twice")
    there.store("twice", [b"there"])
    here.store("twice", [b"here"])
    there.subscribe("twice")
    here.subscribe("twice")
    assert there.chunk().data[4:] == b"there"
    assert here.chunk().data[4:] == b"here"
    assert there.code(Key.DELETE, stream="twice") == Code.OK
    there.expect(Key.METADATA_UPDATE)
    assert here.ask(Key.METADATA, streams=["twice"]).streams[0].code == Code.OK


# ---- what each command needs ----


def test_a_listing_has_what_its_user_may_read_or_write(user, made):
    def listed(name):
        answer = user(name).ask(ExtensionKey.LIST_STREAMS, first="", count=256)
        return {(each.name, each.is_queue) for each in answer.streams} & {("s", 0), ("free", 0), ("s-super-0", 0)}

    assert listed("all") == {("s", 0), ("free", 0), ("s-super-0", 0)}
    assert listed("read") == listed("write") == listed("all")
    assert listed("configure") == {("free", 0)}
    reader, writer = user("read"), user("write")
    assert reader.code(ExtensionKey.LIST_OFFSETS, stream="s") == Code.OK
    assert writer.code(ExtensionKey.LIST_OFFSETS, stream="s") == Code.ACCESS_REFUSED
    some = {"start": 0, "end": 1, "match_unfiltered": 0, "values": ["eu"]}
    assert reader.code(ExtensionKey.FILTER_RANGE, stream="s", **some) == Code.OK
    assert writer.code(ExtensionKey.FILTER_RANGE, stream="s", **some) == Code.ACCESS_REFUSED
    range_ = ("s", -1, -1, -1, 0, 0, 0)
    assert reader.ask(ExtensionKey.PLAN_READS, ranges=[range_]).streams[0].code == Code.OK
    assert writer.ask(ExtensionKey.PLAN_READS, ranges=[range_]).streams[0].code == Code.ACCESS_REFUSED
    assert reader.code(ExtensionKey.LIST_OFFSETS, stream="s-nothing") == Code.STREAM_DOES_NOT_EXIST


SUBSCRIBE = {"subscription_id": 9, "stream": "s", "offset_type": OffsetType.NEXT, "credit": 1, "properties": {}}
RESOLVE = {"stream": "s", "offset_type": OffsetType.NEXT, "properties": {}}
DECLARE = {"publisher_id": 9, "reference": "", "stream": "s"}
#: Command -> its fields, the rights of which each alone is enough, and what follows the code when it is refused.
NEEDS = {
    Key.CREATE: ({"stream": "s", "arguments": {}}, ("configure",), ""),
    Key.DELETE: ({"stream": "s-none"}, ("configure",), ""),
    Key.DECLARE_PUBLISHER: (DECLARE, ("write",), ""),
    Key.QUERY_PUBLISHER_SEQUENCE: ({"reference": "r", "stream": "s"}, ("read",), "0000000000000000"),
    Key.SUBSCRIBE: (SUBSCRIBE, ("read",), ""),
    Key.QUERY_OFFSET: ({"reference": "r", "stream": "s"}, ("read",), "0000000000000000"),
    Key.STREAM_STATS: ({"stream": "s"}, ("read",), "00000000"),
    Key.RESOLVE_OFFSET_SPEC: (RESOLVE, ("read",), "0004 0000000000000000"),
    Key.ROUTE: ({"routing_key": "0", "super_stream": "s-super"}, ("write",), "00000000"),
    Key.PARTITIONS: ({"super_stream": "s-super"}, ("read", "write"), "00000000"),
}


@pytest.mark.parametrize("who", ONE_RIGHT)
@pytest.mark.parametrize("key", NEEDS, ids=lambda key: key.name)
def test_a_command_without_its_right_is_16_and_the_rest_of_the_answer_is_as_for_any_error(user, made, key, who):
    fields, enough, rest = NEEDS[key]
    peer = user(who)
    peer.correlation_id = 6
    peer.send(peer.command(key, **fields))
    frame = peer.next_frame()
    refused = bytes.fromhex("00000007 0010") + bytes.fromhex(rest)
    assert frame.key == key | 0x8000
    assert (frame.body == refused) is (who not in enough), f"{who} was answered {frame.body.hex()}"


@pytest.mark.parametrize("who", ONE_RIGHT)
def test_metadata_says_16_only_of_what_can_neither_be_read_nor_written(user, made, who):
    streams = user(who).ask(Key.METADATA, streams=["s", "s-none", "free", "hidden"]).streams
    codes = {row.stream: row.code for row in streams}
    seen = who != "configure"
    assert codes == {
        "s": Code.OK if seen else Code.ACCESS_REFUSED,
        "s-none": Code.STREAM_DOES_NOT_EXIST if seen else Code.ACCESS_REFUSED,
        "free": Code.OK,
        "hidden": Code.ACCESS_REFUSED,
    }
    assert {row.leader_ref for row in streams if row.code != Code.OK} == {0xFFFF}


def test_metadata_of_very_many_streams_says_the_same(user, made):
    names = [f"hidden-{at}" for at in range(200)] + ["s"]
    rows = user("read").ask(Key.METADATA, streams=names).streams
    assert [row.code for row in rows] == [Code.ACCESS_REFUSED] * 200 + [Code.OK]


def test_a_super_stream_needs_configure_and_read_and_its_partitions_configure_and_write(user, metadata):
    needed = {"configure": "^(x|p-[01])$", "write": "^p-[01]$", "read": "^x$"}
    lacking = {
        "the exchange": {"configure": "^p-[01]$"},
        "to read the exchange": {"read": "^p-[01]$"},
        "a partition": {"configure": "^(x|p-0)$"},
        "to write a partition": {"write": "^p-0$"},
    }
    for what, rights in lacking.items():
        metadata.set_permissions("/", "partly", **{**needed, **rights})
        assert user("partly").code(Key.CREATE_SUPER_STREAM, name="x", **SUPER) == Code.ACCESS_REFUSED, what
    metadata.set_permissions("/", "partly", **needed)
    peer = user("partly")
    assert peer.code(Key.CREATE_SUPER_STREAM, name="x", **SUPER) == Code.OK
    for what, rights in lacking.items():
        metadata.set_permissions("/", "partly", **{**needed, **rights})
        assert user("partly").code(Key.DELETE_SUPER_STREAM, name="x") == Code.ACCESS_REFUSED, what
    metadata.set_permissions("/", "partly", **needed)
    peer = user("partly")
    assert tuple(peer.ask(Key.PARTITIONS, super_stream="x")[1:]) == (Code.OK, ["p-0", "p-1"])
    assert tuple(peer.ask(Key.ROUTE, routing_key="0", super_stream="x")[1:]) == (Code.ACCESS_REFUSED, [])
    assert peer.code(Key.DELETE_SUPER_STREAM, name="x") == Code.OK
    assert peer.code(Key.DELETE_SUPER_STREAM, name="x") == Code.STREAM_DOES_NOT_EXIST


def test_a_route_needs_every_stream_that_it_leads_to_and_partitions_each(user, metadata, ruled):
    with connected(ruled) as owner:
        parts = {"partitions": ["y-a", "y-b"], "binding_keys": ["k", "k"], "arguments": {}}
        assert owner.code(Key.CREATE_SUPER_STREAM, name="y", **parts) == Code.OK
    metadata.set_permissions("/", "partly", "", "^(y|y-a)$", "")
    peer = user("partly")
    assert tuple(peer.ask(Key.ROUTE, routing_key="k", super_stream="y")[1:]) == (Code.ACCESS_REFUSED, [])
    assert tuple(peer.ask(Key.PARTITIONS, super_stream="y")[1:]) == (Code.ACCESS_REFUSED, [])
    metadata.set_permissions("/", "partly", "", "^(y|y-a)$", "^y-b$")
    assert tuple(user("partly").ask(Key.PARTITIONS, super_stream="y")[1:]) == (Code.OK, ["y-a", "y-b"])


def test_an_offset_is_not_stored_without_the_right_to_read_and_nobody_is_told(user, made):
    writer, reader = user("write"), user("read")
    for peer, offset in ((reader, 5), (writer, 6)):
        peer.send(codec.encode_request(Key.STORE_OFFSET, reference="app", stream="s", offset=offset))
        peer.ask(Key.METADATA, streams=[])
    assert reader.ask(Key.QUERY_OFFSET, reference="app", stream="s").offset == 5


# ---- the order of checks ----


def test_the_right_comes_before_whether_the_stream_exists_and_after_a_name_that_cannot_be(user, made):
    peer = user("read")
    assert peer.code(Key.CREATE, stream="amq.x", arguments={}) == Code.PRECONDITION_FAILED
    assert peer.code(Key.CREATE, stream="x", arguments={"max-age": "soon"}) == Code.ACCESS_REFUSED
    assert peer.code(Key.DELETE, stream="x") == Code.ACCESS_REFUSED
    assert peer.ask(Key.STREAM_STATS, stream="x").code == Code.ACCESS_REFUSED
    assert peer.ask(Key.STREAM_STATS, stream="s-none").code == Code.STREAM_DOES_NOT_EXIST
    names = {"partitions": ["amq.x"], "binding_keys": ["0"], "arguments": {}}
    assert peer.code(Key.CREATE_SUPER_STREAM, name="x", **names) == Code.PRECONDITION_FAILED
    few = {"partitions": ["x-0"], "binding_keys": [], "arguments": {}}
    assert peer.code(Key.CREATE_SUPER_STREAM, name="x", **few) == Code.ACCESS_REFUSED


def test_a_reference_that_is_too_long_is_17_for_who_may_write_and_16_for_who_may_not(user, made):
    fields = {"publisher_id": 0, "reference": "r" * 256, "stream": "s"}
    assert user("write").code(Key.DECLARE_PUBLISHER, **fields) == Code.PRECONDITION_FAILED
    assert user("read").code(Key.DECLARE_PUBLISHER, **fields) == Code.ACCESS_REFUSED
    fields = {**SUBSCRIBE, "properties": {"name": "n" * 256}}
    assert user("read").code(Key.SUBSCRIBE, **fields) == Code.PRECONDITION_FAILED
    assert user("write").code(Key.SUBSCRIBE, **fields) == Code.ACCESS_REFUSED


def test_a_publisher_id_in_use_is_17_before_a_stream_that_does_not_exist(user, made):
    peer = user("write")
    peer.declare("s", 0, "r")
    declare = {"publisher_id": 0, "reference": "", "stream": "s-none"}
    assert peer.code(Key.DECLARE_PUBLISHER, **declare) == Code.PRECONDITION_FAILED
    assert peer.code(Key.DECLARE_PUBLISHER, **{**declare, "publisher_id": 1}) == Code.STREAM_DOES_NOT_EXIST
    again = {"publisher_id": 1, "reference": "r", "stream": "s"}
    assert peer.code(Key.DECLARE_PUBLISHER, **again) == Code.PRECONDITION_FAILED


# ---- rights that go ----


def test_what_was_declared_goes_with_its_right_and_each_stream_is_named_once(user, metadata):
    metadata.set_permissions("/", "partly", ".*", ".*", ".*")
    peer = user("partly")
    for stream in ("w", "r", "kept"):
        peer.create("gone-" + stream)
    peer.declare("gone-w", 0)
    peer.declare("gone-w", 1, "reference")
    peer.subscribe("gone-r", 0)
    peer.subscribe("gone-kept", 1)
    peer.declare("gone-kept", 2)
    metadata.set_permissions("/", "partly", "", "kept", "kept")
    updates = [peer.expect(Key.METADATA_UPDATE) for _ in range(2)]
    assert {(update.code, update.stream) for update in updates} == {(6, "gone-w"), (6, "gone-r")}
    peer.send(publish_frame([(1, b"no more")], 1))
    error = peer.expect(Key.PUBLISH_ERROR)
    assert [tuple(row) for row in error.errors] == [(1, Code.PUBLISHER_DOES_NOT_EXIST)]
    assert peer.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.SUBSCRIPTION_ID_DOES_NOT_EXIST
    peer.publish([(1, b"still")], 2)
    assert peer.confirmed(1, 2) == [1]
    assert peer.chunk(1).data[4:] == b"still"
    assert peer.code(Key.CREATE, stream="gone-new", arguments={}) == Code.ACCESS_REFUSED


@pytest.mark.parametrize("what", ["permission", "user", "virtual host"])
def test_who_has_lost_the_virtual_host_is_disconnected(user, metadata, what):
    metadata.add_vhost("losing")
    add_user(metadata, "loser", PASSWORD, is_superuser=False)
    metadata.set_permissions("losing", "loser", ".*", ".*", ".*")
    peer = user("loser", "losing")
    if what == "permission":
        metadata.clear_permissions("losing", "loser")
    elif what == "virtual host":
        metadata.delete_vhost("losing")
    metadata.delete_user("loser")
    assert peer.rest() == b""


# ---- a new secret ----


def renew(peer, data, mechanism="PLAIN"):
    peer.correlation_id = 6
    began = time.monotonic()
    peer.send(peer.command(Key.SASL_AUTHENTICATE, mechanism=mechanism, data=data))
    return began


def answer(code):
    return bytes.fromhex("0000000a 8013 0001 00000007") + code.to_bytes(2, "big")


def test_a_new_secret_is_taken_and_no_tune_follows(user, metadata, made):
    add_user(metadata, "renewing", PASSWORD, is_superuser=False)
    metadata.set_permissions("/", "renewing", ".*", ".*", ".*")
    peer = user("renewing")
    peer.declare("s", 0)
    change_password(metadata, "renewing", PASSWORD + "!")
    renew(peer, login("renewing", PASSWORD + "!"))
    frame = peer.next_frame()
    assert (frame.key, frame.body) == (0x8013, bytes.fromhex("00000007 0001"))
    peer.ask(Key.METADATA, streams=[])
    peer.publish([(1, b"goes on")])
    assert peer.confirmed(1) == [1]


@pytest.mark.parametrize(
    ("data", "mechanism", "code"),
    [
        (login("all", "wrong password"), "PLAIN", Code.AUTHENTICATION_FAILURE),
        (login("read"), "PLAIN", Code.SASL_CANNOT_CHANGE_USERNAME),
        (b"", "ANONYMOUS", Code.SASL_CANNOT_CHANGE_MECHANISM),
        (login("all"), "NONE", Code.SASL_CANNOT_CHANGE_MECHANISM),
    ],
)
def test_a_secret_that_is_not_taken_is_answered_late_and_ends_the_connection(user, made, data, mechanism, code):
    peer = user("all")
    peer.declare("s", 0)
    began = renew(peer, data, mechanism)
    peer.publish([(1, b"is not looked at")])
    assert peer.rest() == answer(code)
    assert time.monotonic() - began >= DELAY_S_MIN


def test_a_malformed_secret_ends_the_connection_at_once(user, made):
    peer = user("all")
    renew(peer, b"secret")
    assert peer.rest() == answer(Code.SASL_ERROR)


@pytest.mark.parametrize("mechanism", ["PLAIN", "ANONYMOUS"])
def test_a_new_secret_for_a_virtual_host_that_was_closed_meanwhile_is_answered(ruled, user, metadata, mechanism):
    """Both are there when the worker looks; where it sees the closed virtual host alone, it disconnects."""
    metadata.add_vhost("renewed")
    metadata.set_permissions("renewed", "all", ".*", ".*", ".*")
    peer = user("all", "renewed")
    pid = server_of(peer, set(ruled.worker_pids()))
    os.kill(pid, signal.SIGSTOP)
    try:
        metadata.clear_permissions("renewed", "all")
        renew(peer, login("all"), mechanism)
    finally:
        os.kill(pid, signal.SIGCONT)
    is_same = mechanism == "PLAIN"
    assert peer.rest() == answer(Code.VIRTUAL_HOST_ACCESS_FAILURE if is_same else Code.SASL_CANNOT_CHANGE_MECHANISM)


@pytest.mark.parametrize("what", ["renews", "publishes", "asks"])
def test_who_has_lost_the_virtual_host_and_is_known_to_hears_why_when_it_renews_its_secret(ruled, user, metadata, what):
    vhost = f"known-{what}"
    metadata.add_vhost(vhost)
    metadata.set_permissions(vhost, "all", ".*", ".*", ".*")
    peer = user("all", vhost)
    peer.create("s")
    peer.declare("s")
    wait_until(lambda: len(managed(ruled, f"stream/publishers/{vhost}")) == 1, "its publisher is listed")
    metadata.clear_permissions(vhost, "all")
    wait_until(lambda: not managed(ruled, f"stream/publishers/{vhost}"), "its worker has taken its publisher away")
    if what == "renews":
        renew(peer, login("all"))
        assert peer.rest() == answer(Code.VIRTUAL_HOST_ACCESS_FAILURE)
    else:
        peer.send(publish_frame([(1, b"x")]) if what == "publishes" else peer.command(Key.METADATA, streams=[]))
        assert peer.rest() == b""


def test_who_has_lost_the_virtual_host_and_says_nothing_is_disconnected(user, metadata):
    metadata.add_vhost("lost")
    metadata.set_permissions("lost", "all", ".*", ".*", ".*")
    peer = user("all", "lost")
    metadata.clear_permissions("lost", "all")
    assert peer.rest() == b""
