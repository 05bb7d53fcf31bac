# SPDX-License-Identifier: Apache-2.0
"""The README's examples run as they are printed, and what it says of options and limits holds."""

import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from chromium import chromium, executable
from running import ENVIRONMENT, broker

import vibemq.spark
from vibemq.admin.bodies import BODIES_BYTES_MAX, BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX
from vibemq.admin.http import CONNECTIONS_MAX
from vibemq.broker.options import ATTEMPTS_WITH_DEAD_LETTERS
from vibemq.client.streams import StreamsConnection
from vibemq.config import OPTIONS, Config

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)
SHELL = [textwrap.dedent(block) for block in re.findall(r"```sh\n(.*?)```", README, re.S)]
FIVE_LINES, QUEUES, RSTREAM, BULK, SPARK = range(5)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("data")) as running:
        yield running


def example(number, running, folder):
    code = EXAMPLES[number].replace("5552", str(running.port)).replace("2925", str(running.native_port))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, cwd=folder, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def shell(block, folder, **environment):
    """A block as printed, with `vibemq` of these sources; gives what it prints. Each line must succeed."""
    script = f'set -eu\nvibemq() {{ "{sys.executable}" -m vibemq.cli "$@"; }}\n{block}'
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=ENVIRONMENT | environment, cwd=folder, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def the_block(text):
    (found,) = [block for block in SHELL if text in block]
    return found


def test_the_first_message_is_seen_on_the_page(tmp_path):
    program = executable()
    if program is None:
        pytest.skip("Chromium is not installed")
    serve, publish = the_block("vibemq publish hello").replace(".venv/bin/", "").splitlines()
    user, password, queue, look = re.search(
        r"log in as `(\w+)` with password `(\w+)`, click the queue `(\w+)`, then \*\*(\w+)\*\*", README
    ).groups()
    with broker(tmp_path / "data", *shlex.split(serve, comments=True)[2:]) as running:
        shell(publish, tmp_path, VIBEMQ_URL=f"vibemq://127.0.0.1:{running.native_port}")
        with chromium(program) as browser, browser.page() as page:
            page.open(f"http://localhost:{running.admin_port}/")
            page.see("button", "Log in")
            page.fill("input[name=user]", user)
            page.fill("input[name=password]", password)
            page.press("Enter")
            page.click("main a", queue)
            page.click("form button", look)
            assert "#0" in page.see(".messages li", '{ "number": 1 }')
            assert page.problems == []


def test_five_lines_publish_and_consume(running, tmp_path):
    code = EXAMPLES[FIVE_LINES]
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    done = example(FIVE_LINES, running, tmp_path)
    assert (done.stdout, done.stderr) == ("{'number': 1}\n", "")


def test_a_queue_retries_and_dead_letters(running, tmp_path):
    done = example(QUEUES, running, tmp_path)
    assert (done.stdout, done.stderr) == ("0 left, 1 in mails.dlq\n", "")


def test_queues_from_a_shell(running, tmp_path):
    printed = shell(the_block("vibemq queues create"), tmp_path, VIBEMQ_URL=f"vibemq://127.0.0.1:{running.native_port}")
    assert '"payload": {"number": 1}' in printed and '{"number": 2}\n{"number": 3}\n' in printed
    assert printed.endswith("queue jobs deleted\n")


def test_streams_from_a_shell(running, tmp_path):
    url = f"vibemq://127.0.0.1:{running.native_port}/?streamsPort={running.port}"
    printed = shell(the_block("vibemq streams create"), tmp_path, VIBEMQ_URL=url)
    assert '\n{"page": "/"}\n{"page": "/about"}\none\ntwo\n' in printed
    assert '{"offset": 2, ' in printed and '"body": "one"}' in printed
    assert printed.endswith("no consumer has stored an offset of stream clicks\nstream clicks deleted\n")


def test_users_and_permissions_from_a_shell(tmp_path):
    block = re.sub(
        r"users add (\w+).*", r"users add \1 --password-stdin <<< 'lovelace 1843'", the_block("users add admin")
    )
    block = re.sub(r"--user shop .*", "--user shop --password-stdin <<< 'lovelace 1843'", block)
    assert block.count("--password-stdin") == 3
    with broker(tmp_path / "data") as running:
        url = f"vibemq://127.0.0.1:{running.native_port}"
        printed = shell(block, tmp_path, VIBEMQ_URL=url, VIBEMQ_SERVER_DATA_DIR=str(tmp_path / "data"))
        assert printed.endswith("published 1 message to queue orders.new\n")
        refused = re.sub("publish orders.new", "publish bills", block.splitlines()[-1])
        with pytest.raises(AssertionError, match=r"not allowed|may not|NOT_AUTHORIZED|authorized"):
            shell(refused, tmp_path, VIBEMQ_URL=url)


