# SPDX-License-Identifier: Apache-2.0
"""The table of hub methods: found by name, arguments bound and checked, errors in the words that clients know.

A method is a function of its Call and its arguments.  It returns its result, or LATER when it answers by itself, or
raises HubError.  Names match without regard to case; options are one object at the end, and trailing
arguments that may be missing are None.  The methods are in queues.py, publishing.py and subscribing.py, which fill
METHODS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vibemq.access.permissions import Operation
from vibemq.broker import admission
from vibemq.broker.admission import check_access, has_right, may, may_make, with_queue
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.codec import elements_of
from vibemq.protocols.signalr.invocations import LATER, BadCall, Call, HubError
from vibemq.protocols.signalr.options import Reader, must, queue_name, read_options
from vibemq.protocols.signalr.records import MalformedFrame, value_of
from vibemq.protocols.signalr.spec import Dialect, ErrorCode
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.protocols.signalr.hub import HubConnection
    from vibemq.storage.records import StreamRecord

# ---- parameters ----


text = must("a string", lambda value: isinstance(value, str))
options = must("an object", lambda value: isinstance(value, dict) and all(isinstance(name, str) for name in value))


def whole(value: Any) -> int:
    """JSON has one kind of numbers, and some clients write 5.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a whole number")
    return value


def tags(value: Any) -> list[int]:
    found = value if isinstance(value, list) else [value]
    try:
        return [whole(tag) for tag in found]
    except ValueError:
        raise ValueError("a tag or an array of tags") from None


def anything(value: Any) -> Any:
    return value


def raw(value: Any) -> Any:
    """The argument as it came, undecoded."""
    return value


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    read: Reader
    may_be_missing: bool = False
    default: Any = None


def needed(name: str, read: Reader = text) -> Parameter:
    return Parameter(name, read)


def optional(name: str, read: Reader = options) -> Parameter:
    return Parameter(name, read, may_be_missing=True)


def asking(readers: Mapping[str, Reader]) -> Parameter:
    """Options, each read by its reader; one that is not there, or null, is not among them."""
    return Parameter("options", lambda value: read_options(options(value), readers), True, {})


# ---- the table ----


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    parameters: tuple[Parameter, ...]
    do: Callable[..., Any]
    is_stream: bool = False
    takes_upload: bool = False  # and may be called as a stream or not
    only_publishes: bool = False  # so what was published before it need not be in the logs yet

    def bind(self, call: Call) -> list[Any]:
        """The values for the parameters.  Raises BadCall, in the words of the reference server."""
        if len(call.uploads) != int(self.takes_upload):
            text = f"{len(call.uploads)} stream(s) but target expects {int(self.takes_upload)}."
            raise BadCall(f"Invocation provides {text}")
        least = sum(not parameter.may_be_missing for parameter in self.parameters)
        if not least <= call.count <= len(self.parameters):
            wanted = least if call.count < least else len(self.parameters)
            raise BadCall(f"Invocation provides {call.count} argument(s) but target expects {wanted}.")
        encoding = call.hub.encoding
        raws = elements_of(call.arguments, encoding)
        values: list[Any] = []
        for parameter, element in zip(self.parameters, raws, strict=False):
            value: Any = element if parameter.read is raw else argument_of(parameter.name, element, encoding)
            if value is None and parameter.may_be_missing:
                value = parameter.default
            else:
                try:
                    value = parameter.read(value)
                except ValueError as problem:
                    raise BadCall(f"Argument '{parameter.name}' must be {problem}.") from None
            values.append(value)
        return values + [parameter.default for parameter in self.parameters[len(values) :]]


def argument_of(name: str, value: bytes, encoding: int) -> Any:
    """The value of an argument, or of a part of one.  Raises HubError where it is none: half a surrogate pair, a number
    that no client could hold, a text that is no UTF-8."""
    try:
        return value_of(value, encoding)
    except MalformedFrame as problem:
        text = f"{name[:60]}: needed a value that can be read, had one of which the reader says: {problem.had}."
        raise HubError(ErrorCode.INVALID_ARGUMENT, text) from None


