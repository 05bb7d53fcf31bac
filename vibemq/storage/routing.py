# SPDX-License-Identifier: Apache-2.0
"""Exchanges and bindings: what a super stream is made of.

A super stream is a direct exchange of its name and one binding for each partition.  It is kept as
just that, so that one made by the protocol and one put together by tools are the same thing.
Bindings go with their stream and with their exchange.
"""

import re
import sqlite3
import time
from collections.abc import Mapping

from vibemq.errors import ExchangeExists, ExchangeNotFound, StreamNotFound
from vibemq.storage.database import again_when_full
from vibemq.storage.names import require_address
from vibemq.storage.records import BindingRecord, ExchangeRecord, Table, as_column
from vibemq.storage.vhosts import Vhosts

SUPER_STREAM = "x-super-stream"
PARTITION_ORDER = "x-stream-partition-order"

EXCHANGES = Table("exchanges", ExchangeRecord)
BINDINGS = Table("bindings", BindingRecord)
_TRAILING_NUMBER = re.compile(r"-([0-9]{1,9})\Z")
# Of partitions: as their bindings say, then those that say nothing, as they were bound.
_ORDER = "partition_order IS NULL, partition_order, id"


class Routing(Vhosts):
    """Exchanges and bindings; the tables are storage.metadata's."""

    # ---- super streams, as the protocol asks ----

    def partitions(self, vhost: str, super_stream: str) -> list[str] | None:
        """The streams of a super stream in their order; None: there is no such super stream."""
        return self._bound(vhost, super_stream)

    def route(self, vhost: str, super_stream: str, key: str) -> list[str] | None:
        """The streams bound with exactly this key; None: there is no such super stream."""
        return self._bound(vhost, super_stream, key)

    def _bound(self, vhost: str, super_stream: str, key: str | None = None) -> list[str] | None:
        rows = self._rows(  # one statement, one moment: with two the super stream could go in between
            "SELECT b.stream FROM exchanges x LEFT JOIN bindings b ON b.vhost = x.vhost AND b.exchange = x.name "
            f"AND (?3 IS NULL OR b.routing_key = ?3) WHERE x.vhost = ?1 AND x.name = ?2 ORDER BY {_ORDER}",
            *(vhost, super_stream, key),
        )
        return list(dict.fromkeys(stream for (stream,) in rows if stream is not None)) if rows else None

    def partition_of(self, vhost: str, super_stream: str, stream: str) -> int | None:
        """The number of a partition: its binding's, else that at the end of its name, else -1; None: not bound."""
        row = self._row(
            f"SELECT partition_order FROM bindings WHERE vhost = ? AND exchange = ? AND stream = ? ORDER BY {_ORDER}",
            *(vhost, super_stream, stream),
        )
        if row is None:
            return None
        if row[0] is not None:
            return int(row[0])
        number = _TRAILING_NUMBER.search(stream)
        return int(number[1]) if number else -1

    # ---- exchanges and bindings, as tools ask ----

    @again_when_full
    def add_exchange(self, vhost: str, name: str, arguments: Mapping[str, object]) -> bool:
        """Make a direct exchange; False: the same one was there.  Raises ExchangeExists, VhostNotFound, UserError."""
        with self._writing(synced=True) as db:
            self.require_vhost(vhost)
            found = self.find_exchange(vhost, name)
            if found is None:
                require_address("exchange", name)
                insert_exchange(db, vhost, name, arguments)
                return True
        if found.arguments != dict(arguments):
            raise ExchangeExists(f"exchange {name!r} in virtual host {vhost!r} has other arguments: {found.arguments}")
        return False

    @again_when_full
    def delete_exchange(self, vhost: str, name: str) -> None:
        """With its bindings; the streams stay.  Raises ExchangeNotFound."""
        with self._writing(synced=True) as db:
            if db.execute("DELETE FROM exchanges WHERE vhost = ? AND name = ?", (vhost, name)).rowcount == 0:
                raise _no_exchange(vhost, name)

    def find_exchange(self, vhost: str, name: str) -> ExchangeRecord | None:
        return self._record(EXCHANGES, "WHERE vhost = ? AND name = ?", vhost, name)

    def exchanges(self, vhost: str | None = None) -> list[ExchangeRecord]:
        """By vhost and name."""
        return self._records(EXCHANGES, "WHERE ?1 IS NULL OR vhost = ?1 ORDER BY vhost, name", vhost)

    @again_when_full
    def add_binding(
        self, vhost: str, exchange: str, stream: str, routing_key: str, arguments: Mapping[str, object]
    ) -> bool:
        """Bind a stream; False: the same binding was there.  Raises ExchangeNotFound, StreamNotFound."""
        with self._writing(synced=True) as db:
            if self.find_exchange(vhost, exchange) is None:
                raise _no_exchange(vhost, exchange)
            if db.execute("SELECT 1 FROM streams WHERE vhost = ? AND name = ?", (vhost, stream)).fetchone() is None:
                raise StreamNotFound(f"there is no stream {stream!r} in vhost {vhost!r}")
            return insert_binding(db, vhost, exchange, stream, routing_key, arguments)

    @again_when_full
    def delete_binding(
        self, vhost: str, exchange: str, stream: str, routing_key: str, arguments: Mapping[str, object]
    ) -> bool:
        """Was there one with exactly this key and these arguments?"""
        with self._writing(synced=True) as db:
            gone = db.execute(
                "DELETE FROM bindings WHERE vhost = ? AND exchange = ? AND stream = ? AND routing_key = ? "
                "AND arguments = ?",
                (vhost, exchange, stream, routing_key, as_column(dict(arguments))),
            )
        return gone.rowcount > 0

    def bindings(self, vhost: str | None = None, exchange: str | None = None) -> list[BindingRecord]:
        """By vhost, exchange and the order of partitions."""
        given = "WHERE (?1 IS NULL OR vhost = ?1) AND (?2 IS NULL OR exchange = ?2)"
        return self._records(BINDINGS, f"{given} ORDER BY vhost, exchange, {_ORDER}", vhost, exchange)


def insert_exchange(db: sqlite3.Connection, vhost: str, name: str, arguments: Mapping[str, object]) -> None:
    EXCHANGES.insert(db, ExchangeRecord(vhost, name, dict(arguments), time.time_ns() // 1_000_000))


def insert_binding(
    db: sqlite3.Connection, vhost: str, exchange: str, stream: str, routing_key: str, arguments: Mapping[str, object]
) -> bool:
    """False: it is there already."""
    done = db.execute(
        f"INSERT OR IGNORE INTO bindings ({BINDINGS.columns}, partition_order) VALUES (?, ?, ?, ?, ?, ?)",
        (vhost, exchange, stream, routing_key, as_column(dict(arguments)), _order(arguments.get(PARTITION_ORDER))),
    )
    return done.rowcount > 0


def _order(given: object) -> int | None:
    """Tools send it as a number or as text."""
    text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _no_exchange(vhost: str, name: str) -> ExchangeNotFound:
    return ExchangeNotFound(f"there is no exchange {name!r} in virtual host {vhost!r}")
