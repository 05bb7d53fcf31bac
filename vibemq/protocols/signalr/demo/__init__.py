# SPDX-License-Identifier: Apache-2.0
"""A page to try the hub with, served below it while signalr.demo is true: subscribes, publishes, shows what happens.

It is one file of HTML and the stock client of others in vendor/, with its licence.  Everything it needs comes from
here, and it needs no right to be read: what it may do is decided when it connects.
"""

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
#: By path below the hub's, in lower case: what it is, and where it lies.
FILES = {
    "/demo": ("text/html; charset=utf-8", "page.html"),
    "/demo/signalr.min.js": ("text/javascript; charset=utf-8", "vendor/signalr.min.js"),
    "/demo/license.signalr.txt": ("text/plain; charset=utf-8", "vendor/LICENSE.signalr.txt"),
}


@cache
def find(path: str) -> tuple[str, bytes] | None:
    """(content type, body) of what lies at this path below the hub's."""
    if path not in FILES:
        return None
    kind, name = FILES[path]
    return kind, (FOLDER / name).read_bytes()
