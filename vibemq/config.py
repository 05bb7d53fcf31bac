# SPDX-License-Identifier: Apache-2.0
"""The broker's options: their names, types, limits and defaults, and where values come from.

A value is looked for in this order, and the first that has one wins: a command-line
option, an environment variable ``VIBEMQ_<SECTION>_<OPTION>``, the TOML file, the default
below.  Every value is checked on its own, so an error can say which of these places it
came from.  An unknown name is an error, with the nearest known one: a misspelt limit that
is silently ignored is worse than a broker that does not start.

``sample.toml`` beside this file says the same in words for people (``vibemq config``); a
test keeps the two equal.
"""

import difflib
import math
import os
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from vibemq.addresses import parse_host
from vibemq.control_groups import processors_limit
from vibemq.errors import ConfigError
from vibemq.units import example_of, of_option

#: One bit for each worker in a stream's masks (csrc/shm/doorbell.h, DOORBELL_WORKERS_MAX).
WORKERS_MAX = 64
#: One bit for each stream in a worker's bitmap of news (DOORBELL_SLOTS_MAX).
STREAMS_MAX = 65536
#: Positions in a segment fit 32 bits with one chunk to spare (csrc/log/log.h).
SEGMENT_SIZE_BYTES_MIN = 4096
SEGMENT_SIZE_BYTES_MAX = 3_000_000_000

