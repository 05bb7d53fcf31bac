# SPDX-License-Identifier: Apache-2.0
"""Who guesses passwords over HTTP has to wait; who knows one, does not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from http_caller import Http

from vibemq.admin import failures
from vibemq.admin.failures import FAILURES_MAX, FAILURES_WITHIN_S, Failures

PASSWORD = "a-password-of-frida"
LOGIN = ("frida", PASSWORD)


@pytest.fixture
def frida(http, name):
    user = f"frida-{name}"
    assert http.status("PUT", "users", user, body={"password": PASSWORD, "tags": "management"}) == 201
    yield user
    http.status("DELETE", "users", user)


@pytest.fixture
def failing():
    now = [0.0]
    found = Failures(lambda: now[0])
    found.now = now
    return found


def fail(failing, address, count=FAILURES_MAX, login=("nobody", "wrong")):
    for _ in range(count):
        failing.failed(address, *login)


@pytest.mark.parametrize("guessed", ["frida", "guest", "nobody"])
def test_wrong_passwords_by_basic_from_one_address_are_held_off_and_nobody_else_is(managed, frida, guessed):
    address = f"127.0.3.{1 + ['frida', 'guest', 'nobody'].index(guessed)}"
    known = Http(managed, frida, PASSWORD, address)
    assert known.status("GET", "whoami") == 200
    guess = Http(managed, frida if guessed == "frida" else guessed, "wrong", address)
    with ThreadPoolExecutor(FAILURES_MAX) as threads:
        answers = list(threads.map(lambda _: guess.status("GET", "whoami"), range(FAILURES_MAX)))
    assert set(answers) == {401}
    held_off = guess.call("GET", "whoami")
    assert held_off.status == 429 and 0 < int(held_off.headers["Retry-After"]) <= FAILURES_WITHIN_S
    assert held_off.json["error"] == "too_many_requests"
    assert Http(managed, "guest", "guest", address).status("GET", "whoami") == 429  # it may have been guessed
    assert Http(managed, frida, PASSWORD, "127.0.3.9").status("GET", "whoami") == 200
    assert known.status("GET", "whoami") == 200  # a tool beside the one that guesses
    assert Http(managed).status("GET", "whoami") == 200


def test_many_tools_that_begin_at_once_with_right_passwords_are_all_let_in(managed, frida):
    tool = Http(managed, frida, PASSWORD, "127.0.3.8")
    with ThreadPoolExecutor(3 * FAILURES_MAX) as threads:
        answers = list(threads.map(lambda _: tool.status("GET", "whoami"), range(3 * FAILURES_MAX)))
    assert set(answers) == {200}


def test_failures_are_forgotten_in_time_and_counted_by_network(failing):
    for number in range(FAILURES_MAX):
        assert failing.wait_s("2001:db8::1", *LOGIN) == 0
        fail(failing, f"2001:db8::{number}", 1)
    assert failing.wait_s("2001:db8::ffff", *LOGIN) == FAILURES_WITHIN_S  # the same /64
    assert failing.wait_s("2001:db8:1::1", *LOGIN) == 0
    failing.now[0] = FAILURES_WITHIN_S
    assert failing.wait_s("2001:db8::1", *LOGIN) == 0


def test_a_password_that_was_right_is_let_in_until_it_fails_and_from_there_alone(failing):
    failing.was_right("10.0.0.1", *LOGIN)
    fail(failing, "10.0.0.1")
    fail(failing, "10.0.0.2")
    assert failing.wait_s("10.0.0.1", *LOGIN) == 0
    assert failing.wait_s("10.0.0.1", "frida", "another") == FAILURES_WITHIN_S
    assert failing.wait_s("10.0.0.2", *LOGIN) == FAILURES_WITHIN_S
    fail(failing, "10.0.0.1", 1, LOGIN)
    assert failing.wait_s("10.0.0.1", *LOGIN) == FAILURES_WITHIN_S


def test_only_so_many_addresses_and_right_passwords_are_remembered(failing, monkeypatch):
    monkeypatch.setattr(failures, "ADDRESSES_MAX", 2)
    monkeypatch.setattr(failures, "RIGHT_MAX", 2)
    for number in range(3):
        failing.was_right("10.0.0.3", "frida", str(number))
        fail(failing, f"10.0.0.{number + 1}")
    assert [failing.wait_s(f"10.0.0.{number + 1}", *LOGIN) > 0 for number in range(3)] == [False, True, True]
    assert [failing.wait_s("10.0.0.3", "frida", str(number)) == 0 for number in range(3)] == [False, True, True]
