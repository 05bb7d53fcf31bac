# SPDX-License-Identifier: Apache-2.0
"""Extension lists, and what both sides make of them in the handshake. Pure functions on what was read; no I/O.

A server answers C1 with negotiate_server and judges C2 with check_c2; a client makes C1 with first, answers S1 with
answer, and knows with agree what it has agreed to. Who cannot go on raises Refusal, whose text goes out as the ERROR.

The invariant: what is agreed follows from C2 alone, its names, their order and their properties, and both sides read it
with the same function. Values that would cost us too much are clamped locally, which is always allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vibemq.errors import ProtocolError
from vibemq.protocols.micromsg2 import spec
from vibemq.protocols.micromsg2.codec import Handshake, percent_decode, percent_encode
from vibemq.protocols.micromsg2.spec import ErrorCode, ExtensionName

NAME = re.compile(r"[A-Za-z0-9_./-]+")  # with the `/` that a spelling of pub-sub has
KEY = re.compile(r"[A-Za-z0-9_.-]+")
SEPARATOR = re.compile(r"[=:]")


class Refusal(ProtocolError):
    """The handshake ends here: `text` is the ERROR for the peer, in whole."""

    def __init__(self, error_code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error_code = error_code
        self.text = text


def broken(where: str, needed: str, had: str) -> Refusal:
    code = ErrorCode.PROTOCOL_ERROR
    return Refusal(code, f"{code}: {where}: needed {needed}, had {had}")


def unsupported(who: str, verb: str, names: Iterable[str]) -> Refusal:
    text = f"{who} {verb} the following extensions: {', '.join(names)}"
    return Refusal(ErrorCode.UNSUPPORTED_EXTENSIONS, text)


# ---- lists ----


@dataclass(frozen=True)
class Extension:
    """One item of a list.

    name: in lower case, other spellings of one extension made one.
    properties: values decoded, keys as the peer wrote them, since it may look for nothing else in the answer.
    spelling: the name as the peer wrote it, in lower case; empty: it is `name`.
    """

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    spelling: str = ""

    def property(self, *keys: str) -> str | None:
        """The value of the first property that has one of these keys, which are in lower case."""
        return next((value for key, value in self.properties.items() if key.lower() in keys), None)

    def __str__(self) -> str:
        text = self.spelling or self.name
        pairs = ",".join(f"{key}={percent_encode(value)}" for key, value in self.properties.items())
        return f"{text}:{pairs}" if pairs else text


@dataclass(frozen=True)
class Lists:
    """Both lists of one handshake message; iterated in the order of their ids."""

    required: tuple[Extension, ...] = ()
    optional: tuple[Extension, ...] = ()

    def __iter__(self) -> Iterator[Extension]:
        yield from self.required
        yield from self.optional


def parse_list(text: bytes | str) -> tuple[Extension, ...]:
    """The items in order, each name once; raises Refusal."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise broken("extension list", "UTF-8", f"{error.reason} at byte {error.start}") from None
    text = text.rstrip(";")
    for what, most, had in (
        ("extensions", spec.EXTENSIONS_MAX, text.count(";") + 1),
        ("commas", spec.EXTENSION_COMMAS_MAX, text.count(",")),
    ):
        if had > most:
            raise broken("extension list", f"at most {most} {what}", f"{had}")
    items: dict[str, Extension] = {}
    for item in text.split(";"):
        if item.strip():
            extension = parse_item(item.strip())
            items.setdefault(extension.name, extension)
    return tuple(items.values())


def parse_item(text: str) -> Extension:
    spelling, _, rest = text.partition(":")
    spelling = spelling.lower()
    if NAME.fullmatch(spelling) is None:
        raise broken("extension name", "letters, digits, '-', '_' and '.'", repr(spelling[:80]))
    properties = {}
    for pair in rest.split(","):
        if pair:
            key, *value = SEPARATOR.split(pair, maxsplit=1)
            if KEY.fullmatch(key) is None:
                raise broken(f"property of {spelling}", "a key of letters, digits, '-', '_' and '.'", repr(key[:80]))
            properties[key] = percent_decode("".join(value)).decode("utf-8", "surrogateescape")
    name = spec.EXTENSION_ALIASES.get(spelling, spelling)
    return Extension(name, properties, "" if name == spelling else spelling)


def format_list(items: Iterable[Extension]) -> bytes:
    return ";".join(map(str, items)).encode("ascii")


def lists_of(handshake: Handshake) -> Lists:
    """Both lists of a handshake message; raises Refusal."""
    return Lists(parse_list(handshake.required), parse_list(handshake.optional))


def handshake_of(lists: Lists, minor: int = spec.MINOR, identity: bytes = spec.IDENTITY) -> Handshake:
    return Handshake(
        minor=minor, identity=identity, required=format_list(lists.required), optional=format_list(lists.optional)
    )


# ---- windows ----


