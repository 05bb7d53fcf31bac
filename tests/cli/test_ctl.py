# SPDX-License-Identifier: Apache-2.0
"""`vibemq ctl`: the words, options, columns and exit codes of rabbitmqctl and rabbitmq-streams."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from peers.streams import connected
from running import ENVIRONMENT, broker, wait_until

from vibemq.access.passwords import verified
from vibemq.cli.ctl import COMMANDS, lines
from vibemq.client import connect
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key
from vibemq.storage.metadata import Metadata

#: What must be there, by the names of RabbitMQ's tools.
NEEDED = (
    *("status", "list_users", "add_user", "delete_user", "change_password", "clear_password"),
    *("list_vhosts", "add_vhost", "delete_vhost"),
    *("set_permissions", "clear_permissions", "list_permissions", "set_policy", "clear_policy", "list_policies"),
    *("close_connection", "list_stream_connections", "list_stream_publishers", "list_stream_consumers"),
    *("list_stream_groups", "list_stream_group_consumers"),
    *("add_super_stream", "delete_super_stream", "stream_status", "restart_stream", "list_stream_tracking"),
)


class Ctl:
    """Real processes, on one data directory."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, *words, stdin=""):
        command = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(self.folder), *words]
        return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, input=stdin)

    def said(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self, *words):
        return json.loads(self.said(*words, "--formatter", "json"))

    def refused(self, *words):
        done = self.run(*words)
        return done.returncode, done.stderr.removeprefix("Error:\n").rstrip("\n")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    # A path longer than a socket's address may be.
    folder = tmp_path_factory.mktemp("ctl") / ("long" * 30) / "data"
    with broker(folder) as running:
        yield Ctl(folder), running


@pytest.fixture
def ctl(served):
    return served[0]


@pytest.fixture
def running(served):
    return served[1]


@pytest.fixture
def offline(tmp_path):
    return Ctl(tmp_path / "data")


# ---- words and options ----


def test_every_command_is_there_and_in_the_help(ctl):
    shown = ctl.said("--help")
    assert [name for name in NEEDED if name not in COMMANDS or name not in shown] == []


def test_help_of_a_command_is_about_that_command(ctl):
    shown = ctl.said("list_queues", "--help")
    assert "Usage: vibemq ctl list_queues [<column> ...] [OPTIONS]" in shown.replace("python -m vibemq.cli", "vibemq")
    assert "messages_unacknowledged" in shown and "--vhost" in shown
    assert "add_super_stream" not in shown and "--partitions" not in shown
    assert "--partitions" in ctl.said("-q", "add_super_stream", "--help")


def test_a_vhost_that_is_not_there_is_named_with_a_hint(ctl):
    for words in (["list_queues"], ["stream_status", "x"], ["list_bindings"], ["list_stream_consumers"]):
        code, reason = ctl.refused(*words, "-p", "nowhere")
        assert (code, reason.splitlines()[0]) == (69, "Virtual host nowhere does not exist")
        assert "list_vhosts" in reason


def test_wrong_words_are_usage(ctl):
    for words in (["nonsense"], ["add_user", "one"], ["list_users", "more"], ["list_vhosts", "nonsense"]):
        code, said = ctl.refused(*words)
        assert code == 64 and said, words


def test_a_misspelt_command_is_answered_with_the_one_that_was_probably_meant(ctl):
    assert ctl.refused("list_queus") == (
        64,
        "Command 'list_queus' not found; did you mean list_queues? `vibemq ctl --help` lists all",
    )
    assert "did you mean" not in ctl.refused("x")[1]


def test_an_option_of_another_command_is_usage(ctl):
    code, reason = ctl.refused("list_permissions", "--partitions", "4")
    assert (code, reason) == (64, "Invalid options for this command: --partitions")


def test_a_timeout_is_a_time(ctl):
    for word in ("0", "-1", "nan", "soon"):
        done = ctl.run("ping", "-t", word)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert ctl.said("-q", "ping", "-t", "infinity") == ""


