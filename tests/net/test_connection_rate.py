# SPDX-License-Identifier: Apache-2.0
"""How often an address may connect, with a clock that the test turns."""

from vibemq.net.hosts import ConnectionRate, TokenBucket


def test_a_bucket_gives_its_burst_and_then_its_rate():
    bucket = TokenBucket(rate_per_s=2, burst=3, now_s=100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(101.0) for _ in range(3)] == [True, True, False]
    assert not bucket.take(101.25)
    assert bucket.take(101.5)


def test_a_bucket_never_holds_more_than_its_burst():
    bucket = TokenBucket(rate_per_s=2, burst=3, now_s=0.0)
    assert [bucket.take(1e9) for _ in range(4)] == [True, True, True, False]


def test_a_clock_that_goes_back_gives_nothing():
    bucket = TokenBucket(rate_per_s=1, burst=1, now_s=100.0)
    assert bucket.take(100.0)
    assert not bucket.take(50.0)
    assert not bucket.take(100.5)
    assert bucket.take(101.0)


def test_each_address_has_its_own_limit():
    rate = ConnectionRate(limit_per_minute=2)
    assert [rate.admit("192.0.2.1", 0.0) for _ in range(3)] == [True, True, False]
    assert rate.admit("192.0.2.2", 0.0)
    assert [rate.admit("192.0.2.1", 30.0) for _ in range(2)] == [True, False]


def test_no_limit_remembers_nobody():
    rate = ConnectionRate(limit_per_minute=0)
    assert all(rate.admit("192.0.2.1", 0.0) for _ in range(1000))
    assert len(rate) == 0


def test_memory_is_bounded_and_who_keeps_coming_is_not_forgotten():
    rate = ConnectionRate(limit_per_minute=1, addresses_max=10)
    assert rate.admit("192.0.2.1", 0.0)
    for n in range(1000):
        assert rate.admit(f"198.51.{n // 250}.{n % 250}", 0.0)
        assert not rate.admit("192.0.2.1", 0.0)
    assert len(rate) == 10


def test_ipv6_is_counted_by_network_and_ipv4_is_one_address_in_any_form():
    rate = ConnectionRate(limit_per_minute=1)
    assert rate.admit("2001:db8:0:1::1", 0.0)
    assert not rate.admit("2001:db8:0:1:ffff::2", 0.0)
    assert rate.admit("2001:db8:0:2::1", 0.0)
    assert rate.admit("192.0.2.1", 0.0)
    assert not rate.admit("::ffff:192.0.2.1", 0.0)
    assert rate.admit("fe80::1%eth0", 0.0)
    assert not rate.admit("fe80::2%eth0", 0.0)
    assert rate.admit("not an : address", 0.0)
