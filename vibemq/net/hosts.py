# SPDX-License-Identifier: Apache-2.0
"""Whom an address stands for, where something is counted or said for each host; and how often one may connect."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, IPv6Network


def host_of(address: str) -> str:
    """Of IPv6 the first 64 bits, because one host has all the others; IPv4 also where it comes as IPv6."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or IPv6Network((parsed, 64), strict=False))


class TokenBucket:
    """At most ``burst`` tokens, ``rate_per_s`` new ones each second; full at first."""

    __slots__ = ("_at_s", "_tokens", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now_s: float) -> None:
        self.rate_per_s, self.burst = rate_per_s, burst
        self._tokens, self._at_s = burst, now_s

    def take(self, now_s: float) -> bool:
        """Take one token; False: there is none."""
        if now_s > self._at_s:  # a clock that goes back gives nothing twice
            self._tokens = min(self.burst, self._tokens + (now_s - self._at_s) * self.rate_per_s)
            self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ConnectionRate:
    """New connections of each host, at most ``limit_per_minute``; 0: any number.

    Each worker counts what the kernel gave to it.  It remembers ``addresses_max`` hosts and forgets the one that has
    been away longest, so the limit is worth as much as that number is beyond what one attacker has.  Time is a
    parameter: seconds of a monotonic clock.
    """

    def __init__(self, limit_per_minute: int, addresses_max: int = 10_000) -> None:
        self._limit, self._addresses_max = limit_per_minute, addresses_max
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()  # longest away first

    def __len__(self) -> int:
        return len(self._buckets)

    def admit(self, address: str, now_s: float) -> bool:
        """May this address connect now?"""
        if self._limit == 0:
            return True
        host = host_of(address)
        bucket = self._buckets.get(host)
        if bucket is None:
            if len(self._buckets) >= self._addresses_max:
                self._buckets.popitem(last=False)
            bucket = self._buckets[host] = TokenBucket(self._limit / 60, self._limit, now_s)
        else:
            self._buckets.move_to_end(host)
        return bucket.take(now_s)
