# SPDX-License-Identifier: Apache-2.0
"""Every mechanism by which a client says who it is, over a plain port and over TLS."""

import time
from contextlib import closing

import pytest
from authority import tls_flags
from peers.streams import GUEST, Peer, connected
from running import broker

from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key
from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata

AMQPLAIN = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"
DELAY_S_MIN = 2.0
SHORT_DELAY = ("--set", "streams.login_failure_delay_s=2")


def mechanisms(peer):
    peer.ask(Key.PEER_PROPERTIES, properties={})
    return peer.ask(Key.SASL_HANDSHAKE).mechanisms


def attempt(peer, mechanism, data=b""):
    """The frame of the answer as it is, and how long it took."""
    began = time.monotonic()
    peer.send(codec.encode_request(Key.SASL_AUTHENTICATE, 7, mechanism=mechanism, data=data))
    return peer.next_frame().body, time.monotonic() - began


def body(code):
    return bytes.fromhex("00000007") + code.to_bytes(2, "big")


# ---- a plain port ----


@pytest.mark.parametrize(("mechanism", "data"), [("AMQPLAIN", AMQPLAIN), ("ANONYMOUS", b""), ("ANONYMOUS", b"who")])
def test_guest_may_come_by_any_of_them(served, name, mechanism, data):
    with connected(served, mechanism=mechanism, data=data) as peer:
        peer.create(name)
        peer.store(name, [b"x"])


@pytest.mark.parametrize("data", [b"", AMQPLAIN[:-1], b"\0guest\0guest"])
def test_malformed_amqplain_is_9_at_once(served, data):
    with Peer(served) as raw:
        mechanisms(raw)
        assert attempt(raw, "AMQPLAIN", data)[0] == body(Code.SASL_ERROR)
        assert raw.rest() == b""


def test_a_wrong_password_by_amqplain_is_8_and_late(served):
    with Peer(served) as raw:
        mechanisms(raw)
        answer, took = attempt(raw, "AMQPLAIN", AMQPLAIN[:-1] + b"!")
        assert answer == body(Code.AUTHENTICATION_FAILURE)
        assert took >= DELAY_S_MIN


def test_external_is_not_offered_without_tls(served):
    with Peer(served) as raw:
        assert mechanisms(raw) == ["PLAIN", "AMQPLAIN", "ANONYMOUS"]
        assert attempt(raw, "EXTERNAL")[0] == body(Code.SASL_MECHANISM_NOT_SUPPORTED)
        assert raw.rest() == b""


def test_anonymous_is_the_configured_user_with_its_rights(tmp_path):
    folder = tmp_path / "data"
    with broker(folder, *SHORT_DELAY, "--set", "streams.anonymous_user=somebody") as running:
        with closing(Metadata(metadata_path(str(folder)))) as metadata:
            with Peer(running) as raw:
                assert mechanisms(raw) == ["PLAIN", "AMQPLAIN", "ANONYMOUS"]
                answer, took = attempt(raw, "ANONYMOUS")
                assert (answer, took >= DELAY_S_MIN) == (body(Code.AUTHENTICATION_FAILURE), True), (
                    "nobody has that name"
                )
            metadata.add_user("somebody", "", is_superuser=False)
            metadata.set_permissions("/", "somebody", "^free$", "", "")
        with connected(running, mechanism="ANONYMOUS", data=b"") as peer:
            peer.create("free")
            assert peer.code(Key.CREATE, stream="other", arguments={}) == Code.ACCESS_REFUSED
        with Peer(running) as raw:
            mechanisms(raw)
            assert attempt(raw, "PLAIN", b"\0somebody\0")[0] == body(Code.AUTHENTICATION_FAILURE)


def test_anonymous_is_not_offered_where_there_is_no_guest(tmp_path):
    with broker(tmp_path / "data", "--set", "guest.allow_loopback=false") as running, Peer(running) as raw:
        assert mechanisms(raw) == ["PLAIN", "AMQPLAIN"]
        assert attempt(raw, "ANONYMOUS")[0] == body(Code.SASL_MECHANISM_NOT_SUPPORTED)


# ---- TLS ----


USERS = {
    "distinguished_name": "CN=client,O=tests",
    "common_name": "client",
    "subject_alternative_name": "client.test",
}


@pytest.fixture(scope="module", params=USERS)
def secured(request, tmp_path_factory, authority):
    """A broker that takes a user from the certificate, and the name by which it knows that of these tests."""
    server = authority.issue("server")
    flags = tls_flags(
        server,
        tls__verify="optional",
        tls__client_ca=authority.certificate,
        streams__advertised_tls_host="broker.test",
        streams__advertised_tls_port=1234,
        streams__certificate_user=request.param,
    )
    folder = tmp_path_factory.mktemp("secured") / "data"
    with broker(folder, *SHORT_DELAY, *flags) as running, closing(Metadata(metadata_path(str(folder)))) as metadata:
        metadata.add_user(USERS[request.param], "", is_superuser=False)
        metadata.set_permissions("/", USERS[request.param], ".*", ".*", ".*")
        yield running


def secure(running, context):
    peer = Peer(running._replace(port=running.tls_port))
    peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
    return peer


@pytest.fixture(scope="module")
def certified(authority):
    """Of the client whom the broker knows."""
    return authority.client_context(authority.issue("client", names="subjectAltName=DNS:client.test"))


def test_a_certificate_is_enough(secured, certified, name):
    with secure(secured, certified) as peer:
        assert mechanisms(peer) == ["PLAIN", "AMQPLAIN", "ANONYMOUS", "EXTERNAL"]
    with secure(secured, certified) as peer:
        peer.open(mechanism="EXTERNAL", data=b"")
        peer.create(name)
        assert peer.code(Key.SASL_AUTHENTICATE, mechanism="EXTERNAL", data=b"") == Code.OK, "as good as a new secret"
        peer.store(name, [b"x"])


def test_a_certificate_of_nobody_is_8_and_late(secured, authority):
    context = authority.client_context(authority.issue("unknown", names="subjectAltName=DNS:unknown.test"))
    with secure(secured, context) as peer:
        assert "EXTERNAL" in mechanisms(peer)
        answer, took = attempt(peer, "EXTERNAL")
        assert (answer, took >= DELAY_S_MIN) == (body(Code.AUTHENTICATION_FAILURE), True)


def test_without_a_certificate_it_is_not_offered(secured, authority):
    with secure(secured, authority.client_context()) as peer:
        assert mechanisms(peer) == ["PLAIN", "AMQPLAIN", "ANONYMOUS"]
        assert attempt(peer, "EXTERNAL")[0] == body(Code.SASL_MECHANISM_NOT_SUPPORTED)


def test_open_and_metadata_tell_each_port_its_own_address(secured, certified):
    with secure(secured, certified) as tls, Peer(secured) as plain:
        told = []
        for peer in (tls, plain):
            peer.log_in(GUEST)
            peer.send(codec.encode_request(Key.TUNE, frame_max=0, heartbeat=0))
            properties = peer.ask(Key.OPEN, virtual_host="/").properties
            told.append((properties["advertised_host"], int(properties["advertised_port"])))
            assert [tuple(row)[1:] for row in peer.ask(Key.METADATA, streams=[]).brokers] == [told[-1]]
        assert told == [("broker.test", 1234), ("localhost", secured.port)]