def test_options_stand_anywhere(ctl):
    for words in (["-q", "list_vhosts"], ["list_vhosts", "-q"], ["list_vhosts", "--quiet", "name"]):
        assert ctl.said(*words) == "name\n/\n"
    assert ctl.said("list_vhosts") == "Listing vhosts ...\nname\n/\n"
    assert ctl.said("-s", "list_vhosts") == ctl.said("-q", "--no-table-headers", "list_vhosts") == "/\n"
    assert ctl.said("-n", "rabbit@here", "list_vhosts", "-t", "9", "--formatter", "csv") == '"name"\n"/"\n'
    assert ctl.said("list_vhosts", "--formatter", "json") == '[\n{"name":"/"}\n]\n'
    boxes = ctl.said("-q", "list_vhosts", "--formatter", "pretty_table").splitlines()
    assert boxes == ["┌──────┐", "│ name │", "├──────┤", "│ /    │", "└──────┘"]


# ---- users, virtual hosts, permissions, policies: with and without a broker ----


@pytest.fixture(params=["with a broker", "without"])
def either(request, tmp_path):
    if request.param == "without":
        return Ctl(tmp_path / "data")
    return request.getfixturevalue("served")[0]


def test_users_come_change_and_go(either):
    assert either.said("add_user", "ann", "pw").startswith('Adding user "ann" ...\nDone. Don\'t forget to grant')
    assert either.refused("add_user", "ann", "pw") == (70, 'User "ann" already exists')
    assert either.said("change_password", "ann", "pw2") == 'Changing password for user "ann" ...\n'
    assert either.refused("change_password", "nobody", "x") == (67, 'User "nobody" does not exist')
    assert either.said("clear_password", "ann") == 'Clearing password for user "ann" ...\n'
    with contextlib.closing(Metadata(f"{either.folder}/meta.db")) as metadata:
        kept = metadata.find_user("ann")
        assert (kept.password_hash, kept.verifier) == ("", "")
    assert either.refused("clear_password", "nobody") == (67, 'User "nobody" does not exist')
    assert "guest" in either.refused("clear_password", "guest")[1]
    assert either.said("set_user_tags", "ann", "monitoring", "mine") == (
        'Setting tags for user "ann" to [monitoring, mine] ...\n'
    )
    meant = either.run("set_user_tags", "ann", "monitor", "mine", "monitoring")
    said = [line for line in meant.stderr.splitlines() if line.startswith("vibemq: ")]
    assert (meant.returncode, said) == (
        0,
        ["vibemq: the tag 'monitor' lets nobody use anything; is monitoring meant?"],
    )
    either.said("set_user_tags", "ann", "monitoring", "mine")
    assert "ann\t[monitoring, mine]\n" in either.said("list_users")
    assert {"user": "guest", "tags": ["administrator"]} in either.rows("list_users")
    assert either.said("delete_user", "ann") == 'Deleting user "ann" ...\n'
    assert either.refused("delete_user", "ann") == (67, 'User "ann" does not exist')


@pytest.mark.parametrize("user", ["lim", "guest"])
def test_limits_come_and_go(either, user):
    either.said("add_user", "lim", "pw")
    either.said("set_user_limits", user, '{"max-queues": 9000, "max-connections": 900}')
    either.said("set_user_limits", user, '{"max-connections": -1, "publish-rate": 700}')
    held = {"user": user, "limits": '{"max-queues":9000,"publish-rate":700}'}
    assert either.rows("list_user_limits", "--user", user) == [held]
    assert held in either.rows("list_user_limits")
    either.said("clear_user_limits", user, "publish-rate")
    assert either.rows("list_user_limits", "--user", user) == [{"user": user, "limits": '{"max-queues":9000}'}]
    either.said("clear_user_limits", user, "all")
    assert either.rows("list_user_limits", "--user", user) == []
    usage = "Usage: vibemq ctl list_user_limits [--user USER]"
    assert either.refused("list_user_limits", user) == (64, f"too many arguments.\n{usage}")
    known = "there are max-connections, max-queues, max-streams, publish-rate"
    misspelt = either.refused("set_user_limits", user, '{"max-conections": 20}')
    assert misspelt == (69, f"there is no limit 'max-conections'; {known}")
    assert either.refused("set_user_limits", "nobody", "{}") == (67, 'User "nobody" does not exist')
    either.said("delete_user", "lim")