def test_permissions_of_the_streams_door_from_a_shell(tmp_path):
    block = the_block("vibemq users add carol").replace("add carol", "add carol --password-stdin <<< 'lovelace 1843'")
    with broker(tmp_path / "data"):
        printed = shell(block, tmp_path, VIBEMQ_SERVER_DATA_DIR=str(tmp_path / "data"))
        limits = shell(the_block("set_user_limits"), tmp_path, VIBEMQ_SERVER_DATA_DIR=str(tmp_path / "data"))
    assert limits.splitlines()[-1] == 'carol\t{"max-connections":20,"publish-rate":5000}'
    assert re.search(r"carol\s+\^sales-\s+\^sales-\s+\.\*", printed)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_it_is_looked_at_and_managed_from_a_shell(tmp_path):
    with broker(tmp_path / "data") as running:
        block = the_block("vibemq ctl status").replace("localhost:2926", f"127.0.0.1:{running.admin_port}")
        block = block.replace("curl ", "curl -sS --fail ")
        printed = shell(block, tmp_path, VIBEMQ_SERVER_DATA_DIR=str(tmp_path / "data"))
    assert f"pid: {running.process.pid}\n" in printed
    assert '"rabbitmq_version"' in printed and "vibemq_build_info" in printed
    assert (tmp_path / "setup.json").stat().st_size > 0


def test_a_policy_for_queues_is_set_and_cleared(tmp_path):
    with broker(tmp_path / "data"):
        block = the_block("vibemq ctl set_policy")
        printed = shell(block, tmp_path, VIBEMQ_SERVER_DATA_DIR=str(tmp_path / "data"))
    assert "short" in printed


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_certificate_to_try_tls_with_is_one(tmp_path):
    made, _, serve = the_block("openssl req").partition("vibemq serve ")
    shell(made, tmp_path)
    flags = [word.replace("=", f"={tmp_path}/", 1) if "=" in word else word for word in shlex.split(serve)]
    with broker(tmp_path / "data", *flags, "--set", "streams.tls_port=0", "--set", "signalr.tls_port=0") as running:
        context = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        StreamsConnection.connect("localhost", running.tls_port, tls=context).close()


def test_a_broker_with_an_object_store_is_itself_again_without_its_data(tmp_path):
    pytest.importorskip("obstore", reason="needs the extra remote")
    line = the_block("--durability remote").replace("file:///tmp/bucket", f"file://{tmp_path}/bucket")
    flags = shlex.split(line, comments=True)[2:]
    with broker(tmp_path / "data", *flags) as running:
        shell("vibemq publish orders 1", tmp_path, VIBEMQ_URL=f"vibemq://127.0.0.1:{running.native_port}")
    shutil.rmtree(tmp_path / "data")
    with broker(tmp_path / "data", *flags) as running:
        url = f"vibemq://127.0.0.1:{running.native_port}"
        assert shell("vibemq consume orders --count 1", tmp_path, VIBEMQ_URL=url).strip() == "1"


def test_every_example_for_a_shell_is_run_here_or_needs_a_machine_of_its_own():
    run = ["vibemq publish hello", "queues create", "streams create", "users add admin", "users add carol"]
    run += ["ctl status", "openssl", "log list"]
    run += ["ctl set_user_limits", "ctl set_policy", "vibemq ingest", "--durability remote"]
    its_own = ["make run", "pip install", "useradd"]
    assert [block for block in SHELL if not any(words in block for words in run + its_own)] == []
    assert len(SHELL) == len(run) + len(its_own), "a block for each"


def test_a_queues_files_are_found_and_printed(tmp_path):
    with broker(tmp_path / "data") as running:
        shell("vibemq publish orders 1", tmp_path, VIBEMQ_URL=f"vibemq://127.0.0.1:{running.native_port}")
        (directory,) = (tmp_path / "data" / "streams").iterdir()
        block = the_block("vibemq log list").replace("5f2c09d4a1b37e68", directory.name)
        printed = shell(block.replace("/var/lib/vibemq", str(tmp_path / "data")), tmp_path).splitlines()
    assert printed[0].startswith("queue") and printed[0].endswith(f" orders                    {directory}")
    assert printed[1].endswith(": intact") and printed[2].startswith("ledger: magic")


