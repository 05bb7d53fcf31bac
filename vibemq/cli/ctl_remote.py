# SPDX-License-Identifier: Apache-2.0
"""`vibemq ctl remote_status`, and the line about the object store in `vibemq ctl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibemq.cli.data import Failed
from vibemq.errors import UserError

if TYPE_CHECKING:
    from vibemq.cli.ctl_orders import Order

#: US dollars for 1000 requests and for a GB and month: S3 Standard in us-east-1, its first 50 TB, as AWS published
#: them in 2025. A DELETE is free there, and so is what goes to machines of the region.
PUT_PRICE, GET_PRICE, STORAGE_PRICE = 0.005, 0.0004, 0.023
MONTH_S = 30 * 86_400
GB = 1_000_000_000
#: As the archiver has it: a request that failed once was tried again, and nothing is wrong.
AWAY_S_MIN = 5.0


def remote_status(order: Order) -> dict[str, Any]:
    """What the archiver says, and what a month of it costs."""
    found = asked(order)
    if found is None:
        raise UserError(
            "this broker has no object store: remote.url is empty", hint="`vibemq config` says what [remote] may have"
        )
    shown = {"object_store": in_words(found), **found}
    if found["is_up"]:
        prices = {name: order.options[name] for name in ("put_price", "get_price", "storage_price")}
        shown["cost_of_a_month"] = cost_of_a_month(found, **prices)
    return shown


def asked(order: Order) -> dict[str, Any] | None:
    """None: there is no object store."""
    try:
        found: dict[str, Any] = order.data.ask("GET", "/remote/status", needs_broker=True)
    except Failed as failed:
        if failed.status == 404:
            return None
        raise
    return found


def in_words(status: dict[str, Any]) -> str:
    """The line that tells an operator whether to do anything."""
    if not status["is_up"]:
        return f"{status['url']}: nothing is sent, since the archiver does not answer: {status['why']}"
    if status["away_s"] >= AWAY_S_MIN:
        return (
            f"{status['url']} has taken nothing for {status['away_s']:.0f} s: {status['last_error']}; publishers to "
            f"streams of durability remote wait, with {status['messages_waiting']} messages: {status['advice']}"
        )
    if unsent := status["streams_that_cannot_be_sent"]:
        whole = "; ".join(f"{name}: {why}" for name, why in unsent.items())
        return f"{status['url']} answers; of some streams it is not sent what should be: {whole}"
    return f"{status['url']} answers"


def cost_of_a_month(
    status: dict[str, Any], put_price: float, get_price: float, storage_price: float
) -> dict[str, float | str]:
    """At the rate since the archiver started, for what is in segments now; prices as in the options."""
    requests, months = status["requests"], max(status["up_s"], 1.0) / MONTH_S
    puts = (requests["put"] + requests["list"]) / months / 1000 * put_price
    gets = requests["get"] / months / 1000 * get_price
    storage = status["segment_bytes"] / GB * storage_price
    return {
        "puts_and_lists": round(puts, 2),
        "gets": round(gets, 2),
        "storage_of_segments": round(storage, 2),
        "all": round(puts + gets + storage, 2),
        "at": f"{put_price:g} and {get_price:g} for 1000 requests, {storage_price:g} for a GB; traffic is not in it",
    }
