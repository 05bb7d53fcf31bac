# SPDX-License-Identifier: Apache-2.0
"""Raw JSON and MessagePack as values of Python and back: arguments, options, items, results."""

from __future__ import annotations

from typing import Any

import msgspec

from vibemq.errors import ProtocolError

# Of JSON and of MessagePack, as Encoding numbers them.
VALUES = (msgspec.json.Decoder(), msgspec.msgpack.Decoder())
TEXTS = (msgspec.json.Decoder(list[str]), msgspec.msgpack.Decoder(list[str]))
ENCODERS = (msgspec.json.Encoder(), msgspec.msgpack.Encoder())


class MalformedFrame(ProtocolError, ValueError):
    """The peer's bytes are not the record they claim to be: where, what was needed there, what there was."""

    def __init__(self, where: str, needed: str, had: str) -> None:
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


def value_of(raw: bytes, encoding: int) -> Any:
    """Extension types come as msgspec.msgpack.Ext, timestamps as datetime.  Raises MalformedFrame."""
    try:
        return VALUES[encoding].decode(raw)
    except (ValueError, RecursionError, TypeError, OverflowError) as error:  # msgspec's own are ValueErrors
        raise MalformedFrame("value", "one value that can be read", f"{error}") from None


def raw_of(value: object, encoding: int) -> bytes:
    """Bytes are base64 in JSON."""
    return ENCODERS[encoding].encode(value)


def texts_of(raw: bytes, encoding: int) -> list[bytes]:
    """An array of strings.  Raises ValueError where it is none."""
    return [text.encode() for text in TEXTS[encoding].decode(raw)]
