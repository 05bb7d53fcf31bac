# SPDX-License-Identifier: Apache-2.0
"""Addresses: what a host name stands for, and several sockets on one port."""

import socket

import pytest

from vibemq.errors import ConfigError
from vibemq.server import listeners


def test_all_sockets_of_a_door_share_one_port():
    bound = listeners.bind("streams", "127.0.0.1", 0, 4)
    try:
        assert len({listener.getsockname() for listener in bound}) == 1
        assert bound[0].getsockname()[1] != 0
    finally:
        for listener in bound:
            listener.close()


def test_bound_but_not_listening_refuses_connections():
    [listener] = listeners.bind("streams", "127.0.0.1", 0, 1)
    with listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname(), timeout=5)


def test_a_port_that_the_kernel_picked_stays_when_a_socket_is_shut_down_and_listens_again():
    bound = listeners.bind("streams", "127.0.0.1", 0, 2)
    try:
        address = bound[0].getsockname()
        for listener in bound:
            listener.listen()
        for listener in bound:
            listener.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        for listener in bound:
            listener.listen()
        assert {listener.getsockname() for listener in bound} == {address}
    finally:
        for listener in bound:
            listener.close()


def test_a_port_in_time_wait_is_free():
    [listener] = listeners.bind("streams", "127.0.0.1", 0, 1)
    listener.listen()
    address = listener.getsockname()
    client = socket.create_connection(address)
    server, _ = listener.accept()
    server.close()  # the side that closes first keeps the address for a while
    client.close()
    listener.close()
    [again] = listeners.bind("streams", *address, 1)
    again.close()


def test_a_name_that_means_nothing_is_a_sentence():
    with pytest.raises(ConfigError, match="cannot listen on host 'no such host'") as raised:
        listeners.resolve("no such host")
    assert "127.0.0.1" in raised.value.hint


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("192.0.2.1", False)],
)
def test_what_counts_as_this_machine_only(address, loopback):
    assert listeners.is_loopback(address) is loopback
