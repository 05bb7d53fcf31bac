# SPDX-License-Identifier: Apache-2.0
"""The options of `format("vibemq")`: read once, typed, checked, with Kafka's names where Kafka has one.

An unknown option is an error that names the nearest known one, because a misspelt `startingOffset` that is silently
ignored costs somebody a day. The password is never part of a `repr`, of a partition or of an error; `passwordEnv` and
`passwordFile` keep it out of the query altogether and are read where the connection is made.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from vibemq.addresses import host_port, split_host_port
from vibemq.errors import ConfigError
from vibemq.spark import logins, places, remote
from vibemq.spark.logins import LOGINS, PASSWORD
from vibemq.spark.places import ALL, EARLIEST, LATEST, Place, Places, duration_ms
from vibemq.units import SIZES, TIMES_MS, in_units

COLUMNS = ("value", "offset", "timestamp", "stream", "key", "message_id", "content_type", "headers")
COLUMNS_DEFAULT = COLUMNS[:4]  # ids and headers triple what a row costs: 141 ns against 48, with two headers
AUTO, TCP, LOCAL = READ_MODES = ("auto", "tcp", "local")
BINARY, RAW, STRING, JSON = VALUE_FORMATS = ("binary", "raw", "string", "json")
MAP, KAFKA = HEADERS_FORMATS = ("map", "kafka")
PERMISSIVE, FAILFAST = MODES = ("permissive", "failfast")
STREAMS_PORT, STREAMS_PORT_TLS = 5552, 5551
PORTS_NATIVE = 2925, 2935
NUMBER_MAX = 1 << 62
FIRST_BATCH_BYTES = 1 << 30
POLL_MS = 20
POLL_BUCKET_MS = 1000  # each look is some listings, which a store puts on the bill
BATCH_BYTES_MAX = 64 << 20  # larger batches were slower at every size of message, and each is held several times

T = TypeVar("T")

_COMMA = re.compile(r"(?<!\\),")


def text(_: str, given: str) -> str:
    return given


def number(least: int, most: int = NUMBER_MAX, units: dict[str, int] | None = None) -> Callable[[str, str], int]:
    """Return what reads a whole number, also with one of these units behind it."""

    def read(name: str, text: str) -> int:
        value = in_units(text, units) if units else None
        try:
            value = int(text) if value is None else value
        except ValueError:
            also = f", nor one with a unit ({', '.join(units)})" if units else ""
            raise ConfigError(f"option {name}: {text!r} is not a whole number{also}") from None
        if not least <= value <= most:
            raise ConfigError(f"option {name}: {value} is not between {least} and {most}")
        return value

    return read


def size(least: int, most: int = NUMBER_MAX) -> Callable[[str, str], int]:
    return number(least, most, SIZES)


def milliseconds(least: int) -> Callable[[str, str], int]:
    return number(least, units=TIMES_MS)


def choice(meanings: Mapping[str, T]) -> Callable[[str, str], T]:
    def read(name: str, text: str) -> T:
        value = text.strip().lower()
        if value not in meanings:
            raise ConfigError(f"option {name}: {text!r} is none of {', '.join(meanings)}")
        return meanings[value]

    return read


def word(*words: str) -> Callable[[str, str], str]:
    return choice({each: each for each in words})


flag = choice({"false": False, "true": True})


def _names(_: str, text: str) -> tuple[str, ...]:
    return tuple(name.strip().replace("\\,", ",") for name in _COMMA.split(text))


def _place_of_function(name: str, text: str) -> str:
    module, colon, function = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ConfigError(f"option {name}: {text!r} is not module:function")
    return text


def option(name: str, read: Callable[[str, str], Any], default: Any, *, repr: bool = True) -> Any:
    """A dataclass's field that is the option of that name; what it means, README.md says."""
    return field(default=default, repr=repr, metadata={"option": (name, read)})