def test_rstream_publishes_and_consumes(running, tmp_path):
    done = example(RSTREAM, running, tmp_path)
    assert done.stdout.splitlines()[-10:] == [f"{n} order {n}" for n in range(10)]
    assert done.stderr == ""


def test_bulk_client_publishes_and_reads(running, tmp_path):
    assert example(BULK, running, tmp_path).stdout == "100000 messages read back\n"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_examples_of_sparks_own_readme_run(running, tmp_path):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    example(RSTREAM, running, tmp_path)
    readme = (Path(vibemq.spark.__file__).parent / "README.md").read_text()
    reads, *_, writes = re.findall(r"```python\n(.*?)```", readme, re.S)
    source = 'spark.read.format("vibemq").option("endpoints", "localhost:5552").option("stream", "copies")'
    code = f"{reads}\nprint(orders.isStreaming, orders.columns)\n{writes}\nprint({source}.load().count() % 10)\n"
    code = code.replace("5552", str(running.port))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "True ['value', 'offset', 'timestamp', 'stream']\n0\n"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_what_rstream_published(running, tmp_path):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    example(RSTREAM, running, tmp_path)
    orders = int(example(SPARK, running, tmp_path).stdout.split()[0])
    assert orders in (10, 20, 30)  # ten for each of these tests that ran before


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_jobs_without_code_run_as_printed(running, tmp_path):
    """The last one goes on until it is stopped, which the tests of the command show."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    with StreamsConnection.connect("127.0.0.1", running.port) as connection:
        for name in ("orders", "orders.upper"):
            connection.create(name, exist_ok=True)
    block, until_stopped = the_block("vibemq ingest"), "--trigger '10 seconds' --metrics-port 9464"
    assert until_stopped in block
    printed = shell(
        block.replace(until_stopped, "--available-now"),
        tmp_path,
        VIBEMQ_URL=f"rabbitmq-stream://127.0.0.1:{running.port}",
    )
    assert "FAILED" not in printed and "read locally" in printed
    assert (tmp_path / "lake" / "all.checkpoint" / "commits").is_dir()


def test_an_address_in_use_is_the_first_thing_a_newcomer_may_meet(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "vibemq.cli", "serve", "--data-dir", str(tmp_path / "data")]
        command += ["--streams-port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 1
    assert "hint: another program listens there; choose another port (--streams-port" in done.stderr


def test_every_option_that_is_named_exists():
    named = re.findall(r"`(?:--set )?(server|streams|native|queues|store|guest)\.(\w+)", README)
    assert named
    assert [f"{section}.{option}" for section, option in named if option not in OPTIONS[section]] == []


def test_the_limits_are_the_defaults():
    defaults = Config()
    assert f"| connections for each worker | {defaults.server.connections_max:,} |" in README
    assert f"| streams and queues together | {defaults.store.streams_max:,} |" in README
    assert f"confirm | {defaults.streams.unconfirmed_max:,}, native {defaults.native.unconfirmed_max:,} |" in README
    assert defaults.queues.max_messages == 0 and "wait in a queue | no limit but the disk" in README
    assert f"consumer | {defaults.queues.prefetch}, at most {defaults.queues.prefetch_max:,} |" in README
    assert f"| native (VibeMQ 1.1) | {defaults.native.port}, TLS {defaults.native.tls_port} |" in README
    body, bodies, small = BODY_BYTES_MAX >> 20, BODIES_BYTES_MAX >> 20, SMALL_BODY_BYTES_MAX >> 10
    assert f"| {body} MiB, uncompressed; those above {small} KiB {bodies} MiB together |" in README
    assert f"| {CONNECTIONS_MAX:,}, over TLS {CONNECTIONS_MAX:,} more |" in README
    assert f"ack timeout ({defaults.queues.ack_timeout_ms // 1000} s)" in README
    assert defaults.queues.attempts_max == 0
    assert f"`attempts_max` ({ATTEMPTS_WITH_DEAD_LETTERS} with a dead-letter queue, else no limit)" in README
    assert f"127.0.0.1:{defaults.streams.port}, a worker for each core, data in {defaults.server.data_dir}" in README
