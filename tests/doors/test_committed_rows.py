# SPDX-License-Identifier: Apache-2.0
"""What a transaction has committed into a queue comes to the consumers of every door as any message does."""

from __future__ import annotations

import pytest
from door_clients import DOORS, TAKERS, native_client
from running import Running
from staging import amqp, staged

from vibemq.client.streams import StreamsConnection


@pytest.mark.parametrize("door", TAKERS)
def test_committed_rows_come_out_of_a_queue_at_every_door(served: Running, door: str) -> None:
    queue = f"committed-{door}"
    with native_client(served) as native:
        native.create_queue(queue)
    with StreamsConnection.connect(served.host, served.port) as client:
        part = staged(client, queue, 0, (queue, [amqp(b'"%d"' % i) for i in range(3)]))
        assert client.commit_transactions(queue, 0, "run", [queue], [part]).rows == 3
    assert [str(message.body).strip("b\"'") for message in DOORS[door].consume(served, queue, 3)] == ["0", "1", "2"]
