# SPDX-License-Identifier: Apache-2.0
"""Python clients of a broker: `connect` and `aconnect` for queues with acknowledgement, `streams` for data in bulk.

>>> import vibemq.client
>>> with vibemq.client.connect("vibemq://localhost:2925") as client:
...     id = client.publish("docs", {"number": 1})

Names are loaded when they are first used, so that importing this package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vibemq.client._engine import State
    from vibemq.client._moving import Moved
    from vibemq.client._native import Message
    from vibemq.client.aio import AsyncClient, aconnect
    from vibemq.client.consuming import AsyncConsumer, AsyncSubscription, Consumer, Subscription
    from vibemq.client.publishing import AsyncPublisher, Publisher, Refused, Summary
    from vibemq.client.queues import Difference, OnConflict, Permission, QueueDeclaration, QueueInfo, Severity, User
    from vibemq.client.settings import Settings
    from vibemq.client.sync import Client, connect
    from vibemq.protocols.native.options import QueueOptions
    from vibemq.protocols.native.spec import DeliveryMode, OverflowStrategy, Priority, QueueOperation

_WHERE = {
    "vibemq.client._engine": ("State",),
    "vibemq.client._moving": ("Moved",),
    "vibemq.client._native": ("Message",),
    "vibemq.client.aio": ("AsyncClient", "aconnect"),
    "vibemq.client.consuming": ("AsyncConsumer", "AsyncSubscription", "Consumer", "Subscription"),
    "vibemq.client.publishing": ("AsyncPublisher", "Publisher", "Refused", "Summary"),
    "vibemq.client.queues": (
        *("Difference", "OnConflict", "Permission", "QueueDeclaration", "QueueInfo", "Severity", "User"),
    ),
    "vibemq.client.settings": ("Settings",),
    "vibemq.client.sync": ("Client", "connect"),
    "vibemq.protocols.native.options": ("QueueOptions",),
    "vibemq.protocols.native.spec": ("DeliveryMode", "OverflowStrategy", "Priority", "QueueOperation"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [  # noqa: RUF022 - as they are met
    "connect", "Client", "Publisher", "Consumer", "Subscription",
    "aconnect", "AsyncClient", "AsyncPublisher", "AsyncConsumer", "AsyncSubscription",
    "Message", "Summary", "Refused", "Moved", "Settings", "State",
    "QueueOptions", "QueueInfo", "QueueDeclaration", "OnConflict", "Difference", "Severity",
    "DeliveryMode", "OverflowStrategy", "Priority", "QueueOperation", "User", "Permission",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