def test_vhosts_permissions_and_policies_come_change_and_go(either):
    assert either.said("add_vhost", "v") == 'Adding vhost "v" ...\n'
    either.said("add_user", "bob", "pw")
    assert either.said("set_permissions", "-p", "v", "bob", "^a", ".*", "") == (
        'Setting permissions for user "bob" in vhost "v" ...\n'
    )
    bob = {"user": "bob", "configure": "^a", "write": ".*", "read": ""}
    assert bob in either.rows("list_permissions", "-p", "v")
    assert either.said("-q", "list_user_permissions", "bob") == "vhost\tconfigure\twrite\tread\nv\t^a\t.*\t\n"
    assert either.refused("set_permissions", "-p", "no", "bob", "", "", "") == (69, "Virtual host no does not exist")
    assert either.refused("set_permissions", "nobody", "", "", "") == (67, "User nobody does not exist")
    for _ in range(2):
        assert either.said("-q", "clear_permissions", "-p", "v", "bob") == ""
    assert bob not in either.rows("list_permissions", "--vhost", "v")
    definition = '{"max-age":"1h"}'
    either.said("set_policy", "-p", "v", "p", "^o", definition, "--priority", "2", "--apply-to", "queues")
    assert either.rows("list_policies", "-p", "v") == [
        {"vhost": "v", "name": "p", "pattern": "^o", "apply-to": "queues", "definition": definition, "priority": 2}
    ]
    assert either.said("clear_policy", "-p", "v", "p") == 'Clearing policy "p" on vhost "v" ...\n'
    assert either.refused("clear_policy", "-p", "v", "p") == (69, "Parameter does not exist")
    assert either.refused("set_policy", "p", "^o", "no json")[0] == 69
    either.said("delete_user", "bob")
    assert either.said("delete_vhost", "v") == 'Deleting vhost "v" ...\n'
    assert either.refused("delete_vhost", "v") == (65, "Virtual host 'v' does not exist")


def test_what_was_set_without_a_broker_holds_once_it_runs(offline):
    offline.said("add_user", "carl", "pw")
    offline.said("add_vhost", "v")
    offline.said("set_permissions", "-p", "v", "carl", ".*", ".*", ".*")
    with broker(offline.folder) as running, connected(running, virtual_host="v", data=b"\0carl\0pw") as peer:
        peer.create("orders")
        assert offline.rows("list_queues", "-p", "v") == [{"name": "orders", "messages": 0}]


def test_what_needs_a_broker_says_so_without_one(offline):
    offline.said("add_user", "dora", "pw")
    for words in (["status"], ["list_stream_connections"], ["restart_stream", "s"], ["close_connection", "c", "bye"]):
        code, said = offline.refused(*words)
        assert code == 69 and "no broker serves from" in said, words


def test_a_password_need_not_stand_on_the_line(offline):
    assert offline.run("add_user", "ann").returncode == 64
    assert not offline.folder.exists()
    assert offline.run("add_user", "ann", stdin="secret of ann\n").returncode == 0
    assert offline.run("change_password", "ann", stdin="").returncode == 64
    assert offline.run("change_password", "ann", stdin="another\n").returncode == 0
    record = Metadata(str(offline.folder / "meta.db")).find_user("ann")
    assert verified(record.password_hash, "another")


