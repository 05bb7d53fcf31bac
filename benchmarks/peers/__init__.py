# SPDX-License-Identifier: Apache-2.0
"""Servers that stand beside VibeMQ in a comparison, and its SignalR and MicroMsg2 doors, under the load generator."""

from functools import partial

from benchmarks.peers.micromsg2 import Micromsg2
from benchmarks.peers.others import Amqp, Echo, Nats, Redis
from benchmarks.peers.signalr import SignalR, SignalRMessagePack
from vibemq.bench import run as bench
from vibemq.bench.load import Peer

PEERS: dict[str, type[Peer]] = bench.PEERS | {
    "echo": Echo,
    "nats": Nats,
    "redis": Redis,
    "amqp": Amqp,
    "signalr": SignalR,
    "signalr-messagepack": SignalRMessagePack,
    "micromsg2": Micromsg2,
}
run = partial(bench.run, peers=PEERS)
