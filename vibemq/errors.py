# SPDX-License-Identifier: Apache-2.0
"""The one list of errors that VibeMQ raises on purpose.

Every message says where it happened, what was needed and what there was; ``hint``, where
there is one, says what to do about it.  Whoever shows an error to a person prints
``str(error)`` and, on a line of its own, the hint.  The classes are split by whose mistake
it was, so that a peer's mistake can never be taken for ours:

* ``UserError``: the person who runs VibeMQ asked for something that cannot be;
* ``ProtocolError``: the peer sent what the protocol does not allow;
* ``StorageError``: the disk or the files on it;
* the rest: what a client of a broker may meet.

This module imports nothing of VibeMQ, so everything may import it.
"""


class VibeMQError(Exception):
    """Base of all errors below: one sentence, and a hint that may be empty."""

    #: Of a command that ends with it.
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Spark's Python workers): rebuild from the fields,
        # because the arguments of subclasses differ from what Exception would replay.
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[VibeMQError], fields: dict[str, object]) -> VibeMQError:
    error = kind.__new__(kind)
    Exception.__init__(error, fields["message"])
    error.__dict__.update(fields)
    return error


# ---- the person who runs VibeMQ ----


class UserError(VibeMQError):
    """What the user asked for cannot be done as things are."""


class ConfigError(UserError):
    """An option is unknown, or its value is not allowed."""


class Superseded(ConfigError):
    """Another broker has this one's place in the object store: as it is, it must not be started again."""

    exit_code = 3


class InvalidValue(UserError, ValueError):
    """A value that a program gave cannot be: which, what was needed, what there was."""


class InvalidType(InvalidValue, TypeError):
    """A value that a program gave is of a type that cannot be."""


class SetupError(UserError):
    """The machine lacks something: a Java runtime, an optional package, a permission."""


class AlreadyRunning(UserError):
    """Another broker holds the data directory."""


class UserExists(UserError):
    """A user of this name exists already."""


class UserNotFound(UserError):
    """There is no user of this name."""


class VhostNotFound(UserError):
    """There is no virtual host of this name."""


class ExchangeExists(UserError):
    """An exchange of this name exists already, and is another one."""


class ExchangeNotFound(UserError):
    """There is no exchange of this name."""


# ---- the disk ----


class StorageError(VibeMQError):
    """The log or the metadata could not be read or written.

    ``code`` is the name of an error of the C core (``ERR_DISK_FULL``; csrc/base/error.h).
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class MetadataUnsure(StorageError):
    """Whether a change of the metadata was made will show when the object store answers again."""


class RemoteError(VibeMQError):
    """The object store did not do what was asked, or holds what cannot be used: which object, and why."""


class MetadataRace(StorageError):
    """Another broker, or a process that was killed, changed the metadata at the same moment: look, then try again."""


class StreamExists(VibeMQError):
    """The stream exists already; ``record`` is its storage.metadata.StreamRecord."""

    def __init__(self, message: str, *, record: object = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.record = record


class StreamNotFound(VibeMQError):
    """There is no stream of this name."""


class StreamIsNoQueue(StreamNotFound):
    """A queue was asked for, and the stream of this name is none."""


# ---- connections, from either side ----


class ProtocolError(VibeMQError):
    """The peer sent bytes that the protocol does not allow.

    ``code`` is the protocol's own code for it where it has one, else 0.
    """

    def __init__(self, message: str, *, code: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class MalformedFrame(ProtocolError, ValueError):
    """The peer's bytes are not what they claim to be: where, what was needed there, what there was."""

    def __init__(self, where: str, needed: str, had: str) -> None:
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


class UnencodableValue(VibeMQError, ValueError):
    """Our own caller gave a value that the wire cannot carry: where, what was needed there, what there was."""

    def __init__(self, where: str, needed: str, had: str) -> None:
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


class ConnectionClosed(VibeMQError):
    """The connection ended, by the peer's wish or by the network's."""


class LimitExceeded(VibeMQError):
    """Something is beyond a named limit: what, how much there was, how much is allowed."""

    def __init__(self, what: str, had: int | None = None, most: int | None = None, *, hint: str = "") -> None:
        super().__init__(what if had is None else f"{what}: {had}, at most {most} allowed", hint=hint)
        self.had = had
        self.most = most


class PreconditionFailed(VibeMQError):
    """What exists already is not what was asked for: which property, what it is, what was asked for."""


class Refused(VibeMQError):
    """A door does not do what its peer asked for; ``code`` is the protocol's own for it.  The connection goes on."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class AuthenticationFailed(VibeMQError):
    """The broker refused the user name or the password."""


class TimeoutExceeded(VibeMQError, TimeoutError):
    """No answer came in the time allowed; whether what was asked for may have been done, its message and hint say."""


class PublishTimeout(TimeoutExceeded):
    """Messages were not acknowledged in the time allowed. None of them is sent any more, unless it is published again.

    ``unsent`` of them never left this process; ``unanswered`` did, so they may have been stored.
    """

    def __init__(self, message: str, *, unsent: int, unanswered: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.unsent, self.unanswered = unsent, unanswered

    @property
    def may_be_stored(self) -> bool:
        return self.unanswered > 0


class RequestFailed(VibeMQError):
    """The broker answered a request with a code other than success: a number, or a name on the native door."""

    def __init__(self, message: str, *, code: int | str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


# ---- what the native door refuses, a class for each case that a program may want to handle ----


class QueueNotFound(RequestFailed):
    """There is no queue of this name, and none is made by itself."""


class NotAQueue(RequestFailed):
    """There is a stream of this name, which nobody takes messages from: it is read, or made a queue on purpose."""


class QueueExists(RequestFailed):
    """There is a queue of this name already."""


class QueueFull(RequestFailed):
    """The queue holds as many messages as it may, and its overflow strategy is to refuse."""


class NotAuthorized(RequestFailed):
    """The user may not do this with this queue."""


class InvalidRequest(RequestFailed):
    """The broker does not accept the message, a name or an option in it, or does not know the command."""


class RateLimited(RequestFailed):
    """Too many connections or messages in too short a time."""


class AccountRefused(RequestFailed):
    """A command that manages users was refused: USER_EXISTS, USER_NOT_FOUND or FORBIDDEN."""


class ServerFailed(RequestFailed):
    """The broker could not do what it should have done."""


class QueueConflict(VibeMQError):
    """A queue exists with other options than its declaration; ``differences`` says which."""

    def __init__(self, message: str, *, differences: tuple[object, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.differences = differences
