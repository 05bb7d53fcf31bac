# SPDX-License-Identifier: Apache-2.0
"""What one client can do to the others before it is known: places that it never uses, lines in the log, early POSTs."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers.http import JSON_HANDSHAKE, HttpPeer, call
from running import broker, wait_until

from vibemq.net.hosts import host_of


def test_one_address_has_its_share_of_the_places_that_wait(tmp_path: Path) -> None:
    with (
        broker(tmp_path / "data", "--set", "signalr.waiting_per_address_max=3", workers=1) as running,
        HttpPeer(running) as peer,
    ):
        tokens = [peer.token() for _ in range(3)]
        found = peer.ask("POST", "/hub/negotiate?negotiateVersion=1", b"")
        assert (found.status, found.headers["retry-after"]) == (503, "5")
        assert b"waiting_per_address_max" in found.body
        with HttpPeer(running) as other:
            other.upgrade("/hub").handshake()  # what has a socket needs no such place
        assert peer.ask("GET", f"/hub?id={tokens[0]}").status == 200  # is used now
        peer.token()
        assert peer.ask("POST", "/hub/negotiate?negotiateVersion=1", b"").status == 503


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
    ],
)
def test_of_ipv6_a_network_is_one_host(address: str, host: str) -> None:
    assert host_of(address) == host


def test_a_flood_of_refused_requests_is_two_lines_with_the_count(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path / "data", workers=1) as running, HttpPeer(running) as peer:
        for _ in range(500):
            assert peer.ask("GET", "/nothing-here", Origin="https://evil.example").status in (403, 404)
            assert peer.ask("PUT", "/hub").status == 405
    lines = [line for line in capfd.readouterr().err.splitlines() if "PUT /hub" in line]
    assert len(lines) == 2
    assert "405" in lines[0] and "499 more" in lines[1]


def test_calls_before_the_first_poll_that_are_too_many_end_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path / "data", workers=1) as running, HttpPeer(running) as peer:
        path = f"/hub?id={peer.token()}"
        assert peer.ask("POST", path, JSON_HANDSHAKE).status == 200
        # Answers of more than 1 MiB in all, most of them in later turns and some after a helper thread's work.
        calls = b"".join(call(f"{number}", "ServerInfo") for number in range(9000))
        assert peer.ask("POST", path, calls + call("last", "ListQueues")).status == 200
        wait_until(lambda: peer.ask("POST", path, b'{"type":6}\x1e').status == 404, "the end of the hub connection")
        with HttpPeer(running) as other:
            assert other.negotiate()
    log = capfd.readouterr().err
    assert "answers wait for the first transport" in log
    assert "Traceback" not in log and " ERROR " not in log
