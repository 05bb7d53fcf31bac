# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by the openssl command: an authority of one's own, and whom it vouches for."""

import datetime
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

EC = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
HOSTS = "subjectAltName=DNS:localhost,IP:127.0.0.1"


class Identity(NamedTuple):
    certificate: str
    key: str


def tls_flags(server: Identity, **more: object) -> list[str]:
    """Of a broker that is ``server``, at free ports.  ``more``: options, with __ for the point."""
    settings = {
        "tls.certificate": server.certificate,
        "tls.key": server.key,
        "streams.tls_port": 0,
        "signalr.tls_port": 0,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


class Authority:
    """Keeps its files, and those that it issues, in ``folder``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the openssl command is not installed")
        self.folder = folder
        self.own = self._make(name, "-subj", f"/CN={name}")

    @property
    def certificate(self) -> str:
        return self.own.certificate

    def issue(self, name: str, *, key: tuple[str, ...] = EC, names: str = HOSTS) -> Identity:
        by = ("-CA", self.own.certificate, "-CAkey", self.own.key)
        plain = ("-addext", "basicConstraints=critical,CA:FALSE")
        return self._make(name, "-subj", f"/O=tests/CN={name}", "-addext", names, *plain, *by, key=key)

    def revoked(self, *identities: Identity, days: float = 30) -> bytes:
        """A list in PEM of these certificates, valid for so many days from yesterday on."""
        own = x509.load_pem_x509_certificate(Path(self.own.certificate).read_bytes())
        key = serialization.load_pem_private_key(Path(self.own.key).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        made = datetime.datetime.now(datetime.UTC) - datetime.timedelta(1)
        listed = x509.CertificateRevocationListBuilder().issuer_name(own.subject)
        listed = listed.last_update(made).next_update(made + datetime.timedelta(days))
        for identity in identities:
            number = x509.load_pem_x509_certificate(Path(identity.certificate).read_bytes()).serial_number
            one = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(made).build()
            listed = listed.add_revoked_certificate(one)
        return listed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _make(self, name: str, *options: str, key: tuple[str, ...] = EC) -> Identity:
        made = Identity(str(self.folder / f"{name}.crt"), str(self.folder / f"{name}.key"))
        command = ["openssl", "req", "-x509", "-nodes", "-days", "30", "-newkey", *key, *options]
        subprocess.run([*command, "-keyout", made.key, "-out", made.certificate], check=True, capture_output=True)
        return made

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority, and shows ``identity`` if asked."""
        context = ssl.create_default_context(cafile=self.certificate)
        if identity is not None:
            context.load_cert_chain(*identity)
        return context
