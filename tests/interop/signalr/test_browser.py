# SPDX-License-Identifier: Apache-2.0
"""The hub in a browser: its demo page, pages of other origins, and a page that shares a queue with a streams client."""

from __future__ import annotations

import asyncio
import http.server
import os
import queue
import re
import shutil
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from foreign_clients import Client, build_js
from hub_clients import HERE, NODE, HubProgram
from hub_serving import PASSWORD, README, USER, Programs, Served, serving
from running import broker

import vibemq.protocols.signalr.demo as demo

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
BROWSER = Client(HERE / "browser", "playwright-core 1.65.1 (npm)", ("node", "npm"), build_js, NODE)


class Page:
    """One page in a browser of its own."""

    def __init__(self, program: HubProgram, executable: str) -> None:
        self.program, self.executable = program, executable

    def open(self, url: str) -> None:
        self._do("open", "opened", url=url, executable=self.executable)

    def fill(self, what: str, value: str) -> None:
        self._do("fill", "done", what=what, value=value)

    def choose(self, what: str, value: str) -> None:
        self._do("choose", "done", what=what, value=value)

    def click(self, what: str) -> None:
        self._do("click", "done", what=what)

    def see(self, what: str, text: str) -> str:
        """What there is, once it has this text in it."""
        return str(self._do("see", "seen", what=what, text=text)["value"])

    def run(self, script: str, *given: Any) -> Any:
        return self._do("run", "result", script=script, given=given).get("value")

    def connect(self, queue: str, transport: str = "WebSockets", user: str = USER, password: str = PASSWORD) -> None:
        """On the demo page."""
        self.fill("#user", user)
        self.fill("#password", password)
        self.fill("#queue", queue)
        self.choose("#transport", transport)
        self.click("#connect")
        self.see("#state", "connected")

    def publish(self, body: str) -> None:
        self.fill("#body", body)
        self.click("#publish")

    def _do(self, command: str, event: str, **options: Any) -> dict[str, Any]:
        answer = self.program.answer(self.program.tell(command, **options), event)
        assert not [line for line in self.program.said if line["event"] == "script error"]
        return answer


@pytest.fixture
def page(served: Served, tmp_path: Path) -> Iterator[Page]:
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        pytest.skip("Chromium is not installed")
    programs = Programs(tmp_path, served.authority)
    yield Page(programs.run(BROWSER), executable)
    programs.end()


@pytest.mark.parametrize("transport", ["WebSockets", "ServerSentEvents", "LongPolling"])
def test_the_demo_page_publishes_and_shows_what_it_gets(page, served, transport):
    queue = f"page-{transport}"
    page.open(f"{served.url}/demo")
    page.connect(queue, transport)
    page.publish('{"from": "a page"}')
    page.see("#note", "Kept at offset 0")
    assert page.see("#messages li", '{"from":"a page"}').startswith("#0")
    page.click("#burst")
    page.see("#note", "Kept at offsets 1 to 1000")
    page.see("#received", "1,001")
    page.see("#published", "1,001")
    page.click("#disconnect")
    page.see("#state", "not connected")
    assert page.run("() => document.querySelector('#publish').disabled")
    page.connect(queue, transport)
    page.publish("plain text")
    page.see("#messages li", "plain text")
    assert page.run("() => document.querySelector('#error').hidden")


def test_the_demo_page_goes_on_after_its_worker_was_killed(page, fragile):
    page.open(f"{fragile.url}/demo")
    page.connect("page-survives")
    page.publish('"before"')
    page.see("#messages li", "before")
    for pid in fragile.running.worker_pids():
        os.kill(pid, signal.SIGKILL)
    page.see("#state", "connected again")
    page.publish('"after"')
    page.see("#messages li", "after")


def test_the_demo_page_shows_errors(page, served):
    page.open(f"{served.url}/demo")
    page.fill("#user", USER)
    page.fill("#password", "wrong")
    page.click("#connect")
    page.see("#error", "User or password is wrong.")
    page.connect("page-errors")
    page.fill("#queue", "no/../queue\u0007")
    page.publish("nowhere")
    page.see("#error", "INVALID_NAME")


class Blank(http.server.BaseHTTPRequestHandler):
    """A page with the stock client on it and nothing else."""

    def do_GET(self) -> None:
        kind, file = demo.FILES["/demo/signalr.min.js"]
        kind, body = (kind, file.read_bytes()) if "signalr" in self.path else ("text/html", PAGE)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not on the terminal of the tests."""


PAGE = b"<!DOCTYPE html><title>elsewhere</title><script src='/signalr.js'></script>"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """The address of a page of another origin."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ASK = """async (url, token, transport) => {
  const connection = new signalR.HubConnectionBuilder()
    .withUrl(url, { transport: signalR.HttpTransportType[transport], accessTokenFactory: () => token })
    .configureLogging(signalR.LogLevel.None)
    .build()
  try {
    await connection.start()
    return (await connection.invoke("ServerInfo")).name
  } catch (problem) {
    return String(problem)
  }
}"""


def test_pages_of_other_origins_connect_where_they_may(page, elsewhere, served, tmp_path):
    page.open(elsewhere)
    for transport in ("WebSockets", "ServerSentEvents", "LongPolling"):
        assert "Error" in page.run(ASK, served.url, served.token(), transport)
    with serving(tmp_path, **{"signalr.allowed_origins": elsewhere}) as open_to_it:
        for transport in ("WebSockets", "ServerSentEvents", "LongPolling"):
            assert page.run(ASK, open_to_it.url, open_to_it.token(), transport) == "VibeMQ"


LOG = "logged = []; console.log = (value) => logged.push(JSON.stringify(value));"


def snippets(language: str) -> list[str]:
    """The code in the door's README."""
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_what_the_readme_shows_works_as_it_stands_there(page, tmp_path):
    """A page and a Python program talk through one queue, both ways: the hub here, a stream client there."""
    with broker(tmp_path, "--set", "signalr.port=0", "--set", "signalr.demo=true") as running:
        hub = f"http://localhost:{running.ports['signalr']}/hub"
        page.open(f"{hub}/demo")
        script = snippets("js")[0].replace("http://localhost:2927/hub", hub)
        page.run(f"async () => {{ {LOG} {script} }}")
        page.run(LOGGED, '{"page":"/",')

        program = snippets("python")[0].replace("5552", str(running.port)).replace("asyncio.run(main())", "")
        printed: queue.Queue[str] = queue.Queue()
        names: dict[str, Any] = {"print": lambda value: printed.put(str(value))}
        exec(program, names)
        with going_on(names["main"]()):
            page.run(LOGGED, '{"page":"/python"}')
            assert '"page":"/"' in printed.get(timeout=20)
            assert "/python" in printed.get(timeout=20)


@contextmanager
def going_on(program: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Run it in a thread, and at the end cancel it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(program)
    thread = threading.Thread(target=loop.run_until_complete, args=(asyncio.wait({task}),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)
        loop.close()


LOGGED = """(text) => new Promise((done) => {
  const look = () => (logged.some((line) => line.startsWith(text)) ? done() : setTimeout(look, 20))
  look()
})"""
