# SPDX-License-Identifier: Apache-2.0
"""Thousands of calls at once from a stock client, in each of the ways in which it connects: all of them come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cutting import Network, network
from hub_clients import ENCODINGS, FLAVOURS, Flavour, HubProgram
from hub_serving import Programs, Served, way

CLIENT = "microsoft_signalr"
CALLS = 3000
WAYS = [flavour for flavour in FLAVOURS if flavour.client == CLIENT]
STATEFUL = [Flavour(CLIENT, "WebSockets", encoding) for encoding in ENCODINGS]


@pytest.fixture
def between(served: Served) -> Iterator[Network]:
    with network(served.running.ports["signalr"]) as between:
        yield between


def connected(programs: Programs, served: Served, port: int, flavour: Flavour, **options: Any) -> HubProgram:
    program = programs.start(CLIENT)
    url = f"http://127.0.0.1:{port}/hub"
    program.connect(**way(flavour), url=url, **served.login(flavour), **options)
    return program


@pytest.mark.parametrize("of", WAYS, ids=str)
def test_every_call_is_answered(programs: Programs, served: Served, of: Flavour) -> None:
    program = connected(programs, served, served.running.ports["signalr"], of)
    assert program.value(program.flood(CALLS, "ServerInfo")) == {"answered": CALLS, "refused": 0}


@pytest.mark.parametrize("of", WAYS, ids=str)
def test_after_a_cut_every_call_has_an_end_and_the_next_connection_answers(
    programs: Programs, served: Served, between: Network, of: Flavour
) -> None:
    program = connected(programs, served, between.port, of, reconnect=True)
    flood = program.flood(CALLS, "ServerInfo")
    program.answered(flood, 100)
    between.cut()
    found = program.value(flood)
    assert found["answered"] + found["refused"] == CALLS
    if found["refused"]:
        program.event("reconnected")
    assert program.value(program.flood(CALLS, "ServerInfo")) == {"answered": CALLS, "refused": 0}


@pytest.mark.parametrize("of", STATEFUL, ids=str)
def test_a_stateful_connection_answers_every_call(programs: Programs, served: Served, of: Flavour) -> None:
    program = connected(programs, served, served.running.ports["signalr"], of, stateful=True)
    assert program.value(program.flood(CALLS, "ServerInfo")) == {"answered": CALLS, "refused": 0}
    assert not program.has_closed()


@pytest.mark.parametrize("of", STATEFUL, ids=str)
def test_a_stateful_connection_answers_every_call_over_whatever_sockets(
    programs: Programs, served: Served, between: Network, of: Flavour
) -> None:
    program = connected(programs, served, between.port, of, stateful=True)
    flood = program.flood(CALLS, "ServerInfo")
    for answered in (100, 600, 1500):
        program.answered(flood, answered)
        between.cut()
    assert program.value(flood) == {"answered": CALLS, "refused": 0}
    assert not program.has_closed()