Port = Annotated[int, Meta(ge=0, le=65535)]
Durability = Literal["os", "disk", "remote"]
CertificateName = Literal["distinguished_name", "common_name", "subject_alternative_name"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Server(Struct, frozen=True, kw_only=True):
    """Processes, addresses and where data lies."""

    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    workers: Annotated[int, Meta(ge=0, le=WORKERS_MAX)] = 0  # 0: one per core this process may use
    # Not the current folder: `vibemq users add` must find the same data wherever it is called.
    data_dir: Annotated[str, Meta(min_length=1, max_length=2048)] = "~/.local/share/vibemq"
    shutdown_timeout_s: Annotated[int, Meta(ge=1, le=3600)] = 30
    # Far above the longest pause of a worker that is well, of milliseconds; below the 60 s after which many
    # clients and load balancers give up.  0: never.
    worker_hang_s: Annotated[int, Meta(ge=0, le=3600)] = 30
    log_level: LogLevel = "info"
    # Per worker.  Bounds memory (some KiB each) and descriptors against a flood of connections.
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 12_000
    # Per worker.  Its connections may each keep a large frame unfinished, but not all of them at once.
    unfinished_input_max_bytes: Annotated[int, Meta(ge=16_777_216, le=1_099_511_627_776)] = 268_435_456
    user: Annotated[str, Meta(max_length=255)] = ""  # "": stay who we are


class Log(Struct, frozen=True, kw_only=True):
    """How the broker's log is written."""

    format: Literal["text", "json"] = "text"


class Streams(Struct, frozen=True, kw_only=True):
    """The streams door (RabbitMQ Streams protocol)."""

    enabled: bool = True
    port: Port = 5552
    advertised_host: Annotated[str, Meta(max_length=255)] = ""  # "": the address the client evidently reached
    advertised_port: Port = 0  # 0: the port listened on
    tls_port: Port = 5551  # listened on where [tls] names a certificate
    advertised_tls_host: Annotated[str, Meta(max_length=255)] = ""
    advertised_tls_port: Port = 0
    # At least what a client sends before it knows our limit; at most what one connection may cost us.
    frame_max_bytes: Annotated[int, Meta(ge=8192, le=268_435_456)] = 8_388_608
    initial_frame_max_bytes: Annotated[int, Meta(ge=1024, le=1_048_576)] = 8192
    heartbeat_s: Annotated[int, Meta(ge=0, le=3600)] = 60
    handshake_timeout_s: Annotated[int, Meta(ge=1, le=300)] = 10
    # Under 2 s, guessing passwords over the network becomes worth while.
    login_failure_delay_s: Annotated[int, Meta(ge=2, le=60)] = 3
    # To answer what we ask: whether a consumer has taken over, or stopped.
    request_timeout_s: Annotated[int, Meta(ge=1, le=3600)] = 60
    unconfirmed_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 50_000
    connections_max: Annotated[int, Meta(ge=0, le=64_000_000)] = 0  # of all workers together
    # Clients parse it as three numbers and switch features on by it.
    product_version: Annotated[str, Meta(pattern=r"^[0-9]{1,5}\.[0-9]{1,5}\.[0-9]{1,5}$")] = "4.3.0"
    sub_batch_uncompressed_max_bytes: Annotated[int, Meta(ge=1, le=1_073_741_824)] = 67_108_864
    # JavaScript clients read only the first entry of a chunk where that is a sub-batch.
    one_sub_batch_per_chunk: bool = False
    super_stream_partitions_max: Annotated[int, Meta(ge=1, le=STREAMS_MAX)] = 1000
    anonymous_user: Annotated[str, Meta(max_length=255)] = ""  # "": guest, while guest is allowed
    certificate_user: CertificateName = "distinguished_name"


class Native(Struct, frozen=True, kw_only=True):
    """The native door (VibeMQ protocol 1.1): queues with acknowledgement."""

    enabled: bool = True
    port: Port = 2925
    tls_port: Port = 2935  # listened on where [tls] names a certificate
    layout: Literal["auto", "dotnet", "text"] = "auto"
    # .NET clients read no larger frame, whatever the broker allows.
    frame_max_bytes: Annotated[int, Meta(ge=1024, le=67_108_864)] = 1_048_576
    decompressed_max_bytes: Annotated[int, Meta(ge=1024, le=1_073_741_824)] = 67_108_864
    compressions: Annotated[str, Meta(max_length=64, pattern=r"^((gzip|brotli|zstd)(,(gzip|brotli|zstd))*)?$")] = (
        "brotli,gzip,zstd"
    )
    compression_threshold_bytes: Annotated[int, Meta(ge=0, le=67_108_864)] = 1024
    handshake_timeout_s: Annotated[int, Meta(ge=1, le=300)] = 10
    keepalive_timeout_s: Annotated[int, Meta(ge=0, le=86_400)] = 120  # clients ping every 30 s
    # Under 2 s, guessing passwords over the network becomes worth while.
    login_failure_delay_s: Annotated[int, Meta(ge=2, le=60)] = 2
    unconfirmed_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    connections_per_address_per_minute: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    messages_per_second_per_connection: Annotated[int, Meta(ge=0, le=100_000_000)] = 0
    # Made at the first start when no superuser exists; later changes have no effect.
    superuser_name: Annotated[str, Meta(min_length=1, max_length=64)] = "vibemq"
    superuser_password: Annotated[str, Meta(max_length=1024)] = ""


class Signalr(Struct, frozen=True, kw_only=True):
    """The SignalR door: hub connections over WebSockets, server-sent events and long polling."""

    enabled: bool = True
    port: Port = 2927
    tls_port: Port = 2937  # listened on where [tls] names a certificate
    path: Annotated[str, Meta(max_length=255, pattern=r"^(/[A-Za-z0-9._~-]+)+$")] = "/hub"
    # A browser carries a page's requests to whatever its user can reach.
    allowed_origins: Annotated[str, Meta(max_length=4096, pattern=r"^(https?://[^/,\s]+(,https?://[^/,\s]+)*)?$")] = ""
    message_max_bytes: Annotated[int, Meta(ge=1024, le=67_108_864)] = 1_048_576
    request_timeout_s: Annotated[int, Meta(ge=1, le=300)] = 15
    idle_timeout_s: Annotated[int, Meta(ge=1, le=3600)] = 120
    handshake_timeout_s: Annotated[int, Meta(ge=1, le=300)] = 15
    # Some clients notice that they shall end only when the next frame comes.
    keepalive_interval_s: Annotated[int, Meta(ge=1, le=300)] = 10
    client_timeout_s: Annotated[int, Meta(ge=1, le=3600)] = 30
    # Clients acknowledge once a second; a page in the background may get its timers once a minute.
    stateful_ack_timeout_s: Annotated[int, Meta(ge=1, le=3600)] = 90
    poll_timeout_s: Annotated[int, Meta(ge=1, le=95)] = 90  # JavaScript gives a poll up after 100 s
    disconnect_timeout_s: Annotated[int, Meta(ge=1, le=3600)] = 15
    waiting_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    # A tenth for whoever negotiates and never comes; ten times what a page's users behind one proxy need in a second.
    waiting_per_address_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    # Under 2 s, guessing passwords over the network becomes worth while.
    login_failure_delay_s: Annotated[int, Meta(ge=2, le=60)] = 2
    access_token_lifetime_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 3600
    unconfirmed_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    demo: bool = False


class Micromsg2(Struct, frozen=True, kw_only=True):
    """The MicroMsg2 door."""

    enabled: bool = True
    port: Port = 2928
    tls_port: Port = 2938  # listened on where [tls] names a certificate
    message_max_bytes: Annotated[int, Meta(ge=1024, le=67_108_864)] = 67_108_864
    window_max: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    default_queue: Annotated[str, Meta(max_length=255)] = ""
    handshake_timeout_s: Annotated[int, Meta(ge=1, le=300)] = 10
    # Under 2 s, guessing passwords over the network becomes worth while.
    login_failure_delay_s: Annotated[int, Meta(ge=2, le=60)] = 2
    unconfirmed_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000


class Queues(Struct, frozen=True, kw_only=True):
    """What a queue does where its own options say nothing."""

    auto_create: bool = True
    auto_create_needs_permission: bool = False
    max_messages: Annotated[int, Meta(ge=0, le=1_000_000_000_000)] = 0
    # 0: the default of broker/options.py with a dead-letter queue, no limit without one.
    attempts_max: Annotated[int, Meta(ge=0, le=1000)] = 0
    ack_timeout_ms: Annotated[int, Meta(ge=10, le=86_400_000)] = 30_000
    backoff_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 2000
    backoff_max_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 120_000
    prefetch: Annotated[int, Meta(ge=1, le=10_000_000)] = 256
    prefetch_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    # A client reconnects within seconds, and a program restarts within a minute.
    member_grace_s: Annotated[int, Meta(ge=1, le=86_400)] = 60
    # Below the 10 s after which .NET clients give a command up.
    block_timeout_ms: Annotated[int, Meta(ge=100, le=600_000)] = 8000
    # Settled messages go segment by segment, so this is what an idle queue may hold on to.
    segment_size_bytes: Annotated[int, Meta(ge=SEGMENT_SIZE_BYTES_MIN, le=SEGMENT_SIZE_BYTES_MAX)] = 67_108_864


class Store(Struct, frozen=True, kw_only=True):
    """The log on disk."""

    durability: Durability = "os"
    segment_size_bytes: Annotated[int, Meta(ge=SEGMENT_SIZE_BYTES_MIN, le=SEGMENT_SIZE_BYTES_MAX)] = 500_000_000
    # A consumer is given whole chunks, so this is what one credit of it may cost.
    chunk_messages_max: Annotated[int, Meta(ge=1, le=2048)] = 2048
    retention_interval_s: Annotated[int, Meta(ge=1, le=86_400)] = 10
    streams_max: Annotated[int, Meta(ge=1, le=STREAMS_MAX)] = STREAMS_MAX
    streams_per_virtual_host_max: Annotated[int, Meta(ge=0, le=STREAMS_MAX)] = 0
    # A full disk cannot even be cleaned up: publishers stop before.
    disk_free_min_bytes: Annotated[int, Meta(ge=0, le=1_000_000_000_000_000)] = 50_000_000
    # What is left is for the page cache, from which consumers are served.
    memory_high_watermark_percent: Annotated[int, Meta(ge=0, le=100)] = 60
    memory_high_watermark_bytes: Annotated[int, Meta(ge=0, le=1_000_000_000_000_000)] = 0


class Remote(Struct, frozen=True, kw_only=True):
    """The object store: what a lost machine does not take with it, and what does not fit on its disk."""

    url: Annotated[str, Meta(max_length=2048)] = ""  # "": there is none
    options: Annotated[str, Meta(max_length=4096, pattern=r"^([a-z_]+=[^,]*(,[a-z_]+=[^,]*)*)?$")] = ""
    # The same on every machine that this broker may be started on: what lies in the bucket is found by it.
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = "vibemq"
    # Of a request's price and of a confirm's latency: PUTs a second are one by this, whatever the number of streams.
    interval_ms: Annotated[int, Meta(ge=5, le=60_000)] = 100
    batch_size_bytes: Annotated[int, Meta(ge=65_536, le=268_435_456)] = 8_388_608
    puts_max: Annotated[int, Meta(ge=1, le=64)] = 8
    # A store that is away for longer is not coming back by itself: publishers are told.  0: they wait for ever.
    timeout_s: Annotated[int, Meta(ge=0, le=86_400)] = 0
    segment_age_s: Annotated[int, Meta(ge=10, le=604_800)] = 600
    # Bounds the confirms of `os` and `disk` streams after another broker took over. Each check costs a request.
    deposed_after_s: Annotated[int, Meta(ge=1, le=3600)] = 5
    tier: bool = True
    local_size_max_bytes: Annotated[int, Meta(ge=0, le=1_000_000_000_000_000)] = 0
    local_age_max_s: Annotated[int, Meta(ge=0, le=3_153_600_000)] = 0
    cache_size_max_bytes: Annotated[int, Meta(ge=67_108_864, le=1_000_000_000_000_000)] = 1_073_741_824
    encryption_keys: Annotated[str, Meta(max_length=2048)] = ""  # "": objects are as they are


class Retention(Struct, frozen=True, kw_only=True):
    """Removal of segments, messages and transactions that are too old."""

    # A clock that is wrong after a boot is mended by NTP within minutes.
    clock_grace_s: Annotated[int, Meta(ge=0, le=86_400)] = 600


class Transactions(Struct, frozen=True, kw_only=True):
    """What is staged and not decided yet."""

    staged_size_max_bytes: Annotated[int, Meta(ge=1_000_000, le=1_000_000_000_000_000)] = 34_359_738_368
    staged_age_max_s: Annotated[int, Meta(ge=60, le=31_536_000)] = 86_400


class Tls(Struct, frozen=True, kw_only=True):
    """What the TLS ports show, and whose certificates they take."""

    certificate: Annotated[str, Meta(max_length=2048)] = ""  # "": no TLS port is open
    key: Annotated[str, Meta(max_length=2048)] = ""  # "": in the certificate's file
    client_ca: Annotated[str, Meta(max_length=2048)] = ""
    client_crl: Annotated[str, Meta(max_length=2048)] = ""  # lists in client_ca count as well
    verify: Literal["none", "optional", "required"] = "none"


class Audit(Struct, frozen=True, kw_only=True):
    """Who changed what."""

    to: Literal["file", "log", "none"] = "file"
    file: Annotated[str, Meta(max_length=2048)] = ""  # "": audit.log in the data directory
    # Some 300 bytes an event: about a million of them by these defaults.
    size_max_bytes: Annotated[int, Meta(ge=65_536, le=1_000_000_000_000)] = 33_554_432
    files_max: Annotated[int, Meta(ge=1, le=1000)] = 10


class Guest(Struct, frozen=True, kw_only=True):
    """The built-in account guest/guest."""

    allow_loopback: bool = True


class OAuth(Struct, frozen=True, kw_only=True):
    """Logins by JSON Web Tokens of an OAuth 2 provider, in a password's place."""

    jwks: Annotated[str, Meta(max_length=2048)] = ""  # "": no token lets anybody in
    jwks_ca: Annotated[str, Meta(max_length=2048)] = ""  # "": the machine's authorities
    jwks_refresh_s: Annotated[int, Meta(ge=30, le=86_400)] = 300
    # A provider that is away for longer might have withdrawn every key.
    jwks_age_max_s: Annotated[int, Meta(ge=30, le=2_592_000)] = 86_400
    issuer: Annotated[str, Meta(max_length=2048)] = ""
    resource_server_id: Annotated[str, Meta(max_length=255)] = ""
    scope_prefix: Annotated[str, Meta(max_length=255)] = ""  # "": resource_server_id and a dot
    scope_aliases: Annotated[str, Meta(max_length=16_384)] = ""
    additional_scopes_key: Annotated[str, Meta(max_length=255)] = ""
    preferred_username_claims: Annotated[str, Meta(max_length=255)] = ""
    # Signatures by a key pair only: by a shared secret, whoever checks a token could make one.
    algorithms: Annotated[
        str, Meta(max_length=255, pattern=r"^((RS|PS|ES)(256|384|512)|EdDSA)(,((RS|PS|ES)(256|384|512)|EdDSA))*$")
    ] = "RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,ES512,EdDSA"
    # Between the provider's clock and ours; longer would be life that nobody has given a token.
    leeway_s: Annotated[int, Meta(ge=0, le=300)] = 10


class Admin(Struct, frozen=True, kw_only=True):
    """The management API over HTTP."""

    enabled: bool = True
    # Passwords come in the clear, so other machines are let in only when somebody says so.
    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    port: Port = 2926
    tls_port: Port = 2936  # listened on where [tls] names a certificate
    # A page that Prometheus takes in a second; whoever wants more asks /metrics/detailed for it.
    metrics_objects_max: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    # Of a request with lines, when it is unpacked; agents send at most some MiB.
    ingest_body_max_bytes: Annotated[int, Meta(ge=1024, le=1 << 26)] = 1 << 24


class Config(Struct, frozen=True, kw_only=True):
    """All options, by section."""

    server: Server = Server()
    log: Log = Log()
    streams: Streams = Streams()
    native: Native = Native()
    signalr: Signalr = Signalr()
    micromsg2: Micromsg2 = Micromsg2()
    queues: Queues = Queues()
    store: Store = Store()
    remote: Remote = Remote()
    retention: Retention = Retention()
    transactions: Transactions = Transactions()
    tls: Tls = Tls()
    audit: Audit = Audit()
    guest: Guest = Guest()
    oauth: OAuth = OAuth()
    admin: Admin = Admin()

    @property
    def data_path(self) -> str:
        """The data directory, absolute.  Raises ConfigError."""
        given = os.path.expanduser(self.server.data_dir)
        if given.startswith("~"):  # it would be a folder of that name in the current one
            raise ConfigError(
                f"server.data_dir is {given}, and no home directory is known: HOME is not set, and uid {os.getuid()} "
                "has no account",
                hint="name the directory, for instance --data-dir /var/lib/vibemq or VIBEMQ_SERVER_DATA_DIR",
            )
        path = os.path.abspath(given)
        try:
            path.encode()
        except UnicodeEncodeError:  # paths are in the database, in JSON and in addresses of files
            shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise ConfigError(
                f"server.data_dir: the path {shown} is not UTF-8", hint="rename it, or choose another with --data-dir"
            ) from None
        return path

    @property
    def local_limits(self) -> tuple[int, int]:
        """How much of a stream stays here that the object store has too: bytes, and age in ms; 0: no limit."""
        if not self.remote.url:
            return 0, 0
        return self.remote.local_size_max_bytes, self.remote.local_age_max_s * 1000

    @property
    def worker_count(self) -> int:
        """Workers to run: as configured, or one for each core that affinity and control groups let this process use."""
        cores = min(float(len(os.sched_getaffinity(0))), processors_limit() or math.inf)
        return self.server.workers or min(max(math.ceil(cores), 1), WORKERS_MAX)


SECTIONS: dict[str, type[Struct]] = {
    "server": Server,
    "log": Log,
    "streams": Streams,
    "native": Native,
    "signalr": Signalr,
    "micromsg2": Micromsg2,
    "queues": Queues,
    "store": Store,
    "remote": Remote,
    "retention": Retention,
    "transactions": Transactions,
    "tls": Tls,
    "audit": Audit,
    "guest": Guest,
    "oauth": OAuth,
    "admin": Admin,
}
#: section -> option -> its type with limits
OPTIONS: dict[str, dict[str, Any]] = {
    section: {f.name: f.type for f in msgspec.structs.fields(kind)} for section, kind in SECTIONS.items()
}
ENVIRONMENT_PREFIX = "VIBEMQ_"


def sample() -> str:
    """The commented sample file: every option with its default, unit and reason."""
    return resources.files("vibemq").joinpath("sample.toml").read_text(encoding="utf-8")


def load(
    path: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[tuple[str, str], tuple[object, str]] | None = None,
) -> Config:
    """Read the configuration.

    ``overrides`` maps (section, option) to (value, where it came from, for error messages),
    as the command line gives it.  Raises ConfigError.
    """
    # (section, option) -> (value, where it came from); later sources replace earlier ones.
    found: dict[tuple[str, str], tuple[object, str]] = {}
    if path is not None:
        found.update(_from_file(path))
    found.update(_from_environment(os.environ if environ is None else environ))
    found.update(overrides or {})
    values: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for (section, option), (value, origin) in found.items():
        values[section][option] = _checked(section, option, value, origin)
    built = {section: kind(**values[section]) for section, kind in SECTIONS.items()}
    return Config(**built)  # type: ignore[arg-type]  # each section is built from its own type


def _checked(section: str, option: str, value: object, origin: str) -> object:
    if isinstance(value, str) and (number := of_option(option, value)) is not None:
        value = number
    try:
        checked = msgspec.convert(value, OPTIONS[section][option], strict=True)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{origin}: {section}.{option} must be {_needed(OPTIONS[section][option], option)}, but is {_shown(value)}",
            hint="`vibemq config` prints every option with its limits and reasons",
        ) from None
    if not option.endswith("host"):
        return checked
    try:
        return parse_host(str(checked))
    except ConfigError as problem:
        raise ConfigError(f"{origin}: {section}.{option}: {problem}", hint=problem.hint) from None


