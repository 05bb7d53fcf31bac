# SPDX-License-Identifier: Apache-2.0
"""What goes in by each door and what comes out of each: tables of values, written down and not computed.

A row is one meaning. `sent` has it in the words of every door that can say it, `got` in those of every consumer,
whichever door it came by.  What a door cannot say is another row: a number in a header of the native door is a text.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from door_clients import HTTP, JSON, MESSAGEPACK, NOTHING, SPARK, Message, Stored, packed

from vibemq.admin.api.messages import BODY_BYTES_SHOWN_MAX

TEXT = "text/plain"
BYTES = "application/octet-stream"
#: What a message without an id is called where everything has one: its offset, as text.
OFFSET = object()


class Row(NamedTuple):
    sent: Mapping[str, Message]
    got: Mapping[str, Message]


def got(row: Row, consumer: str) -> Message:
    """Return the message that a consumer gets, by the row or else by another of its columns.

    A MessagePack client of the hub gets what a JSON client gets, in MessagePack. Spark has the content type and the key
    that are stored, as a streams client gets them. The management API shows the bytes of MicroMsg2, as a text
    where they are UTF-8, and ids and headers as Spark has them.
    """
    if consumer == SPARK:
        stored = row.got["streams"]
        return row.got[SPARK]._replace(content_type=stored.content_type, key=stored.key)
    if consumer in row.got:
        return row.got[consumer]
    if consumer == MESSAGEPACK:
        message = row.got["signalr"]
        return message._replace(body=packed(message.body))
    assert consumer == HTTP
    message = row.got[SPARK]
    return Message(shown(row.got["micromsg2"].body), message.id, message.headers)


def shown(body: bytes) -> str | bytes:
    cut = body[:BODY_BYTES_SHOWN_MAX]
    try:
        text = cut.decode("utf-8", "strict" if len(cut) == len(body) else "ignore")
    except UnicodeDecodeError:
        return cut
    return cut if "\0" in text else text


def sent_in_messagepack(row: Row) -> Message | None:
    """Return the JSON client's message in MessagePack, or None if its body would be stored otherwise."""
    message = row.sent.get("signalr")
    if MESSAGEPACK in row.sent or message is None:
        return row.sent.get(MESSAGEPACK)
    is_text_as_json = isinstance(message.body, str) and message.content_type is None
    return None if is_text_as_json else message._replace(body=packed(message.body))


# ---- bodies ----

VALUE = {"number": 1, "list": [1.5, None, True], "text": "é"}
VALUE_JSON = '{"number":1,"list":[1.5,null,true],"text":"é"}'.encode()
WORDS = "naïve: 1 €"
WORDS_UTF8 = b"na\xc3\xafve: 1 \xe2\x82\xac"
WORDS_JSON = b'"na\xc3\xafve: 1 \xe2\x82\xac"'
OCTETS = b"\x00\xff\x80;:\n"
LARGE_TEXT = "0123456789" * 10_000
LARGE_OCTETS = bytes(range(256)) * 400
BASE64 = {"payload-encoding": "base64"}