def test_a_slip_in_the_directory_makes_nothing(offline):
    for words in (["delete_user", "x"], ["change_password", "x", "y"], ["set_user_tags", "x"], ["clear_policy", "x"]):
        code, reason = offline.refused(*words)
        assert code == 69 and "there is no meta.db in it" in reason, words
    assert not offline.folder.exists()


def test_what_no_terminal_prints_is_shown_escaped():
    rows = [{"tags": ["\ud800", "\x1b[2J"]}]
    assert list(lines(rows, ["tags"], "table", False)) == ["[\\ud800, \\x1b[2J]"]


def test_the_socket_is_for_its_owner_only(ctl):
    assert os.stat(ctl.folder / "ctl.sock").st_mode & 0o777 == 0o600


# ---- streams, with a broker ----


def test_stored_offsets_are_listed_with_their_lag_and_publishers_with_their_last_ids(ctl, running):
    with connected(running) as peer:
        peer.create("tracked")
        peer.declare("tracked", reference="writer")
        peer.publish([(number, b"x") for number in range(1, 11)])
        peer.confirmed(10)
        for reference, offset in (("behind", 3), ("done", 9)):
            peer.send(codec.encode_request(Key.STORE_OFFSET, reference=reference, stream="tracked", offset=offset))
            assert peer.ask(Key.QUERY_OFFSET, reference=reference, stream="tracked").offset == offset
        rows = ctl.rows("list_stream_tracking", "tracked")
        assert [(row["type"], row["name"], row["tracking_value"], row["lag"]) for row in rows] == [
            ("offset", "behind", 3, 6),
            ("offset", "done", 9, 0),
            ("writer", "writer", 10, None),
        ]


def test_connections_publishers_and_consumers_have_rabbitmqs_columns(ctl, running):
    with connected(running) as peer:
        peer.create("seen")
        peer.declare("seen", 3, reference="ref")
        peer.publish([(1, b"x"), (2, b"y")], 3)
        peer.confirmed(2, 3)
        peer.subscribe("seen", 5, credit=9, properties={"name": "app"})
        peer.chunk(5)
        name = " -> ".join(f"{h}:{p}" for h, p in (peer.socket.getsockname(), peer.socket.getpeername()))
        assert ctl.said("list_stream_connections").splitlines()[0] == "Listing stream connections ..."
        assert {"conn_name": name} in ctl.rows("list_stream_connections")
        table = ("--formatter", "table", "conn_name,pid,client_properties")
        assert (
            f'{name}\t{name}\t[{{"product","raw"}}]' in ctl.said("-q", "list_stream_connections", *table).splitlines()
        )
        columns = ("conn_name", "user", "vhost", "subscriptions", "ssl")
        assert [name, "guest", "/", 1, False] in [
            list(row.values()) for row in ctl.rows("list_stream_connections", *columns)
        ]
        assert ctl.rows("list_stream_publishers") == [
            {"connection_pid": name, "publisher_id": 3, "stream": "seen", "reference": "ref",
             "messages_published": 2, "messages_confirmed": 2, "messages_errored": 0}
        ]  # fmt: skip
        assert (
            ctl.said("-s", "list_stream_consumers", "stream", "subscription_id", "--formatter", "table") == "seen\t5\n"
        )
        (row,) = ctl.rows("list_stream_consumers")
        assert list(row)[:7] == ["connection_pid", "subscription_id", "stream", "messages_consumed", "offset",
                                 "offset_lag", "credits"]  # fmt: skip
        assert (row["messages_consumed"], row["offset_lag"], row["properties"]) == (2, 0, {"name": "app"})
        (status,) = ctl.rows("stream_status", "seen")
        assert status == {"role": "writer", "node": "rabbit@localhost", "offset": 1, "committed_offset": 1,
                          "first_offset": 0, "readers": 1, "segments": 1}  # fmt: skip
        assert ctl.said("restart_stream", "seen") == "Restarting stream seen in vhost / ...\n"
        assert peer.until(Key.METADATA_UPDATE)[1].stream == "seen"
        peer.declare("seen", 3)
        assert ctl.said("close_connection", name, "enough now").endswith("reason: enough now...\n")
        assert peer.rest() == b""
    assert ctl.refused("close_connection", name, "again") == (69, f"Connection {name} does not exist")
    assert ctl.said("delete_queue", "seen").endswith("deleted with 2 ready messages\n")
    for command in ("stream_status", "restart_stream", "delete_queue", "list_stream_tracking"):
        code, reason = ctl.refused(command, "seen")
        assert (code, reason.splitlines()[0]) == (69, "There is no stream or queue seen in virtual host /")
        assert "list_queues" in reason


