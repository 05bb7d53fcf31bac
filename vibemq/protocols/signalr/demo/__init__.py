# SPDX-License-Identifier: Apache-2.0
"""A page to try the hub with, served below it while signalr.demo is true: subscribes, publishes, shows what happens.

It is one file of HTML and the stock client of others in vendor/, with its licence.  Everything it needs comes from
here, and it needs no right to be read: what it may do is decided when it connects.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
#: By path below the hub's, in lower case: its content type, and where it lies.
FILES = {
    "/demo": ("text/html; charset=utf-8", FOLDER / "page.html"),
    "/demo/signalr.min.js": ("text/javascript; charset=utf-8", FOLDER / "vendor/signalr.min.js"),
    "/demo/license.signalr.txt": ("text/plain; charset=utf-8", FOLDER / "vendor/LICENSE.signalr.txt"),
}
