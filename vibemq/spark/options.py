# SPDX-License-Identifier: Apache-2.0
"""The options of `format("vibemq")`: read once, typed, checked, with Kafka's names where Kafka has one.

An unknown option is an error that names the nearest known one, because a misspelt `startingOffset` that is silently
ignored costs somebody a day. The password is never part of a `repr`, of a partition or of an error; `passwordEnv` and
`passwordFile` keep it out of the query altogether and are read where the connection is made.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibemq.errors import ConfigError

EARLIEST, LATEST = -2, -1  # Kafka's numbers in offset JSON
COLUMNS = ("value", "offset", "timestamp", "stream", "message_id", "headers")
COLUMNS_DEFAULT = COLUMNS[:4]  # ids and headers triple what a row costs: 141 ns against 48, with two headers
STREAMS_PORT = 5552
NUMBER_MAX = 1 << 62
BATCH_BYTES_MAX = 64 << 20  # larger batches were slower at every size of message, and each is held several times

_COMMA = re.compile(r"(?<!\\),")


def _text(_: str, text: str) -> str:
    return text


def _number(least: int, most: int = NUMBER_MAX) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(f"option {name}: {text!r} is not a whole number") from None
        if not least <= value <= most:
            raise ConfigError(f"option {name}: {value} is not between {least} and {most}")
        return value

    return read


def _choice(**meanings: bool) -> Callable[[str, str], bool]:
    def read(name: str, text: str) -> bool:
        value = text.strip().lower()
        if value not in meanings:
            raise ConfigError(f"option {name}: {text!r} is none of {', '.join(meanings)}")
        return meanings[value]

    return read


# options -> fields, and how they are read; what they mean, README.md says
FIELDS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "username": ("username", _text),
    "password": ("password", _text),
    "passwordEnv": ("password_env", _text),
    "passwordFile": ("password_file", _text),
    "vhost": ("vhost", _text),
    "startingTimestamp": ("starting_timestamp_ms", _number(0)),
    "startingOffsetsByTimestampStrategy": ("timestamp_strategy_latest", _choice(error=False, latest=True)),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _number(1)),
    "batchBytes": ("batch_bytes", _number(1, BATCH_BYTES_MAX)),
    "batchRows": ("batch_rows", _number(1, 65536)),
    "fetchTimeoutMs": ("fetch_timeout_ms", _number(1)),
    "brokerDownTimeoutMs": ("broker_down_timeout_ms", _number(0)),
    "latestOffsetPollMs": ("latest_offset_poll_ms", _number(0)),
    "valueFormat": ("raw", _choice(binary=False, raw=True)),
    "failOnDataLoss": ("fail_on_data_loss", _choice(true=True, false=False)),
}
OTHERS = ("endpoints", "stream", "subscribe", "columns", "includeHeaders", "startingOffsets", "endingOffsets")
KNOWN = (*OTHERS, *FIELDS)
_BY_LOWER = {name.lower(): name for name in KNOWN}


@dataclass(frozen=True)
class Options:
    """What the user asked for. `starting` and `ending` give a stream (or "*", all) an offset, EARLIEST or LATEST."""

    endpoints: tuple[tuple[str, int], ...]
    streams: tuple[str, ...]
    username: str = "guest"
    password: str = field(default="guest", repr=False)
    password_env: str = ""
    password_file: str = ""
    vhost: str = "/"
    columns: tuple[str, ...] = COLUMNS_DEFAULT
    raw: bool = False
    starting: Mapping[str, int] = field(default_factory=dict)
    starting_timestamp_ms: int | None = None
    timestamp_strategy_latest: bool = False
    ending: Mapping[str, int] = field(default_factory=dict)
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    batch_bytes: int = 4 << 20
    batch_rows: int = 65536
    fetch_timeout_ms: int = 30_000
    broker_down_timeout_ms: int = 120_000
    latest_offset_poll_ms: int = 50

    def secret(self) -> str:
        """The password, from wherever the user put it; read anew, so a rotated file is seen."""
        if self.password_env:
            if self.password_env not in os.environ:
                raise ConfigError(
                    f"option passwordEnv: the environment variable {self.password_env} is not set in this process"
                )
            return os.environ[self.password_env]
        if self.password_file:
            try:
                return Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
            except OSError as failed:
                raise ConfigError(f"option passwordFile: {failed}") from failed
        return self.password

    def start_of(self, stream: str, default: int) -> int:
        return self.starting.get(stream, self.starting.get("*", default))

    def end_of(self, stream: str) -> int:
        return self.ending.get(stream, self.ending.get("*", LATEST))

    def for_batch(self) -> Options:
        """Check what only a batch read must obey."""
        for stream in self.streams:
            if self.start_of(stream, EARLIEST) == LATEST:
                raise ConfigError("option startingOffsets: a batch read cannot start at the latest offset")
        return self

    def for_stream(self) -> Options:
        """Check what only a streaming read must obey."""
        if self.ending:
            raise ConfigError("option endingOffsets: a streaming read has no end; use Trigger.AvailableNow")
        return self


def parse(given: Mapping[str, str]) -> Options:
    """Read Spark's option map. ConfigError names the option and the remedy."""
    options = {_known(name): str(value) for name, value in dict(given).items()}
    streams = _streams(options)
    if "startingTimestamp" in options and "startingOffsets" in options:
        raise ConfigError("options startingTimestamp and startingOffsets: give one of the two")
    if sum(name in options for name in ("password", "passwordEnv", "passwordFile")) > 1:
        raise ConfigError("options password, passwordEnv and passwordFile: give one of them")
    if "startingOffsetsByTimestampStrategy" in options and "startingTimestamp" not in options:
        raise ConfigError("option startingOffsetsByTimestampStrategy: it needs startingTimestamp")
    return Options(
        endpoints=_endpoints(options.get("endpoints", "")),
        streams=streams,
        columns=_columns(options),
        starting=_offsets(options, "startingOffsets", streams, {"earliest": EARLIEST, "latest": LATEST}),
        ending=_offsets(options, "endingOffsets", streams, {"latest": LATEST}),
        **{field: read(name, options[name]) for name, (field, read) in FIELDS.items() if name in options},
    )


