# SPDX-License-Identifier: Apache-2.0
"""Users and permissions as the native protocol manages them: its commands 50 to 56.

Each function of COMMANDS takes the caller's rights and the fields of the request, checks in the order that the protocol
names, and returns the reply as plain lists and dicts.  What is refused raises Refused with the protocol's code and
text.  Hashing and committing block: call these on a helper thread.

Names are compared with regard to case everywhere, or Admin could change the password of admin.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from vibemq.access import passwords, users
from vibemq.access.permissions import Access, Operation, check_pattern, operation_named
from vibemq.access.scopes import TokenAccess
from vibemq.errors import Refused, UserError, UserExists, UserNotFound
from vibemq.protocols.native.codec import Message, is_json
from vibemq.protocols.native.spec import Command
from vibemq.storage.metadata import Metadata

log = logging.getLogger(__name__)

#: What the door made of the payload or the headers; None: there were neither.
Fields = Mapping[str, object] | None
# The protocol knows no other minimum, and clients for it make users with short passwords; the
# superuser who does it answers for that.
PASSWORD_CHARACTERS_MIN = 1
# Nothing longer is valid anywhere here, and a refusal that repeats it still fits an error's header.
_TEXT_CHARACTERS_MAX = passwords.PASSWORD_CHARACTERS_MAX
OPERATIONS = "operations"  # a list of names, or text with commas, as headers have it

COMMANDS: dict[int, Callable[..., Any]] = {}
#: What the audit log calls those that change something; their replies say what, and no secret.
AUDITED: dict[int, str] = {
    Command.ADMIN_CREATE_USER: "user.added",
    Command.ADMIN_DELETE_USER: "user.deleted",
    Command.ADMIN_CHANGE_PASSWORD: "user.password",
    Command.ADMIN_GRANT_PERMISSION: "permissions.set",
    Command.ADMIN_REVOKE_PERMISSION: "permissions.deleted",
}


def fields_of(request: Message) -> Fields:
    """From a JSON object or, as some documents have it, from headers.  Raises Refused."""
    if request.payload:
        try:
            if not is_json(request.payload):  # bounds the depth before a recursive parser sees it
                raise msgspec.DecodeError("this is not JSON")
            fields: Fields = msgspec.json.decode(request.payload)
            return fields
        except msgspec.DecodeError as problem:
            raise Refused("INVALID_PAYLOAD", f"Payload must be a JSON object: {problem}.") from None
    return request.headers or None


def command(number: Command, *names: str, superuser: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function is given the fields of these names, of which the first names a user."""

    def make(answer: Callable[..., Any]) -> Callable[..., Any]:
        def run(metadata: Metadata, acting: Access, fields: Fields = None) -> Any:
            if isinstance(acting, TokenAccess):  # whose user is none of these, whatever it is called
                raise Refused("NOT_AUTHORIZED", "A login by token has no account here, and manages none.")
            if superuser and not acting.is_superuser:
                raise Refused("NOT_AUTHORIZED", f"Superuser access required. You are user '{acting.user}'.")
            values = _values(fields, names) if names else []
            try:
                return answer(metadata, acting, *values)
            except UserExists:
                raise Refused("USER_EXISTS", f"User '{values[0]}' already exists.") from None
            except UserNotFound:
                raise Refused("USER_NOT_FOUND", f"User '{values[0]}' not found.") from None
            except UserError as problem:
                text = str(problem)
                raise Refused("INVALID_PAYLOAD", text[0].upper() + text[1:].rstrip(".") + ".") from None

        COMMANDS[number] = run
        return run

    return make


@command(Command.ADMIN_CREATE_USER, "username", "password")
def create_user(metadata: Metadata, acting: Access, name: str, password: str) -> dict[str, object]:
    users.check_native_name(name)
    users.add_user(metadata, name, password, is_superuser=False, password_min=PASSWORD_CHARACTERS_MIN)
    log.info("user %r added, by %r over the native door", name, acting.user)
    return {"username": name}


