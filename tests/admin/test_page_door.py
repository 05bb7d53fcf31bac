# SPDX-License-Identifier: Apache-2.0
"""The management page over plain HTTP: its files, its cookie, and who is not let in."""

import gzip
import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from http_caller import STREAM

from vibemq.admin.failures import FAILURES_MAX, FAILURES_WITHIN_S

PASSWORD = "a-password-of-erin"


class Browser:
    """What a browser keeps of a login."""

    def __init__(self, running, address="127.0.0.1"):
        self.running, self.address, self.cookie, self.csrf = running, address, "", ""

    def ask(self, method, path, body=None, host="", **headers):
        connection = http.client.HTTPConnection(
            self.running.host, self.running.admin_port, timeout=30, source_address=(self.address, 0)
        )
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            sent["Cookie"] = self.cookie
        if host:
            sent["Host"] = f"{host}:{self.running.admin_port}"
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            answer.body = answer.read()
            return answer
        finally:
            connection.close()

    def log_in(self, user="guest", password="guest", **more):
        answer = self.ask("POST", "/page/login", {"user": user, "password": password}, **more)
        if answer.status == 200:
            self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.csrf = json.loads(answer.body)["csrf"]
        return answer


@pytest.fixture
def browser(managed):
    return Browser(managed)


@pytest.fixture
def erin(http, name):
    """A user who may look, and nothing more."""
    user = f"erin-{name}"
    assert http.status("PUT", "users", user, body={"password": PASSWORD, "tags": "management"}) == 201
    yield user
    http.status("DELETE", "users", user)


def test_a_file_comes_once_and_is_then_only_asked_after(browser):
    page = browser.ask("GET", "/")
    assert page.status == 200 and b"<title>VibeMQ</title>" in page.body
    script = browser.ask("GET", "/page/app.js", Accept_Encoding="gzip")
    assert script.headers["Content-Encoding"] == "gzip" and b"import" in gzip.decompress(script.body)
    again = browser.ask("GET", "/page/app.js", Accept_Encoding="gzip", If_None_Match=script.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    plain = browser.ask("GET", "/page/app.js", If_None_Match=script.headers["ETag"])
    assert plain.status == 200 and plain.body == gzip.decompress(script.body)
    assert browser.ask("GET", "/page/nothing.js").status == 404
    assert browser.ask("GET", "/page/..%2f..%2fdoor.py").status == 404


def test_a_browser_is_told_to_load_nothing_else_and_to_show_it_nowhere_else(browser):
    for path in ("/", "/page/app.js", "/page/style.css"):
        headers = browser.ask("GET", path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_cookie_is_for_this_page_alone(browser):
    answer = browser.log_in()
    words = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(words)
    assert "guest" not in words[0].partition("=")[2]
    assert browser.ask("GET", "/api/whoami").status == 200
    assert json.loads(browser.ask("GET", "/page/session").body)["csrf"] == browser.csrf


def test_what_changes_something_needs_the_csrf_token(browser, name):
    browser.log_in()
    path = f"/api/queues/%2F/{name}"
    assert browser.ask("PUT", path, STREAM).status == 403
    assert browser.ask("PUT", path, STREAM, X_CSRF_Token="0" * 64).status == 403
    assert browser.ask("PUT", path, STREAM, X_CSRF_Token=browser.csrf, Origin="https://elsewhere.example").status == 403
    assert browser.ask("GET", "/api/whoami", Sec_Fetch_Site="cross-site").status == 401
    assert browser.ask("PUT", path, STREAM, X_CSRF_Token=browser.csrf).status == 201
    assert browser.ask("DELETE", path, X_CSRF_Token=browser.csrf).status == 204


def test_guest_comes_from_this_machine_by_its_own_name_only(browser):
    assert browser.log_in(host="evil.example").status == 401
    assert browser.log_in().status == 200
    assert browser.ask("GET", "/api/whoami", host="evil.example").status == 401
    assert browser.ask("GET", "/api/whoami", host="localhost").status == 200


def test_no_browser_asks_for_a_password_by_itself_for_the_page(browser):
    assert "WWW-Authenticate" not in browser.ask("GET", "/api/whoami", X_CSRF_Token="").headers
    assert "WWW-Authenticate" in browser.ask("GET", "/api/whoami").headers  # a person's own request


def test_who_logs_out_is_out_and_may_come_again_at_once(browser):
    browser.log_in()
    before = browser.cookie
    assert browser.ask("POST", "/page/logout", {}, X_CSRF_Token=browser.csrf).status == 200
    assert browser.ask("GET", "/api/whoami").status == 401
    browser.cookie = ""
    assert browser.log_in().status == 200 and browser.cookie != before
    assert browser.ask("GET", "/api/whoami").status == 200


def test_another_password_ends_every_login_with_the_old_one(browser, http, erin):
    assert browser.log_in(erin, PASSWORD).status == 200
    assert browser.ask("GET", "/api/overview").status == 200
    assert http.status("PUT", "users", erin, "password", body={"password": "another-password"}) == 204
    assert browser.ask("GET", "/api/overview").status == 401


def test_tags_decide_at_each_request_and_who_has_none_is_not_let_in(browser, http, erin):
    assert browser.log_in(erin, PASSWORD).status == 200
    assert browser.ask("GET", "/api/live/node").status == 401
    assert json.loads(browser.ask("GET", "/api/live/overview").body)["history"] is None
    assert http.status("PUT", "users", erin, "tags", body={"tags": "monitoring"}) == 204
    assert browser.ask("GET", "/api/live/node").status == 200
    assert json.loads(browser.ask("GET", "/api/live/overview").body)["history"] is not None
    assert http.status("PUT", "users", erin, "tags", body={"tags": ""}) == 204
    assert browser.ask("GET", "/api/live/overview").status == 401
    refused = Browser(browser.running).log_in(erin, PASSWORD)
    assert refused.status == 401 and b"has no tag 'management'" in refused.body


def test_an_access_token_of_the_hub_is_no_cookie(browser, managed, http, erin):
    from vibemq.access.tokens import Tokens
    from vibemq.storage.metadata import Metadata

    path = f"{http.get('nodes')[0]['db_dir']}/meta.db"
    browser.cookie = f"vibemq={Tokens(Metadata(path), None).issue(erin, 60)}"
    assert browser.ask("GET", "/api/whoami").status == 401


@pytest.mark.parametrize(
    "body", [b"", b"no json", b'["list"]', b'{"user": 1, "password": "x"}', b"x" * 5000, b"[" * 4000]
)
def test_what_is_no_login_is_refused(browser, body):
    connection = http.client.HTTPConnection(browser.running.host, browser.running.admin_port, timeout=30)
    connection.request("POST", "/page/login", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 400
    connection.close()
    connection.request("POST", "/page/login", b"user=guest&password=guest", {"Content-Type": "text/plain"})
    assert connection.getresponse().status == 415
    connection.close()


def test_who_fails_too_often_has_to_wait_and_nobody_else_does(managed):
    guessing = Browser(managed, "127.0.0.2")
    with ThreadPoolExecutor(FAILURES_MAX) as threads:
        answers = list(threads.map(lambda _: guessing.log_in("nobody", "wrong"), range(FAILURES_MAX)))
    assert {answer.status for answer in answers} == {401}
    late = guessing.log_in("guest", "guest")  # also with the right one
    assert late.status == 429 and 0 < int(late.headers["Retry-After"]) <= FAILURES_WITHIN_S
    assert Browser(managed).log_in().status == 200
