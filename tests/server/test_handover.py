# SPDX-License-Identifier: Apache-2.0
"""Connections that go from one worker to another: the socket itself travels, with what was read of it."""

import os
import resource
import socket

import pytest

from vibemq.server.handover import INLINE_BYTES_MAX, RECEIVED_PER_TURN, Handovers, channels


class Loop:
    """What the handovers ask of a worker's loop."""

    def __init__(self, has_room=True):
        self.has_room, self.read, self.taken = has_room, None, []

    def attend(self, fd, on_readable):
        self.read = on_readable

    def adopt(self, fd, peer, local, is_relayed, door, data):
        if self.has_room:
            self.taken.append((socket.socket(fileno=fd), peer, local, is_relayed, door, data))
        return self.has_room

    def close(self, connection):
        os.close(connection.fd)


class Accepted:
    """An accepted connection of the worker that gives it away."""

    peer, peer_host, peer_port, local_host, local_port = "a peer", "10.0.0.9", 4242, "127.0.0.1", 2927
    is_tls = is_relayed = False

    def __init__(self):
        self.client, accepted = socket.socketpair()
        self.client.settimeout(10)
        self.fd = accepted.detach()


@pytest.fixture
def among():
    made = channels(2)
    yield made
    for ends in made:
        for end in ends:
            end.close()


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 1 << 20])
def test_the_other_worker_has_the_socket_and_what_was_read_of_it(among, size):
    one, two, door = Loop(), Loop(), object()
    giver = Handovers(one, 0, among, {"hub": door})
    Handovers(two, 1, among, {"hub": door})
    connection, data = Accepted(), os.urandom(size)

    assert giver.give(1, "hub", connection, data)

    two.read()
    ((taken, peer, local, is_relayed, its_door, had),) = two.taken
    assert (peer, local, is_relayed, had) == (("10.0.0.9", 4242), ("127.0.0.1", 2927), False, data)
    assert its_door is door
    taken.sendall(b"from the new owner")
    assert connection.client.recv(100) == b"from the new owner"
    taken.close()
    assert connection.client.recv(100) == b"", "no copy of the socket is left with the giver"


def test_a_worker_without_room_ends_what_it_is_given(among):
    full = Loop(has_room=False)
    giver = Handovers(Loop(), 0, among, {"hub": None})
    Handovers(full, 1, among, {"hub": None})
    connection = Accepted()
    assert giver.give(1, "hub", connection, b"")
    full.read()
    assert connection.client.recv(1) == b""


@pytest.mark.parametrize("room", [0, 1])
def test_a_worker_without_descriptors_left_ends_what_comes_without_all_that_was_read_of_it(among, room):
    two = Loop()
    giver = Handovers(Loop(), 0, among, {"hub": None})
    Handovers(two, 1, among, {"hub": None})
    connection = Accepted()
    assert giver.give(1, "hub", connection, bytes(INLINE_BYTES_MAX + 1))
    lowest = os.dup(0)
    os.close(lowest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, before[1]))
    try:
        two.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert two.taken == []
    assert connection.client.recv(1) == b""


def test_a_worker_that_does_not_read_is_given_so_much_and_no_more(among):
    giver, busy = Handovers(Loop(), 0, among, {"hub": None}), Loop()
    Handovers(busy, 1, among, {"hub": None})
    data, count, refused = bytes(INLINE_BYTES_MAX), 0, None
    while refused is None:
        connection = Accepted()
        if giver.give(1, "hub", connection, data):
            count += 1
        else:
            refused = connection
    assert 0 < count < 1000
    for _ in range(-(-count // RECEIVED_PER_TURN)):
        busy.read()
    assert len(busy.taken) == count, "those that it took are all there"
    assert giver.give(1, "hub", refused, data), "and there is room again"
