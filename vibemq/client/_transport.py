# SPDX-License-Identifier: Apache-2.0
"""A socket on which every wait has a deadline, and which keeps reading while it cannot write.

The second half matters: a broker that cannot hand us its confirms stops reading our publishes, so a client that
only writes while it writes ends in a stand-still. Transport.send therefore receives whatever has come whenever the
socket is full, and hands it to `on_input`.

One thread uses a Transport at a time. Its own helper thread only sends heartbeats, and only while nobody else is
sending, so a connection that its owner leaves alone (Spark between two batches) stays open. A TLS session may not be
read and written at once, so with TLS both happen under one lock; nobody waits for the network with it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from vibemq.addresses import host_port, parse_host
from vibemq.client._failures import no_broker_hint
from vibemq.errors import ConnectionClosed, TimeoutExceeded

WAIT_S_MAX = 86_400.0  # of one call of poll, which takes no infinity; who waits longer calls again
RECEIVE_CALLS_MAX = 16  # of one take_input: what a socket holds, and an end with a peer that never stops
HEARTBEAT_FRAME = bytes.fromhex("0000000400170001")


class Deadline:
    """A point in time, and the sentence that explains what was awaited until then."""

    def __init__(self, timeout_s: float, what: str) -> None:
        self.timeout_s, self.what = timeout_s, what
        self.begin()

    def begin(self) -> None:
        """The patience starts anew."""
        self._end = time.monotonic() + self.timeout_s

    def left_s(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutExceeded(
                f"{self.what}: nothing came within {self.timeout_s:g} s",
                hint="Is the broker overloaded or out of disk space? A longer timeout_s waits longer.",
            )
        return min(left, WAIT_S_MAX)


class TlsContext(Protocol):
    """What is needed of an ssl.SSLContext."""

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str) -> Any: ...


class Transport:
    """Bytes in and out of one connection to a `door`. `on_input` is called after more came while it was sending.

    `receive` is given what takes room and says how much it wrote there; it calls that once, and gives the number.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: TlsContext | None,
        timeout_s: float,
        door: str,
        receive: Callable[[Callable[[Any], int]], int],
    ) -> None:
        host = parse_host(host)
        self.peer = host_port(host, port)
        self._receive = receive
        self.on_input: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._unsent = b""  # the rest of a heartbeat that the socket took in part
        self._queue: list[bytes] = []
        self._sending = False
        self._closed = threading.Event()
        self._sent_at = time.monotonic()
        try:
            plain = socket.create_connection((host, port), None if math.isinf(timeout_s) else timeout_s)
        except OSError as error:
            # A TimeoutError without a number is Python's own: nobody refused, our patience ended.
            ours = isinstance(error, TimeoutError) and error.errno is None
            why = f"no answer within {timeout_s:g} s" if ours else error.strerror or error
            raise ConnectionClosed(
                f"{self.peer}: could not connect: {why}",
                hint=no_broker_hint(door),
            ) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = ipaddress.ip_address(plain.getpeername()[0].partition("%")[0])
            self.is_private = tls is not None or address.is_loopback  # nobody else hears what is said
            self._socket = tls.wrap_socket(plain, server_hostname=host) if tls else plain
        except OSError as error:
            plain.close()
            raise ConnectionClosed(
                f"{self.peer}: the TLS handshake failed: {error}",
                hint="Is this the broker's TLS port, is its certificate for this host name, and does the client trust "
                "the authority (--ca-file on the command line, tlsCa for Spark)?",
            ) from error
        self._socket.setblocking(False)
        self._read_guard = self._lock if tls else contextlib.nullcontext()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll_both = select.poll()
        self._poll_both.register(self._socket, select.POLLIN | select.POLLOUT)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def send(self, frame: bytes, deadline: Deadline) -> None:
        """All of `frame`, in order. Called again from `on_input`, it only queues: frames are never interleaved."""
        with self._lock:
            self._queue.append(frame)
            if self._sending:
                return
            self._sending = True
        try:
            while self._queue:
                self._send_one(self._queue[0], deadline)
                self._queue.pop(0)
        except BaseException:
            self.close()  # half a frame may be out, and nothing could follow it
            raise
        finally:
            self._sending = False

    def _send_one(self, frame: bytes, deadline: Deadline) -> None:
        rest = memoryview(self._unsent + frame if self._unsent else frame)
        self._unsent = b""
        while rest:
            try:
                sent = self._try_send(rest)
            except OSError as error:
                # A broker says why before it closes: `on_input` raises the better error if that has come.
                self.take_input()
                raise self._lost(f"sending failed: {error}") from error
            rest = rest[sent:]
            if rest and not sent:
                if self.poll_input():  # first, for poll does not see what TLS has decrypted already
                    self.on_input()
                else:
                    self._poll_both.poll(deadline.left_s() * 1000)

    def _try_send(self, data: memoryview) -> int:
        try:
            with self._lock:
                sent = self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        self._sent_at = time.monotonic()
        return sent

    def poll_input(self) -> bool:
        """Takes what the socket has, once, without waiting; True if there was anything."""
        try:
            with self._read_guard:
                got = self._receive(self._socket.recv_into)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            raise self._lost(f"receiving failed: {error}") from error
        if got == 0:
            raise self._lost("the broker closed the connection")
        return True

    def take_input(self) -> None:
        """Takes what the socket has, without waiting. That the connection has ended is left to who reads on."""
        for _ in range(RECEIVE_CALLS_MAX):
            try:
                if not self.poll_input():
                    return
            except ConnectionClosed:
                return
            self.on_input()

    def wait_input(self, deadline: Deadline) -> None:
        """Until at least one byte has come, which goes to the inbox."""
        while not self.poll_input():
            self._poll.poll(deadline.left_s() * 1000)

    def _lost(self, why: str) -> ConnectionClosed:
        self.close()
        return ConnectionClosed(
            f"{self.peer}: {why}",
            hint="Unconfirmed messages may or may not be stored: connect again and publish them again.",
        )

    def start_heartbeats(self, interval_s: float) -> None:
        """From now on a heartbeat goes out whenever nothing was sent for half an interval."""
        reference, closed = weakref.ref(self), self._closed

        def run() -> None:
            while not closed.wait(interval_s / 2):
                transport = reference()
                if transport is None:
                    return
                transport._send_heartbeat(interval_s / 2 * 0.9)
                del transport  # or this thread would keep a forgotten connection alive

        threading.Thread(target=run, name="vibemq heartbeat", daemon=True).start()

    def _send_heartbeat(self, silence_s: float) -> None:
        """In the helper thread: never waits, and does nothing while the owner is sending."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._sending and not self._unsent and time.monotonic() - self._sent_at >= silence_s:
                sent = self._try_send(memoryview(HEARTBEAT_FRAME))
                # A socket that is full has bytes for the broker to read: no need of a heartbeat.
                self._unsent = HEARTBEAT_FRAME[sent:] if sent else b""
        except OSError:
            return  # the owner finds out at the next call, with a better message
        finally:
            self._lock.release()

    def detach(self) -> socket.socket:
        """Ends this object without ending the connection."""
        self._closed.set()
        with self._lock:
            self._socket.setblocking(True)
            return self._socket

    def end_sending(self) -> None:
        """The peer hears that nothing more comes."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._socket.close()