def option_fields(kind: type) -> dict[str, str]:
    """The fields of such a dataclass that are options, by the options' names."""
    return {each.metadata["option"][0]: each.name for each in fields(kind) if each.metadata}


def read_fields(kind: type, options: Mapping[str, str]) -> dict[str, Any]:
    """What the options say, by field."""
    found = {each.name: each.metadata["option"] for each in fields(kind) if each.metadata}
    return {field: read(name, options[name]) for field, (name, read) in found.items() if name in options}


@dataclass(frozen=True)
class Options:
    """What the user asked for. `starting` and `ending` give a stream, or all of them, a place.

    `streams` are those that were named; else they are the partitions of `super_stream`, or all that `pattern` matches.
    """

    endpoints: tuple[tuple[str, int], ...]
    streams: tuple[str, ...] = ()
    super_stream: str = ""
    pattern: str = ""
    username: str = option("username", text, "guest")
    password: str = option("password", text, "guest", repr=False)
    password_env: str = option("passwordEnv", text, "")
    password_file: str = option("passwordFile", text, "")
    token_provider: str = option("tokenProvider", _place_of_function, "")
    login: str = option("login", word(*LOGINS), PASSWORD)
    tls: bool = option("tls", flag, False)
    tls_ca: str = option("tlsCa", text, "")
    tls_cert: str = option("tlsCert", text, "")
    tls_key: str = option("tlsKey", text, "")
    tls_key_password_env: str = option("tlsKeyPasswordEnv", text, "")
    vhost: str = option("vhost", text, "/")
    remote: str = option("remote", text, "")
    remote_options: str = option("remoteOptions", text, "")
    remote_keys: str = option("remoteKeys", text, "")
    columns: tuple[str, ...] = COLUMNS_DEFAULT
    value_format: str = option("valueFormat", word(*VALUE_FORMATS), BINARY)
    value_schema: str = option("valueSchema", text, "")
    mode: str = option("mode", word(*MODES), PERMISSIVE)
    headers_format: str = option("headersFormat", word(*HEADERS_FORMATS), MAP)
    read_mode: str = option("readMode", word(*READ_MODES), AUTO)
    starting: Places = field(default_factory=dict)
    timestamp_strategy_latest: bool = option(
        "startingOffsetsByTimestampStrategy", choice({"error": False, "latest": True}), False
    )
    ending: Places = field(default_factory=dict)
    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", number(1), None)
    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", size(0), None)
    min_offsets_per_trigger: int | None = option("minOffsetsPerTrigger", number(1), None)
    max_trigger_delay_ms: int = option("maxTriggerDelay", duration_ms, 15 * 60_000)
    min_partitions: int | None = option("minPartitions", number(1), None)
    max_records_per_partition: int | None = option("maxRecordsPerPartition", number(1), None)
    max_bytes_per_partition: int = option("maxBytesPerPartition", size(0), 128 << 20)
    filter_values: tuple[str, ...] = option("filterValues", _names, ())
    filter_match_unfiltered: bool = option("filterMatchUnfiltered", flag, False)
    filter_pushdown: bool = option("filterPushdown", flag, False)
    fail_on_data_loss: bool = option("failOnDataLoss", flag, True)
    batch_bytes: int = option("batchBytes", size(1, BATCH_BYTES_MAX), 4 << 20)
    batch_rows: int = option("batchRows", number(1, 65536), 65536)
    fetch_timeout_ms: int = option("fetchTimeoutMs", milliseconds(1), 30_000)
    broker_down_timeout_ms: int = option("brokerDownTimeoutMs", milliseconds(0), 120_000)
    latest_offset_poll_ms: int | None = option("latestOffsetPollMs", milliseconds(0), None)

    def start_of(self, stream: str, default: Place) -> Place:
        return self.starting.get(stream, self.starting.get(ALL, default))

    def end_of(self, stream: str) -> Place:
        return self.ending.get(stream, self.ending.get(ALL, LATEST))

    @property
    def poll_ms(self) -> int:
        """Half of it is what a row waits that comes after a pause."""
        if self.latest_offset_poll_ms is not None:
            return self.latest_offset_poll_ms
        return POLL_MS if self.endpoints else POLL_BUCKET_MS

    @property
    def bytes_per_trigger(self) -> int:
        """At most so many bytes of chunks in a batch; 0: any number.

        A query that begins at the first of the retained records would otherwise take all of them in one batch.
        """
        if self.max_bytes_per_trigger is not None:
            return self.max_bytes_per_trigger
        begins_early = EARLIEST in self.starting.values() and self.max_offsets_per_trigger is None
        return FIRST_BATCH_BYTES if begins_early else 0

    def for_batch(self) -> Options:
        """Check what only a batch read must obey."""
        if LATEST in self.starting.values():
            raise ConfigError("option startingOffsets: a batch read cannot start at the latest offset")
        return self

    def for_stream(self) -> Options:
        """Check what only a streaming read must obey."""
        if self.ending:
            raise ConfigError("option endingOffsets: a streaming read has no end; use Trigger.AvailableNow")
        return self


