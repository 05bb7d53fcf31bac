# SPDX-License-Identifier: Apache-2.0
"""The data of each SASL mechanism, byte by byte, and the user that a certificate names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibemq.protocols.streams.sasl import Claim, Malformed, Unusable, amqplain, certificate_user, plain

LOGIN = b"\x05LOGINS\0\0\0\x05guest"
PASSWORD = b"\x08PASSWORDS\0\0\0\x06secret"


def test_plain_is_an_empty_identity_a_user_and_a_password():
    assert plain(b"\0guest\0secret") == Claim("guest", "secret")
    assert plain("\0żółw\0☃".encode()) == Claim("żółw", "☃")
    assert plain(b"\0\0") == Claim("", "")


@pytest.mark.parametrize("data", [b"", b"guest\0secret", b"me\0guest\0secret", b"\0a\0b\0c", b"\0\xff\0b"])
def test_anything_else_is_not_plain(data):
    with pytest.raises(Malformed):
        plain(data)


def test_amqplain_is_a_table_without_its_size():
    assert amqplain(LOGIN + PASSWORD) == amqplain(PASSWORD + LOGIN) == Claim("guest", "secret")


def test_amqplain_passes_over_other_values():
    others = (
        b"\x01aI\0\0\0\x01"
        + b"\x01bt\x01"
        + b"\x01cV"
        + b"\x01dl"
        + bytes(8)
        + b"\x01eF\0\0\0\x02xx"
        + b"\x01fD"
        + bytes(5)
    )
    assert amqplain(others + LOGIN + others + PASSWORD) == Claim("guest", "secret")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        LOGIN,
        PASSWORD,
        (LOGIN + PASSWORD)[:-1],
        LOGIN + PASSWORD + b"\x05",
        LOGIN + PASSWORD + b"\x01a",
        LOGIN + PASSWORD + b"\x01a?",
        LOGIN + PASSWORD + b"\x01aS\xff\xff\xff\xff",
        LOGIN.replace(b"S\0\0\0\x05guest", b"I\0\0\0\x01") + PASSWORD,
        LOGIN.replace(b"guest", b"\xff\xff\xff\xff\xff") + PASSWORD,
        b"\0\0\0\x2f" + LOGIN + PASSWORD,
    ],
)
def test_anything_else_is_not_amqplain(data):
    with pytest.raises(Malformed):
        amqplain(data)


@given(st.binary(max_size=60) | st.builds(lambda a, b: LOGIN + a + PASSWORD + b, st.binary(max_size=20), st.binary()))
def test_noise_is_malformed_or_a_claim(data):
    for parse in (plain, amqplain):
        try:
            assert isinstance(parse(data), Claim)
        except Malformed:
            continue


SUBJECT = ((("C", "PL"),), (("O", "client"),), (("CN", "host"),))
CERTIFICATE = {"subject": SUBJECT, "subjectAltName": (("IP Address", "10.0.0.1"), ("email", "a@b"), ("DNS", "d"))}


def test_the_distinguished_name_begins_with_what_was_encoded_last():
    assert certificate_user(CERTIFICATE, "distinguished_name") == "CN=host,O=client,C=PL"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a,b+c", "a\\,b\\+c"),
        ('"<\\>;', '\\"\\<\\\\\\>\\;'),
        ("#x", "\\#x"),
        (" x ", "\\ x\\ "),
        (" ", "\\ "),
        ("a=b c", "a=b c"),
    ],
)
def test_what_has_a_meaning_in_a_name_is_escaped(value, written):
    assert certificate_user({"subject": ((("CN", value),),)}, "distinguished_name") == f"CN={written}"


def test_a_part_with_two_attributes_and_one_that_has_no_short_name():
    subject = ((("O", "o"), ("1.2.3", "x")), (("CN", "a"),))
    assert certificate_user({"subject": subject}, "distinguished_name") == "CN=a,O=o+1.2.3=x"


def test_the_common_name_alone():
    assert certificate_user(CERTIFICATE, "common_name") == "host"
    two = {"subject": ((("CN", "a"),), (("O", "o"),), (("CN", "b"),))}
    assert certificate_user(two, "common_name") == "a,b"


def test_the_first_alternative_name_is_a_host_before_an_address():
    assert certificate_user(CERTIFICATE, "subject_alternative_name") == "d"
    mail = {"subjectAltName": (("URI", "spiffe://x"), ("email", "a@b"))}
    assert certificate_user(mail, "subject_alternative_name") == "a@b"


@pytest.mark.parametrize("form", ["distinguished_name", "common_name", "subject_alternative_name"])
def test_a_certificate_may_name_nobody(form):
    with pytest.raises(Unusable):
        certificate_user({"subject": (), "subjectAltName": (("IP Address", "10.0.0.1"),)}, form)
