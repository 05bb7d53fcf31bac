# SPDX-License-Identifier: Apache-2.0
"""The three steps before the first frame: C1 from the peer, S1 from us, C2 from the peer; and who the peer is.

STEPS is the whole state machine: what a handshake message means in each state.  An ERROR ends it in either direction.
A password is checked by a helper thread and a wrong one answered late, so that guessing gets slow; nothing is read
meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import vibemq
from vibemq.access.permissions import EVERYTHING, Access
from vibemq.access.users import Verdict
from vibemq.broker import admission
from vibemq.protocols.micromsg2 import codec, commands, extensions
from vibemq.protocols.micromsg2.codec import ErrorFrame, Handshake, MalformedFrame, UnencodableValue
from vibemq.protocols.micromsg2.extensions import Agreed, Extension, Lists, Refusal
from vibemq.protocols.micromsg2.spec import COUNT_KEY, ERROR_BYTES_MAX, MINOR_SHARP_MESSAGING, ErrorCode, ExtensionName

if TYPE_CHECKING:
    from vibemq.protocols.micromsg2.session import Micromsg2Session

logger = logging.getLogger(__name__)

IDENTITY = f"vibemq/{vibemq.__version__}".encode()
SUPPORTED = frozenset(ExtensionName)
MECHANISM = "hmac-sha256"
USER_CHARACTERS_MAX = 255
#: What the first byte of other protocols says, for whoever has mistaken the port.
OTHERS = {b"\x16": "; this looks like TLS, which has a port of its own", b"G": "; this looks like HTTP"}
OTHERS |= dict.fromkeys((b"P", b"H", b"O", b"D"), OTHERS[b"G"])


@dataclass(slots=True)
class Shake:
    """What a handshake has come to so far."""

    c1: Handshake = field(default_factory=Handshake)
    s1: Lists = field(default_factory=Lists)
    challenge: Any = None  # that of a user who shall prove a password
    agreed: Agreed = field(default_factory=Agreed)


def opened(session: Micromsg2Session) -> None:
    """The connection is there: the peer has a while to finish its handshake."""
    seconds = session.door.config.handshake_timeout_s
    text = f"needed a whole handshake within {seconds} s"
    too_slow = partial(commands.protocol_error, code=ErrorCode.HANDSHAKE_TIMEOUT, text=text)
    session.set_deadline(session.door.queues.now_ms + seconds * 1000, too_slow)


def take(session: Micromsg2Session, data: bytes) -> int:
    """Act upon the handshake message at the front; its bytes, or 0 while it is not whole."""
    try:
        found = codec.decode_handshake(data)
    except MalformedFrame as problem:  # of a handshake, or of an ERROR instead of one
        commands.protocol_error(session, problem.error_code, f"{problem}{OTHERS.get(data[:1], '')}")
        return len(data)
    if found is None:
        return 0
    message, used = found
    if isinstance(message, ErrorFrame):
        commands.told_error(session, message.text.encode(errors="replace"))
        session.finish()
        return used
    try:
        STEPS[session.state](session, message)
    except Refusal as problem:
        # A password that was not encoded may be cut by its own `,` or `;`, and then its rest is what is wrong.
        has_password = b"password" in (message.required + message.optional).lower()
        refuse(session, problem.text, logged=problem.error_code if has_password else problem.text)
    return used


def refuse(session: Micromsg2Session, text: str, logged: str = "") -> None:
    """Say `text` and close; the log says `logged` instead, if that is given."""
    admission.log_closing(session, "handshake", "refused in the handshake: %.*s", ERROR_BYTES_MAX, logged or text)
    session.write(codec.encode_error(text))
    session.finish()


def hello(session: Micromsg2Session, c1: Handshake) -> None:
    """C1: what the peer requires and would like.  Raises Refusal."""
    door, shake = session.door, session.shake
    broker, shake.c1 = door.broker, c1
    session.identity = "".join(c if c.isprintable() else "?" for c in c1.identity.decode(errors="replace"))
    login = admission.needs_login(broker)
    answers: dict[str, dict[str, str]] = {}
    wanted = next((item for item in extensions.lists_of(c1) if item.name == ExtensionName.MICROAUTH), None)
    user = wanted.property("user") if wanted is not None else None
    if login and user is not None:
        shake.challenge = broker.authenticator.challenge(user[:USER_CHARACTERS_MAX])
        answers[ExtensionName.MICROAUTH] = {
            "mechanism": MECHANISM,
            "salt": shake.challenge.salt.hex(),
            "rounds": str(shake.challenge.rounds),
            "nonce": shake.challenge.nonce.hex(),
        }
    shake.s1 = extensions.negotiate_server(
        c1,
        supported=SUPPORTED,
        required=[ExtensionName.MICROAUTH] if login else [],
        offers=[Extension(ExtensionName.BATCH_ACK, {COUNT_KEY: str(door.config.window_max)})],
        window_max=door.config.window_max,
        answers=answers,
    )
    try:
        s1 = codec.encode_handshake(extensions.handshake_of(shake.s1, identity=IDENTITY))
    except UnencodableValue as problem:  # what is repeated is percent-encoded, which may make it longer
        raise Refusal(ErrorCode.PROTOCOL_ERROR, f"{ErrorCode.PROTOCOL_ERROR}: repeated to you, {problem}") from None
    session.state = "agreement"
    session.write(s1)


def agreement(session: Micromsg2Session, c2: Handshake) -> None:
    """C2: exactly what will be used.  Raises Refusal."""
    door, shake = session.door, session.shake
    shake.agreed = extensions.check_c2(shake.c1, shake.s1, c2, supported=SUPPORTED, window_max=door.config.window_max)
    item = shake.agreed.properties.get(ExtensionName.MICROAUTH, Extension(ExtensionName.MICROAUTH))
    user, password, proof = (item.property(key) for key in ("user", "password", "proof"))
    if not admission.needs_login(door.broker):
        user = admission.user_without_login(door.broker, user, password, session.is_loopback)
        let_in(session, user, EVERYTHING)
        return
    if user is None or (password is None and (proof is None or shake.challenge is None)):
        text = "microauth needs a user, and the proof for our challenge or, over TLS or on this machine, a password"
        refuse(session, f"{ErrorCode.AUTH_REQUIRED}: {text}")
        return
    session.state = "judgement"
    if password is None:
        try:
            sent = bytes.fromhex(proof or "")
        except ValueError:
            sent = b""
        judged(session, user, door.broker.authenticator.check_proof(user, shake.challenge, sent, session.is_loopback))
    elif session.is_tls or session.is_loopback:

        def checked(verdict: Any, problem: BaseException | None) -> None:
            if problem is not None:
                raise problem
            judged(session, user, verdict)

        admission.check_password(session, user, password, checked)
    else:
        text = "a password in the clear is taken over TLS or from this machine only; answer the challenge"
        refuse(session, f"{ErrorCode.AUTH_FAILED}: {text}")


def judged(session: Micromsg2Session, user: str, verdict: Verdict) -> None:
    access = admission.access_of(session, user, verdict)
    if access is not None:
        let_in(session, access.user or user, access)
    else:
        delay_ms = session.door.config.login_failure_delay_s * 1000
        answer = partial(refuse, text=f"{ErrorCode.AUTH_FAILED}: wrong user or password")
        session.wait_until(session.door.queues.now_ms + delay_ms, answer)


def let_in(session: Micromsg2Session, user: str, access: Access) -> None:
    shake = session.shake
    session.client.user, session.client.access = user, access
    if why := admission.enter(session.client):
        refuse(session, f"{ErrorCode.LIMIT_EXCEEDED}: {why}")
        return
    session.agree(shake.agreed, shake.c1.minor == MINOR_SHARP_MESSAGING)
    commands.subscribe_agreed(session)


#: What a handshake message means, by the state of the session; in "judgement" nothing is read, then it is "open".
STEPS: dict[str, Callable[[Any, Handshake], None]] = {"hello": hello, "agreement": agreement}
FIRST_STEP = "hello"