FIELDS = option_fields(Options)
SELECTORS = ("stream", "subscribe", "superStream", "subscribePattern")
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
SECRETS = ("password", "passwordEnv", "passwordFile", "tokenProvider")
OTHERS = ("endpoints", *SELECTORS, "columns", "includeHeaders", *STARTS, *ENDS)
KNOWN = (*OTHERS, *FIELDS)
#: Those that say where the broker is, and who comes.
ACCESS = ("endpoints", "username", *SECRETS, "vhost", "login", *(name for name in FIELDS if name.startswith("tls")))


def refuse_table(given: Mapping[str, str]) -> None:
    """Raises ConfigError for CREATE TABLE: Spark hands a table's properties on, and later none of its options."""
    if "provider" in {name.lower() for name in given}:
        raise ConfigError(
            "CREATE TABLE ... USING vibemq cannot work: Spark gives the Python reader of a table no options. Make a "
            "view instead: CREATE TEMPORARY VIEW NAME USING vibemq OPTIONS (endpoints 'HOST:5552', stream 'STREAM')"
        )


def parse(given: Mapping[str, str]) -> Options:
    """Read Spark's option map. ConfigError names the option and the remedy."""
    refuse_table(given)
    options = known(dict(given), KNOWN, "format('vibemq')")
    streams = _streams(options)
    for names in (STARTS, ENDS, SECRETS):
        if sum(name in options for name in names) > 1:
            raise ConfigError(f"options {', '.join(names[:-1])} and {names[-1]}: give one of them")
    if "startingOffsetsByTimestampStrategy" in options and not {*STARTS[1:]} & options.keys():
        raise ConfigError(
            "option startingOffsetsByTimestampStrategy: it needs startingTimestamp or startingOffsetsByTimestamp"
        )
    if "maxTriggerDelay" in options and "minOffsetsPerTrigger" not in options:
        raise ConfigError("option maxTriggerDelay: it needs minOffsetsPerTrigger, which makes a batch wait")
    read = Options(
        endpoints=_endpoints(options),
        streams=streams,
        super_stream=options.get("superStream", ""),
        pattern=_pattern(options.get("subscribePattern", "")),
        columns=_columns(options),
        starting=_places(options, streams, STARTS),
        ending=_places(options, streams, ENDS),
        **read_fields(Options, options),
    )
    if (read.min_offsets_per_trigger or 0) > (read.max_offsets_per_trigger or NUMBER_MAX):
        raise ConfigError("options minOffsetsPerTrigger and maxOffsetsPerTrigger: the least is above the most")
    if read.filter_match_unfiltered and not read.filter_values:
        raise ConfigError("option filterMatchUnfiltered: it needs filterValues")
    for name in ("valueSchema", "mode"):
        if name in options and read.value_format != JSON:
            raise ConfigError(f"option {name}: it needs valueFormat=json")
    logins.check(read)
    remote.check(read)
    return read


