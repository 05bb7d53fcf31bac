# SPDX-License-Identifier: Apache-2.0
"""A peer that makes TLS dear for a worker: the others on it get their turns."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from authority import Authority, tls_flags
from peers.streams import DEADLINE_S, Peer
from running import Running, broker

from vibemq.protocols.streams.spec import Key

UPDATES = 80_000
READ_BYTES = 512 * 1024  # what a worker reads of a connection at a time
KEY_UPDATE_NOT_REQUESTED = 0


class Restless:
    """A client that changes its keys again and again, by the system's OpenSSL: Python's ssl has no word for it."""

    def __init__(self) -> None:
        names = [ctypes.util.find_library(name) for name in ("ssl", "crypto")]
        if None in names:
            pytest.skip("there is no system's OpenSSL")
        self.ssl, self.crypto = (ctypes.CDLL(name) for name in names)
        for function in (self.ssl.TLS_client_method, self.ssl.SSL_CTX_new, self.ssl.SSL_new, self.crypto.BIO_new):
            function.restype = ctypes.c_void_p
        self.crypto.BIO_s_mem.restype = ctypes.c_void_p
        memory = ctypes.c_void_p(self.crypto.BIO_s_mem())
        self.incoming, self.outgoing = (ctypes.c_void_p(self.crypto.BIO_new(memory)) for _ in range(2))
        self.context = ctypes.c_void_p(self.ssl.SSL_CTX_new(ctypes.c_void_p(self.ssl.TLS_client_method())))
        self.connection = ctypes.c_void_p(self.ssl.SSL_new(self.context))
        self.ssl.SSL_set_bio(self.connection, self.incoming, self.outgoing)
        self.ssl.SSL_set_connect_state(self.connection)

    def __enter__(self) -> Restless:
        return self

    def __exit__(self, *_: object) -> None:
        self.ssl.SSL_free(self.connection)
        self.ssl.SSL_CTX_free(self.context)

    def shake_hands(self, plain: socket.socket) -> None:
        while True:
            finished = self.ssl.SSL_do_handshake(self.connection) == 1
            plain.sendall(self.records())
            if finished:
                return
            got = plain.recv(READ_BYTES)
            self.crypto.BIO_write(self.incoming, got, len(got))

    def update_keys(self) -> None:
        assert self.ssl.SSL_key_update(self.connection, KEY_UPDATE_NOT_REQUESTED) == 1
        assert self.ssl.SSL_do_handshake(self.connection) == 1

    def write(self, data: bytes) -> None:
        assert self.ssl.SSL_write(self.connection, data, len(data)) == len(data)

    def records(self) -> bytes:
        room, records = ctypes.create_string_buffer(READ_BYTES), b""
        while (size := self.crypto.BIO_read(self.outgoing, room, len(room))) > 0:
            records += room.raw[:size]
        return records


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Running]:
    server = Authority(tmp_path).issue("server")
    with broker(tmp_path / "data", *tls_flags(server), workers=1) as running:
        yield running


def test_a_peer_that_changes_its_keys_again_and_again_takes_no_long_turns(secured: Running) -> None:
    with (
        Restless() as restless,
        socket.create_connection((secured.host, secured.tls_port), DEADLINE_S) as plain,
        Peer(secured) as neighbour,
    ):
        restless.shake_hands(plain)
        neighbour.open()
        frame = neighbour.command(Key.PEER_PROPERTIES, properties={})
        for at in range(len(frame)):
            for _ in range(UPDATES // len(frame)):
                restless.update_keys()
            restless.write(frame[at : at + 1])
        flood = restless.records()
        answered = threading.Event()

        def send_and_wait() -> None:
            plain.sendall(flood)
            while restless.ssl.SSL_pending(restless.connection) == 0:
                got = plain.recv(READ_BYTES)
                assert got
                restless.crypto.BIO_write(restless.incoming, got, len(got))
                restless.ssl.SSL_peek(restless.connection, ctypes.create_string_buffer(1), 1)
            answered.set()

        sender = threading.Thread(target=send_and_wait)
        sender.start()
        turns = 0
        while not answered.is_set() and sender.is_alive():
            neighbour.ask(Key.METADATA, streams=["none"])
            turns += 1
        sender.join()
        assert answered.is_set()
        assert turns > 2 * len(flood) / READ_BYTES, "the neighbour had to wait for whole reads of the flood"
