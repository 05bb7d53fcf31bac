# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 as far as the door needs it: the head of a request, read by httptools, and responses.

A request is framed before it is parsed: its head ends at the first empty line, its body is as long as Content-Length
says.  So a request is one frame like those of other doors: it lies in the connection's buffer until it is whole, is
bounded by two numbers, and whoever must wait with it just leaves it there.  Of a body in chunks, as proxies send it,
only the chunk at the front lies there (session.pyx).  All that two readers of one message could understand differently
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import httptools

HEAD_BYTES_MAX = 32 * 1024  # request line and headers: a token of some KiB in the query, and cookies of the same host
HEADERS_MAX = 100
QUERY_FIELDS_MAX = 32
LENGTH_DIGITS_MAX = 12
CHUNK_DIGITS_MAX = 8
CHUNK_LINE_BYTES_MAX = 256  # with its extensions, of which no proxy is known to send any
TRAILER_BYTES_MAX = 4096  # ignored
HEX_DIGITS = b"0123456789abcdefABCDEF"

REASONS = {status.value: status.phrase for status in HTTPStatus} | {413: "Content Too Large"}  # as RFC 9110 has it
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_CACHE = (("Cache-Control", "no-cache, no-store"), ("Pragma", "no-cache"), ("Expires", "0"))
TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"

Headers = Iterable[tuple[str, str]]


class Refusal(Exception):
    """A request is answered with this and nothing else."""

    def __init__(self, status: int, text: str = "", headers: Headers = ()) -> None:
        super().__init__(f"{status} {text}")
        self.status = status
        self.text = text
        self.headers = tuple(headers)


class Request:
    """One request, as httptools tells about it, and what becomes of it."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.headers_seen = 0
        self.method = self.path = ""
        self.query: dict[str, str] = {}
        self.length = 0
        self.is_chunked = False
        self.keep_alive = self.is_old = False  # old: HTTP/1.0
        self.answer: Any = None  # the function of http.ROUTES that answers it
        self.refusal: Refusal | None = None
        self.body_max = 0
        self.cors: Headers = ()

    # ---- what httptools calls ----

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers_seen += 1
        if self.headers_seen > HEADERS_MAX:
            raise Refusal(431, f"More than {HEADERS_MAX} headers.")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")
        before = self.headers.get(key)
        if before is not None and key in ("host", "authorization", "content-length", "sec-websocket-key", "origin"):
            raise Refusal(400, f"The header {key} is there twice.")
        self.headers[key] = text if before is None else f"{before}, {text}"

    # ---- what the answers ask ----

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def names(self, header: str, token: str) -> bool:
        """Is `token` among the comma-separated words of a header?"""
        return token in (word.strip().lower() for word in self.header(header).split(","))

    @property
    def connection_token(self) -> str:
        """Clients of 2017 were told to call it connectionId."""
        return self.query.get("id") or self.query.get("connectionid", "")

    @property
    def expects_continue(self) -> bool:
        return self.header("expect").lower() == "100-continue"

    @property
    def comes_from_browser(self) -> bool:
        """Does a browser send it, on behalf of a page or a user?"""
        by_page = any(self.header(name) for name in ("origin", "sec-fetch-mode", "x-requested-with"))
        return by_page or "mozilla" in self.header("user-agent").lower()

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"  # the query has secrets


def parse(head: bytes) -> Request:
    """Read a head, the empty line included.  Raises Refusal; whoever gets it cannot know where the next one begins."""
    request = Request()
    parser = httptools.HttpRequestParser(request)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # what follows is not the parser's business, whatever it is
    except httptools.HttpParserInvalidMethodError:
        raise Refusal(405, "There is no such method.", [("Allow", "GET, POST, DELETE, OPTIONS")]) from None
    except httptools.HttpParserError as problem:
        if isinstance(problem.__context__, Refusal):  # of on_header
            raise problem.__context__ from None
        raise Refusal(400, "This is no HTTP request.") from None
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise Refusal(505, "HTTP/1.1 is spoken here.")
    request.is_old = version == "1.0"
    request.method = parser.get_method().decode()
    connection = request.header("connection").lower()
    request.keep_alive = "close" not in connection and (not request.is_old or "keep-alive" in connection)
    if not request.is_old and "host" not in request.headers:
        raise Refusal(400, "The header Host is missing.")
    if (coding := request.headers.get("transfer-encoding")) is not None:
        if request.is_old or "content-length" in request.headers:
            raise Refusal(400, "Transfer-Encoding needs HTTP/1.1 and no Content-Length.")
        if coding.lower() != "chunked":
            raise Refusal(501, "Of Transfer-Encoding only chunked is known.")
        request.is_chunked = True
    length = request.header("content-length") or "0"
    if not (length.isascii() and length.isdigit() and len(length) <= LENGTH_DIGITS_MAX):
        raise Refusal(400, "Content-Length is no number.")
    request.length = int(length)
    _read_target(request)
    return request


def _read_target(request: Request) -> None:
    target = request.target.decode("latin-1")
    if target[:7].lower() in ("http://", "https:/"):  # the absolute form, as to a proxy
        _, slash, rest = target.partition("://")[2].partition("/")
        target = slash + rest
    path, _, query = target.partition("?")
    request.path = path.rstrip("/") or "/"
    try:
        fields = parse_qsl(query.partition("#")[0], keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise Refusal(400, f"More than {QUERY_FIELDS_MAX} fields in the query.") from None
    for name, value in fields:
        request.query.setdefault(name.lower(), value)


def chunk_size(line: bytes) -> int:
    """Return the size in the first line of a chunk, whose extensions are ignored.  Raises Refusal."""
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not 0 < len(digits) <= CHUNK_DIGITS_MAX or digits.strip(HEX_DIGITS) or not line.isascii() or b"\n" in line:
        raise Refusal(400, "The size of a chunk is no hexadecimal number.")
    return int(digits, 16)


def head_of(status: int, headers: Headers, close: bool = False) -> bytes:
    """The head of a response; who calls says how long the body is."""
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Date: {formatdate(usegmt=True)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
