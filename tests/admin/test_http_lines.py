# SPDX-License-Identifier: Apache-2.0
"""Lines that agents send over HTTP: each is a message once, and the answer says what became of them."""

from collections.abc import Iterator
from typing import Any

import pytest
from http_caller import Http, Reply

TEXT = "text/plain"
JSON = "application/json"


def send(http: Http, name: str, body: bytes, query: str = "", kind: str = TEXT, **headers: str) -> Reply:
    return http.raw("POST", f"/api/stream/%2F/{name}/lines{query}", body, Content_Type=kind, **headers)


def messages(http: Http, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        more = http.get("stream", "/", name, "messages", query=f"?count=100&offset={len(found)}")["messages"]
        if not more:
            return found
        found += more


def bodies(http: Http, name: str) -> list[str]:
    return [message["body"] for message in messages(http, name)]


@pytest.fixture
def queue(http: Http, name: str) -> Iterator[Any]:
    """Makes one with these options."""

    def make(**options: object) -> str:
        assert http.status("PUT", "queues", "/", name, "definition", body={"queue_options": options}) == 201
        return name

    yield make
    http.status("DELETE", "queues", "/", name)
    http.status("DELETE", "queues", "/", f"{name}.dlq")


def test_each_line_is_a_message_and_the_answer_comes_after_the_confirm(http, stream):
    reply = send(http, stream, b"one\ntwo\r\n\nthree")
    assert (reply.status, reply.json) == (200, {"stored": 3, "duplicates": 0})
    assert bodies(http, stream) == ["one", "two", "three"]


def test_a_body_without_lines_stores_nothing(http, stream):
    for body in (b"", b"\n\r\n\n"):
        assert send(http, stream, body).json == {"stored": 0, "duplicates": 0}
    assert bodies(http, stream) == []
