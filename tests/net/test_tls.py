# SPDX-License-Identifier: Apache-2.0
"""TLS between real clients and a real broker: frames as ever, and every way in which it can go wrong."""

import asyncio
import base64
import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from authority import Authority, Identity, tls_flags
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from peers.streams import DEADLINE_S, Peer, publish_frame, readable
from running import Running, broker, wait_until, written

from vibemq.bench.run import run
from vibemq.bench.streams import StreamsLoad
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key

HANDSHAKE_TIMEOUT_S = 2


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, server: Identity) -> Iterator[Running]:
    """One broker for the tests that leave it as they found it; it asks for no certificates."""
    flags = tls_flags(server, streams__handshake_timeout_s=HANDSHAKE_TIMEOUT_S)
    with broker(tmp_path_factory.mktemp("secured") / "data", *flags) as running:
        yield running


def secure(running: Running, context: ssl.SSLContext, name: str = "localhost", **more: object) -> Peer:
    """A raw peer behind TLS, whose handshake is over."""
    peer = Peer(running._replace(port=running.tls_port), **more)  # type: ignore[arg-type]
    peer.socket = context.wrap_socket(peer.socket, server_hostname=name, suppress_ragged_eofs=False)
    return peer


def client(running: Running, context: ssl.SSLContext) -> StreamsConnection:
    return StreamsConnection.connect("localhost", running.tls_port, tls=context, timeout_s=DEADLINE_S)


def said(capfd: pytest.CaptureFixture[str], words: str, times: int = 1) -> None:
    """Until the broker, started in this test, has logged these words, each time by another of its processes."""
    wait_until(lambda: written(capfd).count(words) >= times, f"the log says {words!r}")


# ---- frames as ever ----


def test_what_is_published_over_tls_is_read_over_tls_and_without(
    secured: Running, authority: Authority, name: str
) -> None:
    wanted = [(at, b"%d" % at * 20) for at in range(50_000)]
    with client(secured, authority.client_context()) as connection:
        connection.create(name)
        with connection.publisher(name) as publisher:
            for start in range(0, len(wanted), 10_000):
                publisher.publish([data for _, data in wanted[start : start + 10_000]])
        read = [pair for chunk in connection.read_chunks(name, 0) for pair in chunk.messages()]
        assert read == wanted
    with StreamsConnection.connect(secured.host, secured.port) as plain:
        assert [pair for chunk in plain.read_chunks(name, 0) for pair in chunk.messages()] == wanted


def test_many_messages_both_ways_come_complete_and_in_order(secured: Running, authority: Authority, name: str) -> None:
    load = StreamsLoad(
        "localhost", secured.tls_port, tls_ca=authority.certificate, stream=name, mode="pubsub", verify=True
    )
    result = run(replace(load, messages=300_000, publishers=3, consumers=3, timeout_s=DEADLINE_S))
    assert result.figures()["consumed"] == 900_000


