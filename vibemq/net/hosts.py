# SPDX-License-Identifier: Apache-2.0
"""Whom an address stands for, where something is counted or said for each host."""

from __future__ import annotations

import ipaddress


def host_of(address: str) -> str:
    """Whom an address stands for: of IPv6 the first 64 bits, because one host has all the others."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
