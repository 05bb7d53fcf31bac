# SPDX-License-Identifier: Apache-2.0
"""Users and permissions as the native protocol manages them: its commands 50 to 56.

Each function takes the caller's rights and the fields of the request, checks in the order that the
protocol names, and returns the reply as plain lists and dicts.  What is refused raises AccountError
with the protocol's code and text.  Hashing and committing block: call these on a helper thread.

Names are compared with regard to case everywhere, or Admin could change the password of admin.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from vibemq.access import passwords, users
from vibemq.access.permissions import Access, Operation, check_pattern, operation_named
from vibemq.errors import AccountError, UserError, UserExists, UserNotFound
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


def fields_of(request: Message) -> Fields:
    """From a JSON object or, as some documents have it, from headers.  INVALID_PAYLOAD."""
    if request.payload:
        try:
            if not is_json(request.payload):  # bounds the depth before a recursive parser sees it
                raise msgspec.DecodeError("this is not JSON")
            fields: Fields = msgspec.json.decode(request.payload)
            return fields
        except msgspec.DecodeError as problem:
            raise AccountError("INVALID_PAYLOAD", f"Payload must be a JSON object: {problem}.") from None
    if not request.headers:
        return None
    fields = dict(request.headers)
    if "operations" in request.headers:
        fields["operations"] = [name.strip() for name in request.headers["operations"].split(",")]
    return fields


def create_user(metadata: Metadata, acting: Access, fields: Fields) -> dict[str, object]:
    """50.  NOT_AUTHORIZED, INVALID_PAYLOAD, USER_EXISTS."""
    _needs_superuser(acting)
    name, password = _texts(fields, "username", "password")
    with _worded(name):
        users.check_native_name(name)
        users.add_user(metadata, name, password, is_superuser=False, password_min=PASSWORD_CHARACTERS_MIN)
    log.info("user %r added, by %r over the native door", name, acting.user)
    return {"username": name}


def delete_user(metadata: Metadata, acting: Access, fields: Fields) -> dict[str, object]:
    """51.  NOT_AUTHORIZED, INVALID_PAYLOAD, USER_NOT_FOUND, FORBIDDEN."""
    _needs_superuser(acting)
    (name,) = _texts(fields, "username")
    with _worded(name):
        deleted = metadata.delete_user(name, superusers_too=False)
    if not deleted:
        raise AccountError("FORBIDDEN", "Cannot delete a superuser account.")
    log.info("user %r removed, by %r over the native door", name, acting.user)
    return {"username": name}


def change_password(metadata: Metadata, acting: Access, fields: Fields) -> dict[str, object]:
    """52.  INVALID_PAYLOAD, NOT_AUTHORIZED, USER_NOT_FOUND."""
    name, password = _texts(fields, "username", "newPassword")
    if not acting.is_superuser and acting.user != name:
        raise AccountError("NOT_AUTHORIZED", f"You may only change your own password. You are user '{acting.user}'.")
    with _worded(name):
        users.change_password(metadata, name, password, PASSWORD_CHARACTERS_MIN)
    log.info("user %r has a new password, by %r over the native door", name, acting.user)
    return {"username": name}


def grant(metadata: Metadata, acting: Access, fields: Fields) -> dict[str, object]:
    """53.  NOT_AUTHORIZED, INVALID_PAYLOAD, USER_NOT_FOUND."""
    _needs_superuser(acting)
    name, pattern = _texts(fields, "username", "queuePattern", also=("operations",))
    operations = _operations((fields or {}).get("operations"))
    with _worded(name):
        check_pattern(pattern)
        metadata.grant(name, pattern, operations)
    names = [operation.name for operation in operations]
    log.info(
        "user %r may %s where the queue is %r, by %r over the native door", name, ", ".join(names), pattern, acting.user
    )
    return {"username": name, "queuePattern": pattern, "operations": names}


def revoke(metadata: Metadata, acting: Access, fields: Fields) -> dict[str, object]:
    """54.  NOT_AUTHORIZED, INVALID_PAYLOAD; what is not there counts as revoked."""
    _needs_superuser(acting)
    name, pattern = _texts(fields, "username", "queuePattern")
    try:
        check_pattern(pattern)  # no entry has another pattern
        if metadata.revoke(name, pattern):
            log.info("user %r has no permission by %r any more, by %r over the native door", name, pattern, acting.user)
    except UserError:
        pass
    return {"username": name, "queuePattern": pattern}


def list_users(metadata: Metadata, acting: Access, fields: Fields = None) -> list[dict[str, object]]:
    """55.  NOT_AUTHORIZED."""
    _needs_superuser(acting)
    return [
        {"username": user.name, "isSuperuser": user.is_superuser, "createdAt": user.created_ms // 1000}
        for user in metadata.users()
    ]


def user_permissions(metadata: Metadata, acting: Access, fields: Fields) -> list[dict[str, object]]:
    """56.  INVALID_PAYLOAD, NOT_AUTHORIZED; a user that does not exist has none."""
    (name,) = _texts(fields, "username")
    if not acting.is_superuser and acting.user != name:
        raise AccountError("NOT_AUTHORIZED", f"You may only view your own permissions. You are user '{acting.user}'.")
    try:
        found = metadata.permissions(name)
    except UserNotFound:
        return []
    return [
        {"queuePattern": entry.pattern, "operations": [Operation(number).name for number in entry.operations]}
        for entry in found
    ]


def _needs_superuser(acting: Access) -> None:
    if not acting.is_superuser:
        raise AccountError("NOT_AUTHORIZED", f"Superuser access required. You are user '{acting.user}'.")


def _texts(fields: Fields, *names: str, also: tuple[str, ...] = ()) -> list[str]:
    """The fields of these names, which must be text; those in ``also`` are only named in the error."""
    wanted = [*names, *also]
    if fields is None:
        raise AccountError("INVALID_PAYLOAD", f"Payload required: {{ {', '.join(wanted)} }}.")
    found = [fields.get(name) if isinstance(fields, Mapping) else None for name in names]
    texts = [value for value in found if isinstance(value, str) and value]
    if len(texts) < len(found):
        joined = wanted[0] if len(wanted) == 1 else f"{', '.join(wanted[:-1])} and {wanted[-1]}"
        raise AccountError("INVALID_PAYLOAD", f"{joined} {'is' if len(wanted) == 1 else 'are'} required.")
    for name, text in zip(names, texts, strict=True):
        if len(text) > _TEXT_CHARACTERS_MAX:
            raise AccountError("INVALID_PAYLOAD", f"{name} is too long: at most {_TEXT_CHARACTERS_MAX} characters.")
        if not _is_text(text):
            raise AccountError("INVALID_PAYLOAD", f"{name} is not valid Unicode.")
    return texts


def _is_text(text: str) -> bool:
    """JSON can write halves of characters, which neither the database nor a reply takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _operations(given: object) -> list[Operation]:
    """A list of names, or text with commas, as headers have it; what is unknown is skipped."""
    if given is None:
        raise AccountError("INVALID_PAYLOAD", "username, queuePattern and operations are required.")
    names = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
    known = {operation_named(name) for name in names if isinstance(name, str)}
    operations = sorted(operation for operation in known if operation is not None)
    if not operations:
        raise AccountError("INVALID_PAYLOAD", "No valid operations specified.")
    return operations


@contextmanager
def _worded(name: str) -> Iterator[None]:
    """What is wrong with the user ``name``, or what was to be done with it, in the protocol's words."""
    try:
        yield
    except UserExists:
        raise AccountError("USER_EXISTS", f"User '{name}' already exists.") from None
    except UserNotFound:
        raise AccountError("USER_NOT_FOUND", f"User '{name}' not found.") from None
    except UserError as problem:
        text = str(problem)
        raise AccountError("INVALID_PAYLOAD", text[0].upper() + text[1:].rstrip(".") + ".") from None


COMMANDS: dict[int, Callable[[Metadata, Access, Fields], Any]] = {
    Command.ADMIN_CREATE_USER: create_user,
    Command.ADMIN_DELETE_USER: delete_user,
    Command.ADMIN_CHANGE_PASSWORD: change_password,
    Command.ADMIN_GRANT_PERMISSION: grant,
    Command.ADMIN_REVOKE_PERMISSION: revoke,
    Command.ADMIN_LIST_USERS: list_users,
    Command.ADMIN_GET_USER_PERMISSIONS: user_permissions,
}