@command(Command.ADMIN_DELETE_USER, "username")
def delete_user(metadata: Metadata, acting: Access, name: str) -> dict[str, object]:
    if not metadata.delete_user(name, superusers_too=False):
        raise Refused("FORBIDDEN", "Cannot delete a superuser account.")
    log.info("user %r removed, by %r over the native door", name, acting.user)
    return {"username": name}


@command(Command.ADMIN_CHANGE_PASSWORD, "username", "newPassword", superuser=False)
def change_password(metadata: Metadata, acting: Access, name: str, password: str) -> dict[str, object]:
    if not acting.is_superuser and acting.user != name:
        raise Refused("NOT_AUTHORIZED", f"You may only change your own password. You are user '{acting.user}'.")
    users.change_password(metadata, name, password, PASSWORD_CHARACTERS_MIN)
    log.info("user %r has a new password, by %r over the native door", name, acting.user)
    return {"username": name}


@command(Command.ADMIN_GRANT_PERMISSION, "username", "queuePattern", OPERATIONS)
def grant(metadata: Metadata, acting: Access, name: str, pattern: str, given: object) -> dict[str, object]:
    """What is unknown among the operations is skipped."""
    words = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
    known = {operation_named(word) for word in words if isinstance(word, str)}
    operations = sorted(operation for operation in known if operation is not None)
    if not operations:
        raise Refused("INVALID_PAYLOAD", "No valid operations specified.")
    check_pattern(pattern)
    metadata.grant(name, pattern, operations)
    names = [operation.name for operation in operations]
    log.info(
        "user %r may %s where the queue is %r, by %r over the native door", name, ", ".join(names), pattern, acting.user
    )
    return {"username": name, "queuePattern": pattern, "operations": names}


@command(Command.ADMIN_REVOKE_PERMISSION, "username", "queuePattern")
def revoke(metadata: Metadata, acting: Access, name: str, pattern: str) -> dict[str, object]:
    """What is not there counts as revoked."""
    try:
        check_pattern(pattern)  # no entry has another pattern
        if metadata.revoke(name, pattern):
            log.info("user %r has no permission by %r any more, by %r over the native door", name, pattern, acting.user)
    except UserError:
        pass
    return {"username": name, "queuePattern": pattern}


@command(Command.ADMIN_LIST_USERS)
def list_users(metadata: Metadata, acting: Access) -> list[dict[str, object]]:
    return [
        {"username": user.name, "isSuperuser": user.is_superuser, "createdAt": user.created_ms // 1000}
        for user in metadata.users()
    ]


@command(Command.ADMIN_GET_USER_PERMISSIONS, "username", superuser=False)
def user_permissions(metadata: Metadata, acting: Access, name: str) -> list[dict[str, object]]:
    """A user that does not exist has none."""
    if not acting.is_superuser and acting.user != name:
        raise Refused("NOT_AUTHORIZED", f"You may only view your own permissions. You are user '{acting.user}'.")
    try:
        found = metadata.permissions(name)
    except UserNotFound:
        return []
    return [
        {"queuePattern": entry.pattern, "operations": [Operation(number).name for number in entry.operations]}
        for entry in found
    ]


def _values(fields: Fields, names: tuple[str, ...]) -> list[Any]:
    """The fields of these names, all of them text but for the operations."""
    if fields is None:
        raise Refused("INVALID_PAYLOAD", f"Payload required: {{ {', '.join(names)} }}.")
    found: dict[str, Any] = {name: fields.get(name) if isinstance(fields, Mapping) else None for name in names}
    texts = {name: value for name, value in found.items() if name != OPERATIONS}
    if found.get(OPERATIONS, "") is None or not all(isinstance(text, str) and text for text in texts.values()):
        *others, last = names
        joined = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        raise Refused("INVALID_PAYLOAD", f"{joined} required.")
    for name, text in texts.items():
        if len(text) > _TEXT_CHARACTERS_MAX:
            raise Refused("INVALID_PAYLOAD", f"{name} is too long: at most {_TEXT_CHARACTERS_MAX} characters.")
        try:
            text.encode()  # JSON can write halves of characters, which neither the database nor a reply takes
        except UnicodeEncodeError:
            raise Refused("INVALID_PAYLOAD", f"{name} is not valid Unicode.") from None
    return list(found.values())
