# SPDX-License-Identifier: Apache-2.0
"""Where a request comes from, and by which name its sender reached this machine."""

from __future__ import annotations

import ipaddress

from aiohttp import web


def is_this_machine(request: web.Request) -> bool:
    """Was it reached by a name of this machine's own?  Everybody knows guest's password, so a page whose name
    was made to lead here could use it."""
    host = request.url.host or ""
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


def is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def network_of(host: str) -> str:
    """Who attempts are counted for: an address, of IPv6 its /64, which one machine has to itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)
