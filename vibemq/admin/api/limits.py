# SPDX-License-Identifier: Apache-2.0
"""Limits of users and virtual hosts over the management API: RabbitMQ's paths and names, and some of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vibemq.admin.api.calls import Call, bad_request, not_found
from vibemq.admin.api.service import Api
from vibemq.storage.limits import LEAST, VHOST


def listing(kind: str) -> Callable[[Api, Call], Any]:
    """All who have limits, or the one of the path, who may have none."""

    def show(api: Api, call: Call) -> Any:
        name = call.path.get(kind)
        if name is not None and not _is_there(api, kind, name):
            raise not_found()
        found = [each for each in api.metadata.limited(kind) if name in (None, each.name)]
        return [{kind: each.name, "value": each.limits} for each in found]

    return show


def put_one(kind: str) -> Callable[[Api, Call], None]:
    """``{"value": 10}``; below 0 is no limit."""

    def put(api: Api, call: Call) -> None:
        if "value" not in call.body:
            raise bad_request("key_missing: value")
        _set(api, kind, call, {call.path["limit"]: call.body["value"]})

    return put


def put_all(kind: str, *, instead: bool) -> Callable[[Api, Call], None]:
    """Of our own: ``{"max-connections": 10, ...}`` at once, in the place of those there were if ``instead``."""

    def put(api: Api, call: Call) -> None:
        _set(api, kind, call, dict(call.body), instead=instead)

    return put


def delete_one(kind: str) -> Callable[[Api, Call], None]:
    def delete(api: Api, call: Call) -> None:
        _set(api, kind, call, {call.path["limit"]: None})

    return delete


def delete_all(kind: str) -> Callable[[Api, Call], None]:
    def delete(api: Api, call: Call) -> None:
        _set(api, kind, call, {}, instead=True)

    return delete


def put_known(api: Api, kind: str, name: str, given: Any) -> None:
    """Of a definitions file, which may have been written by RabbitMQ: what is limited there only is passed over."""
    found = {limit: value for limit, value in given.items() if limit in LEAST} if isinstance(given, dict) else {}
    if found:
        api.metadata.set_limits(kind, name, found, instead=True)
        api.accounts_changed()


def _set(api: Api, kind: str, call: Call, changes: dict[str, Any], *, instead: bool = False) -> None:
    name = call.path[kind]
    if not _is_there(api, kind, name):
        raise not_found()
    if None in changes.values() and call.body:
        raise bad_request("a limit must be an integer; -1 is none")
    api.metadata.set_limits(kind, name, changes, instead=instead)
    api.accounts_changed()


def _is_there(api: Api, kind: str, name: str) -> bool:
    return api.metadata.has_vhost(name) if kind == VHOST else api.metadata.has_user(name)