def test_super_streams_come_and_go(ctl, running):
    assert ctl.said("add_super_stream", "inv", "--partitions", "2", "--max-age", "1h") == (
        "Adding a super stream ...\nSuper stream inv has been created\n"
    )
    assert ctl.refused("add_super_stream", "inv", "--partitions", "2") == (70, "there is already an exchange named inv")
    rows = ctl.rows("list_queues", "name", "arguments")
    assert {"name": "inv-1", "arguments": {"x-queue-type": "stream", "x-max-age": "1h"}} in rows
    assert ctl.said("-q", "add_super_stream", "reg", "--binding-keys", "a,b") == ""
    with connected(running) as peer:
        assert peer.ask(Key.PARTITIONS, super_stream="reg").streams == ["reg-a", "reg-b"]
    for name in ("inv", "reg"):
        assert ctl.said("delete_super_stream", name).endswith(f"Super stream {name} has been deleted\n")
    assert ctl.refused("delete_super_stream", "inv")[0] == 70


def test_an_option_without_a_value_is_not_taken_for_one_that_is_missing(ctl):
    for option, value in (("--partitions", "0"), ("--binding-keys", ""), ("--max-age", ""), ("--max-length-bytes", "")):
        code, _ = ctl.refused("add_super_stream", "empty", option, value)
        assert code == 70, option
    assert "empty" not in ctl.said("list_exchanges")


def test_groups_and_their_members_are_listed(ctl, running):
    sac = {"single-active-consumer": "true", "name": "app"}
    with connected(running) as first, connected(running) as second:
        first.create("grouped")
        first.subscribe("grouped", 1, properties=sac)
        update = first.expect(Key.CONSUMER_UPDATE)
        first.send(codec.encode_response(Key.CONSUMER_UPDATE, update.correlation_id, Code.OK, offset_type=0))
        second.subscribe("grouped", 2, properties=sac)
        assert ctl.rows("list_stream_groups") == [
            {"stream": "grouped", "reference": "app", "partition_index": -1, "consumers": 2}
        ]
        members = ctl.rows("list_stream_group_consumers", "--stream", "grouped", "--reference", "app")
        assert [list(member) for member in members] == [["subscription_id", "connection_name", "state"]] * 2
        assert [(member["subscription_id"], member["state"]) for member in members] == [(1, "active"), (2, "waiting")]
    assert ctl.refused("list_stream_group_consumers", "--stream", "grouped", "--reference", "no")[0] == 69
    assert ctl.refused("list_stream_group_consumers")[0] == 64


def test_queues_are_listed_with_what_waits_and_what_is_in_flight(ctl, running):
    with connect(f"vibemq://{running.host}:{running.native_port}") as client:
        for number in range(3):
            client.publish("lines", number)
        with client.consume("lines", prefetch=2) as consumer:
            next(consumer).ack()
            next(consumer)
            columns = ("name", "messages", "messages_ready", "messages_unacknowledged", "consumers")
            expected = dict(zip(columns, ("lines", 2, 0, 2, 1), strict=True))
            wait_until(lambda: expected in ctl.rows("list_queues", *columns), "two in flight")
        wait_until(
            lambda: {"name": "lines", "messages_ready": 2} in ctl.rows("list_queues", "name,messages_ready"), "2"
        )
    assert "deleted with 2 ready messages" in ctl.said("delete_queue", "lines")


