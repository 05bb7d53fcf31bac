# SPDX-License-Identifier: Apache-2.0
"""``vibemq streams`` against a broker of the protocol that lacks our own commands."""

import json

from click.testing import CliRunner
from peers.streams_server import MemoryServer, chunk_of

from vibemq.cli.commands import main


def test_another_broker_is_used_as_far_as_it_goes():
    with MemoryServer() as server:
        server.streams["there"] = [chunk_of(0, [b"a", b"b"])]
        server.offsets["me", "there"] = 0
        where = ("--url", f"rabbitmq-stream://127.0.0.1:{server.port}")

        def streams(*arguments):
            return CliRunner().invoke(main, ["streams", *arguments, *where], prog_name="vibemq")

        assert streams("create", "made").stdout == "stream made created\n"
        seen = json.loads(streams("info", "there", "--json").stdout)
        assert (seen["first_offset"], seen["last_offset"], seen["size_bytes"], seen["kind"]) == (0, 1, None, None)
        assert streams("tail", "there", "--from", "first").stdout == "a\nb\n"
        assert json.loads(streams("offsets", "there", "me", "--json").stdout)[0]["lag"] == 1
        assert streams("delete", "made", "--yes").exit_code == 0
        for command in (("list",), ("offsets", "there")):
            refused = streams(*command)
            assert refused.exit_code == 1
            assert "is a command of VibeMQ's, and this broker (memory" in refused.stderr
            assert "hint: Ask it for what you know by name" in refused.stderr
