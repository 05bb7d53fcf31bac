# SPDX-License-Identifier: Apache-2.0
"""Addresses: what a host name stands for, and several sockets on one port."""

import socket

import pytest

from vibemq.errors import ConfigError
from vibemq.server import listeners


def bind(host="127.0.0.1", port=0, count=1):
    return listeners.bind({"streams": listeners.Place(host, port, count)})["streams"]


def test_all_sockets_of_a_door_share_one_port():
    bound = bind(count=4)
    try:
        assert len({listener.getsockname() for listener in bound}) == 1
        assert bound[0].getsockname()[1] != 0
    finally:
        for listener in bound:
            listener.close()


def test_bound_but_not_listening_refuses_connections():
    [listener] = bind()
    with listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname(), timeout=5)


def test_a_port_that_the_kernel_picked_stays_when_a_socket_is_shut_down_and_listens_again():
    bound = bind(count=2)
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
    [listener] = bind()
    listener.listen()
    address = listener.getsockname()
    client = socket.create_connection(address)
    server, _ = listener.accept()
    server.close()  # the side that closes first keeps the address for a while
    client.close()
    listener.close()
    [again] = bind(*address)
    again.close()


def test_all_ports_that_are_taken_are_named_at_once_and_the_others_are_let_go():
    [one], [other], [free] = bind(), bind(), bind()
    places = {
        door: listeners.Place(*each.getsockname(), 1)
        for door, each in {"streams": one, "native": free, "signalr-tls": other}.items()
    }
    free.close()
    one.listen()
    other.listen()
    with one, other, pytest.raises(ConfigError) as refused:
        listeners.bind(places)
    for door in ("streams", "signalr-tls"):
        assert f"the {door} door cannot listen on 127.0.0.1:{places[door].port}: " in str(refused.value)
    assert "native" not in str(refused.value)
    assert refused.value.hint.count("another program listens there") == 1
    assert "(--streams-port, signalr.tls_port; 0 picks a free one)" in refused.value.hint
    [again] = bind(*places["native"])
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
