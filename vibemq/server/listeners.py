# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: for each door one per worker, all on the same address (SO_REUSEPORT); and that of `vibemq ctl`.

The kernel spreads new connections over them.  The supervisor binds them before the fork and keeps a copy of each:
connections that wait in a dead worker's socket are accepted by its successor, none is reset.  SO_REUSEPORT also lets a
*second* broker of the same account take a share of the first one's connections without a word, so the address is first
bound without it, which fails if anybody listens there.
"""

import contextlib
import errno
import ipaddress
import os
import socket
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from vibemq.addresses import host_port
from vibemq.errors import ConfigError
from vibemq.server.datadir import CTL_SOCKET, OWN_FILES

TLS = "-tls"  # ends the name of a door's listeners that speak TLS
HINTS = {
    errno.EADDRINUSE: "another program listens there; choose another port ({}; 0 picks a free one) or stop it",
    errno.EACCES: "ports below 1024 need root; choose a higher one",
    errno.EADDRNOTAVAIL: "this machine does not have that address; `ip address` shows those it has",
}
BACKLOG = 4096  # the kernel caps it at net.core.somaxconn; a burst of reconnects should fit


def resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """The one address that a host name stands for, IPv4 first, with the scope where it has one.  Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as problem:
        raise ConfigError(
            f"cannot listen on host {host!r}: {problem.strerror}",
            hint="give an address of this machine: 127.0.0.1, 0.0.0.0 (every IPv4 address), :: (every address), or "
            "fe80::1%eth0 (an address of one network interface)",
        ) from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, _with_scope(address)


def _with_scope(address: tuple[Any, ...]) -> str:
    """The text of a socket's address without the port."""
    scope = address[3] if len(address) == 4 else 0
    return f"{address[0]}%{socket.if_indextoname(scope)}" if scope else str(address[0])


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def shown(listener: socket.socket) -> str:
    """HOST:PORT as people and clients write it."""
    address = listener.getsockname()
    return host_port(_with_scope(address), address[1])


def option(door: str) -> str:
    """The configuration's name for the port of these listeners."""
    return f"{door.removesuffix(TLS)}.tls_port" if door.endswith(TLS) else f"--{door}-port"


class Place(NamedTuple):
    """Where a door listens, and by how many sockets."""

    host: str
    port: int
    sockets: int


def bind(places: Mapping[str, Place]) -> dict[str, list[socket.socket]]:
    """For each door its sockets, bound to one address; port 0 picks a free port, the same for all of the door.

    They refuse connections until ``listen`` is called on them.  Raises ConfigError, about all doors that cannot.
    """
    bound: dict[str, list[socket.socket]] = {}
    refused: dict[str, OSError] = {}
    with contextlib.ExitStack() as undone:
        for door, place in places.items():
            try:
                bound[door] = _bound(*place)
            except OSError as why_not:
                refused[door] = why_not
            else:
                for listener in bound[door]:
                    undone.enter_context(listener)
        if not refused:
            undone.pop_all()
            return bound
    why, options = [], defaultdict(list)
    for door, problem in refused.items():
        host, port, _ = places[door]
        why.append(f"the {door} door cannot listen on {host_port(host, port)}: {problem.strerror}")
        options[problem.errno or 0].append(option(door))
    hints = [HINTS.get(code, "").format(", ".join(each)) for code, each in options.items()]
    raise ConfigError("; ".join(why), hint="; ".join(filter(None, hints)))


def _bound(host: str, port: int, count: int) -> list[socket.socket]:
    """Raises OSError, and ConfigError for the host."""
    family, address = resolve(host)
    with contextlib.ExitStack() as undone:
        # The kernel never picks a port for 0 that anybody else uses, with or without SO_REUSEPORT.
        with _new(family, reuse_port=port == 0, address=_of_socket(address, port)) as first:
            if port:
                first.close()
            # It would pick another one when a socket that was bound to 0 is shut down and listens again, after
            # maintenance: so that one goes, and all that stay are bound to the number.
            number = port or first.getsockname()[1]
            there = _of_socket(address, number)
            bound = [undone.enter_context(_new(family, reuse_port=True, address=there)) for _ in range(count)]
        undone.pop_all()
    return bound


def _of_socket(address: str, port: int) -> tuple[Any, ...]:
    """As `bind` takes it: the scope of an IPv6 address is a number of its own there."""
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]


def bind_ctl(data_dir: str) -> socket.socket:
    """The Unix socket, for this account only; the lock on the directory is ours, so an old one is nobody's."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(CTL_SOCKET, dir_fd=folder)
        # Through the descriptor, because an address has room for 107 bytes and paths are longer.
        made.bind(f"{OWN_FILES}/{folder}/{CTL_SOCKET}")
        os.chmod(CTL_SOCKET, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    return made


def _new(family: socket.AddressFamily, *, reuse_port: bool, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Connections of an earlier run that are still in TIME_WAIT must not keep us from starting.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener
