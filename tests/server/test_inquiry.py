# SPDX-License-Identifier: Apache-2.0
"""A worker's end of the socket for questions: what is no question never disturbs the loop."""

import json
import logging
import os
import socket
from types import SimpleNamespace

import pytest

from vibemq.server.inquiry import Inquiries


@pytest.fixture
def ends():
    made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    yield made
    for end in made:
        end.close()


@pytest.mark.parametrize("unread", [b"", b"an answer"])
def test_a_socket_that_nobody_holds_any_more_is_listened_to_no_longer(ends, caplog, unread):
    ours, theirs = ends
    if unread:
        theirs.send(unread)
    disregarded = []
    inquiries = Inquiries(theirs, SimpleNamespace(disregard=disregarded.append), SimpleNamespace())
    ours.close()  # supervisor and admin process were killed
    with caplog.at_level(logging.WARNING):
        inquiries.answer_one()
    assert disregarded == [theirs.fileno()]
    assert not caplog.records


def test_what_is_no_question_is_answered_with_an_error(ends):
    ours, theirs = ends
    inquiries = Inquiries(theirs, SimpleNamespace(connections={}), SimpleNamespace())
    for question in (b"nonsense", b'{"id": 3, "ask": "nothing"}'):
        ours.send(question)
        inquiries.answer_one()
        packet, fds, _, _ = socket.recv_fds(ours, 4096, 1)
        for fd in fds:
            os.close(fd)
        assert "error" in json.loads(packet)
