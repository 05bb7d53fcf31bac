# SPDX-License-Identifier: Apache-2.0
"""The native door over TLS, by the clients that people use for it: vibemqs://, the commands and the load generator."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from authority import Authority, Identity, tls_flags
from running import ENVIRONMENT, Running, broker, wait_until

from vibemq.bench.queues import QueueLoad
from vibemq.bench.run import run
from vibemq.client import connect
from vibemq.client.settings import parse, streams_address
from vibemq.errors import ConfigError, ConnectionClosed, UserError

CLOSES = 2  # each in the middle of deliveries


@pytest.fixture(scope="module")
def mine(authority: Authority) -> Identity:
    return authority.issue("mine")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Running]:
    """It asks for certificates, and refuses who has none."""
    server = authority.issue("server")
    flags = tls_flags(server, tls__verify="required", tls__client_ca=authority.certificate)
    with broker(tmp_path_factory.mktemp("secured") / "data", *flags) as running:
        yield running


def test_what_is_published_over_tls_is_consumed_over_tls_and_without(
    secured: Running, authority: Authority, mine: Identity, name: str
) -> None:
    port = secured.ports["native-tls"]
    url = f"vibemqs://localhost:{port}/?tlsCa={authority.certificate}&tlsCert={mine.certificate}&tlsKey={mine.key}"
    with connect(url) as client, connect(f"vibemq://127.0.0.1:{secured.native_port}") as plain:
        assert client.publish_many(name, [{"at": at, "pad": "x" * 1000} for at in range(3000)]).published == 3000
        with client.consume(name) as consumer, plain.consume(name) as other:
            at = set()
            for each in (consumer, other):
                message = next(iter(each))
                at.add(message.payload["at"])
                message.ack()
            assert len(at) == 2
    with connect(f"vibemqs://localhost:{port}", tls=authority.client_context(mine)) as client:
        client.publish(name, 1)


def test_a_client_that_closes_while_deliveries_arrive_is_heard_saying_which_message_it_held(
    secured: Running, authority: Authority, mine: Identity, name: str
) -> None:
    url = f"vibemqs://localhost:{secured.ports['native-tls']}"
    with connect(f"vibemq://127.0.0.1:{secured.native_port}") as plain:
        plain.create_queue(name, attempts_max=1000)
        plain.publish_many(name, ["x" * 100_000 for _ in range(200)])
        for _ in range(CLOSES):
            with connect(url, tls=authority.client_context(mine)) as client:
                next(iter(client.consume(name, prefetch=200)))
            wait_until(lambda: plain.queue_info(name).subscribers == 0, "its consumer is gone")
        with plain.consume(name, prefetch=200) as consumer:
            held, *others = itertools.islice(consumer, 200)
        assert held.attempts == CLOSES + 1
        assert {message.attempts for message in others} == {1}, "the program never saw them"


def test_who_does_not_trust_or_is_not_trusted_is_told_what_to_do(
    secured: Running, authority: Authority, mine: Identity, tmp_path: Path
) -> None:
    url = f"vibemqs://localhost:{secured.ports['native-tls']}"
    with pytest.raises(ConnectionClosed, match="certificate verify failed") as refused:
        connect(url)
    assert "tls_ca" in refused.value.hint
    with pytest.raises(ConnectionClosed):
        connect(url, tls_ca=authority.certificate)  # without a certificate
    with pytest.raises(ConnectionClosed) as refused:
        connect(f"vibemqs://127.0.0.1:{secured.native_port}", tls_ca=authority.certificate)
    assert "native 2925 (TLS 2935)" in refused.value.hint
    with pytest.raises(ConfigError, match="tls_ca /nowhere"):
        connect(url, tls_ca="/nowhere")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(ConfigError, match=f"tls_cert {nonsense}"):
        connect(url, tls_cert=str(nonsense))


def test_commands_speak_tls(secured: Running, authority: Authority, mine: Identity, name: str) -> None:
    url = f"vibemqs://localhost:{secured.ports['native-tls']}"
    files = ["--ca-file", authority.certificate, "--certificate", mine.certificate, "--key", mine.key]
    command = [sys.executable, "-m", "vibemq.cli"]
    how = {"env": ENVIRONMENT | {"VIBEMQ_URL": url}, "capture_output": True, "text": True, "timeout": 60}
    sent = subprocess.run([*command, "publish", name, '{"a": 1}', "--json", *files], **how)  # type: ignore[call-overload]
    assert sent.returncode == 0, sent.stderr
    got = subprocess.run([*command, "consume", name, "--count", "1", "--json", *files], **how)  # type: ignore[call-overload]
    assert json.loads(got.stdout)["payload"] == {"a": 1}
    plain = subprocess.run([*command, "queues", "list", "--url", "vibemq://localhost:1", *files], **how)  # type: ignore[call-overload]
    assert plain.returncode == 2 and "add --tls" in plain.stderr


def test_the_load_generator_measures_queues_over_tls(tmp_path: Path, authority: Authority, name: str) -> None:
    with broker(tmp_path / "data", *tls_flags(authority.issue("other"))) as running:
        where = {"host": "localhost", "port": running.ports["native-tls"], "tls_ca": authority.certificate}
        load = QueueLoad(**where, queue=name, mode="both", messages=20_000, verify=True)  # type: ignore[arg-type]
        result = run(load)
    assert result.figures()["consumed"] == 20_000


def test_urls_with_tls() -> None:
    assert (parse("vibemqs://h").port, parse("vibemqs://h").tls) == (2935, True)
    assert parse("vibemqs://h:7/?tlsCa=a.pem").tls_ca == "a.pem"
    assert (parse("vibemq://h").port, parse("vibemq://h?tls=true").port, parse("Host=h;UseTls=1").port) == (
        2925,
        2935,
        2935,
    )
    assert parse("vibemq://h?tls=true&tlsCa=a").peer == "h:2935"
    assert streams_address("vibemqs://h").port == 5551
    for text, why in (
        ("vibemqs://h?tls=false", "tls is false"),
        ("vibemq://h?tlsCa=a", "are for TLS"),
        ("vibemqs://h?tlsKey=a", "tls_key needs tls_cert"),
    ):
        with pytest.raises(UserError, match=why):
            parse(text)