BODIES = {
    "json": Row(
        sent={
            "native": Message(VALUE),
            "streams": Message(VALUE_JSON, content_type=JSON),
            "micromsg2": Message(VALUE_JSON, content_type=JSON),
            "signalr": Message(VALUE),
        },
        got={
            "native": Message(VALUE),
            "streams": Message(VALUE_JSON, content_type=JSON),
            "signalr": Message(VALUE),
            "micromsg2": Message(VALUE_JSON, content_type=JSON),
            "spark": Message(VALUE_JSON),
        },
    ),
    "a text as json": Row(
        sent={
            "native": Message(WORDS),
            "streams": Message(WORDS_JSON, content_type=JSON),
            "micromsg2": Message(WORDS_JSON, content_type=JSON),
            "signalr": Message(WORDS),
        },
        got={
            "native": Message(WORDS),
            "streams": Message(WORDS_JSON, content_type=JSON),
            "signalr": Message(WORDS),
            "micromsg2": Message(WORDS_JSON, content_type=JSON),
            "spark": Message(WORDS_JSON),
        },
    ),
    "100 kB of json": Row(
        sent={
            "native": Message([LARGE_TEXT]),
            "streams": Message(b'["%s"]' % LARGE_TEXT.encode(), content_type=JSON),
            "micromsg2": Message(b'["%s"]' % LARGE_TEXT.encode(), content_type=JSON),
            "signalr": Message([LARGE_TEXT]),
        },
        got={
            "native": Message([LARGE_TEXT]),
            "streams": Message(b'["%s"]' % LARGE_TEXT.encode(), content_type=JSON),
            "signalr": Message([LARGE_TEXT]),
            "micromsg2": Message(b'["%s"]' % LARGE_TEXT.encode(), content_type=JSON),
            "spark": Message(b'["%s"]' % LARGE_TEXT.encode()),
        },
    ),
    "null": Row(
        sent={
            "native": Message(None),
            "streams": Message(b"null", content_type=JSON),
            "micromsg2": Message(b"null", content_type=JSON),
            "signalr": Message(None),
        },
        got={
            "native": Message(None),
            "streams": Message(b"null", content_type=JSON),
            "signalr": Message(None),
            "micromsg2": Message(b"null", content_type=JSON),
            "spark": Message(b"null"),
        },
    ),
    "text": Row(
        sent={
            "streams": Message(WORDS_UTF8, content_type=TEXT),
            "micromsg2": Message(WORDS_UTF8, content_type=TEXT),
            "signalr": Message(WORDS, content_type=TEXT),
        },
        got={
            "native": Message(WORDS),
            "streams": Message(WORDS_UTF8, content_type=TEXT),
            "signalr": Message(WORDS, content_type=TEXT),
            "micromsg2": Message(WORDS_UTF8, content_type=TEXT),
            "spark": Message(WORDS_UTF8),
        },
    ),
    "text that reads as json": Row(
        sent={
            "streams": Message(b"42", content_type=TEXT),
            "micromsg2": Message(b"42", content_type=TEXT),
            "signalr": Message("42", content_type=TEXT),
        },
        got={
            "native": Message(42),
            "streams": Message(b"42", content_type=TEXT),
            "signalr": Message("42", content_type=TEXT),
            "micromsg2": Message(b"42", content_type=TEXT),
            "spark": Message(b"42"),
        },
    ),
    "100 kB of text": Row(
        sent={
            "streams": Message(LARGE_TEXT.encode(), content_type=TEXT),
            "micromsg2": Message(LARGE_TEXT.encode(), content_type=TEXT),
            "signalr": Message(LARGE_TEXT, content_type=TEXT),
        },
        got={
            "native": Message(LARGE_TEXT),
            "streams": Message(LARGE_TEXT.encode(), content_type=TEXT),
            "signalr": Message(LARGE_TEXT, content_type=TEXT),
            "micromsg2": Message(LARGE_TEXT.encode(), content_type=TEXT),
            "spark": Message(LARGE_TEXT.encode()),
        },
    ),
    "bytes": Row(
        sent={
            "streams": Message(OCTETS, content_type=BYTES),
            "micromsg2": Message(OCTETS, content_type=BYTES),
            "signalr": Message(OCTETS, content_type=BYTES),
        },
        got={
            "native": Message(OCTETS, headers=BASE64),
            "streams": Message(OCTETS, content_type=BYTES),
            "signalr": Message(OCTETS, content_type=BYTES),
            "micromsg2": Message(OCTETS, content_type=BYTES),
            "spark": Message(OCTETS),
        },
    ),
    "100 kB of bytes": Row(
        sent={
            "streams": Message(LARGE_OCTETS, content_type=BYTES),
            "micromsg2": Message(LARGE_OCTETS, content_type=BYTES),
            "signalr": Message(LARGE_OCTETS, content_type=BYTES),
        },
        got={
            "native": Message(LARGE_OCTETS, headers=BASE64),
            "streams": Message(LARGE_OCTETS, content_type=BYTES),
            "signalr": Message(LARGE_OCTETS, content_type=BYTES),
            "micromsg2": Message(LARGE_OCTETS, content_type=BYTES),
            "spark": Message(LARGE_OCTETS),
        },
    ),
    "bytes of a native client, which are base64 in json": Row(
        sent={"native": Message(OCTETS)},
        got={
            "native": Message(OCTETS, headers=BASE64),
            "streams": Message(b'"AP+AOzoK"', headers=BASE64, content_type=JSON),
            "signalr": Message("AP+AOzoK", headers=BASE64),
            "micromsg2": Message(b'"AP+AOzoK"', headers=BASE64, content_type=JSON),
            "spark": Message(b'"AP+AOzoK"', headers=BASE64),
        },
    ),
    "json without a content type": Row(
        sent={"streams": Message(VALUE_JSON), "micromsg2": Message(VALUE_JSON)},
        got={
            "native": Message(VALUE),
            "streams": Message(VALUE_JSON),
            "signalr": Message(VALUE),
            "micromsg2": Message(VALUE_JSON),
            "spark": Message(VALUE_JSON),
        },
    ),
    "text without a content type": Row(
        sent={"streams": Message(WORDS_UTF8), "micromsg2": Message(WORDS_UTF8)},
        got={
            "native": Message(WORDS),
            "streams": Message(WORDS_UTF8),
            "signalr": Message(WORDS),
            "micromsg2": Message(WORDS_UTF8),
            "spark": Message(WORDS_UTF8),
        },
    ),
    "bytes without a content type": Row(
        sent={"streams": Message(OCTETS), "micromsg2": Message(OCTETS)},
        got={
            "native": Message(OCTETS, headers=BASE64),
            "streams": Message(OCTETS),
            "signalr": Message(OCTETS),
            "micromsg2": Message(OCTETS),
            "spark": Message(OCTETS),
        },
    ),
    "bytes that are no AMQP message": Row(
        sent={"streams": Message(Stored(OCTETS))},
        got={
            "native": Message(OCTETS, OFFSET, headers=BASE64),
            "streams": Message(OCTETS, None),
            "signalr": Message(OCTETS, OFFSET),
            "micromsg2": Message(OCTETS, None),
            "spark": Message(OCTETS, None),
        },
    ),
}