def _known(name: str) -> str:
    known = _BY_LOWER.get(name.lower())
    if known is None:
        near = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1, cutoff=0.5)
        meant = f"did you mean {_BY_LOWER[near[0]]}?" if near else f"there are {', '.join(KNOWN)}"
        raise ConfigError(f"option {name}: not known to format('vibemq'); {meant}")
    return known


def _streams(options: Mapping[str, str]) -> tuple[str, ...]:
    if ("stream" in options) == ("subscribe" in options):
        raise ConfigError("options stream and subscribe: give exactly one of them")
    given = options["stream"] if "stream" in options else options["subscribe"]
    names = [name.strip().replace("\\,", ",") for name in _COMMA.split(given)]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(
            f"options stream and subscribe: in {given!r} a stream's name is empty or given twice; "
            "names are separated by commas, and a comma in one is written \\,"
        )
    return tuple(sorted(names))


def _endpoints(text: str) -> tuple[tuple[str, int], ...]:
    if not text.strip():
        raise ConfigError("option endpoints: it is needed, as host:port or host:port,host:port")
    found = []
    for each in text.split(","):
        host, colon, port = each.strip().rpartition(":")
        if not colon:
            host, port = each.strip(), str(STREAMS_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"option endpoints: {each.strip()!r} is not host:port")
        found.append((host, int(port)))
    return tuple(found)


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _choice(false=False, true=True)("includeHeaders", options.get("includeHeaders", "false"))
    text = options.get("columns", "")
    if not text.strip():
        return COLUMNS if with_headers else COLUMNS_DEFAULT
    if with_headers:
        raise ConfigError("options columns and includeHeaders: give one of the two; columns may name headers")
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f"option columns: there is no column {name!r}; there are {', '.join(COLUMNS)}")
    if len(set(names)) < len(names):
        raise ConfigError("option columns: a column is given twice")
    return names


def _offsets(
    options: Mapping[str, str], name: str, streams: tuple[str, ...], words: Mapping[str, int]
) -> dict[str, int]:
    """Kafka's forms: a word for all streams, or an object with an offset for each."""
    if name not in options:
        return {}
    text = options[name].strip()
    if text.lower() in words:
        return {"*": words[text.lower()]}
    wanted = f'{", ".join(words)} or an object such as {{"{streams[0]}": 0}}'
    try:
        given: Any = json.loads(text)
    except json.JSONDecodeError:
        raise ConfigError(f"option {name}: {text!r} is not {wanted}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"option {name}: {text!r} is not {wanted}")
    if set(given) != set(streams):
        odd = ", ".join(sorted(set(given) ^ set(streams)))
        raise ConfigError(f"option {name}: it must name exactly the streams that are read; look at {odd}")
    for stream, offset in given.items():
        if type(offset) is not int or not (0 <= offset < 1 << 63 or offset in words.values()):
            raise ConfigError(f"option {name}: {offset!r} is not an offset of stream {stream!r}")
    return given
