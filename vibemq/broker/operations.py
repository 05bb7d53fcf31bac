# SPDX-License-Identifier: Apache-2.0
"""What a permission may allow: asked for by doors, given and stored by the admin side."""

import enum


class Operation(enum.IntEnum):
    """What one may do with a queue.  The numbers are stored, the names are on the wire."""

    Publish = 0
    Subscribe = 1
    CreateQueue = 2
    DeleteQueue = 3
    PurgeQueue = 4
    GetQueueInfo = 5
    ListQueues = 6
