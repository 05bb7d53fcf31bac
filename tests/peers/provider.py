# SPDX-License-Identifier: Apache-2.0
"""A provider of identities: keys made here, published by an HTTP server in a thread, and tokens signed by them."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://idp.test/realm"
AUDIENCE = "rabbitmq"

RSA_KEY = rsa.generate_private_key(65537, 2048)
KEYS: dict[str, tuple[str, Any, Any]] = {
    "rsa": ("RS256", RSA_KEY, RSAAlgorithm),
    "ec": ("ES256", ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "ed": ("EdDSA", ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
}


def published(*names: str) -> bytes:
    """The set of these keys, as a provider publishes it."""
    keys = []
    for name in names:
        _, key, algorithm = KEYS[name]
        keys.append(json.loads(algorithm.to_jwk(key.public_key())) | {"kid": name, "use": "sig"})
    return json.dumps({"keys": keys}).encode()


def signed(claims: dict[str, Any] | None = None, key: str = "rsa", headers: dict[str, Any] | None = None) -> str:
    """A token of ours that is good for an hour; a claim of None is left out."""
    good = {"iss": ISSUER, "aud": [AUDIENCE, "others"], "sub": "ada", "exp": int(time.time()) + 3600}
    wanted = {name: value for name, value in (good | (claims or {})).items() if value is not None}
    algorithm, private, _ = KEYS[key]
    return jwt.encode(wanted, private, algorithm, {"kid": key} | (headers or {}))


class Provider:
    """Serves what ``answer`` has at this moment, and counts who asks."""

    def __init__(self) -> None:
        self.answer, self.status, self.asked = published("rsa", "ec", "ed"), 200, 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                self.send_response(provider.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(provider.answer)))
                self.end_headers()
                self.wfile.write(provider.answer)

            def log_message(self, *_: object) -> None:
                """Nothing: what is asked is counted."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
