# SPDX-License-Identifier: Apache-2.0
"""The files of the management page: read once, kept in memory, sent with an ETag and packed where that is understood.

A browser asks again each time whether they are still the same, which costs it nothing but the question: so an upgraded
broker never shows half of an old page.
"""

from __future__ import annotations

import gzip
from hashlib import blake2b
from importlib import resources
from typing import NamedTuple

from aiohttp import web

#: Nothing from another host, no script and no style that is not a file of ours, and no other page around this one.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FIRST = "index.html"


class File(NamedTuple):
    """One of them, as it is and packed."""

    content_type: str
    body: bytes
    packed: bytes
    tag: str  # of the body; another one names the packed form


class Files:
    """By their paths: the page itself is /, everything else lies below /page/."""

    def __init__(self) -> None:
        self._by_path: dict[str, File] = {}
        for entry in resources.files("vibemq.admin.page").joinpath("static").iterdir():
            kind = _TYPES.get(entry.name.rpartition(".")[2])
            if kind is not None:
                body = entry.read_bytes()
                path = "/" if entry.name == _FIRST else f"/page/{entry.name}"
                tag = blake2b(body, digest_size=12).hexdigest()
                self._by_path[path] = File(kind, body, gzip.compress(body, 9, mtime=0), tag)

    def answer(self, request: web.Request) -> web.Response | None:
        """None: there is no file of this path."""
        found = self._by_path.get(request.rel_url.raw_path)
        if found is None or request.method not in ("GET", "HEAD"):
            return None
        is_packed = "gzip" in request.headers.get("Accept-Encoding", "")
        tag = f'"{found.tag}{"-gzip" if is_packed else ""}"'
        headers = {**HEADERS, "ETag": tag, "Vary": "Accept-Encoding"}
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = found.content_type
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=found.packed if is_packed else found.body, headers=headers)
