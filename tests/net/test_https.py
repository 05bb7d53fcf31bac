# SPDX-License-Identifier: Apache-2.0
"""The management API over HTTPS: the answers of the plain port, and what goes wrong with certificates."""

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from authority import Authority, Identity, tls_flags
from click.testing import CliRunner, Result
from peers.streams import DEADLINE_S
from running import Running, broker, wait_until, written

from vibemq.admin.http import CONNECTIONS_MAX
from vibemq.cli.ctl import ctl
from vibemq.config import Tls
from vibemq.errors import ConfigError
from vibemq.net.certificates import Certificates

LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()


@pytest.fixture(scope="module")
def current(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """What the broker shows, which is put into the place of it."""
    folder = tmp_path_factory.mktemp("current")
    place = Identity(str(folder / "now.crt"), str(folder / "now.key"))
    install(authority.issue("first"), place)
    return place


@pytest.fixture(scope="module")
def revoked(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("revoked") / "revoked.pem"
    path.write_bytes(authority.revoked())
    return path


@contextmanager
def serving(folder: Path, authority: Authority, current: Identity, revoked: Path) -> Iterator[Running]:
    flags = tls_flags(current, tls__verify="optional", tls__client_ca=authority.certificate, tls__client_crl=revoked)
    with broker(folder / "data", *flags, workers=1) as running:
        yield running


def connected(running: Running, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("localhost", running.ports["admin-tls"], context=context, timeout=DEADLINE_S)


def asked(connection: http.client.HTTPSConnection) -> int:
    connection.request("GET", "/api/whoami", headers={"Authorization": LOGIN})
    answer = connection.getresponse()
    assert json.loads(answer.read())["name"] == "guest"
    return answer.status


def refused(running: Running, context: ssl.SSLContext) -> None:
    """In TLS 1.3 a client hears it only when it reads."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        asked(connected(running, context))


def install(identity: Identity, place: Identity) -> None:
    for source, target in zip(identity, place, strict=True):
        shutil.copy(source, target + ".new")
        os.replace(target + ".new", target)


def shown(running: Running, authority: Authority) -> str:
    connection = connected(running, authority.client_context())
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    subject = (connection.sock.getpeercert() or {})["subject"]
    connection.close()
    return next(value for group in subject for key, value in group if key == "commonName")  # type: ignore[misc]


def test_certificates_and_lists_are_read_again_while_connections_go_on(
    tmp_path: Path,
    authority: Authority,
    current: Identity,
    revoked: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving(tmp_path, authority, current, revoked) as secured:
        good, lost = authority.issue("good"), authority.issue("lost")
        old = connected(secured, authority.client_context(lost))
        assert asked(old) == 200
        assert shown(secured, authority) == "first"
        install(authority.issue("second"), current)
        revoked.write_bytes(authority.revoked(lost))
        secured.process.send_signal(signal.SIGHUP)
        wait_until(lambda: shown(secured, authority) == "second", "the new certificate is shown")
        refused(secured, authority.client_context(lost))
        wait_until(lambda: "for HTTPS: certificate revoked" in written(capfd), "the log says why")
        assert asked(connected(secured, authority.client_context(good))) == 200
        assert asked(connected(secured, authority.client_context())) == 200
        assert asked(old) == 200  # it was let in before
        Path(current.key).write_text("nonsense")
        secured.process.send_signal(signal.SIGHUP)
        # the supervisor, the worker and the admin process
        wait_until(
            lambda: written(capfd).count("certificates are kept as they were") == 3, "the log says that it is kept"
        )
        assert shown(secured, authority) == "second"
        install(authority.issue("third"), current)
        revoked.write_bytes(authority.revoked())
        secured.process.send_signal(signal.SIGHUP)
        wait_until(lambda: shown(secured, authority) == "third", "the mended certificate is shown")
        os.kill(secured.admin_pid(), signal.SIGKILL)
        assert shown(secured, authority) == "third"  # its successor accepts who waits


def test_curl_and_plain_http_and_who_says_nothing(
    tmp_path: Path, authority: Authority, current: Identity, revoked: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, authority, current, revoked) as secured:
        port = secured.ports["admin-tls"]
        if (curl := shutil.which("curl")) is None:
            pytest.skip("curl is not installed")
        url = f"https://localhost:{port}/api/overview"
        command = [curl, "-sS", "--cacert", authority.certificate, "-u", "guest:guest", url]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S).stdout)
        listeners = {(each["protocol"], each["port"]) for each in said["listeners"]}
        assert {("https", port), ("native/ssl", secured.ports["native-tls"])} <= listeners
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as plain:
            plain.sendall(b"GET /api/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.recv(4096)
        wait_until(lambda: "no TLS handshake for HTTPS: http request" in written(capfd), "the log says why")
        silent = [socket.create_connection(("127.0.0.1", port), DEADLINE_S) for _ in range(50)]
        assert asked(connected(secured, authority.client_context())) == 200
        for each in silent:
            each.close()
        old = authority.client_context()
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        refused(secured, old)


def test_connections_that_never_finish_their_handshake_keep_no_operator_out(
    authority: Authority, current: Identity, revoked: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, authority, current, revoked) as running, ExitStack() as stack:
        wait_until(lambda: asked(connected(running, authority.client_context())) == 200, "the management API")
        for _ in range(CONNECTIONS_MAX + 100):
            stack.enter_context(socket.create_connection(("localhost", running.ports["admin-tls"])))
        for _ in range(3):
            assert asked(connected(running, authority.client_context())) == 200


def test_the_management_pages_cookie_is_for_https_alone(
    tmp_path: Path, authority: Authority, current: Identity, revoked: Path
) -> None:
    with serving(tmp_path, authority, current, revoked) as secured:
        connection = connected(secured, authority.client_context())
        body = json.dumps({"user": "guest", "password": "guest"})
        connection.request("POST", "/page/login", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        cookie, *words = answer.headers["Set-Cookie"].split("; ")
        assert answer.read() and answer.status == 200
        assert cookie.startswith("__Host-vibemq=") and {"Secure", "HttpOnly", "SameSite=Strict"} <= set(words)
        connection.request("GET", "/api/whoami", headers={"Cookie": cookie})
        assert connection.getresponse().status == 200
        plain = http.client.HTTPConnection("localhost", secured.admin_port, timeout=DEADLINE_S)
        plain.request("GET", "/api/whoami", headers={"Cookie": cookie})
        assert plain.getresponse().status == 401
        for one in (connection, plain):
            one.close()


def test_ctl_asks_a_broker_elsewhere_as_a_user(
    tmp_path: Path, authority: Authority, current: Identity, revoked: Path
) -> None:
    with serving(tmp_path, authority, current, revoked) as secured:
        port = secured.ports["admin-tls"]
        here = ["--data-dir", str(tmp_path / "nowhere")]
        trusting = ["--url", f"https://guest@localhost:{port}", "--ca-file", authority.certificate]

        def run(*words: str, password: str = "guest") -> Result:
            return CliRunner().invoke(ctl, [*words, *here], env={"VIBEMQ_PASSWORD": password})

        assert run("add_vhost", "far", *trusting).exit_code == 0
        assert "far" in run("list_vhosts", *trusting, "--silent").stdout.split()
        wrong = run("list_vhosts", *trusting, password="wrong")
        assert wrong.exit_code == 69 and "wrong" not in wrong.stderr
        assert f"localhost:{port}: login of user 'guest' failed" in wrong.stderr and "VIBEMQ_PASSWORD" in wrong.stderr
        strange = run("list_vhosts", "--url", f"https://guest@localhost:{port}")
        assert strange.exit_code == 69 and "certificate verify failed" in strange.stderr
        assert "hint: --ca-file" in strange.stderr
        unasked = CliRunner().invoke(ctl, ["list_vhosts", *here, *trusting], env={"VIBEMQ_PASSWORD": None})
        assert "hint: set VIBEMQ_PASSWORD" in unasked.stderr and "--password-stdin" not in unasked.stderr
        for other in (secured.native_port, secured.port, secured.ports["signalr"], secured.ports["micromsg2"]):
            astray = run("list_vhosts", "--url", f"http://guest@127.0.0.1:{other}")
            assert astray.exit_code == 69 and "management 2926 (TLS 2936)" in astray.stderr, other
            assert astray.stderr.isascii() and astray.stderr.replace("\n", "").isprintable()
        assert "use https" in run("list_vhosts", "--url", "http://guest@broker.example").stderr
        assert "needed https://USER" in run("list_vhosts", "--url", "https://localhost").stderr
        assert "need --url" in run("list_vhosts", "--ca-file", authority.certificate).stderr
        plain = f"http://guest:guest@127.0.0.1:{secured.admin_port}"
        assert "far" in run("list_vhosts", "--silent", "--url", plain).stdout.split()
        assert not (tmp_path / "nowhere").exists()


def test_an_authority_without_a_list_is_refused_once_there_is_one(authority: Authority, tmp_path: Path) -> None:
    """As at the other doors: whether its certificates were revoked is not known."""
    stranger = Authority(tmp_path, "stranger")
    both, issued = tmp_path / "both.pem", authority.issue("server")
    both.write_bytes(Path(authority.certificate).read_bytes() + Path(stranger.certificate).read_bytes())
    lists = tmp_path / "lists.pem"
    lists.write_bytes(authority.revoked())
    files = {"certificate": issued.certificate, "key": issued.key, "client_ca": str(both), "client_crl": str(lists)}
    context = Certificates(Tls(verify="required", **files), with_http=True).http
    mine, theirs = authority.issue("mine"), stranger.issue("theirs")
    assert shakes_hands(context, authority.client_context(mine)) == ""
    assert "unable to get certificate CRL" in shakes_hands(context, authority.client_context(theirs))
    assert "peer did not return a certificate" in shakes_hands(context, authority.client_context())


def test_a_key_that_pythons_openssl_cannot_use_is_refused_with_words(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("server")
    certificates = Certificates(Tls(certificate=issued.certificate, key=issued.key), with_http=True)
    before = certificates.http
    Path(issued.key).write_text("nonsense")
    certificates.refresh()
    assert certificates.http is before
    with pytest.raises(ConfigError, match=r"tls\.key"):
        Certificates(Tls(certificate=issued.certificate, key=issued.key), with_http=True)


def shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """ "" or why the server refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as problem:
                return str(problem).replace("_", " ").replace("PEER DID NOT RETURN A CERTIFICATE", "")
    return ""
