# SPDX-License-Identifier: Apache-2.0
"""Files for TLS that cannot be used are refused with the option's name, before the broker listens."""

import datetime
import ipaddress
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from authority import Authority
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import convert

from vibemq import openssl
from vibemq.config import Config, Streams, Tls
from vibemq.errors import ConfigError, SetupError
from vibemq.net.certificates import Certificates
from vibemq.net.connection import Connection, Room
from vibemq.protocols.streams.sasl import certificate_user
from vibemq.server import listeners

ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")  # as an AlgorithmIdentifier

NO_LOOP = SimpleNamespace(room=Room(1 << 20))


def test_the_key_may_lie_in_the_certificates_file(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("together")
    both = tmp_path / "both.pem"
    both.write_text(Path(issued.certificate).read_text() + Path(issued.key).read_text())
    Certificates(Tls(certificate=str(both)))


def test_text_around_a_key_says_nothing_of_a_passphrase(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("described")
    described = tmp_path / "described.key"
    described.write_text("This key is not ENCRYPTED.\n" + Path(issued.key).read_text())
    Certificates(Tls(certificate=issued.certificate, key=str(described)))


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    first, second = authority.issue("first"), authority.issue("second")
    weak = authority.issue("weak", key=("rsa:1024",))
    locked = str(tmp_path / "locked.key")
    subprocess.run(
        ["openssl", "pkey", "-in", first.key, "-aes256", "-passout", "pass:secret", "-out", locked], check=True
    )
    locked_in_the_old_way = str(tmp_path / "locked_in_the_old_way.key")
    subprocess.run(
        ["openssl", "ec", "-in", first.key, "-aes256", "-passout", "pass:secret", "-out", locked_in_the_old_way],
        check=True, capture_output=True,
    )  # fmt: skip
    nonsense = str(tmp_path / "nonsense")
    Path(nonsense).write_text("nonsense")
    good = {"certificate": first.certificate, "key": first.key}
    refused = {
        "tls.key .*second.* is not the key of .*first": Tls(certificate=first.certificate, key=second.key),
        "tls.key .*locked.* passphrase": Tls(certificate=first.certificate, key=locked),
        "tls.key .*old_way.* passphrase": Tls(certificate=first.certificate, key=locked_in_the_old_way),
        "tls.certificate .*nonsense.* no certificate": Tls(certificate=nonsense, key=first.key),
        "tls.key .*nonsense.* no private key": Tls(certificate=first.certificate, key=nonsense),
        "tls.key is not set, holds no private key": Tls(certificate=first.certificate),
        "tls.certificate names no file": Tls(key=first.key),
        "tls.key: cannot read '/none': No such file": Tls(certificate=first.certificate, key="/none"),
        "tls.client_ca: cannot read '/none'": Tls(**good, verify="optional", client_ca="/none"),
        "tls.client_ca .*nonsense": Tls(**good, verify="required", client_ca=nonsense),
        "tls.certificate .*weak.* cannot be used: .*key too small": Tls(certificate=weak.certificate, key=weak.key),
        "tls.verify is 'required', but tls.client_ca names no file": Tls(**good, verify="required"),
    }
    for words, options in refused.items():
        with pytest.raises(ConfigError, match=words) as problem:
            Certificates(options)
        assert problem.value.hint, words


def test_a_list_of_revoked_certificates_is_announced_and_so_is_its_end(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued, thief = authority.issue("revoking"), authority.issue("thief")
    good = {"certificate": issued.certificate, "key": issued.key, "verify": "required"}
    (tmp_path / "list.pem").write_bytes(authority.revoked(thief))
    (tmp_path / "both.pem").write_bytes(Path(authority.certificate).read_bytes() + authority.revoked(thief, days=5))
    (tmp_path / "ended.pem").write_bytes(authority.revoked(thief, days=0.5))
    with caplog.at_level(logging.INFO):
        Certificates(convert({**good, "client_ca": authority.certificate}, Tls))
        assert "revoked" not in caplog.text
        separate = {**good, "client_ca": authority.certificate, "client_crl": str(tmp_path / "list.pem")}
        Certificates(convert(separate, Tls))
        assert f"CN=authority has revoked 1 certificates, says {tmp_path / 'list.pem'}" in caplog.text
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        Certificates(convert({**good, "client_ca": str(tmp_path / "both.pem")}, Tls))
        assert "the list of certificates revoked by CN=authority ends on" in caplog.text
        assert "in 3 days: after that the client certificates of that authority are refused" in caplog.text
        Certificates(convert({**separate, "client_crl": str(tmp_path / "ended.pem")}, Tls))
        assert "the list of certificates revoked by CN=authority ended on" in caplog.text


def test_lists_of_revoked_certificates_that_cannot_be_used_are_refused_or_said(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("mistaken")
    stranger = Authority(tmp_path, "stranger")
    (tmp_path / "whole.pem").write_bytes(authority.revoked(issued))
    damaged = str(tmp_path / "damaged.pem")
    Path(damaged).write_bytes(authority.revoked(issued).replace(b"M", b"N", 3))
    good = {"certificate": issued.certificate, "key": issued.key, "client_ca": authority.certificate}
    refused = {
        "tls.client_crl .*authority.crt.* holds no list": {"verify": "optional", "client_crl": authority.certificate},
        "tls.client_crl .*damaged.* cannot be read": {"verify": "optional", "client_crl": damaged},
        "tls.client_crl: cannot read '/none'": {"verify": "optional", "client_crl": "/none"},
        "tls.verify is 'none': no client": {"client_crl": str(tmp_path / "whole.pem")},
    }
    for words, options in refused.items():
        with pytest.raises(ConfigError, match=words) as problem:
            Certificates(convert({**good, **options}, Tls))
        assert problem.value.hint, words
    two = tmp_path / "two.pem"
    two.write_bytes(Path(authority.certificate).read_bytes() + Path(stranger.certificate).read_bytes())
    listed = {"verify": "required", "client_ca": str(two), "client_crl": str(tmp_path / "whole.pem")}
    Certificates(convert({**good, **listed}, Tls))
    assert "no list of the certificates that CN=stranger has revoked" in caplog.text


def test_the_end_of_a_certificate_is_said_in_good_time_and_when_it_has_come(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("ending")
    certificates = Certificates(Tls(certificate=issued.certificate, key=issued.key))
    assert certificates.ends_s is not None
    certificates.say_ends(certificates.ends_s - 14.5 * 86400)
    assert not caplog.records
    certificates.say_ends(certificates.ends_s - 13.5 * 86400)
    assert f"the TLS certificate in {issued.certificate} ends on" in caplog.text and "in 13 days" in caplog.text
    certificates.say_ends(certificates.ends_s + 1)
    assert "clients refuse to connect until it is renewed and SIGHUP sent" in caplog.text


def test_what_worked_is_kept_when_the_new_files_do_not(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("kept")
    certificate, key = (shutil.copy(path, tmp_path) for path in issued)
    certificates = Certificates(Tls(certificate=certificate, key=key))
    before = certificates.context
    os.unlink(key)
    certificates.refresh()
    assert certificates.context is before
    shutil.copy(issued.key, key)
    with caplog.at_level(logging.INFO):
        certificates.refresh()
    assert certificates.context is not before
    ends = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-enddate", "-dateopt", "iso_8601"],
        check=True, capture_output=True, text=True,
    ).stdout.removeprefix("notAfter=").split()[0]  # fmt: skip
    assert f"was read again from {certificate}; it is valid until {ends}" in caplog.text


def test_a_worker_reads_them_beside_its_loop_and_again_where_a_signal_came_meanwhile(authority: Authority) -> None:
    issued = authority.issue("beside")
    certificates = Certificates(Tls(certificate=issued.certificate, key=issued.key))
    before = certificates.context
    works: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    class Later:
        def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
            works.append((work, done))

    certificates.stale = True
    certificates.refresh_by(Later())
    certificates.stale = True  # the files may be newer than what is being read
    certificates.refresh_by(Later())
    assert (len(works), certificates.context is before) == (1, True)
    work, done = works.pop()
    done(work(), None)
    assert certificates.stale and certificates.context is not before
    certificates.refresh_by(Later())
    assert (len(works), certificates.stale) == (1, False)


def test_a_library_that_does_not_fit_is_refused_with_what_helps(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = authority.issue("unfit")
    for name, signature in (("SSL_read", "int(*)(SSL *, int)"), ("SSL_nothing", "int(*)(SSL *)")):
        with monkeypatch.context() as patch, pytest.raises(SetupError, match=name) as refused:
            patch.setattr(openssl, "library", None)
            patch.setitem(openssl.SIGNATURES, name, signature)
            Certificates(Tls(certificate=issued.certificate, key=issued.key))
        assert "pip install" in refused.value.hint
    with pytest.raises(SetupError, match="_ssl"):
        openssl.check(object())


def test_who_has_no_tls_loads_no_openssl() -> None:
    code = "import vibemq.server.supervisor, vibemq.server.worker, vibemq.bench.run, sys; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "'vibemq.net.sockets'" in loaded
    assert "'OpenSSL'" not in loaded and "'cryptography'" not in loaded


def made(
    name: x509.Name, alternatives: list[x509.GeneralName], *, first: int = -2, days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Signed by itself, valid for so many days from the one that is `first` days from now."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    begins = now + datetime.timedelta(first)
    certificate = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    certificate = (
        certificate.serial_number(1).not_valid_before(begins).not_valid_after(begins + datetime.timedelta(days))
    )
    certificate = certificate.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return certificate.sign(key, hashes.SHA256()), key


def together(path: Path, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(
        ssl.DER_cert_to_PEM_cert(certificate).encode() + key.private_bytes(serialization.Encoding.PEM, *form)
    )
    return str(path)


@pytest.mark.parametrize(
    ("first", "days", "why"), [(-2, 1, "it ended on {:%Y-%m-%d}"), (2, 9, "it is not valid before {:%Y-%m-%d}")]
)
def test_a_certificate_that_clients_refuse_is_used_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int, days: int, why: str
) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    certificate, key = made(name, [x509.DNSName("x")], first=first, days=days)
    both = together(tmp_path / "ended.pem", certificate.public_bytes(serialization.Encoding.DER), key)
    Certificates(Tls(certificate=both))
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    day = certificate.not_valid_after_utc if first < 0 else certificate.not_valid_before_utc
    assert f"{both}; clients will refuse it, {why.format(day)}" in said


def test_a_certificate_whose_end_only_openssl_can_read_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = made(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]), [x509.DNSName("x")], days=9)
    signed, ends = certificate.tbs_certificate_bytes, certificate.not_valid_after_utc
    leap = signed.replace(f"{ends:%y%m%d%H%M%SZ}".encode(), f"{ends:%y%m%d%H%M60Z}".encode())
    assert leap != signed
    content = leap + ECDSA_WITH_SHA256 + der(b"\x03", b"\0" + key.sign(leap, ec.ECDSA(hashes.SHA256())))
    Certificates(Tls(certificate=together(tmp_path / "leap.pem", der(b"\x30", content), key)))
    assert "until when it is valid cannot be read" in caplog.text


def der(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    return tag + (bytes([size]) if size < 0x80 else b"\x82" + size.to_bytes(2, "big")) + content


def test_a_clients_certificate_names_it_as_rfc_4514_does() -> None:
    attributes = {NameOID.COUNTRY_NAME: "PL", NameOID.EMAIL_ADDRESS: "a@b", NameOID.SURNAME: "Nowak"}
    groups = [[x509.NameAttribute(oid, value)] for oid, value in attributes.items()]
    groups.append([x509.NameAttribute(NameOID.COMMON_NAME, "x,y"), x509.NameAttribute(NameOID.USER_ID, "7")])
    alternatives = [x509.IPAddress(ipaddress.ip_address("10.0.0.1")), x509.RFC822Name("a@b"), x509.DNSName("d")]
    certificate, _key = made(
        x509.Name([x509.RelativeDistinguishedName(group) for group in groups]), alternatives, days=9
    )
    shown = SimpleNamespace(get_peer_certificate=lambda as_cryptography: certificate)
    said = Certificates.peer(shown)  # type: ignore[arg-type]
    assert said is not None
    assert certificate_user(said, "distinguished_name") == "CN=x\\,y+UID=7,SN=Nowak,EMAILADDRESS=a@b,C=PL"
    assert said["subjectAltName"] == (("email", "a@b"), ("DNS", "d"))


def test_a_closed_connection_keeps_nothing_of_openssl(authority: Authority) -> None:
    issued = authority.issue("closed")
    certificates = Certificates(Tls(certificate=issued.certificate, key=issued.key))
    accepted = [certificates.accept()]
    seen = weakref.ref(accepted[0])
    ours, theirs = socket.socketpair()
    local, peer = ("127.0.0.1", 5551), ("127.0.0.1", 40000)
    with theirs:
        connection = Connection(ours.detach(), NO_LOOP, peer, local, SimpleNamespace(accept=accepted.pop))
        assert seen() is not None
        connection.close()
        assert seen() is None
        assert (connection.server_name, connection.peer_certificate) == ("", None)


def test_a_taken_tls_port_is_named_by_its_option() -> None:
    (taken,) = listeners.bind({"streams": listeners.Place("127.0.0.1", 0, 1)})["streams"]
    taken.listen()
    with taken, pytest.raises(ConfigError) as refused:
        listeners.bind({"streams" + listeners.TLS: listeners.Place(*taken.getsockname(), 1)})
    assert "streams.tls_port" in refused.value.hint


def test_the_tls_port_is_rabbitmqs_unless_configured_and_closed_without_a_certificate() -> None:
    assert (Streams().tls_port, Config().tls.certificate) == (5551, "")


@pytest.mark.parametrize(
    ("seen", "host", "loopback"),
    [
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:10.1.2.3", "10.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", False),
        ("::1", "::1", True),
        ("2001:db8::1", "2001:db8::1", False),
    ],
)
def test_an_ipv4_address_on_a_socket_of_both_families_is_shown_as_dialled(seen: str, host: str, loopback: bool) -> None:
    connection = Connection(-1, NO_LOOP, (seen, 40000, 0, 0), (seen, 5552, 0, 0))
    assert (connection.local_host, connection.local_port, connection.is_loopback) == (host, 5552, loopback)
    assert connection.peer == " -> ".join(f"[{host}]:{p}" if ":" in host else f"{host}:{p}" for p in (40000, 5552))