# ---- bodies that only streams clients write ----

VALUES = {
    "an AMQP value section with a text": Row(
        sent={"streams": Message(WORDS)},
        got={
            "native": Message(WORDS),
            "streams": Message(WORDS),
            "signalr": Message(WORDS),
            "micromsg2": Message(WORDS_UTF8),
            "spark": Message(WORDS_UTF8),
        },
    ),
    "an AMQP value section with bytes": Row(
        sent={"streams": Message(Stored(b"\0\x53\x77\xa0\x06" + OCTETS))},
        got={
            "native": Message(OCTETS, OFFSET, headers=BASE64),
            "streams": Message(OCTETS, None),
            "signalr": Message(OCTETS, OFFSET),
            "micromsg2": Message(OCTETS, None),
            "spark": Message(OCTETS, None),
        },
    ),
}

# ---- bodies that are empty ----

EMPTY = {
    "nothing": Row(
        sent={"native": Message(NOTHING), "streams": Message(NOTHING)},
        got={
            "native": Message(None),
            "streams": Message(NOTHING),
            "signalr": Message(None),
            "micromsg2": Message(b""),
            "spark": Message(b""),
        },
    ),
    "no bytes": Row(
        sent={"signalr": Message(b"", content_type=BYTES), "micromsg2": Message(b"", content_type=BYTES)},
        got={
            "native": Message(None),
            "streams": Message(b"", content_type=BYTES),
            "signalr": Message(b"", content_type=BYTES),
            "micromsg2": Message(b"", content_type=BYTES),
            "spark": Message(b""),
        },
    ),
    "no bytes, without a content type": Row(
        sent={"micromsg2": Message(b"")},
        got={
            "native": Message(None),
            "streams": Message(b""),
            "signalr": Message(None),
            "micromsg2": Message(b""),
            "spark": Message(b""),
        },
    ),
    "an empty text": Row(
        sent={"signalr": Message("", content_type=TEXT), "micromsg2": Message(b"", content_type=TEXT)},
        got={
            "native": Message(None),
            "streams": Message(b"", content_type=TEXT),
            "signalr": Message("", content_type=TEXT),
            "micromsg2": Message(b"", content_type=TEXT),
            "spark": Message(b""),
        },
    ),
    "an empty text as json": Row(
        sent={
            "native": Message(""),
            "streams": Message(b'""', content_type=JSON),
            "micromsg2": Message(b'""', content_type=JSON),
            "signalr": Message(""),
        },
        got={
            "native": Message(""),
            "streams": Message(b'""', content_type=JSON),
            "signalr": Message(""),
            "micromsg2": Message(b'""', content_type=JSON),
            "spark": Message(b'""'),
        },
    ),
}

