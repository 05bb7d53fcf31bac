# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a window, by its own protocol (CDP) over a WebSocket: nothing but the browser is needed.

One browser serves all tests of a process; each page has cookies of its own. Waiting is done in the page: ``see`` ends
when what is waited for is there. What a page should never do is kept: errors of its scripts, what its policy has
blocked, and requests to other hosts (``Page.problems``).
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 20_000
START_S = 60.0
MESSAGE_BYTES_MAX = 64 << 20  # a picture, in base64
#: Chromium's own sandbox does not work for root, as which tests in containers run.
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
         "--disable-extensions", "--mute-audio", "--hide-scrollbars", "--force-color-profile=srgb",
         "--disable-dev-shm-usage", "--font-render-hinting=none")  # fmt: skip
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "Space": (32, " "), "ArrowDown": (40, "")}


def executable() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One process, and what is said to it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._pages: dict[str, Page] = {}  # by the session that speaks with each

    def call(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            found = json.loads(self._socket.recv(timeout=START_S))
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                answer: dict[str, Any] = found["result"]
                return answer
            if "method" in found and (page := self._pages.get(found.get("sessionId", ""))) is not None:
                page.on_event(found["method"], found["params"])

    @contextmanager
    def page(self, width: int = 1280, height: int = 860) -> Iterator[Page]:
        """A page that knows nothing of the others."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            page.size(width, height)
            yield page
        finally:
            del self._pages[session]
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.problems: list[str] = []
        self.origin = ""

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def on_event(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            about = told["exceptionDetails"]
            self.problems.append(str(about.get("exception", {}).get("description", about["text"])))
        elif method == "Log.entryAdded" and told["entry"]["source"] in ("security", "violation", "javascript"):
            self.problems.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            parts = urlsplit(told["request"]["url"])
            if parts.scheme in ("http", "https", "ws", "wss") and self.origin not in ("", parts.netloc):
                self.problems.append(f"a request to {told['request']['url']}")

    # ---- looking ----

    def open(self, url: str) -> None:
        self.origin = urlsplit(url).netloc
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what comes of it."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def wait(self, condition: str) -> Any:
        """What the condition is, once it is true."""
        said = json.dumps(condition)
        return self.run(f"""(async () => {{
            const until = performance.now() + {WAIT_MS}
            let problem = ""
            for (;;) {{
                // What is looked into may not be there yet.
                const found = await (async () => {condition})().catch((told) => (problem = String(told)) && null)
                if (found) return found
                if (performance.now() > until) throw new Error("it never became true: " + {said} + problem + "\\n"
                    + document.body.innerText.slice(0, 2000))
                await new Promise((done) => setTimeout(done, 15))
            }}
        }})()""")

    def see(self, what: str, text: str = "") -> str:
        """The text of what is there, once it has this in it and can be seen."""
        return str(self.wait(f"{_find(what, text)}?.innerText"))

    def see_no(self, what: str, text: str = "") -> None:
        self.wait(f"!{_find(what, text)}")

    # ---- doing, as a hand does ----

    def click(self, what: str, text: str = "") -> None:
        x, y = self.wait(f"""(() => {{
            const found = {_find(what, text)}
            if (!found || found.disabled) return null
            found.scrollIntoView({{block: "center", behavior: "instant"}})
            const box = found.getBoundingClientRect()
            const at = [box.left + box.width / 2, box.top + box.height / 2]
            const there = document.elementFromPoint(...at)
            return there && (found.contains(there) || there.contains(found)) ? at : null
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, what: str, across: float = 0.5) -> None:
        box = self.wait(f"(() => {{ const box = {_find(what, '')}?.getBoundingClientRect(); "
                        "return box && [box.left, box.top, box.width, box.height] })()")  # fmt: skip
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * across, y=box[1] + box[3] / 2)

    def fill(self, what: str, value: str) -> None:
        self.click(what)
        self.run(f"{_find(what, '')}.select?.()")
        if value:
            self.call("Input.insertText", text=value)
        else:
            self.press("Backspace")

    def choose(self, what: str, value: str) -> None:
        self.wait(f"""(() => {{
            const found = {_find(what, "")}
            if (!found) return false
            found.value = {json.dumps(value)}
            found.dispatchEvent(new Event("input", {{bubbles: true}}))
            found.dispatchEvent(new Event("change", {{bubbles: true}}))
            return found.value === {json.dumps(value)}
        }})()""")

    def press(self, key: str, shift: bool = False) -> None:
        code, text = {"Backspace": (8, ""), **KEYS}[key]
        name = " " if key == "Space" else key
        about = {"key": name, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)

    # ---- how it is looked at ----

    def size(self, width: int, height: int, is_phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )

    def prefer(self, **features: str) -> None:
        """``prefer(color_scheme="dark", reduced_motion="reduce")``."""
        given = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=given)

    def picture(self, file: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        file.write_bytes(base64.b64decode(data))

    def accessible(self) -> list[dict[str, Any]]:
        """What a screen reader is given: role and name of each node that is not passed over."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            {"role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]


def _find(what: str, text: str) -> str:
    """An expression: the first that can be seen of what the selector finds, and that has this text in it."""
    return (
        f"[...document.querySelectorAll({json.dumps(what)})].find((one) => one.getClientRects().length && "
        f"(one.innerText ?? one.textContent).includes({json.dumps(text)}))"
    )


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    folder = Path(tempfile.mkdtemp(prefix="chromium-"))
    command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    # A group of its own: what it has started ends with it.
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert process.stderr is not None
        address = next((line.split()[-1] for line in process.stderr if line.startswith("DevTools listening on ")), None)
        assert address is not None, "Chromium has ended"
        os.set_blocking(process.stderr.fileno(), False)  # what it says later is nobody's, and must not stop it
        with connect(address, max_size=MESSAGE_BYTES_MAX, open_timeout=START_S, ping_interval=None) as socket:
            yield Browser(socket)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
        shutil.rmtree(folder, ignore_errors=True)