def test_rstream_publishes_and_consumes_over_tls(secured: Running, authority: Authority, name: str) -> None:
    rstream = pytest.importorskip("rstream", reason="the client rstream is not installed")
    how = {"username": "guest", "password": "guest", "ssl_context": authority.client_context()}
    wanted = [b"message %d" % at for at in range(2000)]
    received = []

    async def both_ways() -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with rstream.Producer("localhost", secured.tls_port, **how) as producer:
                await producer.create_stream(name)
                for at in range(0, len(wanted), 100):
                    await producer.send_batch(name, wanted[at : at + 100])
                await producer.send_wait(name, b"last")
            complete = asyncio.Event()
            consumer = rstream.Consumer("localhost", secured.tls_port, **how)

            def collect(message: bytes, _: object) -> None:
                received.append(bytes(message))
                if message == b"last":
                    complete.set()

            await consumer.start()
            first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
            await consumer.subscribe(name, collect, offset_specification=first)
            await complete.wait()
            await consumer.close()

    asyncio.run(both_ways())
    assert received == [*wanted, b"last"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_frames_may_be_cut_into_records_anywhere(
    secured: Running, authority: Authority, version: ssl.TLSVersion, name: str
) -> None:
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    with secure(secured, context) as peer:
        peer.open()
        assert peer.socket.version() == {771: "TLSv1.2", 772: "TLSv1.3"}[version]
        peer.declare(peer.create(name))
        peer.drip(publish_frame([(1, b"small")]))  # a record for each byte
        frames = [publish_frame([(at, data)]) for at, data in enumerate((b"small", b"x" * 1_000_000) * 3, 2)]
        peer.send(*frames)  # many frames in a record, and many records in a frame
        assert peer.confirmed(7) == list(range(1, 8))


def test_a_consumer_that_reads_late_gets_every_byte_in_order(secured: Running, authority: Authority, name: str) -> None:
    messages = [os.urandom(50_000) for _ in range(400)]
    with client(secured, authority.client_context()) as connection:
        connection.create(name)
        with connection.publisher(name) as publisher:
            for message in messages:
                publisher.publish([message])
    with secure(secured, authority.client_context(), receive_buffer_bytes=4096) as peer:
        peer.open()
        peer.subscribe(name, credit=len(messages))
        readable(peer)  # from here on the sockets hold less than the broker has for us
        received = b""
        while len(received) < sum(4 + len(message) for message in messages):
            received += peer.chunk().data
    assert received == b"".join(len(message).to_bytes(4, "big") + message for message in messages)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_that_a_client_asks_for_is_the_host_it_is_told(
    secured: Running, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    context.check_hostname = False
    with secure(secured, context, "vibemq.test") as peer:
        peer.log_in()
        peer.send(codec.encode_request(Key.TUNE, frame_max=0, heartbeat=0))
        told = peer.ask(Key.OPEN, virtual_host="/").properties
        assert (told["advertised_host"], told["advertised_port"]) == ("vibemq.test", str(secured.tls_port))


def test_a_client_is_told_that_nothing_was_cut_off(secured: Running, authority: Authority) -> None:
    with secure(secured, authority.client_context()) as peer:
        peer.open()
        assert peer.code(Key.CLOSE, code=1, reason="done") == Code.OK
        assert peer.socket.recv(1) == b""  # a connection that is only cut raises SSLEOFError


# ---- who does not speak TLS, or badly ----


def test_a_plain_client_on_the_tls_port_is_closed_and_the_log_says_why(
    tmp_path: Path, server: Identity, capfd: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path / "data", *tls_flags(server), workers=1) as running:
        with Peer(running._replace(port=running.tls_port)) as peer:
            peer.send(peer.command(Key.PEER_PROPERTIES, properties={}))
            assert peer.rest() == b""
        said(capfd, "speaks without TLS to the TLS port")
        with Peer(running) as peer, pytest.raises((ssl.SSLError, ConnectionError)):
            ssl.create_default_context().wrap_socket(peer.socket, server_hostname="localhost")
        said(capfd, "speaks TLS to the plain port")


def test_many_plain_clients_of_a_host_on_the_tls_port_are_one_line(
    tmp_path: Path, server: Identity, capfd: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path / "data", *tls_flags(server), workers=1) as running:
        for _ in range(20):
            with Peer(running._replace(port=running.tls_port)) as peer:
                peer.send(peer.command(Key.PEER_PROPERTIES, properties={}))
                assert peer.rest() == b""
    lines = [line for line in written(capfd).splitlines() if "speaks without TLS to the TLS port" in line]
    assert len(lines) == 2 and "(19 more" in lines[1], lines


@pytest.mark.parametrize("after", [1, 3, 5, 100])
def test_a_handshake_that_is_not_finished_is_ended_in_time(secured: Running, authority: Authority, after: int) -> None:
    hello = client_hello(authority)
    with Peer(secured._replace(port=secured.tls_port)) as peer:
        peer.send(hello[:after])
        assert peer.rest() == b""


def test_a_handshake_may_come_byte_by_byte(secured: Running, authority: Authority) -> None:
    with Peer(secured._replace(port=secured.tls_port)) as peer:
        peer.drip(client_hello(authority))
        assert peer.socket.recv(1) == b"\x16"


@pytest.mark.parametrize("seed", range(8))
def test_garbage_instead_of_a_handshake_ends_that_connection_only(
    secured: Running, authority: Authority, seed: int
) -> None:
    noise = random.Random(seed).randbytes(5000)
    hello = bytearray(client_hello(authority))
    hello[5 + seed * 7] ^= 0x55
    with Peer(secured._replace(port=secured.tls_port)) as peer:
        with contextlib.suppress(ConnectionError):
            peer.send(b"\x16\x03\x01" + noise if seed % 2 else bytes(hello) + noise)
        peer.rest()
    with secure(secured, authority.client_context()) as peer:
        peer.open()


def test_a_damaged_record_ends_its_connection(secured: Running, authority: Authority) -> None:
    with secure(secured, authority.client_context()) as peer:
        peer.open()
        with socket.socket(fileno=os.dup(peer.socket.fileno())) as below:
            below.sendall(b"\x17\x03\x03\x00\x40" + b"x" * 64)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            while peer.socket.recv(1000):
                pass


def test_a_connection_that_is_cut_in_a_record_is_gone(secured: Running, authority: Authority, name: str) -> None:
    with secure(secured, authority.client_context()) as peer:
        peer.open()
        peer.create(name)
        with socket.socket(fileno=os.dup(peer.socket.fileno())) as below:
            below.settimeout(DEADLINE_S)
            below.sendall(b"\x17\x03\x03\x40\x00" + b"x" * 64)
            below.shutdown(socket.SHUT_WR)
            while below.recv(1000):
                pass


def test_frames_before_the_end_of_what_a_client_sends_are_handled(
    secured: Running, authority: Authority, name: str
) -> None:
    with secure(secured, authority.client_context()) as peer:
        peer.open()
        peer.send(peer.command(Key.CREATE, stream=name, arguments={}))
        with contextlib.suppress(OSError):
            peer.socket.unwrap()
    with client(secured, authority.client_context()) as connection:
        wait_until(lambda: connection.exists(name), "the stream exists")


def test_old_versions_of_tls_are_refused(secured: Running, authority: Authority) -> None:
    context = authority.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secure(secured, context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_resumed(secured: Running, authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    with secure(secured, context) as first:
        first.open()  # reads what came with the handshake
        offered = first.socket.session
    with Peer(secured._replace(port=secured.tls_port)) as second:
        second.socket = context.wrap_socket(second.socket, server_hostname="localhost", session=offered)
        assert not second.socket.session_reused
        second.open()


def test_nobody_can_renegotiate(secured: Running, authority: Authority) -> None:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{secured.tls_port}", "-tls1_2", "-legacy_renegotiation"]
    asked = subprocess.run(command, input=b"R\n", capture_output=True, timeout=DEADLINE_S)
    assert b"no renegotiation" in asked.stderr


# ---- client certificates ----


@pytest.fixture(scope="module", params=["optional", "required"])
def checking(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority, server: Identity
) -> Iterator[tuple[str, Running]]:
    flags = tls_flags(server, tls__verify=request.param, tls__client_ca=authority.certificate)
    with broker(tmp_path_factory.mktemp("checking") / "data", *flags) as running:
        yield request.param, running


def test_a_client_with_a_certificate_of_the_authority_is_let_in_as_itself(
    checking: tuple[str, Running], authority: Authority
) -> None:
    with secure(checking[1], authority.client_context(authority.issue("client"))) as peer:
        peer.ask(Key.PEER_PROPERTIES, properties={})
        assert "EXTERNAL" in peer.ask(Key.SASL_HANDSHAKE).mechanisms


def test_a_client_whose_certificate_is_not_in_canonical_form_is_let_in_by_its_password(
    checking: tuple[str, Running], authority: Authority
) -> None:
    with secure(checking[1], authority.client_context(loosely_encoded(authority, "loose"))) as peer:
        peer.open()


def test_a_client_with_a_certificate_of_a_stranger_is_not_let_in(
    checking: tuple[str, Running], authority: Authority, stranger: Authority
) -> None:
    refused(checking[1], authority.client_context(stranger.issue("client")))


def test_a_client_without_a_certificate_is_let_in_where_it_needs_none(
    checking: tuple[str, Running], authority: Authority
) -> None:
    if checking[0] == "required":
        refused(checking[1], authority.client_context())
        return
    with secure(checking[1], authority.client_context()) as peer:
        peer.ask(Key.PEER_PROPERTIES, properties={})
        assert "EXTERNAL" not in peer.ask(Key.SASL_HANDSHAKE).mechanisms


def test_a_revoked_client_certificate_is_refused_from_sighup_on(
    tmp_path: Path, authority: Authority, server: Identity, capfd: pytest.CaptureFixture[str]
) -> None:
    good, lost = authority.issue("good"), authority.issue("lost")
    revoked = tmp_path / "revoked.pem"
    revoked.write_bytes(authority.revoked())
    flags = tls_flags(server, tls__verify="optional", tls__client_ca=authority.certificate, tls__client_crl=revoked)
    with broker(tmp_path / "data", *flags, workers=1) as running:
        for identity in (good, lost):
            with secure(running, authority.client_context(identity)) as peer:
                peer.open()
        revoked.write_bytes(authority.revoked(lost))
        running.process.send_signal(signal.SIGHUP)
        said(capfd, f"has revoked 1 certificates, says {revoked}", times=2)
        refused(running, authority.client_context(lost))
        said(capfd, "certificate revoked")
        with secure(running, authority.client_context(good)) as peer:
            peer.open()
        revoked.write_bytes(authority.revoked(lost, days=0.5))
        running.process.send_signal(signal.SIGHUP)
        said(capfd, "the list of certificates revoked by CN=authority ended on", times=2)
        refused(running, authority.client_context(good))
        with secure(running, authority.client_context()) as peer:
            peer.open()


def test_metrics_show_when_the_certificate_ends(secured: Running, server: Identity) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{secured.admin_port}/metrics")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if line.startswith("vibemq_tls_certificate")]
    ends = x509.load_pem_x509_certificate(Path(server.certificate).read_bytes()).not_valid_after_utc
    assert line == f"vibemq_tls_certificate_not_after_seconds {ends.timestamp()}"


def refused(running: Running, context: ssl.SSLContext) -> None:
    """In TLS 1.3 a client hears it only when it reads."""
    with pytest.raises((ssl.SSLError, ConnectionError)), secure(running, context) as peer:
        peer.ask(Key.PEER_PROPERTIES, properties={})


def loosely_encoded(authority: Authority, name: str) -> Identity:
    """As some authorities write it: that an extension is not critical is said, where DER leaves it out."""
    issued = authority.issue(name)
    key = serialization.load_pem_private_key(Path(authority.own.key).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    strict = x509.load_pem_x509_certificate(Path(issued.certificate).read_bytes())
    critical, not_critical = b"\x01\x01\xff", b"\x01\x01\x00"
    signed = strict.tbs_certificate_bytes
    assert signed.count(critical) == 1
    loose = signed.replace(critical, not_critical)
    signature = key.sign(loose, ec.ECDSA(hashes.SHA256()))
    _, _, behind = strict.public_bytes(serialization.Encoding.DER).partition(signed)
    algorithm = behind[: 2 + behind[1]]
    whole = loose + algorithm + bytes([3, len(signature) + 1, 0]) + signature
    pem = ssl.DER_cert_to_PEM_cert(b"\x30\x82" + len(whole).to_bytes(2, "big") + whole)
    Path(issued.certificate).write_text(pem)
    return issued


# ---- new certificates ----


def test_a_new_certificate_is_shown_after_sighup_and_old_connections_go_on(
    tmp_path: Path, authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    current = Identity(str(tmp_path / "now.crt"), str(tmp_path / "now.key"))
    install(authority.issue("first"), current)
    with broker(tmp_path / "data", *tls_flags(current), workers=1) as running:
        with secure(running, authority.client_context()) as old:
            old.open()
            assert shown(running, authority) == "first"
            install(authority.issue("second"), current)
            running.process.send_signal(signal.SIGHUP)
            wait_until(lambda: shown(running, authority) == "second", "the new certificate is shown")
            old.ask(Key.METADATA, streams=["none"])
            Path(current.key).write_text("nonsense")
            running.process.send_signal(signal.SIGHUP)
            said(capfd, "the TLS certificates are kept as they were")
            assert shown(running, authority) == "second"
        os.kill(running.worker_pids()[0], signal.SIGKILL)
        wait_until(lambda: shown(running, authority) == "second", "a worker that is started later shows it too")


def install(identity: Identity, place: Identity) -> None:
    for source, target in zip(identity, place, strict=True):
        shutil.copy(source, target + ".new")
        os.replace(target + ".new", target)


def shown(running: Running, authority: Authority) -> str | None:
    """The common name of the certificate that a new connection is shown; None when it fails."""
    try:
        with secure(running, authority.client_context()) as peer:
            return next(value for ((key, value),) in peer.socket.getpeercert()["subject"] if key == "commonName")
    except OSError:
        return None


# ---- what the tests need ----


def client_hello(authority: Authority) -> bytes:
    outgoing = ssl.MemoryBIO()
    started = authority.client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        started.do_handshake()
    return outgoing.read()