def count_of(extension: Extension) -> int:
    """The window that an ack extension asks for."""
    text = extension.property(*spec.COUNT_KEYS)
    if text is None:
        return spec.ACK_WINDOWS[extension.name]
    count = number_in(text, spec.SEQUENCE_MAX)
    if count is None:
        raise broken(f"count of {extension.name}", "a whole number from 1 up", repr(text[:80]))
    return count


def number_in(text: str, most: int) -> int | None:
    """A whole number from 1 on, `most` where it is greater; None: the text is none."""
    digits = text.lstrip("0")
    return min(int(digits[:20]), most) if digits.isascii() and digits.isdigit() else None


def clamped(extension: Extension, window_max: int) -> Extension:
    """With a count of `window_max` at most, under the key that is there."""
    if extension.name not in spec.ACK_WINDOWS or count_of(extension) <= window_max:
        return extension
    properties = dict(extension.properties)
    for key in [key for key in properties if key.lower() in spec.COUNT_KEYS] or [spec.COUNT_KEY]:
        properties[key] = f"{window_max}"
    return Extension(extension.name, properties, extension.spelling)


def names(items: Iterable[Extension]) -> list[str]:
    return [item.name for item in items]


def first_of(items: Iterable[Extension], kinds: Iterable[str]) -> str | None:
    """The name of the first item that is one of these kinds."""
    return next((item.name for item in items if item.name in kinds), None)


# ---- the server's side ----


def negotiate_server(
    c1: Handshake,
    *,
    supported: Iterable[str],
    required: Iterable[str] = (),
    offers: Iterable[Extension] = (),
    window_max: int = spec.WINDOW_MAX,
    answers: Mapping[str, Mapping[str, str]] | None = None,
) -> Lists:
    """The lists of S1; raises Refusal.

    required: names that we require; a client that did not list them is refused, since it could not take them up.
    offers: what we propose to a client that did not speak of it.
    answers: properties of ours for extensions of the client's, which then become required (a challenge).
    """
    known, required, answers = set(supported), list(required), answers or {}
    lists = lists_of(c1)
    # Serializers are lacking together or not at all.
    serializer = first_of(lists.required, known & spec.SERIALIZERS.keys())
    may_lack = spec.SERIALIZERS if serializer else {}
    missing = [name for name in names(lists.required) if name not in known and name not in may_lack]
    if missing:
        raise unsupported("Server", "does not support", missing)
    not_listed = [name for name in required if name not in names(lists)]
    if not_listed:
        raise unsupported("Server", "requires", not_listed)
    raised = {*required, *answers}
    if c1.minor == spec.MINOR_SHARP_MESSAGING:  # its client reads nothing of what we call optional
        raised.add(ExtensionName.ACK)
    agreed: dict[str, Extension] = {}
    wished: dict[str, Extension] = {}
    for position, item in enumerate(lists):
        is_required = position < len(lists.required)
        if item.name not in known or item.name in agreed:
            continue
        if is_required and item.name in spec.SERIALIZERS and item.name != serializer:
            continue
        if item.name in answers or item.name == ExtensionName.MICROAUTH:  # what proves who it is is not echoed
            item = Extension(item.name, answers.get(item.name, {}), item.spelling)
        (agreed if is_required or item.name in raised else wished)[item.name] = clamped(item, window_max)
    for offer in offers:
        if offer.name not in names(lists):
            wished.setdefault(offer.name, clamped(offer, window_max))
    ack = first_of([*agreed.values(), *wished.values()], spec.ACK_WINDOWS)
    optional = (item for item in wished.values() if item.name not in spec.ACK_WINDOWS or item.name == ack)
    return Lists(tuple(agreed.values()), tuple(optional))


@dataclass(frozen=True)
class Agreed:
    """What holds on a connection from C2 on; an id of 0: this extension is not in use.

    ids: each name in C2, in order; the first has the id 1.
    window: how many messages may be unacknowledged in either direction; 0: nothing is acknowledged.
    expire_ms: after how long an unacknowledged peer loses patience, if it said so.
    ack_delay_ms: how long an acknowledgement may wait for others.
    content_type: of payloads in either direction; None: they are opaque.
    """

    ids: tuple[str, ...] = ()
    serializer: str | None = None
    content_type: str | None = None
    ack: str | None = None
    ack_id: int = 0
    window: int = 0
    expire_ms: int | None = None
    ack_delay_ms: int = spec.ACK_DELAY_MS
    dotnet_id: int = 0
    heartbeat_id: int = 0
    heartbeat_ms: int | None = None
    pub_sub: bool = False
    reply: bool = False
    properties: Mapping[str, Extension] = field(default_factory=dict, repr=False)  # with a password, perhaps


