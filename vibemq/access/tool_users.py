# SPDX-License-Identifier: Apache-2.0
"""Users and permissions by the rules of RabbitMQ's tools: ``vibemq ctl`` and the HTTP API.

They are looser than ``vibemq users``': any name, any password, and nobody becomes a superuser by being the first.  The
tag ``administrator`` lets a user manage everything over HTTP. guest is a user like another here, but built in: it can
be deleted and added again, with its one password; whatever else would change it is refused.  Hashing and committing
block.
"""

from vibemq.access.passwords import NO_PASSWORD, OWN_HASHING, hash_password, imported_hash
from vibemq.access.proofs import Verifier
from vibemq.access.users import EVERYTHING, GUEST, has_guest
from vibemq.errors import UserError, VhostNotFound
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import UserRecord, VhostPermission

ADMINISTRATOR = "administrator"
NAME_SIZE_MAX_BYTES = 255
_PASSWORD_CHARACTERS_MIN = 1


def put_user(
    metadata: Metadata, name: str, tags: tuple[str, ...] = (), password: str | None = None,
    password_hash: str | None = None, hashing: str = "", verifier: str = "",
) -> bool:  # fmt: skip
    """Make a user or change one, the password by itself or by RabbitMQ's or our own hash of it; was one made?

    ``verifier`` belongs to a hash of our own (vibemq.access.proofs); without it there is no login by challenge.
    An empty hash: a user without a password, who comes in by a certificate only.  Raises UserError, UserNotFound.
    """
    if name == GUEST:
        if password not in (None, GUEST):
            raise _built_in("has the password guest")
        was_removed = metadata.guest_removed()
        metadata.set_guest_removed(False)
        return was_removed
    if not 1 <= len(name.encode(errors="surrogatepass")) <= NAME_SIZE_MAX_BYTES or not name.isprintable():
        raise UserError(f"user name {name!r}: 1 to {NAME_SIZE_MAX_BYTES} bytes of printable characters are needed")
    if verifier and (password_hash is None or hashing != OWN_HASHING or Verifier.decode(verifier) is None):
        raise UserError(f"user {name!r}: the verifier is none of ours, or belongs to no hash by {OWN_HASHING}")
    if password is not None:
        return metadata.put_user(name, tags, *hash_password(password, _PASSWORD_CHARACTERS_MIN))
    kept = None if password_hash is None else imported_hash(password_hash, hashing)
    return metadata.put_user(name, tags, kept, verifier)


def change_password(metadata: Metadata, name: str, password: str) -> None:
    """Raises UserError, UserNotFound."""
    if name == GUEST:
        raise _built_in("keeps its password")
    metadata.change_password(name, *hash_password(password, _PASSWORD_CHARACTERS_MIN))


def clear_password(metadata: Metadata, name: str) -> None:
    """Nobody comes in by a password of this user any more; by a certificate, still.  Raises UserError, UserNotFound."""
    if name == GUEST:
        raise _built_in("keeps its password")
    metadata.change_password(name, NO_PASSWORD)


def set_tags(metadata: Metadata, name: str, tags: tuple[str, ...]) -> None:
    """Raises UserError, UserNotFound."""
    if name != GUEST:
        metadata.set_tags(name, tags)
    elif tags != (ADMINISTRATOR,):
        raise _built_in(f"has the tag {ADMINISTRATOR}")


def delete_user(metadata: Metadata, name: str) -> None:
    """Raises UserNotFound."""
    if name == GUEST:
        metadata.set_guest_removed(True)
    else:
        metadata.delete_user(name)


def set_permissions(metadata: Metadata, vhost: str, name: str, configure: str, write: str, read: str) -> bool:
    """Was there no permission before?  Raises VhostNotFound, UserNotFound, UserError."""
    if name != GUEST:
        return metadata.set_permissions(vhost, name, configure, write, read)
    if not metadata.has_vhost(vhost):
        raise VhostNotFound(f"there is no virtual host {vhost!r}")
    if (configure, write, read) != EVERYTHING:
        raise _built_in("may do everything")
    return False


def clear_permissions(metadata: Metadata, vhost: str, name: str) -> bool:
    """Were there any?  Raises VhostNotFound, UserNotFound, UserError."""
    if name == GUEST:
        raise _built_in("may do everything")
    return metadata.clear_permissions(vhost, name)


def list_users(metadata: Metadata, guest_allowed: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Names and tags, by name, guest among them; superusers have the tag of administrators."""
    found = [(user.name, tags_of(user)) for user in metadata.users()]
    if has_guest(metadata, guest_allowed):
        found.append((GUEST, (ADMINISTRATOR,)))
    return sorted(found)


def tags_of(user: UserRecord) -> tuple[str, ...]:
    """A user's tags as these tools know them."""
    is_more = user.is_superuser and ADMINISTRATOR not in user.tags
    return (ADMINISTRATOR, *user.tags) if is_more else user.tags


def list_permissions(
    metadata: Metadata, guest_allowed: bool, vhost: str | None = None, name: str | None = None
) -> list[VhostPermission]:
    """By vhost and user, guest's among them."""
    found = metadata.vhost_permissions(vhost, name)
    if name in (None, GUEST) and has_guest(metadata, guest_allowed):
        vhosts = [record.name for record in metadata.vhosts() if vhost in (None, record.name)]
        found += [VhostPermission(each, GUEST, *EVERYTHING) for each in vhosts]
    return sorted(found, key=lambda permission: (permission.vhost, permission.user))


def _built_in(what: str) -> UserError:
    return UserError(f"user {GUEST!r} is built in and {what}", hint="add a user of your own and delete guest")