def known(given: Mapping[str, str], names: Iterable[str], what: str, silent: Iterable[str] = ()) -> dict[str, str]:
    """The options by the names that they have in `names` or `silent`. ConfigError: `what` knows none of that name."""
    by_lower = {name.lower(): name for name in names}
    found = by_lower | {name.lower(): name for name in silent}
    for name in given:
        if name.lower() not in found:
            near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
            meant = f"did you mean {by_lower[near[0]]}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"option {name}: not known to {what}; {meant}")
    return {found[name.lower()]: str(value) for name, value in given.items()}


def _streams(options: Mapping[str, str]) -> tuple[str, ...]:
    chosen = [name for name in SELECTORS if name in options]
    if len(chosen) != 1 or not options[chosen[0]].strip():
        raise ConfigError(f"options {', '.join(SELECTORS[:-1])} and {SELECTORS[-1]}: give exactly one of them")
    if chosen[0] in ("superStream", "subscribePattern"):
        return ()
    given = options[chosen[0]]
    names = _names(chosen[0], given)
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(
            f"options stream and subscribe: in {given!r} a stream's name is empty or given twice; "
            "names are separated by commas, and a comma in one is written \\,"
        )
    return tuple(sorted(names))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as wrong:
        raise ConfigError(f"option subscribePattern: {text!r} is no regular expression: {wrong}") from None
    return text


def _endpoints(options: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    text, tls = options.get("endpoints", ""), options.get("tls", "").strip().lower() == "true"
    if not text.strip():
        if options.get("remote"):
            return ()
        raise ConfigError(
            "option endpoints: it is needed, as host:port or host:port,host:port; or remote, to read a bucket"
        )
    found = []
    for each in map(str.strip, text.split(",")):
        if "://" in each:
            raise ConfigError(f"option endpoints: {_without_scheme(each)}")
        host, port = split_host_port(each)
        port = port or str(STREAMS_PORT_TLS if tls else STREAMS_PORT)
        if not _is_host(host) or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise ConfigError(f"option endpoints: {each!r} is not host:port")
        found.append((host, int(port)))
    return tuple(found)


def _is_host(text: str) -> bool:
    """Can it be a name or an address?"""
    if ":" not in text:
        return bool(text) and not re.search(r"[\s/@?#;]", text)
    try:
        return bool(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False


def _without_scheme(text: str) -> str:
    """Return what to write instead of a URL, in which a password may be."""
    scheme, _, rest = text.partition("://")
    login, _, address = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    host, port = split_host_port(address)
    is_tls = scheme.lower() in ("vibemqs", "https", "tls", "rabbitmq-stream+tls")
    if port in ("", *map(str, PORTS_NATIVE)):
        port = str(STREAMS_PORT_TLS if is_tls else STREAMS_PORT)
    meant = f"{host_port(host or 'HOST', port)}{' with tls=true' if is_tls else ''}"
    said = f"{scheme}://... has a scheme, and host:port is needed: write {meant}"
    return f"{said}, and the login as options username and password" if login else said


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = flag("includeHeaders", options.get("includeHeaders", "false"))
    given = options.get("columns", "")
    if not given.strip():
        return COLUMNS if with_headers else COLUMNS_DEFAULT
    if with_headers:
        raise ConfigError("options columns and includeHeaders: give one of the two; columns may name headers")
    names = tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f"option columns: there is no column {name!r}; there are {', '.join(COLUMNS)}")
    if len(set(names)) < len(names):
        raise ConfigError("option columns: a column is given twice")
    return names


def _places(options: Mapping[str, str], streams: tuple[str, ...], names: tuple[str, str, str]) -> Places:
    by_offset, by_time, by_times = names
    if by_offset in options:
        return places.offsets(by_offset, options[by_offset], streams, start=names is STARTS)
    if by_time in options:
        return {ALL: Place("time", number(0)(by_time, options[by_time]))}
    return places.times(by_times, options[by_times], streams) if by_times in options else {}
