# SPDX-License-Identifier: Apache-2.0
"""Queue options from headers and from JSON, time spans, and QueueInfo in both layouts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibemq.protocols.native import codec, options
from vibemq.protocols.native.options import (
    BadOption,
    QueueOptions,
    format_time,
    format_time_span,
    options_of,
    parse_time_span,
    queue_info,
    queue_options,
)
from vibemq.protocols.native.spec import DeliveryMode, ErrorCode, OverflowStrategy

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
SERVER = QueueOptions(mode=DeliveryMode.PRIORITY_BASED, max_messages=7, attempts_max=9, prefetch=50)
MINUTE_MS = 60_000


def create_queue(vector_name: str) -> codec.Message:
    groups = (VECTORS["golden_frames"], VECTORS["text_example_frames"])
    vector = next(v for group in groups for v in group if v["name"].startswith(vector_name))
    return codec.decode_body(bytes.fromhex(vector["frame_hex"])[5:])


def from_headers(**headers: str) -> QueueOptions:
    return queue_options(headers, None, SERVER)


def from_payload(**members: object) -> QueueOptions:
    return queue_options({}, json.dumps(members).encode(), SERVER)


# ---- where options come from ----


def test_the_payload_of_a_dotnet_client_is_read():
    message = create_queue("CreateQueue id=k1")
    declared = QueueOptions(max_messages=10_000, attempts_max=3)
    assert queue_options(message.headers, message.payload, SERVER) == declared
    sent = (
        b'{"mode":0,"maxQueueSize":10000,"messageTtl":"01:00:00","enableDeadLetterQueue":false,'
        b'"deadLetterQueueName":"x","overflowStrategy":0,"maxRetryAttempts":3}'
    )
    assert queue_options({}, sent, SERVER) == QueueOptions(
        max_messages=10_000, message_ttl_ms=60 * MINUTE_MS, dead_letter_queue="x", attempts_max=3
    )


def test_the_headers_of_a_text_client_are_read():
    message = create_queue("CreateQueue, published")
    assert queue_options(message.headers, message.payload, SERVER) == QueueOptions(
        mode=DeliveryMode.ROUND_ROBIN, max_messages=10_000, message_ttl_ms=3_600_000, attempts_max=9, prefetch=50
    )


@pytest.mark.parametrize("payload", [None, b"", b"null"])
def test_without_options_a_queue_is_as_the_server_is_set_up(payload):
    assert queue_options({}, payload, SERVER) is not None
    assert queue_options({"correlationId": "1"}, payload, SERVER) == SERVER


def test_a_payload_without_a_member_means_that_options_own_default():
    assert queue_options({}, b"{}", SERVER) == QueueOptions()
    assert queue_options({}, b'{"mode":null,"unknown":[1,{"a":2}]}', SERVER) == QueueOptions()


def test_a_payload_member_wins_over_its_header():
    headers = {"deliveryMode": "FanOutWithAck", "maxQueueSize": "5", "maxRetryAttempts": "8"}
    assert queue_options(headers, b'{"maxQueueSize":6,"deliveryMode":2}', SERVER) == QueueOptions(
        mode=DeliveryMode.FAN_OUT_WITHOUT_ACK, max_messages=6, attempts_max=8
    )
    assert queue_options({}, b'{"deliveryMode":2,"mode":3}', SERVER).mode == DeliveryMode.PRIORITY_BASED


ALL = {
    "mode": (DeliveryMode.FAN_OUT_WITH_ACK, "deliveryMode", "FANOUTWITHACK"),
    "max_messages": (0, "maxQueueSize", "0"),
    "message_ttl_ms": (1_800_000, "messageTtl", "00:30:00"),
    "dead_letter": (True, "enableDeadLetterQueue", "True"),
    "dead_letter_queue": ("q-dead", "deadLetterQueueName", "q-dead"),
    "overflow": (OverflowStrategy.REDIRECT_TO_DLQ, "overflowStrategy", "redirectToDlq"),
    "attempts_max": (12, "maxRetryAttempts", "12"),
    "ack_timeout_ms": (5000, "ackTimeoutMs", "00:00:05"),
    "backoff_ms": (100, "backoffMs", "100"),
    "backoff_max_ms": (MINUTE_MS, "backoffMaxMs", "60000"),
    "prefetch": (3, "prefetch", "3"),
    "durability": ("disk", "durability", "Disk"),
}
EVERYTHING = QueueOptions(**{name: value for name, (value, _, _) in ALL.items()})


def test_every_option_can_be_said_in_both_places_as_text():
    said = {name: text for _, name, text in ALL.values()}
    assert from_headers(**said) == EVERYTHING
    assert from_payload(**said) == EVERYTHING
    assert set(ALL) == set(options.READERS)


def test_every_option_can_be_said_in_json_by_its_own_type():
    said = {name: value for value, name, _ in ALL.values()}
    assert from_payload(**said) == EVERYTHING


@pytest.mark.parametrize("mode", DeliveryMode)
def test_a_mode_has_a_name_and_a_number(mode):
    assert from_headers(deliveryMode=str(int(mode))).mode is mode
    assert from_payload(mode=int(mode)).mode is mode
    assert from_payload(mode=str(int(mode))).mode is mode


def test_a_time_to_live_is_milliseconds_or_a_time_span():
    for said in ("1800000", "00:30:00", "0.00:30:00.0000000"):
        assert from_headers(messageTtl=said).message_ttl_ms == 1_800_000
        assert from_payload(messageTtl=said).message_ttl_ms == 1_800_000
    assert from_payload(messageTtl=1_800_000).message_ttl_ms == 1_800_000
    assert from_payload(messageTtl="00:00:00.0000001").message_ttl_ms == 1  # never becomes no time at all


BAD = [
    ("mode", 4), ("mode", -1), ("mode", "Topic"), ("mode", "1.0"), ("mode", 1.0), ("mode", True), ("mode", []),
    ("maxQueueSize", -1), ("maxQueueSize", 2**31), ("maxQueueSize", "ten"), ("maxQueueSize", True),
    ("maxQueueSize", 1.5), ("messageTtl", "-00:00:01"),
    ("messageTtl", "24:00:00"), ("messageTtl", -5), ("messageTtl", "1h"),
    ("messageTtl", "99999999.00:00:00"), ("messageTtl", {}), ("messageTtl", 10**18), ("messageTtl", 1e300),
    ("enableDeadLetterQueue", "yes"), ("enableDeadLetterQueue", 1), ("deadLetterQueueName", "a b"),
    ("deadLetterQueueName", 7), ("deadLetterQueueName", "x" * 257), ("overflowStrategy", "DropAll"),
    ("overflowStrategy", 9), ("maxRetryAttempts", "٣"), ("prefetch", "-1"), ("durability", "tape"), ("durability", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_a_value_that_cannot_be_is_told_by_name_in_the_payload(name, value):
    with pytest.raises(BadOption, match=f"^{name}: needed .+, had ") as caught:
        from_payload(**{name: value})
    assert caught.value.code is ErrorCode.INVALID_PAYLOAD
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, v in BAD if isinstance(v, str)], ids=str)
def test_a_value_that_cannot_be_is_told_by_name_in_a_header(name, value):
    with pytest.raises(ValueError, match=f"^{name}: needed .+, had ") as caught:
        from_headers(**{name: value})
    assert caught.value.code is ErrorCode.INVALID_MESSAGE


@pytest.mark.parametrize(
    "payload", [b"{", b"[]", b'"x"', b"7", b"{}{}", b"\xff", b'{"mode":1e999999}', b'{"x":"\\ud800"}', b"[" * 100_000]
)
def test_a_payload_that_holds_no_options_is_told(payload):
    with pytest.raises(BadOption) as caught:
        queue_options({}, payload, SERVER)
    assert caught.value.code is ErrorCode.INVALID_PAYLOAD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12), st.lists, max_leaves=4
)


@given(st.dictionaries(st.sampled_from([name for _, name, _ in ALL.values()]), json_values))
def test_any_payload_gives_options_or_bad_option(members):
    try:
        assert isinstance(from_payload(**members), QueueOptions)
    except BadOption as error:
        assert error.code is ErrorCode.INVALID_PAYLOAD


def test_options_survive_the_metadata():
    assert options_of(json.loads(json.dumps(EVERYTHING.stored()))) == EVERYTHING
    assert options_of({"keep": True, "mode": None}, SERVER) == SERVER
    assert QueueOptions().stored() == {
        "mode": 0,
        "dead_letter": False,
        "overflow": 0,
    }


# ---- time spans ----


@pytest.mark.parametrize("vector", VECTORS["messageTtl_timespan"], ids=lambda v: v["text"])
def test_a_golden_time_span_is_read_and_written(vector):
    assert parse_time_span(vector["text"]) == vector["milliseconds"]
    assert format_time_span(vector["milliseconds"]) == vector["text"]


@given(st.integers(-(10**15), 10**15))
def test_a_time_span_comes_back(ms):
    assert parse_time_span(format_time_span(ms)) == ms


NO_TIME_SPANS = [
    "", "1", "1:2:3", "00:60:00", "00:00:60", "24:00:00", "00:00", "00:00:00.", " 00:00:00", "00:00:00.12345678",
    "--00:00:00", "1.2.00:00:00", "\N{ARABIC-INDIC DIGIT ZERO}0:00:00", "00:00:00\n",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_TIME_SPANS)
def test_what_is_no_time_span_is_refused(text):
    with pytest.raises(ValueError, match="time span"):
        parse_time_span(text)


# ---- QueueInfo ----


def test_queue_info_for_a_dotnet_peer_has_the_published_members_and_ours():
    vector = next(v for v in VECTORS["broker_frames"] if v["name"] == "QueueInfo reply to a .NET-layout peer")
    published = json.loads(vector["message"]["payload"])
    queue = QueueOptions(
        mode=DeliveryMode.FAN_OUT_WITH_ACK,
        max_messages=5000,
        message_ttl_ms=24 * 60 * MINUTE_MS + 30 * MINUTE_MS,
        dead_letter=True,
        dead_letter_queue="q-dead",
        overflow=OverflowStrategy.DROP_NEWEST,
        attempts_max=5,
    )
    info = json.loads(queue_info("q", queue, 1_771_408_800_000, message_count=0, subscriber_count=0, in_flight_count=2))
    ours = {"overflowStrategyName": "DropNewest", "inFlightCount": 2, "effectiveDeadLetterQueueName": "q-dead"}
    ours |= {"droppedCount": 0, "refusedCount": 0}
    assert info == published | ours
    assert list(info)[: len(published)] == list(published)


def test_queue_info_for_a_text_peer_has_names():
    payload = queue_info(
        "my-queue",
        QueueOptions(max_messages=10_000),
        1_771_408_800_000,
        message_count=42,
        subscriber_count=3,
        text_layout=True,
    )
    info = json.loads(payload)
    example = next(v for v in VECTORS["text_example_frames"] if v["name"] == "QueueInfo response, published example")
    published = json.loads(example["message"]["payload"])
    assert {name: info[name] for name in published} == published
    assert info["overflowStrategy"] == "DropOldest"


def test_a_generated_dead_letter_name_is_never_shown_as_declared():
    info = json.loads(queue_info("q", QueueOptions(dead_letter=True), 0, message_count=0, subscriber_count=0))
    assert "deadLetterQueueName" not in info and "messageTtl" not in info
    assert info["effectiveDeadLetterQueueName"] == "q.dlq"
    off = json.loads(queue_info("q", QueueOptions(), 0, message_count=0, subscriber_count=0))
    assert "effectiveDeadLetterQueueName" not in off


def test_counts_in_queue_info_fit_32_bits():
    info = json.loads(
        queue_info("q", QueueOptions(), 0, message_count=2**40, subscriber_count=2**33, in_flight_count=2**32)
    )
    assert {info["messageCount"], info["subscriberCount"], info["inFlightCount"]} == {2**31 - 1}


def test_what_queue_info_says_declares_the_same_queue_again():
    """As a .NET client does that compares, then overrides: whatever was declared comes back."""
    for text_layout in (False, True):
        info = json.loads(queue_info("q", EVERYTHING, 0, message_count=0, subscriber_count=0, text_layout=text_layout))
        info["maxQueueSize"] = info.pop("maxSize")
        assert queue_options({}, json.dumps(info).encode(), SERVER) == EVERYTHING


def test_a_creation_time_is_iso_8601():
    assert format_time(1_771_408_800_000) == "2026-02-18T10:00:00Z"
    assert format_time(1_771_408_800_123) == "2026-02-18T10:00:00.123Z"
