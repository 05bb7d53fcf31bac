# SPDX-License-Identifier: Apache-2.0
"""Connection strings in both forms, and how queues are compared with their declarations."""

import pytest

from vibemq.client.queues import QueueDeclaration, QueueOptions, Severity, differences
from vibemq.client.settings import Settings, parse
from vibemq.errors import ConfigError
from vibemq.protocols.native.spec import DeliveryMode, OverflowStrategy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vibemq://localhost", Settings()),
        ("VibeMQ://host:1/", Settings(host="host", port=1)),
        ("vibemq://u%40x:p%3Aw@h", Settings(host="h", user="u@x", password="p:w")),
        ("vibemq://a:b@c@h", Settings(host="h", user="a", password="b@c")),
        ("vibemq://[::1]:2999", Settings(host="::1", port=2999)),
        ("Host=h;Port=7", Settings(host="h", port=7)),
        ("host=;USERNAME=u;Password=p", Settings(user="u", password="p")),
        (r'Host=h;Username=u;Password="a;b=\"c\\d\;"', Settings(host="h", user="u", password='a;b="c\\d;')),
        ("Host=h;queues=a, b,;", Settings(host="h", queues=("a", "b"))),
    ],
)
def test_both_forms_are_read(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize("form", ["vibemq://localhost/?{}={}", "Host=localhost;{}={}"])
@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("tls", "YES", "tls", True),
        ("useTls", "1", "tls", True),
        ("tls", "on", "tls", True),
        ("tls", "off", "tls", False),
        ("skipCertValidation", "true", "skip_cert_validation", True),
        ("keepAlive", "5", "keep_alive_s", 5),
        ("keepAliveInterval", "6", "keep_alive_s", 6),
        ("commandTimeout", "3", "command_timeout_s", 3),
        ("compression", "none", "compression", ()),
        ("compression", "GZip,brotli", "compression", ("gzip", "brotli")),
        ("compression", "zstd", "compression", ("zstd",)),
        ("compressionThreshold", "0", "compression_threshold_bytes", 0),
        ("reconnectMaxAttempts", "4", "reconnect_max_attempts", 4),
        ("reconnectMaxAttempts", "-4", "reconnect_max_attempts", 0),
        ("reconnectInitialDelay", "2", "reconnect_initial_delay_s", 2),
        ("reconnectMaxDelay", "9", "reconnect_max_delay_s", 9),
        ("reconnectInitialDelay", "0.1", "reconnect_initial_delay_s", 0.1),
        ("reconnectMaxDelay", "0.25", "reconnect_max_delay_s", 0.25),
        ("commandTimeout", "1.5", "command_timeout_s", 1.5),
        ("reconnectExponentialBackoff", "false", "reconnect_exponential_backoff", False),
        ("streamsPort", "5552", "streams_port", 5552),
        ("QUEUES", "a,b", "queues", ("a", "b")),
    ],
)
def test_every_option_is_read_in_both_forms(form, key, value, field, expected):
    assert getattr(parse(form.format(key, value)), field) == expected


@pytest.mark.parametrize("form", ["vibemq://u:secret@localhost/?{}={}", "Host=localhost;{}={}"])
@pytest.mark.parametrize(
    ("key", "value", "needed"),
    [
        ("tls", "ture", "true or false"),
        ("skipCertValidation", "", "true or false"),
        ("keepAlive", "0", "a whole number from 1 on"),
        ("keepAlive", "soon", "a whole number"),
        ("keepAlive", "1.5", "a whole number"),
        ("compression", "gzip,lzma", "none, or some of"),
        ("compression", "", "none, or some of"),
        ("compressionThreshold", "-1", "a whole number from 0 on"),
        ("reconnectMaxAttempts", "many", "a whole number"),
        ("reconnectMaxDelay", "inf", "a number of seconds"),
        ("reconnectMaxDelay", "nan", "a number of seconds"),
        ("reconnectMaxDelay", "-0.5", "a number of seconds"),
        ("reconnectInitialDelay", "1s", "a number of seconds"),
        ("commandTimeout", "0.0", "more than 0 seconds"),
        ("streamsPort", "70000", "a port from 1 to 65535"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_that_names_the_option(form, key, value, needed):
    with pytest.raises(ConfigError) as caught:
        parse(form.format(key, value))
    assert str(caught.value).startswith(f"connection string: {key}: needed {needed}")
    assert str(caught.value).endswith(f"had {value!r}")
    assert "leave the option out" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "Host=h;Username=u;Password=an;other secret",
        "vibemq://u:an/other secret@h",
        "vibemq://u:an@other?secret@h",
        "u:another secret@host",
    ],
)
def test_what_may_be_of_a_password_is_not_shown(text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "other" not in f"{caught.value} {caught.value.hint}"
    assert "secret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "empty"),
        ("  ", "empty"),
        ("vibemq://", "no host"),
        ("vibemq://u:p@:1", "no host"),
        ("vibemq://h:0", "port"),
        ("vibemq://h:x", "port"),
        ("vibemq://h?tls", "key=value"),
        ("Host=h;tls", "part 2 is no Key=value"),
        ("amqp://h", "needed vibemq://"),
        ("Host=h;Port=65536", "port"),
        ("vibemq://u@h", "user name and a password"),
        ("Host=h;Username=u", "user name and a password"),
    ],
)
def test_what_is_wrong_is_said(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("h:2925", "vibemq://h:2925"),
        ("amqp://h", "vibemq://h"),
        ("amqp://guest:secret@h:5672/vhost", "vibemq://h"),
        ("http://[::1]:2926/", "vibemq://[::1]"),
        ("amqp://", "vibemq://localhost"),
    ],
)
def test_another_scheme_or_none_is_answered_with_what_may_have_been_meant(text, meant):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.hint == f"Did you mean {meant}?"
    assert "secret" not in str(caught.value)


