# SPDX-License-Identifier: Apache-2.0
"""What a policy may say of queues: RabbitMQ's names for their options, and the options that they amount to.

Options have the names under which a queue's own are stored (broker/options.py), so that a policy's go over them.
"""

from collections.abc import Mapping

from vibemq.errors import UserError

NAME_SIZE_MAX_BYTES = 255
DEAD_LETTER_SUFFIX = ".dlq"
#: A ledger entry counts to here (csrc/ledger/ledger.h); more attempts than this are no limit at all.
ATTEMPTS_MAX = 1000
#: Below it every send would be overdue at once, and the queue turn in circles.
ACK_TIMEOUT_MS_MIN = 10
#: What a policy may say at most; no queue has so many messages, nor a message so much time.
COUNT_MAX = 1_000_000_000_000
MS_MAX = 100 * 365 * 86_400_000

MAX_LENGTH = "max-length"
MESSAGE_TTL = "message-ttl"
DELIVERY_LIMIT = "delivery-limit"
CONSUMER_TIMEOUT = "consumer-timeout"
OVERFLOW = "overflow"
DEAD_LETTER_EXCHANGE = "dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY = "dead-letter-routing-key"

#: What is a whole number, and from where to where.  0 is not "no limit" for RabbitMQ: it is not taken at all.
NUMBERS = {
    MAX_LENGTH: range(1, COUNT_MAX + 1),
    MESSAGE_TTL: range(1, MS_MAX + 1),
    DELIVERY_LIMIT: range(ATTEMPTS_MAX),
    CONSUMER_TIMEOUT: range(ACK_TIMEOUT_MS_MIN, MS_MAX + 1),
}
#: RabbitMQ's name -> the number that a queue is stored with (broker.options.Overflow).
OVERFLOWS = {"drop-head": 0, "reject-publish": 1, "reject-publish-dlx": 3}
QUEUE_KEYS = (*NUMBERS, OVERFLOW, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY)


def check(key: str, value: object) -> None:
    """Is it a value for one of QUEUE_KEYS?  Raises UserError."""
    if key in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int) or value not in NUMBERS[key]:
            least, most = NUMBERS[key].start, NUMBERS[key].stop - 1
            raise UserError(f"{key} is {value!r}: a whole number from {least} to {most} is needed")
    elif key == OVERFLOW:
        if not isinstance(value, str) or value not in OVERFLOWS:
            raise UserError(f"{key} is {value!r}: one of {', '.join(OVERFLOWS)} is needed")
    elif key == DEAD_LETTER_EXCHANGE:
        if value != "":
            raise UserError(
                f'{key} is {value!r}: queues have no exchanges, so only "" is possible; {DEAD_LETTER_ROUTING_KEY} '
                f"names the queue that dead letters go to, and without it they go to NAME{DEAD_LETTER_SUFFIX}"
            )
    elif not (isinstance(value, str) and value and value.isprintable() and len(value.encode()) <= NAME_SIZE_MAX_BYTES):
        raise UserError(f"{key} is {value!r}: the name of a queue, of at most {NAME_SIZE_MAX_BYTES} bytes, is needed")


def options(queue: str, definition: Mapping[str, int | str]) -> dict[str, object]:
    """What a policy's definition says of this queue, as options are stored; nothing where it is about streams."""
    found: dict[str, object] = {}
    for key, option in (
        (MAX_LENGTH, "max_messages"),
        (MESSAGE_TTL, "message_ttl_ms"),
        (CONSUMER_TIMEOUT, "ack_timeout_ms"),
    ):
        if key in definition:
            found[option] = definition[key]
    if DELIVERY_LIMIT in definition:  # so often a message may come back, besides its first delivery
        found["attempts_max"] = int(definition[DELIVERY_LIMIT]) + 1
    if OVERFLOW in definition:
        found["overflow"] = OVERFLOWS[str(definition[OVERFLOW])]
    letters = definition.get(DEAD_LETTER_ROUTING_KEY)
    if letters is None and DEAD_LETTER_EXCHANGE not in definition:
        return found
    # A pattern that also matches dead-letter queues does not give them others, which would have others again.
    if queue != letters and not queue.endswith(DEAD_LETTER_SUFFIX):
        found["dead_letter"], found["dead_letter_queue"] = True, letters or ""
    return found
