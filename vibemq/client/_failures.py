# SPDX-License-Identifier: Apache-2.0
"""The error that fits a response code of the streams protocol, with a hint for whoever reads it."""

from vibemq.errors import AuthenticationFailed, RequestFailed, StreamExists, StreamNotFound, VibeMQError
from vibemq.protocols.streams.spec import Code, code_name

HINTS: dict[int, str] = {
    Code.STREAM_DOES_NOT_EXIST: (
        "Check its name and the virtual host (`vibemq streams list` shows what is there), or create it "
        "(`vibemq streams create NAME`, or `vibemq queues create NAME` as a queue)."
    ),
    Code.STREAM_NOT_AVAILABLE: "The stream's leader is changing or down; try again in a few seconds.",
    Code.ACCESS_REFUSED: "Give the user the permission (configure, write or read) for this stream.",
    Code.PRECONDITION_FAILED: "An argument is not allowed, differs from the existing object's, or a limit is reached.",
    Code.VIRTUAL_HOST_ACCESS_FAILURE: "Check that the virtual host exists and that the user may use it.",
    Code.AUTHENTICATION_FAILURE: "Check user name and password.",
    Code.AUTHENTICATION_FAILURE_LOOPBACK: "This user may only connect from the broker's own machine; use another user.",
    Code.SASL_MECHANISM_NOT_SUPPORTED: "The broker does not offer PLAIN; see its list of mechanisms.",
}
_AUTHENTICATION_CODES = frozenset(
    (
        Code.AUTHENTICATION_FAILURE,
        Code.AUTHENTICATION_FAILURE_LOOPBACK,
        Code.SASL_ERROR,
        Code.SASL_MECHANISM_NOT_SUPPORTED,
    )
)


def failure(where: str, code: int) -> VibeMQError:
    """The error class that fits a response code."""
    message, hint = f"{where}: the broker answered {code_name(code)}", HINTS.get(code, "")
    if code in (Code.STREAM_DOES_NOT_EXIST, Code.STREAM_NOT_AVAILABLE):
        return StreamNotFound(message, hint=hint)
    if code in _AUTHENTICATION_CODES:
        return AuthenticationFailed(message, hint=hint)
    if code == Code.STREAM_ALREADY_EXISTS:
        return StreamExists(message, hint="Use it as it is, or delete it first.")
    return RequestFailed(message, code=code, hint=hint)
