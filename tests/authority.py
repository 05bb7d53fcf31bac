# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by the openssl command: an authority of one's own, and whom it vouches for."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

EC = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
HOSTS = "subjectAltName=DNS:localhost,IP:127.0.0.1"


class Identity(NamedTuple):
    certificate: str
    key: str


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

    def _make(self, name: str, *options: str, key: tuple[str, ...] = EC) -> Identity:
        made = Identity(str(self.folder / f"{name}.crt"), str(self.folder / f"{name}.key"))
        command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", *key, *options]
        subprocess.run([*command, "-keyout", made.key, "-out", made.certificate], check=True, capture_output=True)
        return made

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority, and shows ``identity`` if asked."""
        context = ssl.create_default_context(cafile=self.certificate)
        if identity is not None:
            context.load_cert_chain(*identity)
        return context
