# SPDX-License-Identifier: Apache-2.0
"""The load generator's TLS: what was sent arrives, however the socket cuts the records, from whom it is expected."""

import os
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from authority import Authority

from vibemq.bench.streams import TunnelContext
from vibemq.errors import UserError

ROOM_BYTES = 10_000  # less than a record
READ_BYTES = 1 << 18
DEADLINE_S = 20
CONTENT = random.Random(1).randbytes(200_000)


def echo(context: ssl.SSLContext, plain: socket.socket) -> None:
    """Sends back what it was sent, once all of CONTENT has come."""
    with suppress(OSError), context.wrap_socket(plain, server_side=True) as secure:
        got = b""
        while len(got) < len(CONTENT):
            more = secure.recv(len(CONTENT))
            if not more:
                return
            got += more
        secure.sendall(got)
        secure.unwrap()


def carry(source: socket.socket, target: socket.socket, most: int) -> None:
    """In packets of so many bytes: each is what one read of the other side gives."""
    with suppress(OSError):
        while data := source.recv(READ_BYTES):
            for start in range(0, len(data), most):
                target.send(data[start : start + most])
    with suppress(OSError):  # whoever waits at the other end hears of it, even where this end was reset
        target.shutdown(socket.SHUT_WR)


@contextmanager
def served(authority: Authority, most: int = READ_BYTES, names: str = "") -> Iterator[socket.socket]:
    """A socket that an echoing server for localhost, or `names`, listens to; what comes is cut to `most` bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server", **({"names": f"subjectAltName=DNS:{names}"} if names else {})))
    inner, theirs = socket.socketpair()
    ours, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (inner, theirs, outer):
        end.settimeout(DEADLINE_S)
    threads = [
        threading.Thread(target=echo, args=(context, theirs)),
        threading.Thread(target=carry, args=(inner, outer, most)),
        threading.Thread(target=carry, args=(outer, inner, READ_BYTES)),
    ]
    for thread in threads:
        thread.start()
    with inner, theirs, outer:
        with ours:
            yield ours
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("most", [1, 4_099, 1 << 17])
def test_records_arrive_whole_however_they_are_cut(authority: Authority, most: int) -> None:
    with served(authority, most) as ours:
        tunnel = TunnelContext(authority.certificate).wrap_socket(ours, server_hostname="localhost")
        assert tunnel.send(CONTENT) == len(CONTENT)
        got, room = b"", memoryview(bytearray(ROOM_BYTES))
        while len(got) < len(CONTENT):
            count = tunnel.recv_into(room)
            assert count
            got += room[:count]
        assert tunnel.recv_into(room) == 0
    assert got == CONTENT


def test_who_does_not_wait_is_told_that_nothing_has_come(authority: Authority) -> None:
    with served(authority) as ours:
        tunnel = TunnelContext(authority.certificate).wrap_socket(ours, server_hostname="localhost")
        tunnel.setblocking(False)
        with pytest.raises(BlockingIOError):
            tunnel.recv_into(memoryview(bytearray(1)))


def test_a_closed_tunnel_uses_no_socket_that_is_opened_after_it(authority: Authority) -> None:
    with served(authority) as ours:
        tunnel = TunnelContext(authority.certificate).wrap_socket(ours, server_hostname="localhost")
        number = tunnel.fileno()
        one, two = socket.socketpair()
        with one, two:
            tunnel.close()
            with socket.socket(fileno=os.dup2(one.fileno(), number)):
                with pytest.raises(OSError, match="Bad file descriptor"):
                    tunnel.send(b"for the server only")
                with pytest.raises(OSError, match="Bad file descriptor"):
                    tunnel.recv_into(memoryview(bytearray(1)))


def test_an_address_is_looked_for_among_addresses(authority: Authority) -> None:
    with served(authority) as ours:
        TunnelContext(authority.certificate).wrap_socket(ours, server_hostname="127.0.0.1")


@pytest.mark.parametrize("name", ["elsewhere.test", "127.0.0.2"])
def test_a_server_with_another_name_is_refused(authority: Authority, name: str) -> None:
    with served(authority) as ours, pytest.raises(ConnectionError, match=r"certificate verify failed: .*mismatch"):
        TunnelContext(authority.certificate).wrap_socket(ours, server_hostname=name)


@pytest.mark.parametrize("name", ["", ".", ".localhost", "localhost.", "no name", "a" * 64])
def test_what_names_no_server_is_refused(authority: Authority, name: str) -> None:
    with served(authority) as ours, pytest.raises(UserError, match="no host name"):
        TunnelContext(authority.certificate).wrap_socket(ours, server_hostname=name)


@pytest.mark.parametrize(("shown", "name"), [("*.vibemq.test", "a.vibemq.test"), ("xn--bcher-kva.test", "bücher.test")])
def test_a_server_may_show_a_pattern_or_the_form_of_a_name_in_dns(authority: Authority, shown: str, name: str) -> None:
    with served(authority, names=shown) as ours:
        TunnelContext(authority.certificate).wrap_socket(ours, server_hostname=name)


@pytest.mark.parametrize(
    ("shown", "name"), [("l*.vibemq.test", "local.vibemq.test"), ("*.vibemq.test", "a.b.vibemq.test")]
)
def test_a_pattern_stands_for_one_whole_label(authority: Authority, shown: str, name: str) -> None:
    with served(authority, names=shown) as ours, pytest.raises(ConnectionError, match="mismatch"):
        TunnelContext(authority.certificate).wrap_socket(ours, server_hostname=name)


def test_a_server_that_nobody_vouches_for_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = TunnelContext(Authority(tmp_path, "stranger").certificate)
    with served(authority) as ours, pytest.raises(ConnectionError, match="certificate verify failed: unable to get"):
        stranger.wrap_socket(ours, server_hostname="localhost")


def test_a_file_without_authorities_is_named(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("nothing")
    with pytest.raises(UserError, match="none: needed a PEM file"):
        TunnelContext(str(tmp_path / "none"))
