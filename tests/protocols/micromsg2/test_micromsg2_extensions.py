# SPDX-License-Identifier: Apache-2.0
"""Extension lists and what both sides of a MicroMsg2 handshake make of them, against vectors, rules and each other."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibemq.protocols.micromsg2 import codec, spec
from vibemq.protocols.micromsg2.codec import Handshake
from vibemq.protocols.micromsg2.extensions import (
    Extension,
    Lists,
    Refusal,
    agree,
    answer,
    check_c2,
    first,
    format_list,
    handshake_of,
    negotiate_server,
    parse_list,
)
from vibemq.protocols.micromsg2.spec import ErrorCode

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
SUPPORTED = [name.value for name in spec.ExtensionName]


def handshake(required: str = "", optional: str = "", minor: int = 0) -> Handshake:
    return Handshake(minor=minor, required=required.encode(), optional=optional.encode())


def texts(lists: Lists) -> tuple[str, str]:
    return format_list(lists.required).decode(), format_list(lists.optional).decode()


def s1_of(c1: Handshake, **server) -> tuple[str, str]:
    return texts(negotiate_server(c1, **{"supported": SUPPORTED, **server}))


def c2_of(c1: Lists, s1: Handshake, **client) -> tuple[str, str]:
    return texts(answer(c1, s1, **client))


# ---- lists ----


@pytest.mark.parametrize("vector", VECTORS["extension_lists"], ids=lambda v: v["text"])
def test_a_list_of_the_vectors_is_read(vector):
    items = parse_list(vector["text"].encode())
    assert [[i.name, {k.lower(): v for k, v in i.properties.items()}] for i in items] == vector["items"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", ""),
        (";", ""),
        (";;json;;dotnet;", "json;dotnet"),
        ("JSON;DotNet", "json;dotnet"),
        ("json;dotnet;json", "json;dotnet"),
        ("batch-ack:max-count:100;", "batch-ack:max-count=100"),
        ("ack:MessagesPerAck=3,AckExpireTime=500", "ack:MessagesPerAck=3,AckExpireTime=500"),
        ("x-a:k=a%20b%3b%25+,l:=;", "x-a:k=a%20b%3B%25%2B,l=%3D"),
        ("x-a:k=a=b:c", "x-a:k=a%3Db%3Ac"),
        ("x-a:,k=v,,", "x-a:k=v"),
        ("x-a:k", "x-a:k="),
        ("x-a:k=%zz%", "x-a:k=%25zz%25"),
        ("x-a:k=%ff", "x-a:k=%FF"),
        ("x-a:k=é", "x-a:k=%C3%A9"),
        ("x-a:k_.-1=v", "x-a:k_.-1=v"),
        ("first_name.x", "first_name.x"),
        (" json ; dotnet ", "json;dotnet"),
        ("PUB/SUB", "pub/sub"),
    ],
)
def test_a_list_is_read_tolerantly_and_written_strictly(text, written):
    items = parse_list(text)
    assert format_list(items).decode() == written
    assert parse_list(format_list(items)) == items


@pytest.mark.parametrize("spelling", ["pub-sub", "pubsub", "pub/sub", "PUB/SUB", "publish-subscribe"])
def test_all_spellings_of_pub_sub_are_one_extension(spelling):
    agreed = agree(handshake(f"json;{spelling}"))
    assert agreed.pub_sub and agreed.ids == ("json", "pub-sub")
    s1, _ = s1_of(handshake(spelling))
    assert s1 == spelling.lower(), "the peer may look for nothing else"


@pytest.mark.parametrize("text", ["a b", "jsön", "json:a b=c", "json:=c", ":k=v", "json;x:é=1", b"json;\xff"])
def test_what_is_no_list_is_refused(text):
    with pytest.raises(Refusal, match=r"^PROTOCOL_ERROR: .*: needed .*, had ") as caught:
        parse_list(text)
    assert caught.value.error_code == ErrorCode.PROTOCOL_ERROR


def test_255_extensions_are_read_and_256_refused():
    assert len(parse_list(";".join(f"x-{n}" for n in range(255)))) == 255
    with pytest.raises(Refusal, match="at most 255 extensions, had 256"):
        parse_list(";".join(f"x-{n}" for n in range(256)))
    both = handshake(";".join(f"x-{n}" for n in range(200)), ";".join(f"y-{n}" for n in range(56)))
    with pytest.raises(Refusal, match="at most 255 extensions, had 256"):
        agree(both)


# ---- the server ----


@pytest.mark.parametrize("case", VECTORS["negotiation_cases"], ids=lambda c: f"{c['c1_required']}|{c['c1_optional']}")
def test_a_negotiation_of_the_vectors_ends_as_it_should(case):
    c1, server = handshake(case["c1_required"], case["c1_optional"]), dict(case["server"])
    server["offers"] = [Extension(name) for name in server["offers"]]
    if "error" in case:
        with pytest.raises(Refusal) as caught:
            negotiate_server(c1, **server)
        assert caught.value.text == case["error"]
        assert caught.value.error_code == ErrorCode.UNSUPPORTED_EXTENSIONS
        return
    s1 = negotiate_server(c1, **server)
    assert texts(s1) == (case["s1_required"], case["s1_optional"])
    for required, optional in case["valid_c2"]:
        agreed = check_c2(c1, s1, handshake(required, optional), supported=server["supported"], window_max=1000)
        assert list(agreed.ids) == [i.name for i in parse_list(f"{required};{optional}")]
        wanted = [item for item in parse_list(c1.optional) if item.name in agreed.ids]
        client = first(parse_list(c1.required), wanted)
        assert c2_of(client, handshake_of(s1), also=agreed.ids) == (required, optional)


def test_what_a_client_requires_is_echoed_in_its_order_with_its_keys():
    assert s1_of(handshake("dotnet;batch-ack:Batch-Count=5;json")) == ("dotnet;batch-ack:Batch-Count=5;json", "")


@pytest.mark.parametrize("key", ["max-count", "count", "batch-max", "batch-count", "MessagesPerAck", "MAX-COUNT"])
def test_every_spelling_of_the_count_is_read_and_clamped_under_its_own_key(key):
    c1 = handshake(f"batch-ack:{key}=5000,other=1")
    assert s1_of(c1, window_max=1000) == (f"batch-ack:{key}=1000,other=1", "")
    assert s1_of(c1, window_max=6000) == (f"batch-ack:{key}=5000,other=1", "")
    assert agree(c1).window == 5000
    assert agree(c1, 1000).window == 1000


@pytest.mark.parametrize("count", ["0", "", "-1", "x", "1.5", "00", "²"])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(Refusal, match="count of ack: needed a whole number from 1 up"):
        agree(handshake(f"ack:max-count={count}"))
    with pytest.raises(Refusal):
        negotiate_server(handshake(f"ack:max-count={count}"), supported=SUPPORTED)


def test_a_count_may_be_as_large_as_it_likes():
    assert agree(handshake(f"ack:count={'9' * 60_000}")).window == spec.WINDOW_MAX


def test_serializers_in_required_are_alternatives_and_all_of_them_may_be_missing():
    assert s1_of(handshake("xml;json;protobuf"), supported=["protobuf", "json"]) == ("json", "")
    assert s1_of(handshake("dotnet;xml;json")) == ("dotnet;xml", "")
    with pytest.raises(Refusal, match=r"^Server does not support the following extensions: xml, protobuf, x-a$"):
        negotiate_server(handshake("xml;json-ack;protobuf;x-a"), supported=["json-ack", "json"])


def test_only_one_ack_kind_is_offered_the_clients_first():
    offers = [Extension("batch-ack", {"max-count": "1000"})]
    assert s1_of(handshake("", "ack;batch-ack:count=7")) == ("", "ack")
    assert s1_of(handshake("", "batch-ack:count=7;ack"), offers=offers) == ("", "batch-ack:count=7")
    assert s1_of(handshake("ack", "batch-ack"), offers=offers) == ("ack", "")
    assert s1_of(handshake("json"), offers=offers) == ("json", "batch-ack:max-count=1000")
    assert s1_of(handshake("json"), offers=offers, window_max=20) == ("json", "batch-ack:max-count=20")
    assert s1_of(handshake("batch-ack"), window_max=5) == ("batch-ack:max-count=5", ""), "10 without saying so"


def test_an_unknown_wish_is_ignored_and_an_unknown_requirement_refused():
    assert s1_of(handshake("", "x-foo;json")) == ("", "json")
    with pytest.raises(Refusal, match=r"^Server does not support the following extensions: x-foo, y$"):
        negotiate_server(handshake("x-foo;json;y"), supported=SUPPORTED)


def test_what_the_server_requires_is_raised_from_the_clients_wishes_and_else_refused():
    assert s1_of(handshake("json", "pub-sub;ack"), required=["ack"]) == ("json;ack", "pub-sub")
    with pytest.raises(Refusal, match=r"^Server requires the following extensions: microauth$"):
        negotiate_server(handshake("json"), supported=SUPPORTED, required=["microauth"])


def test_a_sharp_messaging_client_gets_its_ack_as_a_requirement_since_it_reads_no_optional_list():
    assert s1_of(handshake("json", "ack:MessagesPerAck=3", minor=1)) == ("json;ack:MessagesPerAck=3", "")
    assert s1_of(handshake("json", "ack:MessagesPerAck=3", minor=0)) == ("json", "ack:MessagesPerAck=3")


def test_a_challenge_becomes_required_and_a_secret_is_not_echoed():
    challenge = {"mechanism": "hmac-sha256", "salt": "00ff", "rounds": "5", "nonce": "aa"}
    written = "microauth:mechanism=hmac-sha256,salt=00ff,rounds=5,nonce=aa"
    answers = {"microauth": challenge}
    assert s1_of(handshake("json", "microauth:user=bob"), answers=answers) == (f"json;{written}", "")
    assert s1_of(handshake("microauth:user=bob;json"), answers=answers) == (f"{written};json", "")
    assert s1_of(handshake("microauth:user=bob,password=x")) == ("microauth", "")
    c1 = first(parse_list("microauth:user=bob"), parse_list("json"))
    c2 = c2_of(c1, handshake(written), answers={"microauth": {"user": "bob", "proof": "c0de"}})
    assert c2 == ("microauth:user=bob,proof=c0de", "")
    agreed = agree(handshake(*c2))
    assert agreed.properties["microauth"].property("proof") == "c0de"


# ---- C2 ----


@pytest.mark.parametrize(
    ("c2", "text"),
    [
        (("", ""), "Server requires the following extensions: json"),
        (("json;x-foo", ""), "Server does not support the following extensions: x-foo"),
        (("json", "x-heartbeat"), "PROTOCOL_ERROR: C2: needed extensions of C1 and S1 only, had x-heartbeat"),
        (("json;\x7f", ""), "PROTOCOL_ERROR: extension name: needed letters, digits, '-', '_' and '.', had '\\x7f'"),
    ],
)
def test_a_wrong_c2_is_refused(c2, text):
    c1 = handshake("json", "pub-sub;x-foo")
    s1 = negotiate_server(c1, supported=SUPPORTED)
    with pytest.raises(Refusal) as caught:
        check_c2(c1, s1, handshake(*c2), supported=SUPPORTED, window_max=10)
    assert caught.value.text == text


def test_c2_may_take_up_what_only_c1_spoke_of_and_leave_what_was_optional():
    c1 = handshake("json", "pub-sub;dotnet")
    s1 = Lists(parse_list("json"))
    for c2 in (("json", ""), ("json", "pub-sub"), ("json;dotnet", "pub-sub")):
        check_c2(c1, s1, handshake(*c2), supported=SUPPORTED, window_max=10)


def test_ids_count_required_then_optional_and_a_repeated_name_keeps_its_first():
    agreed = agree(handshake("json;dotnet;JSON", "batch-ack;dotnet;x-reply"))
    assert agreed.ids == ("json", "dotnet", "batch-ack", "x-reply")
    assert (agreed.dotnet_id, agreed.ack_id, agreed.heartbeat_id) == (2, 3, 0)
    assert agreed.reply and not agreed.pub_sub


def test_of_several_serializers_and_ack_kinds_in_c2_the_first_is_active():
    agreed = agree(handshake("xml;json;ack:count=3", "protobuf;batch-ack:count=9"))
    assert (agreed.serializer, agreed.ack, agreed.window) == ("xml", "ack", 3)
    assert agreed.content_type == "application/xml"
    nothing = agree(handshake())
    assert (nothing.serializer, nothing.content_type, nothing.ack, nothing.ack_id, nothing.window) == (
        None, None, None, 0, 0,
    )  # fmt: skip


@pytest.mark.parametrize(("text", "window"), [("ack", 1), ("batch-ack", 10), ("ack:AckExpireTime=9", 1)])
def test_without_a_count_the_window_is_that_of_the_kind(text, window):
    assert agree(handshake(text)).window == window


@pytest.mark.parametrize(
    ("text", "expire", "delay"),
    [
        ("ack", None, 50),
        ("ack:AckExpireTime=500", 500, 250),
        ("ack:ackexpiretime=1", 1, 1),
        ("ack:AckExpireTime=x", None, 50),
        ("ack:AckExpireTime=0", None, 50),
        (f"ack:AckExpireTime={'9' * 5000}", 2**31 - 1, 2**30 - 1),
    ],
)
def test_an_ack_waits_half_as_long_as_the_peer_does(text, expire, delay):
    agreed = agree(handshake(text))
    assert (agreed.expire_ms, agreed.ack_delay_ms) == (expire, delay)


def test_a_heartbeat_has_its_interval():
    agreed = agree(handshake("", "x-heartbeat:interval=5000"))
    assert (agreed.heartbeat_id, agreed.heartbeat_ms) == (1, 5000)
    assert agree(handshake("x-heartbeat")).heartbeat_ms is None


@pytest.mark.parametrize("interval", ["", "0", "000", "soon", "-5", "1.5", "%D9%A3"])
def test_an_interval_that_makes_no_sense_is_none(interval):
    assert agree(handshake(f"x-heartbeat:interval={interval}")).heartbeat_ms is None


def test_an_interval_beyond_all_measure_is_the_longest():
    assert agree(handshake("x-heartbeat:interval=" + "9" * 40)).heartbeat_ms == 2**31 - 1


# ---- the client ----


def test_a_requirement_that_was_not_echoed_is_taken_as_accepted():
    c1 = first(parse_list("json;dotnet"))
    assert c2_of(c1, handshake("", "batch-ack")) == ("json;dotnet", "")
    assert c2_of(c1, handshake("", "batch-ack"), also=["batch-ack"]) == ("json;dotnet", "batch-ack")


def test_of_several_serializers_the_one_that_was_listed_is_taken_and_else_the_first():
    c1 = first(parse_list("xml;json;protobuf"))
    assert c2_of(c1, handshake("json")) == ("json", "")
    assert c2_of(c1, handshake()) == ("xml", "")
    wishes = first((), parse_list("xml;json;protobuf"))
    assert c2_of(wishes, handshake("", "protobuf;json")) == ("", "protobuf")


def test_a_client_refuses_what_it_lacks_and_takes_what_it_did_not_list_but_has():
    with pytest.raises(Refusal, match=r"^Client does not support the following extensions: x-foo$"):
        answer(first(parse_list("json")), handshake("json;x-foo"))
    for name in ("supported", "also"):
        assert c2_of(first(parse_list("json")), handshake("json;dotnet"), **{name: ["dotnet"]}) == ("json;dotnet", "")
    assert c2_of(first(parse_list("json")), handshake("", "dotnet"), supported=["dotnet"]) == ("json", "")


def test_a_client_takes_the_smaller_window_and_one_ack_kind():
    c1 = first(parse_list("batch-ack:max-count=1000"))
    assert c2_of(c1, handshake("batch-ack:max-count=50")) == ("batch-ack:max-count=50", "")
    assert c2_of(c1, handshake("batch-ack:max-count=5000")) == ("batch-ack:max-count=1000", "")
    assert c2_of(c1, handshake("batch-ack")) == ("batch-ack:max-count=1000", "")
    wishes = first((), parse_list("batch-ack:max-count=1000;ack"))
    assert c2_of(wishes, handshake("", "ack:max-count=3;batch-ack")) == ("", "ack:max-count=3")


def test_of_a_sharp_messaging_server_only_what_it_knows_is_taken():
    c1 = first((), parse_list("json;pub-sub;ack:MessagesPerAck=9"))
    s1 = handshake("json", "pub-sub;ack:MessagesPerAck=3", minor=1)
    assert c2_of(c1, s1) == ("json", "ack:MessagesPerAck=3")


def test_what_is_required_is_not_offered_too():
    assert texts(first(parse_list("json"), parse_list("json;dotnet"))) == ("json", "dotnet")


# ---- both sides ----

names = st.lists(st.sampled_from([*SUPPORTED, "x-foo", "x-bar"]), unique=True)
counts = st.none() | st.integers(1, 20_000)


def items(picked: list[str], count: int | None) -> list[Extension]:
    return [Extension(n, {"max-count": str(count)} if count and n in spec.ACK_WINDOWS else {}) for n in picked]


@given(names, names, counts, names, names, names, counts, st.integers(1, spec.WINDOW_MAX), st.sampled_from([0, 1]))
def test_both_sides_agree_on_the_same_or_one_refuses(
    require, offer, client_count, supported, required, offers, server_count, window_max, minor
):
    c1 = first(items(require, client_count), items(offer, client_count))
    first_words = codec.decode_handshake(codec.encode_handshake(handshake_of(c1, minor)))[0]
    server = [name for name in offers if name in supported]
    try:
        s1 = negotiate_server(
            first_words,
            supported=supported,
            required=[name for name in required if name in supported],
            offers=items(server, server_count),
            window_max=window_max,
        )
    except Refusal:
        return
    c2 = handshake_of(answer(c1, handshake_of(s1)))
    agreed = check_c2(first_words, s1, c2, supported=supported, window_max=window_max)
    assert agreed == agree(c2), "the server clamps nothing that it has already said in S1"
    assert set(agreed.ids) <= set(supported)
    wanted = set(require) - set(spec.SERIALIZERS)
    assert wanted <= set(agreed.ids)
    assert not set(require) & set(spec.SERIALIZERS) or agreed.serializer in require
    assert (agreed.window > 0) == (agreed.ack is not None)
