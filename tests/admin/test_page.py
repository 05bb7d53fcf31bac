# SPDX-License-Identifier: Apache-2.0
"""The management page in a real Chromium, as people use it: with a mouse, a keyboard, a phone, a screen reader."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from chromium import Browser, Page, chromium, executable
from http_caller import STREAM, Http
from page_of import ADMINISTRATOR, WATCHER, jobs, load, log_in, prepare, somebody
from running import Running, broker, wait_until

from vibemq.client import connect
from vibemq.errors import QueueFull

#: A queue whose publishers are refused.
FULL = {"max_messages": 1, "overflow": "drop_newest"}
LOAD_S = 200  # most of a chart of five minutes
#: Streams of a list; VIBEMQ_PAGE_STREAMS=10000 takes minutes, most of which are for making and deleting them.
MANY = int(os.environ.get("VIBEMQ_PAGE_STREAMS", "60"))
PICTURE_BYTES_MAX = 100_000
#: Where pictures are kept (`make screenshots`); without it they are made all the same, and thrown away.
PICTURES = os.environ.get("VIBEMQ_SCREENSHOTS")
VIEWS = {
    "": "Busiest and fullest",
    "streams": "invoices-1",
    "stream/%2F/orders": "Stored offsets",
    "stream/%2F/mails": "What became of its messages",
    "connections": "127.0.0.1:",
    "groups": "Single active consumers",
    "spark": "report",
    "node": "2 of 2 workers answer",
    "policies": "^clicks",
    "accounts": "Permissions",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip("Chromium is not installed")
    with chromium(program) as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("paged") / "data") as running:
        prepare(running)
        with somebody(running):
            yield running


@pytest.fixture(scope="module")
def calls(served: Running) -> Http:
    return Http(served, *ADMINISTRATOR)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.page() as page:
        page.prefer(color_scheme="light", reduced_motion="reduce")
        yield page
        assert page.problems == []


def go(page: Page, view: str, text: str = "") -> None:
    page.run(f"location.hash = '#/{view}'")
    page.see("main", text or VIEWS[view])


PUBLISHED = "parseFloat(document.querySelector('.tile dd').innerText)"
DELIVERED = "parseFloat(document.querySelectorAll('.tile dd')[1].innerText)"
LINE = "document.querySelector('.chart path.line.one').getAttribute('d')"


# ---- what people do ----


def test_who_logs_in_sees_a_rate_move_while_a_load_runs_and_rest_after_it(page, served):
    log_in(page, served)
    page.wait(f"{PUBLISHED} === 0")  # what the tests have begun with is over
    with load(served, "orders"):
        page.wait(f"{PUBLISHED} > 0 && {DELIVERED} > 0")
        page.see("main table", "orders")
        page.wait(f"{LINE}.includes('L')")
        assert "published" in page.see(".legend")
    page.wait(f"{PUBLISHED} === 0")


def test_a_stream_is_made_published_to_looked_at_and_deleted(page, served, calls):
    log_in(page, served, to="streams")
    page.click("button", "New")
    page.fill("dialog input[name=name]", "made-here")
    page.fill("dialog input[name=max-age]", "3D")
    page.click("dialog button.main")
    page.see("h1", "made-here")
    page.see(".pairs", "3D")
    for number in range(3):
        page.click("button.main", "Publish")
        page.fill("dialog textarea[name=body]", f'{{"number": {number}}}')
        page.fill("dialog textarea[name=headers]", "kind: test")
        page.click("dialog button.main")
        page.see("#status", f"Kept at offset {number}")
    page.click("form button", "Look")
    assert "kind: test" in page.see(".messages li", '{ "number": 2 }')
    page.choose("select[name=from]", "offset")
    page.fill("input[name=offset]", "1")
    page.click("form button", "Look")
    page.see_no(".messages li", "#0")
    assert "#1" in page.see(".messages li")
    page.choose("select[name=from]", "time")
    page.choose("input[name=time]", "2020-01-01T00:00:30")
    page.click("form button", "Look")
    page.see(".messages li", "#0")
    page.click("button.danger", "Delete")
    assert "3 messages" in page.see("dialog")
    page.press("Escape")  # and nothing has happened
    page.see_no("dialog")
    assert calls.status("GET", "queues", "/", "made-here") == 200
    page.click("button.danger", "Delete")
    page.click("dialog button.danger")
    page.see("#status", "stream made-here is deleted")
    page.see("h1", "Streams and queues")
    assert calls.status("GET", "queues", "/", "made-here") == 404


def test_a_queue_is_made_altered_purged_and_deleted(page, served, calls):
    log_in(page, served, to="streams")
    page.click("button", "New")
    page.fill("dialog input[name=name]", "jobs-here")
    assert not page.run("document.querySelector('dialog input[name=max_messages]').checkVisibility()")
    page.choose("dialog select[name=kind]", "queue")
    page.fill("dialog input[name=max_messages]", "500")
    page.click("dialog button.main")
    page.see("h1", "jobs-here")
    for _ in range(2):
        body = {"body": "a job"}
        assert calls.status("POST", "stream", "/", "jobs-here", "messages", body=body) == 201
    page.wait("[...document.querySelectorAll('.tile')].some((one) => one.innerText.match(/Waiting\\s+2/))")
    page.click("button", "Change options")
    assert page.run("document.querySelector('dialog input[name=max_messages]').value") == "500"
    page.fill("dialog input[name=max_messages]", "50")
    page.click("dialog button.main")
    page.see("#status", "jobs-here has these options now")
    assert calls.get("queues", "/", "jobs-here")["options"]["max_messages"] == 50
    page.click("button", "Purge")
    page.click("dialog button.danger")
    page.see("#status", "jobs-here is purged")
    wait_until(lambda: calls.get("queues", "/", "jobs-here")["messages"] == 0, "it is empty")
    page.wait("[...document.querySelectorAll('.tile')].some((one) => one.innerText.match(/Waiting\\s+0/))")
    page.click("button.danger", "Delete")
    page.click("dialog button.danger")
    page.see("#status", "queue jobs-here is deleted")
    assert calls.status("GET", "queues", "/", "jobs-here") == 404


def test_what_a_full_queue_refuses_stands_on_the_front_page_in_the_list_and_on_its_own(page, served, calls):
    name = "too-small"
    log_in(page, served)
    over = threading.Event()

    def publish():
        with connect(f"vibemq://guest:guest@{served.host}:{served.native_port}") as client:
            client.create_queue(name, **FULL)
            while not over.is_set():
                with suppress(QueueFull):
                    client.publish(name, 1)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        lost = "parseFloat(document.querySelector('.tile.bad dd').innerText) > 0"
        page.wait(lost)
        page.see("figure", "Dropped or refused a second")
        for view in ("streams", f"stream/%2F/{name}"):
            go(page, view, name)
            page.wait(lost if "/" in view else "parseFloat(document.querySelector('td b.bad').innerText) > 0")
    finally:
        over.set()
        publisher.join()
    assert calls.status("DELETE", "queues", "/", name) == 204


def test_who_may_not_is_refused_with_the_reason_and_is_not_shown_what_is_for_others(page, served, calls):
    log_in(page, served, WATCHER, to="stream/%2F/orders")
    page.see("h1", "orders")
    assert "Users" not in page.see("nav")
    page.click("button.danger", "Delete")
    page.click("dialog button.danger")
    page.see("dialog .problem", "configure access to 'orders' in vhost '/' refused for user 'carol'")
    page.press("Escape")
    page.click("button.main", "Publish")
    page.fill("dialog textarea[name=body]", "no")
    page.click("dialog button.main")
    page.see("dialog .problem", "write access to 'orders' in vhost '/' refused for user 'carol'")
    page.press("Escape")
    go(page, "accounts", "Busiest and fullest")  # what there is for her is the overview
    assert calls.status("GET", "queues", "/", "orders") == 200


def test_a_wrong_password_is_said_and_nobody_is_let_in(page, served):
    page.open(f"http://localhost:{served.admin_port}/")
    page.fill("input[name=user]", "ada")
    page.fill("input[name=password]", "wrong")
    page.click("button", "Log in")
    page.see(".problem", "User or password is wrong.")
    assert page.run("document.activeElement.name") == "password"
    page.fill("input[name=password]", ADMINISTRATOR[1])
    page.press("Enter")
    page.see("header", "ada")
    assert page.run("document.cookie") == ""  # no script can read it
    page.click("button", "Log out")
    page.see("button", "Log in")
    page.open(f"http://localhost:{served.admin_port}/#/streams")
    page.see("button", "Log in")


def test_connections_are_found_and_closed(page, served, calls):
    def names() -> set[str]:
        return {found["name"] for found in calls.get("connections")}

    before = names()
    with load(served, "clicks"):
        wait_until(lambda: bool(names() - before), "a connection of the load")
        name = min(names() - before)
        log_in(page, served, to="connections")
        page.fill("input[name=name]", name)
        page.see(".pager", "1 of")
        page.click("tbody button", "Close")
        page.click("dialog button.danger")
        page.see("#status", f"{name} is closed")
        page.see("main", "None fits.")
        assert name not in names()
        assert page.run("location.hash").startswith("#/connections?name=127.0.0.1")


def test_users_permissions_hosts_and_policies_are_managed(page, served, calls):
    log_in(page, served, to="accounts")
    page.click("button", "New user")
    page.fill("dialog input[name=name]", "dave")
    page.fill("dialog input[name=password]", "a-password-of-dave")
    page.fill("dialog input[name=tags]", "management")
    page.click("dialog button.main")
    page.see("tbody th", "dave")
    page.click("button", "New permission")
    page.choose("dialog select[name=user]", "dave")
    page.fill("dialog input[name=write]", "^mails$")
    page.click("dialog button.main")
    page.see("tbody", "^mails$")
    assert calls.get("permissions", "/", "dave")["write"] == "^mails$"
    for user in ("dave", "guest"):
        page.click(f"button[aria-label='Limits of {user}']")
        page.fill("dialog input[name=max-connections]", "500")
        page.fill("dialog input[name=publish-rate]", "90000")
        page.click("dialog button.main")
        page.see("tbody tr", "max-connections 500, publish-rate 90000")
        assert calls.get("users", user)["limits"] == {"max-connections": 500, "publish-rate": 90000}
        page.click(f"button[aria-label='Limits of {user}']")
        assert page.run("document.querySelector('dialog input[name=max-connections]').value") == "500"
        page.fill("dialog input[name=max-connections]", "")
        page.fill("dialog input[name=publish-rate]", "")
        page.click("dialog button.main")
        page.see_no("tbody tr", "max-connections")
        assert calls.get("users", user)["limits"] == {}
    page.click("button[aria-label='Delete dave']")
    page.click("dialog button.danger")
    page.see_no("tbody th", "dave")
    page.click("button", "New virtual host")
    page.fill("dialog input[name=name]", "tests")
    page.click("dialog button.main")
    page.see("tbody th", "tests")
    page.click("button[aria-label='Limits of tests']")
    page.fill("dialog input[name=max-queues]", "3")
    page.click("dialog button.main")
    page.see("tbody tr", "max-queues 3")
    assert calls.get("vhosts", "tests")["limits"] == {"max-queues": 3}
    page.click("button[aria-label='Delete tests']")
    page.click("dialog button.danger")
    page.see_no("tbody th", "tests")
    go(page, "policies")
    page.click("button[aria-label='Change short']")
    page.fill("dialog input[name=priority]", "7")
    page.click("dialog button.main")
    page.see("#status", "policy short holds")
    assert calls.get("policies", "/", "short")["priority"] == 7


def test_a_list_is_filtered_sorted_and_paged_by_the_broker(page, served, calls):
    names = [f"many-{number:05}" for number in range(MANY)]
    with ThreadPoolExecutor(8) as threads:
        made = threads.map(lambda name: calls.status("PUT", "queues", "/", name, body=STREAM), names)
        assert set(made) == {201}
    pages = -(-MANY // 50)
    log_in(page, served, to="streams")
    page.fill("input[name=name]", "MANY")
    page.see(".pager", f"{MANY:,} of")
    page.see(".pager", f"page 1 of {pages:,}")
    page.click("button.sort", "Name")  # now descending
    page.wait("document.querySelector('th[aria-sort]').getAttribute('aria-sort') === 'descending'")
    page.see("main tbody th", names[-1])
    page.click(".pager button", "Next")
    page.see("main tbody th", names[-51])
    assert page.run("document.querySelectorAll('main tbody tr').length") == min(50, MANY - 50)
    assert page.run("document.querySelector('input[name=name]').value") == "MANY"
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda name: calls.status("DELETE", "queues", "/", name), names)) == {204}
    page.see("main", "None has such a name.")


# ---- for everybody ----


def test_a_keyboard_is_enough(page, served):
    page.open(f"http://localhost:{served.admin_port}/#/streams")
    page.see("button", "Log in")
    page.type("ada")  # the focus is where one begins
    page.press("Tab")
    page.type(ADMINISTRATOR[1])
    page.press("Enter")
    page.see("h1", "Streams and queues")
    page.call("Page.reload")  # the login is still there, and the focus where a page begins
    page.wait("document.readyState === 'complete' && document.querySelector('input[name=name]')")
    page.press("Tab")
    assert page.run("document.activeElement.innerText") == "Skip to the content"
    page.press("Enter")
    page.wait("document.activeElement.id === 'main'")
    page.press("Tab")
    assert page.run("document.activeElement.name") == "name"  # the filter
    page.type("orders")
    page.see(".pager", "1 of")
    assert page.run("document.activeElement.value") == "orders"  # what comes by itself takes nothing away
    page.press("Tab")
    page.press("Tab")
    assert page.run("document.activeElement.innerText") == "New"
    page.press("Enter")
    page.see("dialog h2", "New stream or queue")
    assert page.run("document.activeElement.name") == "name"
    page.press("Tab", shift=True)
    assert page.run("document.querySelector('dialog').contains(document.activeElement) || "
                    "document.activeElement === document.body")  # fmt: skip
    page.press("Escape")
    page.see_no("dialog")
    assert page.run("document.activeElement.innerText") == "New"  # back where one was
    while page.run("document.activeElement.innerText") != "orders":
        page.press("Tab")
        assert page.run("document.activeElement !== document.body"), "the row is not reached"
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # one sees where one is
    page.press("Enter")
    page.see("h1", "orders")
    page.wait("document.activeElement.id === 'title'")  # said by a screen reader
    assert page.run("document.title") == "orders · VibeMQ"


def test_a_screen_reader_is_told_what_everything_is(page, served):
    log_in(page, served)
    for view in VIEWS:
        go(page, view)
        told = page.accessible()
        roles = [node["role"] for node in told]
        assert {"banner", "navigation", "main", "heading", "status"} <= set(roles), view
        named = (
            "button",
            "link",
            "textbox",
            "searchbox",
            "combobox",
            "image",
            "region",
            "table",
            "meter",
            "spinbutton",
        )
        assert [node for node in told if node["role"] in named and not node["name"].strip()] == [], view
        levels = page.run("[...document.querySelectorAll('h1, h2, h3')].map((one) => one.tagName)")
        assert levels[0] == "H1" and levels.count("H1") == 1, view
        ids = page.run("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids)), view
    go(page, "")
    assert any(node["role"] == "image" and "the last" in node["name"] for node in page.accessible())


CONTRASTS = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true})
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = colour
    canvas.fillRect(0, 0, 1, 1)
    return [...canvas.getImageData(0, 0, 1, 1).data]
  }
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0)
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = rgba(getComputedStyle(at).backgroundColor)
      if (found[3] === 255) return found
    }
    return rgba("white")
  }
  const found = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(":disabled, .skip")) continue
    const [one, other] = [light(rgba(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a)
    const ratio = (one + 0.05) / (other + 0.05)
    const named = `${element.tagName}.${element.className}: ${walker.currentNode.data}`
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${named}`)
  }
  return found
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_by_its_contrast(page, served, scheme):
    page.prefer(color_scheme=scheme, reduced_motion="reduce")
    log_in(page, served)
    for view in VIEWS:
        go(page, view)
        assert page.run(CONTRASTS) == [], view
    assert page.run("matchMedia('(prefers-reduced-motion: reduce)').matches")
    moving = (
        "[...document.querySelectorAll('*')].filter((one) => getComputedStyle(one).animationName !== 'none').length"
    )
    assert page.run(moving) == 0


def test_a_phone_shows_all_of_it_without_going_sideways(page, served):
    page.size(360, 740, is_phone=True)
    log_in(page, served)
    for view in VIEWS:
        go(page, view)
        assert page.run("document.documentElement.scrollWidth") <= 360, view
    page.click("button.menu")
    page.click("nav#nav a", "Node")
    page.see("h1", "Node")
    assert page.run("document.querySelector('button.menu').getAttribute('aria-expanded')") == "false"
    buttons = (
        "[...document.querySelectorAll('main button, header button')].filter((one) => one.getClientRects().length)"
    )
    heights = page.run(f"{buttons}.map((one) => one.getBoundingClientRect().height)")
    assert min(heights) >= 24  # for a thumb


def test_pictures_of_the_main_views_are_made(page, served, tmp_path):
    folder = Path(PICTURES or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    page.size(1160, 720)
    with load(served, "orders", "clicks", at_once=40), jobs(served, "mails"):
        log_in(page, served)
        if PICTURES:
            time.sleep(LOAD_S)  # for those who look at them: lines with a shape
        page.wait(f"{LINE}.split('L').length > 3")
        for name, view in (("overview", ""), ("streams", "streams"), ("stream", "stream/%2F/orders"), ("node", "node")):
            go(page, view)
            if name == "stream":
                page.click("form button", "Look")
                page.see(".messages li", "customer")
                page.run("scrollTo(0, 0)")
                page.wait(f"{LINE}.includes('L')")
            for scheme in ("light", "dark"):
                page.prefer(color_scheme=scheme, reduced_motion="reduce")
                page.picture(folder / f"{name}-{scheme}.png")
        page.size(390, 800, is_phone=True)
        go(page, "")
        page.run("scrollTo(0, 0)")
        page.picture(folder / "phone-dark.png")
    made = sorted(folder.glob("*.png"))
    assert len(made) == 9
    assert {file.name: size for file in made if not 5_000 < (size := file.stat().st_size) < PICTURE_BYTES_MAX} == {}


# ---- last: nobody's connection outlives this ----


def test_the_page_stays_right_while_every_worker_is_killed(page, served, calls):
    with load(served, "orders"):
        log_in(page, served, to="stream/%2F/orders")
        page.wait(f"{PUBLISHED} > 0")
        old = served.worker_pids()
        for pid in old:
            os.kill(pid, 9)
        wait_until(lambda: len(set(served.worker_pids()) - set(old)) == 2, "new workers")
        before = calls.get("queues", "/", "orders")["messages"]
        page.wait(f"[...document.querySelectorAll('.tile')].some((one) => one.innerText.startsWith('Next offset') && "
                  f"Number(one.querySelector('dd').innerText.replaceAll(',', '')) > {before})")  # fmt: skip
        page.wait("document.querySelector('.live').innerText === 'live'")
        page.wait(f"{PUBLISHED} > 0")
        page.click("button.main", "Publish")
        page.fill("dialog textarea[name=body]", "after the kill")
        page.click("dialog button.main")
        page.see("#status", "Kept at offset")
        go(page, "node")


# ---- whatever things are called ----

#: What a path, a query or a fragment may mean something else by, and the longest.
NAMES = ("/", "a/b?c=d&e#f;g", "100%", "%2e%2e", "...", " a b ", 'ключ 🎉 \\ <b>"', "ä" * 127)


@pytest.mark.parametrize("name", NAMES)
def test_a_thing_of_any_name_is_reached(page, served, calls, name):
    log_in(page, served, to="streams")
    page.click("button", "New")
    page.fill("dialog input[name=name]", name)
    page.click("dialog button.main")
    page.see("#status", "is there")
    page.wait(f"document.querySelector('h1').textContent === {json.dumps(name)}")
    page.click("button.main", "Publish")
    page.fill("dialog textarea[name=body]", "1")
    page.click("dialog button.main")
    page.see("#status", "Kept at offset 0")
    go(page, "streams", "Streams and queues")
    link = f"[...document.querySelectorAll('tbody th a')].find((one) => one.textContent === {json.dumps(name)})"
    page.wait(f"{link} && ({link}.click(), true)")
    page.wait(f"document.querySelector('h1').textContent === {json.dumps(name)}")
    page.click("button.danger", "Delete")
    page.click("dialog button.danger")
    page.see("#status", "is deleted")
    go(page, "accounts")
    for kind, other in (("user", {"password": "a-long-password"}), ("virtual host", {})):
        if name == "/":  # the one that is always there
            continue
        page.click("button", f"New {kind}")
        for field, value in {"name": name, **other}.items():
            page.fill(f"dialog input[name={field}]", value)
        page.click("dialog button.main")
        page.see_no("dialog")
        deletes = f"button[aria-label={json.dumps(f'Delete {name}', ensure_ascii=False)}]"
        page.click(deletes)
        page.click("dialog button.danger")
        page.see_no(deletes)
    assert calls.status("GET", "queues", "/", name) == 404


def test_a_name_that_no_browser_can_ask_about_is_refused_with_the_reason(page, served):
    log_in(page, served, to="streams")
    page.click("button", "New")
    page.fill("dialog input[name=name]", "..")
    page.click("dialog button.main")
    page.see("dialog .problem", 'No browser can ask about what is called "..": something new needs another name.')
    page.press("Escape")
    go(page, "stream/%2F/..", "`vibemq ctl delete_queue ..`")  # as a link to one that an earlier version made
    go(page, "streams")
