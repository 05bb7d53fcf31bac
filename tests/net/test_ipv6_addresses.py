# SPDX-License-Identifier: Apache-2.0
"""IPv6 addresses: in brackets or not where an option takes a host, always in brackets where a port follows."""

import ipaddress
import subprocess
import sys
from pathlib import Path

import pytest
from running import ENVIRONMENT, broker, written

from benchmarks.servers import free_ports
from vibemq import config
from vibemq.addresses import host_port, parse_host, split_host_port
from vibemq.client import connect
from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConfigError, ConnectionClosed
from vibemq.spark.options import parse

PASSWORD = "a long secret"


def link_local() -> str:
    """An address of this machine that needs a scope; "": there is none."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        number, *_, interface = line.split()
        if number.startswith("fe80"):
            return f"{ipaddress.IPv6Address(bytes.fromhex(number))}%{interface}"
    return ""


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:1", "localhost", "1"),
        ("localhost", "localhost", ""),
        ("[::1]:5552", "::1", "5552"),
        ("[::1]", "::1", ""),
        ("::1", "::1", ""),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", "1"),
        ("192.0.2.1:80", "192.0.2.1", "80"),
    ],
)
def test_host_and_port_are_told_apart_and_put_together(text, host, port):
    assert split_host_port(text) == (host, port)
    if port:
        assert host_port(host, port) == text
    assert parse_host(host) == host


@pytest.mark.parametrize(
    "option", ["server.host", "admin.host", "streams.advertised_host", "streams.advertised_tls_host"]
)
@pytest.mark.parametrize("text", ["[fe80::1%eth0]", "fe80::1%eth0"])
def test_a_host_of_the_configuration_may_be_in_brackets(option, text):
    section, _, name = option.partition(".")
    loaded = config.load(None, environ={}, overrides={(section, name): (text, "--set")})
    assert getattr(getattr(loaded, section), name) == "fe80::1%eth0"


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_what_can_be_no_host_is_refused_in_words(host):
    with pytest.raises(ConfigError, match="no name of a host"):
        config.load(None, environ={"VIBEMQ_SERVER_HOST": host})
    with pytest.raises(ConfigError, match="no name of a host"):
        connect(f"vibemq://{host}")
    for command in (["streams", "list", "--host", host], ["bench", "queues", "--host", host]):
        done = subprocess.run(
            [sys.executable, "-m", "vibemq.cli", *command], env=ENVIRONMENT, capture_output=True, text=True
        )
        assert done.returncode == 1 and "no name of a host" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("endpoints", "found"), [("[::1]", ("::1", 5552)), ("::1", ("::1", 5552)), ("[::1]:7", ("::1", 7))]
)
def test_spark_takes_an_address_with_and_without_a_port(endpoints, found):
    assert parse({"endpoints": endpoints, "stream": "s"}).endpoints == (found,)


@pytest.mark.parametrize(
    "words",
    [
        "queues list --url vibemq://[::1]:{port}",
        "streams list --url rabbitmq-stream://[::1]:{port}",
        "streams list --host [::1] --port {port}",
        "bench --host [::1] --port {port}",
        "bench queues --host [::1] --port {port}",
        "ctl list_users --url http://a:b@[::1]:{port}",
    ],
)
def test_an_error_names_the_address_in_brackets(words):
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "vibemq.cli", *words.format(port=port).split()]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert f"[::1]:{port}: " in done.stderr and "refused" in done.stderr


@pytest.mark.parametrize(
    "host", ["[::1]", link_local(), f"[{link_local()}]"], ids=["loopback", "scope", "scope in brackets"]
)
def test_a_broker_listens_at_it_and_clients_come_by_the_address_that_it_prints(tmp_path, host):
    if host in ("", "[]"):
        pytest.skip("no network interface here has a link-local address")
    options = ["--host", host, "--set", f"admin.host={host}", "--set", f"native.superuser_password={PASSWORD}"]
    with broker(tmp_path / "data", *options, workers=1) as running:
        shown = host if host.startswith("[") else f"[{host}]"
        login = f"vibemq:{PASSWORD.replace(' ', '%20')}@"
        with connect(f"vibemq://{login}{shown}:{running.native_port}") as client:
            client.publish("jobs", 1)
            assert client.queue_info("jobs").messages == 1
        with StreamsConnection.connect(running.host, running.port, user="vibemq", password=PASSWORD) as client:
            client.create("s")
            assert client.exists("s")
    with pytest.raises(ConnectionClosed) as refused:
        StreamsConnection.connect(running.host, running.port, user="vibemq", password=PASSWORD)
    assert str(refused.value).startswith(f"{shown}:{running.port}: ")


def test_the_address_that_clients_are_told_is_logged_in_brackets(tmp_path, capfd):
    options = ["--advertised-host", "[2001:db8::1]", "--advertised-port", "5552"]
    with broker(tmp_path / "data", *options, workers=1):
        pass
    assert "stream clients are told to connect to [2001:db8::1]:5552" in written(capfd)
