# SPDX-License-Identifier: Apache-2.0
"""How spec.py writes a frame's layout down, and what the codec compiles its plans from.

Fields stand in wire order, each as `name type`, then what else there is to say of it:
  if F is 4 or 5                  only there where the field F before it has one of these values
  since version 2                 not in version 1
  , may be absent                 as the last field it may be missing, which reads as its default
  = value                         what an encoder writes when the caller says nothing; otherwise it must be said
Behind a code that is not OK everything may be left out, and is written as zero or empty. A type is one of
  u8 u16 u32 u64 i16 i32 i64      big-endian integers
  string                          i16 length and UTF-8; length -1 reads as the empty string
  nullable_string                 the same, but -1 reads as None (a filter value)
  bytes                           i32 length and data; -1 reads as empty
  map                             i32 count of string pairs
  map_to_end                      the same as the last field, but read to the end of the frame whatever the count says:
                                  one client writes the map's size in bytes there
  statistics                      i32 count of pairs (string, i64)
  array<T>                        i32 count of T; of Name{ fields }: of records, tuples Name
  offset_type, offset_type_or_none   u16, an OffsetType
  offset                          u64, or i64 after OffsetType.TIMESTAMP
  entry                           what a publisher sends and a chunk holds: a message or a SubBatch
  chunk                           CHUNK_HEADER, then the entries
"""

from __future__ import annotations

import re
from ast import literal_eval
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Items:
    """An i32 count of records; `name` is that of the tuple a decoder gives for each."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a frame; `only_if`: an earlier field, and its values with which this one is on the wire at all."""

    name: str
    type: str | Items
    since: int
    only_if: tuple[str, tuple[int, ...]] | None
    may_be_absent: bool
    default: object  # None: it must be said


@dataclass(frozen=True, slots=True)
class Layout:
    """One frame's body. `ignored_tail_size_bytes`: a tail of exactly this size is tolerated and dropped."""

    name: str
    text: str
    ignored_tail_size_bytes: int = 0

    @property
    def fields(self) -> tuple[Field, ...]:
        return fields_of(self.text)


_FIELD = re.compile(
    r"(?P<name>\w+) (?P<type>array<(?P<items>\w+)\{ (?P<fields>.*) \}>|\S+)"
    r"(?: if (?P<if>\w+) is (?P<values>\d+( or \d+)*))?(?: since version (?P<since>\d))?"
    r"(?P<absent>, may be absent)?(?: = (?P<default>.+))?"
)


@cache
def field_of(text: str) -> Field:
    found = _FIELD.fullmatch(text)
    assert found is not None, text
    return Field(
        name=found["name"],
        type=Items(found["items"], fields_of(found["fields"], ", ")) if found["items"] else found["type"],
        since=int(found["since"] or 1),
        only_if=(found["if"], tuple(map(int, found["values"].split(" or ")))) if found["if"] else None,
        may_be_absent=found["absent"] is not None,
        default=literal_eval(found["default"] or "None"),
    )


def fields_of(text: str, between: str = "; ") -> tuple[Field, ...]:
    return tuple(field_of(part) for part in text.split(between) if part)
