# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the alert rules of examples/monitoring, by a real Prometheus that scrapes a real broker."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_caller import STREAM, Http, wait_until
from peers.streams import Peer, connected
from running import ENVIRONMENT, broker

from benchmarks.servers import free_port
from vibemq.client import connect
from vibemq.protocols.streams.codec import encode_request
from vibemq.protocols.streams.spec import Key

MONITORING = Path(__file__).resolve().parents[2] / "examples/monitoring"
for tool in ("prometheus", "promtool"):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: Debian's package prometheus", allow_module_level=True)
pytest.importorskip("obstore", reason="needs the extra remote: some panels are about the object store")

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: vibemq
    basic_auth: {{username: guest, password: guest}}
    static_configs: [{{targets: ["{target}"]}}]
"""


def promtool(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, cwd=MONITORING, **how)


def alerts() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", (MONITORING / "rules.yml").read_text()))


def expressions() -> list[tuple[str, str]]:
    """Title and query of each panel, for any broker."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]
    return [(title, expr.replace("$instance", ".*").replace("$__rate_interval", "10s")) for title, expr in found]


class Prometheus:
    def __init__(self, port: int) -> None:
        self.where = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expr: str) -> list[dict[str, Any]]:
        asked = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(f"{self.where}/query?{asked}", timeout=30) as reply:
            found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        return found

    def has(self, expr: str) -> bool:
        """A number, and not only what is none."""
        try:
            return any(sample["value"][1] not in ("NaN", "+Inf") for sample in self.query(expr))
        except OSError:  # it has only just been started
            return False


def use(peer: Peer, running) -> None:
    """Something of everything that a panel is about."""
    peer.declare("clicks")
    peer.publish([(number, b"x" * 100) for number in range(9)])
    peer.confirmed(9)
    peer.send(encode_request(Key.STORE_OFFSET, reference="reader", stream="clicks", offset=2))
    assert peer.ask(Key.QUERY_OFFSET, reference="reader", stream="clicks").offset == 2
    with connect(f"vibemq://{running.host}:{running.native_port}") as client:
        client.publish("jobs", 1)
        with client.consume("jobs") as consumer:
            next(consumer).ack()
    peer.subscribe("clicks")
    peer.chunk()


@contextmanager
def prometheus(folder: Path) -> Iterator[Prometheus]:
    """Started in the folder, with its prometheus.yml."""
    port = free_port()
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        )
    try:
        found = Prometheus(port)
        wait_until(lambda: found.has('up{job="vibemq"} == 1'), "the first scrape")
        yield found
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("watched")
    flags = ("--durability", "disk", "--set", f"remote.url=file://{folder}/bucket")
    with broker(folder / "data", *flags, workers=1) as running, connected(running) as peer:
        assert Http(running).status("PUT", "queues", "/", "clicks", body=STREAM) == 201
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(rules=MONITORING / "rules.yml", target=f"127.0.0.1:{running.admin_port}"))
        with prometheus(folder) as found:
            use(peer, running)
            yield found


def test_the_way_from_nothing_to_an_alert_leads_to_one(tmp_path):
    way = (MONITORING / "README.md").read_text().partition("## From nothing to an alert")[2].partition("\n## ")[0]
    _, user, start, restart = (textwrap.dedent(block) for block in re.findall(r"```sh\n(.*?)```", way, re.S))
    assert "--config.file=prometheus.yml" in start and "`VibemqProcessDied`" in way
    asks, into = "vibemq users add admin ", "cd examples/monitoring\n"
    assert asks in user and into in user
    user = user.replace(asks, f"{asks} --password-stdin <<< 'lovelace 1843' ").replace(into, "")
    command = f'vibemq() {{ "{sys.executable}" -m vibemq.cli "$@"; }}'

    def shell(block: str) -> None:
        words = ["bash", "-c", f"set -eu\n{command}\n{block}"]
        environment = ENVIRONMENT | {"VIBEMQ_SERVER_DATA_DIR": str(tmp_path / "data")}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    shutil.copy(MONITORING / "rules.yml", tmp_path)
    config = (MONITORING / "prometheus.yml").read_text()
    with broker(tmp_path / "data") as running:
        config = config.replace("localhost:2926", f"127.0.0.1:{running.admin_port}").replace(": 15s", ": 500ms")
        (tmp_path / "prometheus.yml").write_text(config)
        shell(user)
        assert (tmp_path / "prometheus.password").stat().st_mode & 0o077 == 0
        with prometheus(tmp_path) as found:
            alert = 'ALERTS{alertname="VibemqProcessDied", alertstate="firing"}'
            assert not found.has(alert)
            shell(restart)
            wait_until(lambda: found.has(alert), "the alert")
            assert not found.has('up{job="vibemq"} == 0')


def test_every_panel_has_data_of_a_live_broker(watched):
    assert len(expressions()) > 30
    for title, expr in expressions():
        wait_until(lambda expr=expr: watched.has(expr), f"{title}: {expr}")


def test_every_rule_is_evaluated_and_none_fires_of_a_broker_that_is_well(watched):
    def groups() -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{watched.where}/rules", timeout=30) as reply:
            found: list[dict[str, Any]] = json.load(reply)["data"]["groups"]
        return found

    wait_until(lambda: all(rule["health"] == "ok" for one in groups() for rule in one["rules"]), "all evaluated")
    rules = [rule for one in groups() for rule in one["rules"]]
    assert {rule["name"] for rule in rules} == alerts()
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
    assert watched.query("scrape_duration_seconds")[0]["value"][1] != "NaN"
    assert watched.query('up{job="vibemq"}')[0]["value"][1] == "1"


def test_rules_are_valid_and_each_fires_when_it_should(tmp_path):
    checked = promtool("check", "rules", "rules.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tried = promtool("test", "rules", "rules_test.yml")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    tests = (MONITORING / "rules_test.yml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', tests)) == alerts(), "each of them is tried"
    shutil.copy(MONITORING / "rules_test.yml", tmp_path)
    without = (MONITORING / "rules.yml").read_text().replace("vibemq_remote_up == 0", "vibemq_remote_up == 7")
    (tmp_path / "rules.yml").write_text(without)
    assert promtool("test", "rules", str(tmp_path / "rules_test.yml")).returncode == 1, "the tests can fail"


def test_the_sample_configuration_and_the_dashboard_are_what_their_tools_read():
    checked = promtool("check", "config", "--syntax-only", "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    covered = [(at["x"] + x, at["y"] + y) for at in places for x in range(at["w"]) for y in range(at["h"])]
    assert len(set(covered)) == len(covered) and max(x for x, _ in covered) < 24, "no panel lies on another"
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "instance"}


def test_the_page_names_no_metric_that_the_broker_does_not_have(watched):
    """In the table of RabbitMQ's names, as in rules and panels."""
    with urllib.request.urlopen(f"{watched.where}/label/__name__/values", timeout=30) as reply:
        known = set(json.load(reply)["data"])
    texts = [(MONITORING / name).read_text() for name in ("README.md", "rules.yml", "dashboard.json")]
    named = {name for text in texts for name in re.findall(r"\bvibemq_[a-z_]+[a-z]\b(?!_?\.\.\.)", text)}
    parts = {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in known}
    assert named - known - parts - {"vibemq_alarms"} == set()
