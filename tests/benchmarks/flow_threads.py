# SPDX-License-Identifier: Apache-2.0
"""A load thread of the generator with a socket at its other end that the test holds."""

import socket
import threading
from contextlib import contextmanager

from vibemq.bench._flow import NUMBER_MARK, STAMP_MARK, body
from vibemq.bench.queues import QueueLoad

JOIN_TIMEOUT_S = 20
SIZE = 60


def load_of(server, kind=QueueLoad, **options):
    defaults = {"messages": 2_000, "timeout_s": 30.0, "verify": True}
    return kind(**{"protocol": server.protocol, "port": server.port, **defaults, **options})


@contextmanager
def socket_pair():
    """The load thread's end, and the one that plays the server."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(JOIN_TIMEOUT_S)
        yield ours, theirs


def run_thread(flow):
    thread = threading.Thread(target=flow.run)
    thread.start()
    return thread


def join(thread):
    thread.join(JOIN_TIMEOUT_S)
    assert not thread.is_alive()


def read(peer, size):
    got = b""
    while len(got) < size:
        more = peer.recv(size - len(got))
        assert more, f"the flow ended after {len(got)} of {size} bytes"
        got += more
    return got


def patched(number):
    """A body as a load thread sends it."""
    return body(SIZE).replace(NUMBER_MARK, b"%08x" % number).replace(STAMP_MARK, b"%016x" % 1)
