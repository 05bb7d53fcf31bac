# SPDX-License-Identifier: Apache-2.0
"""What a session may do: its user's rights in its virtual host, kept until somebody changes any rights.

``session.rights`` answers configure(name), write(name) and read(name); it is looked up again
when the count of changes differs, before a command is obeyed and at the next tick.  What has been declared
or subscribed goes when its right goes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vibemq.protocols.streams.replies import answer, find, stream_unavailable
from vibemq.protocols.streams.spec import AnyKey, Code

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)


def look_again(session: StreamsSession) -> bool:
    """Look the rights up; False: the virtual host, or the user, is gone or the one is closed to the other."""
    rights = session.door.rights
    session.rights = rights.of(session.client.user, session.virtual_host)
    session.rights_generation = rights.generation
    return session.rights is not None


def changed(session: StreamsSession) -> bool:
    """Somebody's rights have changed, perhaps this session's; False: it has ended."""
    if session.state != "open":
        return True
    if look_again(session):
        revoke(session)
        return True
    user = session.client.user
    logger.warning("%s: virtual host %r is closed to user %r now", session.peer, session.virtual_host, user)
    session.finish()
    return False


def revoke(session: StreamsSession) -> None:
    """Take away the publishers and subscriptions whose right is gone, and tell each stream's name once."""
    rights = session.rights
    lost: dict[str, None] = {}
    for publisher_id, publisher in list(session.publishers.items()):
        if not rights.write(publisher.stream.name):
            session.remove_publisher(publisher_id)
            lost[publisher.stream.name] = None
    for subscription_id, subscription in list(session.subscriptions.items()):
        if not rights.read(subscription.stream.name):
            session.deliveries.remove(subscription_id)
            lost[subscription.stream.name] = None
    for name in lost:
        logger.warning("%s: user %r may not use stream %s any more", session.peer, session.client.user, name)
        stream_unavailable(session, name)


def drop_all(session: StreamsSession) -> None:
    """All publishers and subscriptions, without a word: the connection is about to end."""
    for publisher_id in list(session.publishers):
        session.remove_publisher(publisher_id)
    for subscription_id in list(session.subscriptions):
        session.deliveries.remove(subscription_id)


def refused(session: StreamsSession, request: Any, key: AnyKey, right: str, *names: str) -> bool:
    """Is the right missing for any of these names?  Then that has been answered."""
    may = getattr(session.rights, right)
    for name in names:
        if not may(name):
            logger.info("%s: user %r may not %s %r", session.peer, session.client.user, right, name)
            answer(session, request, key, Code.ACCESS_REFUSED)
            return True
    return False


def find_with(session: StreamsSession, request: Any, key: AnyKey, right: str) -> Stream | None:
    """The stream a request names, for somebody with this right to it; None after the refusal has been answered."""
    return None if refused(session, request, key, right, request.stream) else find(session, request, key)
