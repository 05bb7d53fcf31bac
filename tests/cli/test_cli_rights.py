# SPDX-License-Identifier: Apache-2.0
"""``vibemq queues`` and ``vibemq consume`` for a user who may do some things and not others."""

import itertools
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from running import broker

from vibemq.cli.commands import main

PASSWORD = "lovelace 1843"
users = (f"user-{number}" for number in itertools.count())


def invoke(*arguments):
    return CliRunner().invoke(main, arguments, input=PASSWORD + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cli-rights") / "data")


@pytest.fixture(scope="module")
def url(folder) -> Iterator[str]:
    assert invoke("users", "add", "root", "--password-stdin", "--data-dir", folder).exit_code == 0
    with broker(folder, workers=1) as running:
        yield f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def run(url):
    return lambda user, *arguments: invoke(*arguments, "--url", url, "--user", user, "--password-stdin")


@pytest.fixture
def user(folder):
    name = next(users)
    assert invoke("users", "add", name, "--password-stdin", "--data-dir", folder).exit_code == 0
    return name


@pytest.fixture
def granted(folder, user):
    """A user who may do these operations with the queues that begin with its name."""

    def grant(*operations):
        assert invoke("users", "grant", user, f"{user}*", *operations, "--data-dir", folder).exit_code == 0

    return grant


def messages(run, queue):
    return json.loads(run("root", "queues", "info", queue, "--json").stdout)["messages"]


def test_creating_needs_only_the_permission_to_create(run, user, granted):
    granted("CreateQueue")
    queue = f"{user}-q"
    made = run(user, "queues", "create", queue, "--max-messages", "7")
    assert (made.stdout, made.stderr) == (f"queue {queue} created\n", "")
    again = run(user, "queues", "create", queue, "--mode", "priority_based")
    assert (again.exit_code, again.stdout) == (0, f"queue {queue} was there already\n")
    assert "needs GetQueueInfo" in again.stderr
    override = run(user, "queues", "create", queue, "--on-conflict", "override")
    assert override.exit_code == 1
    assert "GetQueueInfo" in override.stderr


def test_purging_and_deleting_need_only_their_own_permissions(run, user, granted):
    queue = f"{user}-q"
    run("root", "publish", queue, "1")
    granted("PurgeQueue")
    assert run(user, "queues", "purge", queue, "--yes").stdout == f"queue {queue} purged\n"
    assert messages(run, queue) == 0
    granted("DeleteQueue")
    assert run(user, "queues", "delete", queue, "--yes").stdout == f"queue {queue} deleted\n"
    assert f"there is no queue {queue}" in run(user, "queues", "delete", queue, "--yes").stderr
    assert run("root", "queues", "info", queue).exit_code == 1


@pytest.mark.parametrize(
    ("command", "operation"), [("create", "CreateQueue"), ("purge", "PurgeQueue"), ("delete", "DeleteQueue")]
)
@pytest.mark.parametrize("other", [None, "Publish"], ids=["no permission", "another permission"])
def test_a_refusal_names_the_operations_own_permission(run, user, granted, command, operation, other):
    if other is not None:
        granted(other)
    queue = f"{user}-q"
    run("root", "publish", queue, "1")
    refused = run(user, "queues", command, queue, *([] if command == "create" else ["--yes"]))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"User '{user}' lacks the permission {operation} for queue '{queue}'." in refused.stderr
    assert messages(run, queue) == 1


def test_who_may_see_nothing_is_not_told_that_there_is_nothing(run, user):
    run("root", "publish", f"{user}-q", "1")
    listed = run(user, "queues", "list")
    assert listed.stdout.startswith(f"there is no queue for which user {user} has any permission; ")
    assert run(user, "queues", "list", "--json").stdout == "[]\n"


def test_a_consumer_who_may_only_subscribe_is_told_that_there_is_no_queue(run, user, granted):
    granted("Subscribe")
    assert "does not exist" in run(user, "consume", f"{user}-q", "--drain").stderr
    assert run(user, "consume", f"{user}-q", "--drain", "--create").stderr == ""
    assert run(user, "consume", f"{user}-q", "--drain").stderr == ""
    refused = run(user, "consume", "of-another", "--drain")
    assert "lacks the permission Subscribe" in refused.stderr