# ---- ids and keys ----

#: A message of which only the id, the key or a header is of interest, in the words of each.
PLAIN = {
    "native": Message(1),
    "streams": Message(b"1", content_type=JSON),
    "signalr": Message(1),
    "micromsg2": Message(b"1", content_type=JSON),
    "spark": Message(b"1"),
    "messagepack": Message(packed(1)),
}
LONG_ID = "order" * 14_000  # 70,000 bytes: the native door has 65,535 for one
UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def row(part: str, sent: Mapping[str, Any], got: Mapping[str, Any]) -> Row:
    """`part`: of the message, whose values `sent` and `got` have."""
    return Row(
        {door: PLAIN[door]._replace(**{part: value}) for door, value in sent.items()},
        {consumer: PLAIN[consumer]._replace(**{part: value}) for consumer, value in got.items()},
    )


def same(*doors: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(doors, value)


IDS = {
    "text": row(
        "id",
        sent=same("native", "streams", "signalr", "micromsg2", value="order 7: é;%"),
        got=same("native", "streams", "signalr", "micromsg2", "spark", value="order 7: é;%"),
    ),
    "none": row(
        "id",
        sent=same("streams", "signalr", "micromsg2", value=None),
        got={"native": OFFSET, "streams": None, "signalr": OFFSET, "micromsg2": None, "spark": None},
    ),
    "a number": row(
        "id", sent={"streams": 7}, got={"native": "7", "streams": 7, "signalr": "7", "micromsg2": "7", "spark": "7"}
    ),
    "a number in MicroMsg2, where ids are texts": row(
        "id",
        sent={"micromsg2": 7},
        got={"native": "7", "streams": "7", "signalr": "7", "micromsg2": 7, "spark": "7"},
    ),
    "a uuid": row(
        "id",
        sent={"streams": UUID},
        got={"native": str(UUID), "streams": UUID, "signalr": str(UUID), "micromsg2": str(UUID), "spark": str(UUID)},
    ),
    "longer than ids of queues are": row(
        "id",
        sent={"streams": LONG_ID},
        got={"native": OFFSET, "streams": LONG_ID, "signalr": OFFSET, "micromsg2": None, "spark": LONG_ID},
    ),
    "bytes": row(
        "id",
        sent=same("streams", "micromsg2", value=b"\xff\x01"),
        got={
            "native": "\udcff\x01",
            "streams": b"\xff\x01",
            "signalr": "/wE=",
            "micromsg2": b"\xff\x01",
            "spark": "\N{REPLACEMENT CHARACTER}\x01",
            "messagepack": b"\xff\x01",
        },
    ),
    "a key": row(
        "key",
        sent=same("streams", "signalr", value="customer-1"),
        got={
            "native": None,
            "streams": "customer-1",
            "signalr": "customer-1",
            "micromsg2": None,
            "spark": "customer-1",
        },
    ),
}
