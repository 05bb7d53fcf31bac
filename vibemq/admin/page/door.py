# SPDX-License-Identifier: Apache-2.0
"""The management page's way in: its files, and logins by cookie in place of a password with each request.

    GET  /              the page; its other files lie below /page/
    POST /page/login    {"user", "password"}: sets the cookie
    GET  /page/session  whose cookie it is, and the CSRF token
    POST /page/logout

The cookie is HttpOnly, SameSite=Strict and, with TLS, Secure. A request that changes something and comes with it needs
the CSRF token in the header X-CSRF-Token. guest is for this machine only here as well, at each request.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from vibemq.access.users import GUEST, Authenticator
from vibemq.admin.api.accounts import caller_of
from vibemq.admin.api.answering import missing_tag
from vibemq.admin.api.calls import MANAGEMENT, Caller, Refused, bad_request, json_object, not_authorised
from vibemq.admin.api.service import Api
from vibemq.admin.bodies import whole
from vibemq.admin.page.files import HEADERS, Files
from vibemq.admin.page.logins import LIFETIME_S, Logins
from vibemq.admin.where import is_loopback, is_this_machine
from vibemq.once_a_minute import OnceAMinute

LOGIN_BYTES_MAX = 4096  # of the body of a login
LOGIN_S = 10.0  # for that body
CSRF_HEADER = "X-CSRF-Token"
_COOKIE = "vibemq"
_SECURE_COOKIE = "__Host-vibemq"  # a browser takes it over TLS only, and from no other host

log = logging.getLogger("vibemq.admin")
logins = OnceAMinute(log, logging.INFO)


class PageDoor:
    def __init__(
        self,
        api: Api,
        authenticator: Authenticator,
        check: Callable[[web.Request, str, str], Awaitable[Caller | None]],
        let_time_pass: Callable[[], Awaitable[None]],
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        """``check`` tells who comes with a password; ``let_time_pass`` delays a refusal.  Both raise Refused."""
        self._api, self._check, self._let_time_pass, self._in_thread = api, check, let_time_pass, in_thread
        self._files, self._logins = Files(), Logins(api.metadata, authenticator)

    async def answer(self, request: web.Request) -> web.Response | None:
        """None: it is no request of this door.  Raises Refused."""
        path = request.rel_url.raw_path
        if (file := self._files.answer(request)) is not None:
            return file
        if not path.startswith("/page/"):
            return None
        handler = {
            ("POST", "/page/login"): self._log_in,
            ("GET", "/page/session"): self._session,
            ("POST", "/page/logout"): self._log_out,
        }.get((request.method, path))
        if handler is None:
            raise Refused(404, "Object Not Found", f"there is no {request.method} {path}")
        return await handler(request)

    async def caller(self, request: web.Request) -> Caller | None:
        """Whose cookie comes with a request of the management API; None: nobody's.  Raises Refused."""
        token = _token_of(request)
        if token is None or request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return None
        user = await self._in_thread(self._logins.user_of, token, is_loopback(str(request.remote)))
        if user is None or (user == GUEST and not is_this_machine(request)):
            return None
        if request.method not in ("GET", "HEAD"):
            given = request.headers.get(CSRF_HEADER, "").encode(errors="replace")
            if not hmac.compare_digest(given, self._logins.csrf_of(token).encode()):
                raise Refused(403, "forbidden", f"{CSRF_HEADER} is not that of this login: load the page anew")
        found: Caller = await self._in_thread(caller_of, self._api, user)
        return found

    # ---- logging in and out ----

    async def _log_in(self, request: web.Request) -> web.Response:
        user, password = await _credentials(request)
        caller = await self._check(request, user, password)
        if caller is None:
            await self._let_time_pass()
            raise Refused(401, "not_authorized", "User or password is wrong.")
        if caller.access is not None:  # the cookie would outlive the token
            raise Refused(403, "forbidden", "the page takes users' passwords; tokens are for requests of the API")
        if caller.level < MANAGEMENT:
            raise not_authorised(missing_tag(caller, MANAGEMENT))
        token = await self._in_thread(self._logins.begin, caller.name)
        who = request.remote, caller.name
        logins.say(who, "%s: user %r has logged in at the management page", *who)
        response = self._told(caller, token)
        is_secure = _is_secure(request)
        response.set_cookie(
            _SECURE_COOKIE if is_secure else _COOKIE, token, max_age=LIFETIME_S, path="/", httponly=True,
            samesite="Strict", secure=is_secure,
        )  # fmt: skip
        return response

    async def _session(self, request: web.Request) -> web.Response:
        caller, token = await self.caller(request), _token_of(request)
        if caller is None or token is None:
            raise Refused(401, "not_authorized", "Nobody has logged in.")
        return self._told(caller, token)

    async def _log_out(self, request: web.Request) -> web.Response:
        token = _token_of(request)
        if await self.caller(request) is not None and token is not None:
            self._logins.end(token)
        response = _json({})
        response.del_cookie(_SECURE_COOKIE if _is_secure(request) else _COOKIE, path="/")
        return response

    def _told(self, caller: Caller, token: str) -> web.Response:
        return _json(
            {
                "user": caller.name,
                "tags": list(caller.tags),
                "level": caller.level,  # of NOBODY, MANAGEMENT, MONITORING, ADMINISTRATOR
                "makes_policies": caller.makes_policies,
                "csrf": self._logins.csrf_of(token),
            }
        )


def _token_of(request: web.Request) -> str | None:
    return request.cookies.get(_SECURE_COOKIE if _is_secure(request) else _COOKIE)


def _is_secure(request: web.Request) -> bool:
    return request.secure


async def _credentials(request: web.Request) -> tuple[str, str]:
    """Raises Refused."""
    if request.content_type != "application/json":  # which no form of another site can send
        raise Refused(415, "unsupported_media_type", "a login is application/json")

    def cover(size: int) -> None:
        if not 0 < size <= LOGIN_BYTES_MAX:
            raise bad_request(f"a login has 1 to {LOGIN_BYTES_MAX} bytes, and says how many")

    given = json_object(await whole(request, LOGIN_S, cover))
    user, password = given.get("user"), given.get("password")
    if not isinstance(user, str) or not isinstance(password, str):
        raise bad_request("user and password are needed, as texts")
    return user, password


def _json(body: dict[str, Any]) -> web.Response:
    return web.json_response(body, headers={**HEADERS, "Cache-Control": "no-store"})