def test_a_url_of_the_streams_door_is_told_that_it_is_one():
    with pytest.raises(ConfigError) as caught:
        parse("rabbitmq-stream://h:5552")
    assert caught.value.hint == "Did you mean vibemq://h? That is a URL for what uses streams only."


def test_arguments_win_and_unknown_ones_are_errors():
    assert parse("vibemq://u@h", password="p", keep_alive_s=1).keep_alive_s == 1
    with pytest.raises(ConfigError, match="there is no keepalive"):
        parse("vibemq://h", keepalive=1)
    with pytest.raises(ConfigError, match="lzma"):
        parse("vibemq://h", compression=("lzma",))


def test_a_password_is_not_shown():
    assert "secret" not in repr(parse("vibemq://u:secret@h"))


def test_delays_double_up_to_the_longest():
    settings = Settings()
    assert [settings.delay_s(n) for n in (1, 2, 3, 9, 10, 10_000)] == [1, 2, 4, 256, 300, 300]
    assert Settings(reconnect_exponential_backoff=False).delay_s(5) == 1


# ---- the table of differences ----

DEFAULT = QueueOptions()
WITH_DLQ = QueueOptions(dead_letter=True)


@pytest.mark.parametrize(
    ("existing", "declared", "expected"),
    [
        (DEFAULT, {"mode": DeliveryMode.FAN_OUT_WITH_ACK}, {"mode": Severity.HARD}),
        (DEFAULT, {"max_messages": 1}, {"max_messages": Severity.INFO}),
        (DEFAULT, {"attempts_max": 9}, {"attempts_max": Severity.INFO}),
        (DEFAULT, {"message_ttl_ms": 5}, {"message_ttl_ms": Severity.SOFT}),
        (QueueOptions(message_ttl_ms=5), {"message_ttl_ms": 4}, {"message_ttl_ms": Severity.SOFT}),
        (QueueOptions(message_ttl_ms=5), {"message_ttl_ms": 6}, {"message_ttl_ms": Severity.INFO}),
        (QueueOptions(message_ttl_ms=5), {"message_ttl_ms": None}, {"message_ttl_ms": Severity.INFO}),
        (DEFAULT, {"dead_letter": True}, {"dead_letter": Severity.INFO}),
        (WITH_DLQ, {"dead_letter": False}, {"dead_letter": Severity.SOFT}),
        (WITH_DLQ, {"dead_letter": True, "dead_letter_queue": "x"}, {"dead_letter_queue": Severity.HARD}),
        (WITH_DLQ, {"dead_letter_queue": "q.dlq"}, {}),
        (DEFAULT, {"overflow": OverflowStrategy.DROP_NEWEST}, {"overflow": Severity.INFO}),
        (
            DEFAULT,
            {"dead_letter": True, "overflow": OverflowStrategy.REDIRECT_TO_DLQ},
            {"dead_letter": Severity.INFO, "overflow": Severity.HARD},
        ),
        (
            WITH_DLQ,
            {"dead_letter": True, "overflow": OverflowStrategy.REDIRECT_TO_DLQ},
            {"overflow": Severity.INFO},
        ),
    ],
)
def test_differences_are_as_bad_as_the_protocol_says(existing, declared, expected):
    wanted = QueueDeclaration("q", QueueOptions(**declared), declared=frozenset(declared))
    assert {found.setting: found.severity for found in differences(existing, wanted)} == expected