class MethodTable(dict[str, Method]):
    """By the names in lower case."""

    def add(
        self, name: str, *parameters: Parameter, **kind: bool
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator: this function is the hub method of that name."""

        def take(do: Callable[..., Any]) -> Callable[..., Any]:
            self[name.lower()] = Method(name, parameters, do, **kind)
            return do

        return take

    def find(self, name: str) -> Method | None:
        return self.get(name.lower())

    def is_stream(self, call: Call) -> bool:
        """Will this call be answered by a stream?"""
        method = self.find(call.name)
        if method is None or method.takes_upload:
            return call.is_stream
        return method.is_stream

    def run(self, call: Call) -> None:
        """Call the method, or say what is wrong with the call."""
        method = self.find(call.name)
        if method is None:
            call.fail(spec.unknown_method(call.name))
            return
        is_early = call.hub.dialect != Dialect.V1
        if not method.takes_upload and method.is_stream != call.is_stream:
            if not is_early or call.is_stream:
                wrong = spec.streaming_method_invoked if method.is_stream else spec.method_streamed
                call.fail(wrong(call.name))
                return
            call.is_stream = True  # the dialect has one kind of invocation, and the method says which it is
        if not check_access(call.hub.client):
            return
        if not method.only_publishes:
            call.hub.keep_published()
        if method.is_stream and call.id is None:
            call.end()  # a stream that nobody can receive
        else:
            call.answer(lambda: method.do(call, *method.bind(call)))


METHODS = MethodTable()

# ---- who may ----


def require(hub: HubConnection, right: Operation | str, name: str) -> None:
    """Raises HubError unless the user may do this with a queue, or has this right (configure, write, read) to a stream.

    Nobody has looked whether there is one of this name.
    """
    if isinstance(right, Operation):
        is_allowed, right = may(hub.client, right, name), right.name
    else:
        is_allowed = has_right(hub.client, right, name)
    if not is_allowed:
        raise HubError(ErrorCode.NOT_AUTHORIZED, spec.lacks_right(hub.client.user, right, name))


def stream_right(hub: HubConnection, right: str, stream: str) -> bool:
    """May the user configure, write or read this stream, which is no queue?"""
    client = hub.client
    return admission.stream_right(client.broker, client.user, client.access, right, stream)


def may_read(hub: HubConnection, name: str, is_stream: bool) -> bool:
    """May the user go on with its subscription to a queue, or to a stream?"""
    return stream_right(hub, "read", name) if is_stream else hub.client.access.may(Operation.Subscribe, name)


def is_stream(record: StreamRecord | None) -> bool:
    return record is not None and record.queue is None


def find(hub: HubConnection, name: str) -> StreamRecord | None:
    return hub.queues.metadata.find_stream(DEFAULT_VHOST, name)  # type: ignore[no-any-return]


def find_for(hub: HubConnection, name: str, right: str, operation: Operation) -> StreamRecord | None:
    """What has this name, for a user with the `right` to it as a stream, or who may do the `operation` with it."""
    record = find(hub, name)
    require(hub, right if is_stream(record) else operation, name)
    return record


def not_found(name: str) -> HubError:
    return HubError(ErrorCode.QUEUE_NOT_FOUND, f"Queue '{name}' does not exist; make it with CreateQueue.")


def open_queue(call: Call, name: str, then: Callable[[Any], None]) -> Any:
    """Call ``then(queue)``, now or after a helper thread has made the queue."""
    hub = call.hub

    def failed(problem: Exception) -> None:
        raise not_found(name) if isinstance(problem, StreamNotFound) else problem

    def in_helper(work: Callable[[], Any], made: Callable[[Any, Any], None]) -> None:
        queue_name("queue", name)

        def done(result: Any) -> Any:
            made(result, result if isinstance(result, BaseException) else None)
            return LATER

        call.in_helper(work, done)

    def opened(queue: Any) -> None:
        if call.state == "over":  # a stream that was cancelled meanwhile
            queue.close_if_unused()
        else:
            then(queue)

    may_create = may_make(hub.client, name)
    with_queue(hub.client, DEFAULT_VHOST, name, may_create=may_create, then=opened, failed=failed, in_helper=in_helper)
    return LATER
