# SPDX-License-Identifier: Apache-2.0
"""One header of each type that a door can express, as door_values.py has bodies and ids.

Types are stored as they come; what a consumer turns into text has the text that is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from door_values import UUID, Row, row, same

from vibemq.protocols.micromsg2.codec import Untyped

#: A header that is not there.
ABSENT = object()
HEADER = "h"
SPECIAL = "a:b;c=%41, é €\t\x01"
LONG = "long " * 200
ODD_KEY = "a key: é;=%"
DAY = datetime(2014, 10, 13, 12, 0, 0, 250_000, tzinfo=UTC)
PRECISE = DAY.replace(microsecond=250_999)
EARLY = datetime(1969, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC)
FIRST, FIRST_MS = datetime(1, 1, 1, tzinfo=UTC), -62135596800000
LAST, LAST_MS = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), 253402300799999


def header(sent: Mapping[str, Any], got: Mapping[str, Any], name: str = HEADER) -> Row:
    def headers(values: Mapping[str, Any]) -> dict[str, Any]:
        return {door: {} if value is ABSENT else {name: value} for door, value in values.items()}

    return row("headers", headers(sent), headers(got))


def amqp(type: str, value: Any) -> dict[str, Any]:
    """A value for which Python has no type, as rstream wants it."""
    return {"TYPE": type, "VALUE": value}


PUBLISHERS = ("native", "streams", "signalr", "micromsg2")
TYPED = PUBLISHERS[1:]  # the native door has texts only
EVERYBODY = (*PUBLISHERS, "spark")

HEADERS = {
    "text": header(sent=same(*PUBLISHERS, value="shop"), got=same(*EVERYBODY, value="shop")),
    "text with everything": header(sent=same(*PUBLISHERS, value=SPECIAL), got=same(*EVERYBODY, value=SPECIAL)),
    "long text": header(sent=same(*PUBLISHERS, value=LONG), got=same(*EVERYBODY, value=LONG)),
    "text that reads as a number": header(sent=same(*PUBLISHERS, value="42"), got=same(*EVERYBODY, value="42")),
    "text that reads as a truth": header(sent=same(*PUBLISHERS, value="true"), got=same(*EVERYBODY, value="true")),
    "odd key": header(sent=same(*PUBLISHERS, value="v"), got=same(*EVERYBODY, value="v"), name=ODD_KEY),
    "empty text": header(
        sent=same(*TYPED, value=""),
        got={"native": ABSENT, "streams": "", "signalr": "", "micromsg2": "", "spark": ""},
    ),
    "empty text of a native client, which removes the header": header(
        sent={"native": ""}, got=same(*EVERYBODY, value=ABSENT)
    ),
    "integer": header(
        sent=same(*TYPED, value=42),
        got={"native": "42", "streams": 42, "signalr": 42, "micromsg2": 42, "spark": "42"},
    ),
    "integer 0": header(
        sent=same(*TYPED, value=0), got={"native": "0", "streams": 0, "signalr": 0, "micromsg2": 0, "spark": "0"}
    ),
    "smallest integer": header(
        sent=same(*TYPED, value=-(2**63)),
        got={
            "native": "-9223372036854775808",
            "streams": -(2**63),
            "signalr": -(2**63),
            "micromsg2": -(2**63),
            "spark": "-9223372036854775808",
        },
    ),
    "largest integer": header(
        sent={"streams": amqp("ULONG", 2**64 - 1), "signalr": 2**64 - 1, "micromsg2": 2**64 - 1},
        got={
            "native": "18446744073709551615",
            "streams": 2**64 - 1,
            "signalr": 2**64 - 1,
            "micromsg2": 2**64 - 1,
            "spark": "18446744073709551615",
        },
    ),
    "double": header(
        sent=same(*TYPED, value=0.1),
        got={"native": "0.1", "streams": 0.1, "signalr": 0.1, "micromsg2": 0.1, "spark": "0.1"},
    ),
    "double of 17 digits": header(
        sent=same(*TYPED, value=-1.0000000000000002e-7),
        got={
            "native": "-1.0000000000000002e-07",
            "streams": -1.0000000000000002e-7,
            "signalr": -1.0000000000000002e-7,
            "micromsg2": -1.0000000000000002e-7,
            "spark": "-1.0000000000000002e-07",
        },
    ),
    "whole double": header(
        sent=same(*TYPED, value=3.0),
        got={"native": "3", "streams": 3.0, "signalr": 3, "micromsg2": 3.0, "spark": "3", "messagepack": 3.0},
    ),
    "large double": header(
        sent=same(*TYPED, value=1e300),
        got={"native": "1e+300", "streams": 1e300, "signalr": 1e300, "micromsg2": 1e300, "spark": "1e+300"},
    ),
    "infinite double": header(
        sent={"streams": float("inf")},
        got={"native": "inf", "streams": float("inf"), "signalr": "inf", "micromsg2": Untyped("inf"), "spark": "inf"}
        | {"messagepack": float("inf")},
    ),
    "NaN": header(
        sent={"streams": float("nan")},
        got={"native": "nan", "streams": float("nan"), "signalr": "nan", "micromsg2": Untyped("nan"), "spark": "nan"}
        | {"messagepack": float("nan")},
    ),
    "-0.0": header(
        sent=same(*TYPED, value=-0.0),
        got={"native": "-0", "streams": -0.0, "signalr": 0, "micromsg2": -0.0, "spark": "-0", "messagepack": -0.0},
    ),
    "largest double": header(
        sent=same(*TYPED, value=1.7976931348623157e308),
        got=same(*TYPED, "messagepack", value=1.7976931348623157e308)
        | same("native", "spark", value="1.7976931348623157e+308"),
    ),
    "smallest double": header(
        sent=same(*TYPED, value=5e-324),
        got=same(*TYPED, "messagepack", value=5e-324) | same("native", "spark", value="4.94065645841247e-324"),
    ),
    "2^53 + 1": header(
        sent=same(*TYPED, value=2**53 + 1),
        got=same(*TYPED, value=2**53 + 1) | same("native", "spark", value="9007199254740993"),
    ),
    "2^63 - 1": header(
        sent=same(*TYPED, value=2**63 - 1),
        got=same(*TYPED, value=2**63 - 1) | same("native", "spark", value="9223372036854775807"),
    ),
    "float": header(
        sent={"streams": amqp("FLOAT", 0.1)},
        got={"native": "0.1", "streams": 0.10000000149011612, "signalr": 0.1, "micromsg2": 0.1, "spark": "0.1"}
        | {"messagepack": 0.10000000149011612},
    ),
    "true": header(
        sent=same("streams", "signalr", value=True),
        got={"native": "true", "streams": True, "signalr": True, "micromsg2": Untyped("true"), "spark": "true"},
    ),
    "false": header(
        sent=same("streams", "signalr", value=False),
        got={"native": "false", "streams": False, "signalr": False, "micromsg2": Untyped("false"), "spark": "false"},
    ),
    "timestamp": header(
        sent=same("streams", "micromsg2", value=DAY),
        got={
            "native": "1413201600250",
            "streams": 1413201600250,
            "signalr": 1413201600250,
            "micromsg2": DAY,
            "spark": "1413201600250",
        },
    ),
    "timestamp before 1970": header(
        sent=same("streams", "micromsg2", value=EARLY),
        got={"native": "-1500", "streams": -1500, "signalr": -1500, "micromsg2": EARLY, "spark": "-1500"},
    ),
    "first timestamp of Python": header(
        sent=same("streams", "micromsg2", value=FIRST),
        got=same("native", "spark", value=str(FIRST_MS))
        | same("streams", "signalr", value=FIRST_MS)
        | {"micromsg2": FIRST},
    ),
    "last timestamp of Python": header(
        sent=same("streams", "micromsg2", value=LAST),
        got=same("native", "spark", value=str(LAST_MS))
        | same("streams", "signalr", value=LAST_MS)
        | {"micromsg2": LAST},
    ),
    "uuid": header(
        sent={"streams": UUID},
        got={"native": str(UUID), "streams": UUID, "signalr": str(UUID), "micromsg2": str(UUID), "spark": str(UUID)},
    ),
    "symbol": header(sent={"streams": amqp("SYMBOL", "shop")}, got=same(*EVERYBODY, value="shop")),
    "bytes": header(
        sent=same("streams", "micromsg2", value=b"\xff;\x01"),
        got={
            "native": "\udcff;\x01",
            "streams": b"\xff;\x01",
            "signalr": "/zsB",
            "micromsg2": b"\xff;\x01",
            "spark": "\N{REPLACEMENT CHARACTER};\x01",
            "messagepack": b"\xff;\x01",
        },
    ),
    "null": header(
        sent={"streams": None},
        got={"native": ABSENT, "streams": None, "signalr": ABSENT, "micromsg2": ABSENT, "spark": None},
    ),
    "list": header(
        sent={"streams": [1, 2]},
        got={"native": ABSENT, "streams": [1, 2], "signalr": ABSENT, "micromsg2": ABSENT, "spark": None},
    ),
    "text without a type": header(
        sent={"micromsg2": Untyped("shop")},
        got={"native": "shop", "streams": "shop", "signalr": "shop", "micromsg2": Untyped("shop"), "spark": "shop"},
    ),
    "timestamp with microseconds, kept only within a protocol": header(
        sent={"micromsg2": PRECISE},
        got={
            "native": "1413201600250",
            "streams": 1413201600250,
            "signalr": 1413201600250,
            "micromsg2": PRECISE,
            "spark": "1413201600250",
        },
    ),
}