def _needed(kind: Any, option: str) -> str:
    """What a type with limits accepts, in words."""
    if kind is bool:
        return "true or false"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    base, meta = get_args(kind)
    if base is int:
        example = example_of(option)
        return f"an integer from {meta.ge} to {meta.le}" + (
            f", or one with a unit such as {example}" if example else ""
        )
    if meta.pattern:
        return f"text that matches {meta.pattern}"
    return f"text of {meta.min_length or 0} to {meta.max_length} characters"


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _from_file(path: str) -> Iterator[tuple[tuple[str, str], tuple[object, str]]]:
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as problem:
        raise ConfigError(
            f"cannot read the configuration {path}: {problem.strerror}", hint=_unreadable_hint(path, problem)
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{path} is not valid TOML: it is nested too deeply") from None
    for section, content in document.items():
        if section not in SECTIONS:
            raise _unknown(path, section, SECTIONS, "section")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {section} must be a section, [{section}], but is {_shown(content)}")
        for option, value in content.items():
            if option not in OPTIONS[section]:
                raise _unknown(f"{path}, section [{section}]", option, OPTIONS[section], "option", section)
            yield (section, option), (value, path)


def _unreadable_hint(path: str, problem: OSError) -> str:
    if isinstance(problem, FileNotFoundError):
        return f"`vibemq config > {shlex.quote(path)}` writes a commented sample"
    if isinstance(problem, IsADirectoryError):
        return "name the file in it"
    if isinstance(problem, PermissionError):
        return "the account that this runs as must be allowed to read it"
    return ""


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], tuple[object, str]]]:
    for name, text in environ.items():
        for section in SECTIONS:
            prefix = f"{ENVIRONMENT_PREFIX}{section.upper()}_"
            if not name.startswith(prefix):
                continue
            option = name.removeprefix(prefix).lower()
            origin = f"environment variable {name}"
            yield (section, option), (from_text(section, option, text, origin), origin)


def from_text(section: str, option: str, text: str, origin: str) -> object:
    """The value that text from outside a TOML file stands for; strings are bare.  Raises ConfigError."""
    if section not in SECTIONS:
        raise _unknown(origin, section, SECTIONS, "section")
    if option not in OPTIONS[section]:
        raise _unknown(origin, option, OPTIONS[section], "option", section)
    kind = OPTIONS[section][option]
    base = getattr(kind, "__origin__", kind)  # Annotated[int, ...] -> int
    if base is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if base is int:
        digits = text.strip().replace("_", "")
        return int(digits) if digits.isascii() and digits.isdigit() else text
    return text


def _unknown(where: str, name: str, known: Mapping[str, object], what: str, section: str = "") -> ConfigError:
    message = f"{where}: there is no {what} {name!r}"
    if near := difflib.get_close_matches(name, known, n=1):
        return ConfigError(message, hint=f"did you mean {near[0]!r}?")
    meant = (name, f"{section}_{name}")
    if elsewhere := [(s, o) for s, options in OPTIONS.items() for o in options if o in meant and s != section]:
        return ConfigError(message, hint="{1!r} belongs in section [{0}]".format(*elsewhere[0]))
    return ConfigError(message, hint=f"known here: {', '.join(known)}")