def test_definitions_go_to_a_file_and_back(ctl, running, tmp_path):
    with connect(f"vibemq://{running.host}:{running.native_port}") as client:
        client.create_queue("left")
    ctl.said("add_vhost", "exported")
    file = str(tmp_path / "definitions.json")
    done = ctl.run("export_definitions", file)
    assert (done.returncode, "left out" in done.stderr) == (0, False), done.stderr
    shown = json.loads(ctl.said("export_definitions", "-"))
    assert "exported" in [vhost["name"] for vhost in shown["vhosts"]]
    assert "left" in [queue["name"] for queue in shown["queues"]]
    ctl.said("delete_vhost", "exported")
    ctl.said("delete_queue", "left")
    ctl.said("import_definitions", file)
    assert {"name": "exported"} in ctl.rows("list_vhosts")
    assert ctl.run("import_definitions", stdin="nonsense").returncode == 65
    assert ctl.refused("export_definitions", str(tmp_path / "none" / "file"))[0] == 65
    ctl.said("delete_vhost", "exported")
    ctl.said("delete_queue", "left")


def test_status_says_what_runs(ctl, running):
    shown = json.loads(ctl.said("status", "--formatter", "json"))
    assert shown["pid"] == running.process.pid
    assert shown["data_directory"] == str(ctl.folder)
    assert [worker["pid"] for worker in shown["workers"]] == running.worker_pids()
    told = ctl.said("status")
    assert f"pid: {running.process.pid}\n" in told
    assert "\nuptime (seconds): " in told and "\nmemory used (bytes): " in told
    assert ctl.said("ping").endswith("Ping succeeded\n")


def test_options_of_a_queue_are_altered(ctl, running):
    with connect(f"vibemq://{running.host}:{running.native_port}") as client:
        client.create_queue("altered", max_messages=1)
        ctl.said("alter_queue", "altered", '{"max_messages": 5, "message_ttl_ms": 60000}')
        options = client.queue_info("altered").options
        assert (options.max_messages, options.message_ttl_ms) == (5, 60_000)
        (row,) = [
            row for row in ctl.rows("list_queues", "name", "messages_dropped", "options") if row["name"] == "altered"
        ]
        assert (row["messages_dropped"], row["options"]["max_messages"]) == (0, 5)
        assert "cannot change while queue altered lives" in ctl.refused("alter_queue", "altered", '{"mode": 3}')[1]
        assert "no JSON object" in ctl.refused("alter_queue", "altered", "5")[1]
        client.delete_queue("altered")


def test_a_policy_changes_a_live_queue_and_clearing_it_gives_back_its_own_options(ctl, running):
    with connect(f"vibemq://{running.host}:{running.native_port}") as client:
        client.create_queue("ruled", max_messages=10)
        for number in range(4):
            client.publish("ruled", number)

        def row():
            columns = ("name", "messages_ready", "messages_dropped", "options", "policy")
            return next(row for row in ctl.rows("list_queues", *columns) if row["name"] == "ruled")

        ctl.said("set_policy", "short", "^ruled$", '{"max-length": 1, "overflow": "drop-head"}')
        wait_until(lambda: (row()["messages_ready"], row()["messages_dropped"]) == (1, 3), "dropped and counted")
        assert (row()["policy"], row()["options"]["max_messages"]) == ("short", 1)
        ctl.said("clear_policy", "short")
        assert row()["options"]["max_messages"] == 10

        def grows():
            client.publish("ruled", "more")
            return row()["messages_ready"] > 1

        wait_until(grows, "its worker has the change")
        code, said = ctl.refused("set_policy", "short", "^ruled$", '{"lazy": true}')
        assert (code, "'lazy' cannot be set" in said, "max-length" in said) == (69, True, True)
        client.delete_queue("ruled")