def check_c2(c1: Handshake, s1: Lists, c2: Handshake, *, supported: Iterable[str], window_max: int) -> Agreed:
    """What C2 agrees to; raises Refusal when it leaves out what S1 requires or brings in what nobody spoke of."""
    lists = lists_of(c2)
    chosen = names(lists)
    missing = [name for name in names(s1.required) if name not in chosen]
    if missing:
        raise unsupported("Server", "requires", missing)
    unknown = [name for name in chosen if name not in set(supported)]
    if unknown:
        raise unsupported("Server", "does not support", unknown)
    known = {*names(lists_of(c1)), *names(s1)}
    unspoken = [name for name in chosen if name not in known]
    if unspoken:
        raise broken("C2", "extensions of C1 and S1 only", ", ".join(unspoken))
    return agree(c2, window_max)


def agree(c2: Handshake, window_max: int = spec.WINDOW_MAX) -> Agreed:
    """What a C2 means, to both sides; raises Refusal when it is no list or too long."""
    lists = lists_of(c2)
    items = {item.name: item for item in (*lists.optional, *lists.required)}
    ids = tuple(dict.fromkeys(names(lists)))
    if len(ids) > spec.EXTENSIONS_MAX:
        raise broken("C2", f"at most {spec.EXTENSIONS_MAX} extensions", f"{len(ids)}")
    serializer, ack = first_of(lists, spec.SERIALIZERS), first_of(lists, spec.ACK_WINDOWS)
    id_of = {name: id for id, name in enumerate(ids, 1)}
    expire_ms = milliseconds(items[ack], spec.ACK_EXPIRE_KEY) if ack else None
    return Agreed(
        ids=ids,
        serializer=serializer,
        content_type=spec.SERIALIZERS[serializer] if serializer else None,
        ack=ack,
        ack_id=id_of[ack] if ack else 0,
        window=min(count_of(items[ack]), window_max) if ack else 0,
        expire_ms=expire_ms,
        ack_delay_ms=spec.ACK_DELAY_MS if expire_ms is None else max(1, expire_ms // 2),
        dotnet_id=id_of.get(ExtensionName.DOTNET, 0),
        heartbeat_id=id_of.get(ExtensionName.HEARTBEAT, 0),
        heartbeat_ms=milliseconds(items.get(ExtensionName.HEARTBEAT), spec.HEARTBEAT_KEY),
        pub_sub=ExtensionName.PUB_SUB in ids,
        reply=ExtensionName.REPLY in ids,
        properties=items,
    )


def milliseconds(extension: Extension | None, key: str) -> int | None:
    """A time that a peer gave with an extension, if it did; one that is none does not count."""
    text = None if extension is None else extension.property(key)
    return None if text is None else number_in(text, 2**31 - 1)


# ---- the client's side ----


def first(require: Iterable[Extension] = (), offer: Iterable[Extension] = ()) -> Lists:
    """The lists of C1."""
    required = tuple(require)
    return Lists(required, tuple(item for item in offer if item.name not in names(required)))


def answer(
    c1: Lists,
    s1: Handshake,
    *,
    supported: Iterable[str] = (),
    also: Iterable[str] = (),
    answers: Mapping[str, Mapping[str, str]] | None = None,
) -> Lists:
    """The lists of C2; raises Refusal when the server requires what we have not.

    supported: what the server may require, though C1 did not say so.
    also: what we take up when the server offers it, though C1 did not say so.
    answers: properties of ours for extensions that the server requires (the proof for its challenge).
    """
    lists, answers = lists_of(s1), answers or {}
    wanted = {*names(c1), *also}
    if s1.minor == spec.MINOR_SHARP_MESSAGING:  # its server repeats what it does not know, and breaks on it
        wanted &= spec.SHARP_EXTENSIONS
    missing = [name for name in names(lists.required) if name not in {*names(c1), *supported, *also}]
    if missing:
        raise unsupported("Client", "does not support", missing)
    offered = {item.name: item for item in (*lists.optional, *lists.required)}
    serializer = first_of(lists.required, spec.SERIALIZERS) or first_of(c1.required, spec.SERIALIZERS)
    required: dict[str, Extension] = {}
    for item in c1.required:
        if item.name not in spec.SERIALIZERS or item.name == serializer:
            required[item.name] = within(item, offered.get(item.name))
    for item in lists.required:
        required.setdefault(item.name, item)
    for name in answers.keys() & required.keys():
        required[name] = Extension(name, answers[name], required[name].spelling)
    optional: dict[str, Extension] = {}
    for item in lists.optional:
        taken = [*required.values(), *optional.values()]
        rival = next((kind for kind in (spec.SERIALIZERS, spec.ACK_WINDOWS) if item.name in kind), {})
        if item.name in wanted and item.name not in names(taken) and first_of(taken, rival) is None:
            optional[item.name] = item
    return Lists(tuple(required.values()), tuple(optional.values()))


def within(ours: Extension, theirs: Extension | None) -> Extension:
    """A requirement of ours with no larger window than the server echoed."""
    if theirs is None or ours.name not in spec.ACK_WINDOWS or theirs.property(*spec.COUNT_KEYS) is None:
        return ours
    return clamped(ours, count_of(theirs))
