# SPDX-License-Identifier: Apache-2.0
"""How often one address may connect.

Each address has a bucket of tokens: a connection takes one, and they come back at a steady rate.
Time is a parameter (seconds of a monotonic clock), so nothing here waits or looks at a clock.
Each worker counts what the kernel gave to it.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address


class TokenBucket:
    """At most ``burst`` tokens, ``rate_per_s`` new ones each second; full at first."""

    __slots__ = ("_at_s", "_tokens", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._tokens = burst
        self._at_s = now_s

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
    """New connections of each address, at most ``limit_per_minute``; 0: any number.

    Remembers ``addresses_max`` addresses and forgets the one that has been away longest, so the limit is
    worth as much as that number is beyond what one attacker has.
    """

    def __init__(self, limit_per_minute: int, addresses_max: int = 10_000) -> None:
        self._limit = limit_per_minute
        self._addresses_max = addresses_max
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()  # longest away first

    def __len__(self) -> int:
        return len(self._buckets)

    def admit(self, address: str, now_s: float) -> bool:
        """May this address connect now?"""
        if self._limit == 0:
            return True
        network = _network(address)
        bucket = self._buckets.get(network)
        if bucket is None:
            if len(self._buckets) >= self._addresses_max:
                self._buckets.popitem(last=False)
            bucket = self._buckets[network] = TokenBucket(self._limit / 60, self._limit, now_s)
        else:
            self._buckets.move_to_end(network)
        return bucket.take(now_s)


def _network(address: str) -> str:
    """Whom to count: of IPv6 the /64, which is what one customer has; IPv4 also where it comes as IPv6."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or IPv6Address(int(parsed) >> 64 << 64))
