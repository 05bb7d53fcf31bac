# SPDX-License-Identifier: Apache-2.0
"""The options of `format("vibemq")`: read once, typed, checked, with Kafka's names where Kafka has one.

An unknown option is an error that names the nearest known one, because a misspelt
`startingOffset` that is silently ignored costs somebody a day. The password is never
part of a `repr`, of a partition or of an error; `passwordEnv` and `passwordFile` keep it
out of the query altogether and are read where the connection is made.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibemq.errors import ConfigError

EARLIEST, LATEST = -2, -1  # Kafka's numbers in offset JSON
COLUMNS = ("value", "offset", "timestamp", "stream", "message_id", "headers")
COLUMNS_DEFAULT = COLUMNS[:4]  # ids and headers triple what a row costs: 141 ns against 48, with two headers
STREAMS_PORT = 5552
BATCH_BYTES_MAX = 64 << 20  # larger batches were slower at every size of message, and each is held several times

# name -> what it is, for the nearest-name search, the documentation and the order of errors
KNOWN = {
    "endpoints": "host:port,… of the brokers",
    "username": "default guest",
    "password": "prefer passwordEnv or passwordFile",
    "passwordEnv": "the environment variable that holds the password, read where the connection is made",
    "passwordFile": "the file that holds the password, read where the connection is made",
    "vhost": "virtual host, default /",
    "stream": "one stream or several, separated by commas; a comma in a name is written \\,",
    "subscribe": "the same, by Kafka's name",
    "columns": "columns to read, separated by commas; default value, offset, timestamp, stream",
    "includeHeaders": "true: also the columns message_id and headers; default false",
    "valueFormat": "binary: the message's body (default); raw: the bytes as stored",
    "startingOffsets": 'earliest, latest or {"stream": n} with -2 for earliest and -1 for latest',
    "startingTimestamp": "milliseconds since 1970: begin at the first record not older than that",
    "startingOffsetsByTimestampStrategy": "error (default) or latest, where no record is that young",
    "endingOffsets": 'batch only: latest or {"stream": n} with -1 for latest',
    "maxOffsetsPerTrigger": "streaming only: at most so many records in a batch",
    "failOnDataLoss": "true (default): an error when wanted records are gone; false: go on with what is there",
    "batchBytes": "bytes of values in an Arrow batch, default 4 MiB",
    "batchRows": "rows in an Arrow batch, default 65536",
    "fetchTimeoutMs": "longest wait for one answer or one chunk, default 30000",
    "brokerDownTimeoutMs": "how long the broker may be away before the query fails, default 120000",
    "latestOffsetPollMs": "an idle query asks for new records no more often than this, default 50",
}
_COMMA = re.compile(r"(?<!\\),")
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
    timestamp = _number(options, "startingTimestamp", None, 0)
    strategy = _choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    limit = _number(options, "maxOffsetsPerTrigger", None, 1)
    return Options(
        endpoints=_endpoints(options.get("endpoints", "")),
        streams=streams,
        username=options.get("username", "guest"),
        password=options.get("password", "guest"),
        password_env=options.get("passwordEnv", ""),
        password_file=options.get("passwordFile", ""),
        vhost=options.get("vhost", "/"),
        columns=_columns(options),
        raw=_choice(options, "valueFormat", ("binary", "raw")) == "raw",
        starting=_offsets(options, "startingOffsets", streams, {"earliest": EARLIEST, "latest": LATEST}),
        starting_timestamp_ms=timestamp,
        timestamp_strategy_latest=strategy == "latest",
        ending=_offsets(options, "endingOffsets", streams, {"latest": LATEST}),
        max_offsets_per_trigger=limit,
        fail_on_data_loss=_choice(options, "failOnDataLoss", ("true", "false")) == "true",
        batch_bytes=_needed(options, "batchBytes", 4 << 20, 1, BATCH_BYTES_MAX),
        batch_rows=_needed(options, "batchRows", 65536, 1, 65536),
        fetch_timeout_ms=_needed(options, "fetchTimeoutMs", 30_000, 1),
        broker_down_timeout_ms=_needed(options, "brokerDownTimeoutMs", 120_000, 0),
        latest_offset_poll_ms=_needed(options, "latestOffsetPollMs", 50, 0),
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
    text = options.get("columns", "")
    with_headers = _choice(options, "includeHeaders", ("false", "true")) == "true"
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


def _choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name, allowed[0]).strip().lower()
    if value not in allowed:
        raise ConfigError(f"option {name}: {options[name]!r} is none of {', '.join(allowed)}")
    return value


def _number(options: Mapping[str, str], name: str, default: int | None, least: int, most: int = 1 << 62) -> int | None:
    if name not in options:
        return default
    try:
        value = int(options[name])
    except ValueError:
        raise ConfigError(f"option {name}: {options[name]!r} is not a whole number") from None
    if not least <= value <= most:
        raise ConfigError(f"option {name}: {value} is not between {least} and {most}")
    return value


def _needed(options: Mapping[str, str], name: str, default: int, least: int, most: int = 1 << 62) -> int:
    value = _number(options, name, default, least, most)
    assert value is not None
    return value


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
