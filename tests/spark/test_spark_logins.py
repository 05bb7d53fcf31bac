# SPDX-License-Identifier: Apache-2.0
"""TLS and every way to log in, against a broker that has them; and secrets are where they were put, nowhere else."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from contextlib import closing

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from authority import Authority, tls_flags
from running import broker
from spark_jobs import messages

from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConfigError, ConnectionClosed, ProtocolError, VibeMQError
from vibemq.server.datadir import metadata_path
from vibemq.spark import endpoints
from vibemq.spark.client import close_all
from vibemq.spark.source import VibeMQDataSource
from vibemq.storage.metadata import Metadata

SECRET = "hunter2 and a half"


def token():
    """What tokenProvider names in these tests."""
    return SECRET


def no_token():
    raise RuntimeError("the issuer is away")


@pytest.fixture(scope="module")
def secured(tmp_path_factory, authority):
    """A broker with TLS, user `ada` with a password and the user whom a certificate names; stream `s` of ten."""
    from vibemq.access.passwords import hash_password

    server = authority.issue("server")
    flags = tls_flags(
        server,
        tls__verify="optional",
        tls__client_ca=authority.certificate,
        streams__login_failure_delay_s=2,
        streams__certificate_user="common_name",
    )
    folder = tmp_path_factory.mktemp("secured") / "data"
    with broker(folder, *flags) as running:
        with closing(Metadata(metadata_path(str(folder)))) as metadata:
            for user, password in (("ada", hash_password(SECRET).password_hash), ("client", "")):
                metadata.add_user(user, password, is_superuser=False)
                metadata.set_permissions("/", user, ".*", ".*", ".*")
        with StreamsConnection.connect("127.0.0.1", running.port) as connection:
            connection.create("s")
            with connection.publisher("s") as publisher:
                publisher.publish(messages(10))
                publisher.flush()
        yield running
        close_all()


def rows(running, **options):
    """How many records a batch read finds."""
    given = {"endpoints": f"localhost:{running.tls_port or running.port}", "stream": "s", "tls": "true", **options}
    known = VibeMQDataSource(given)
    reader = known.reader(known.schema())
    return sum(each.num_rows for part in reader.partitions() for each in reader.read(part))


def test_each_way_to_log_in_over_tls(secured, authority, tmp_path, monkeypatch):
    mine = authority.issue("client")
    monkeypatch.setenv("ADAS_PASSWORD", SECRET)
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    ada = {"tlsCa": authority.certificate, "username": "ada"}
    assert rows(secured, **ada, password=SECRET) == 10
    assert rows(secured, **ada, passwordEnv="ADAS_PASSWORD") == 10
    assert rows(secured, **ada, passwordFile=str(file)) == 10
    assert rows(secured, **ada, tokenProvider="test_spark_logins:token") == 10
    certificate = {"tlsCa": authority.certificate, "tlsCert": mine.certificate, "tlsKey": mine.key}
    assert rows(secured, **certificate, login="certificate") == 10
    assert rows(secured, tlsCa=authority.certificate, login="anonymous") == 10


def test_what_is_wrong_with_a_login_is_told_at_once(secured, authority, tmp_path):
    ca = {"tlsCa": authority.certificate}
    with pytest.raises(VibeMQError, match="Check user name and password"):
        rows(secured, **ca, username="ada", password="wrong")
    with pytest.raises(ConnectionClosed, match="certificate verify failed"):
        rows(secured)  # an authority that the system does not trust
    other = Authority(tmp_path, "other").issue("client")
    with pytest.raises(ConnectionClosed, match="unknown ca"):
        rows(secured, **ca, login="certificate", tlsCert=other.certificate, tlsKey=other.key)
    nobody = authority.issue("nobody")
    with pytest.raises(VibeMQError, match="logging in with EXTERNAL"):
        rows(secured, **ca, login="certificate", tlsCert=nobody.certificate, tlsKey=nobody.key)
    with pytest.raises(ConfigError, match="the issuer is away"):
        rows(secured, **ca, tokenProvider="test_spark_logins:no_token")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tlsCa": "x"}, "need tls=true"),
        ({"tls": "true", "tlsKey": "x"}, "needs tlsCert"),
        ({"login": "certificate"}, "needs tls=true and tlsCert"),
        ({"login": "magic"}, "none of password, certificate, anonymous"),
        ({"tokenProvider": "os.system"}, "is not module:function"),
        ({"tokenProvider": "a:b", "password": "x"}, "give one of them"),
    ],
)
def test_options_that_cannot_be(options, says):
    with pytest.raises(ConfigError, match=says):
        VibeMQDataSource({"endpoints": "here", "stream": "s", **options}).schema()


def test_files_that_cannot_be_read_are_named(secured, authority, tmp_path):
    with pytest.raises(ConfigError, match="option tlsCa: /nowhere"):
        rows(secured, tlsCa="/nowhere")
    with pytest.raises(ConfigError, match="options tlsCert and tlsKey: /nowhere"):
        rows(secured, tlsCert="/nowhere")


def test_no_secret_is_in_a_pickle_or_in_what_is_shown(monkeypatch):
    monkeypatch.setenv("ADAS_PASSWORD", SECRET)
    known = VibeMQDataSource({"endpoints": "here", "stream": "s", "passwordEnv": "ADAS_PASSWORD"})
    reader = known.streamReader(known.schema())
    assert SECRET.encode() not in pickle.dumps(reader)
    with_it = VibeMQDataSource({"endpoints": "here", "stream": "s", "password": SECRET})
    assert SECRET not in repr(with_it.reader(with_it.schema()).options)


TALKATIVE = """
import sys

from vibemq.spark import local_session

port, certificate, secret, folder = sys.argv[1:]
spark = local_session("secrets", cores=2, log_file=f"{folder}/spark.log", log_level="info")
access = {"endpoints": f"localhost:{port}", "tls": "true", "tlsCa": certificate, "username": "ada", "password": secret}
source = {**access, "stream": "s", "startingOffsets": "earliest"}
batch = spark.read.format("vibemq").options(**source).load()
print(batch.count(), batch._jdf.queryExecution().toString())
sink = {**access, "stream": "copies", "createStream": "true"}
batch.select("value").write.format("vibemq").mode("append").options(**sink).save()
copied = spark.readStream.format("vibemq").options(**source).load().select("value")
writer = copied.writeStream.format("vibemq").options(**sink).option("checkpointLocation", f"{folder}/checkpoint")
query = writer.trigger(availableNow=True).start()
assert query.awaitTermination(90)
print(query._jsq.explainInternal(True), *[progress.json for progress in query.recentProgress])
executions = spark._jsparkSession.sharedState().statusStore().executionsList()
plans = "".join(executions.apply(number).physicalPlanDescription() for number in range(executions.size()))
print(plans)
assert "AppendData" in plans, "the plan of the sink, too"
print(spark.read.format("vibemq").options(**{**source, "stream": "copies"}).load().count())
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_no_secret_is_in_a_plan_a_checkpoint_a_log_or_the_progress(spark, secured, authority, tmp_path):
    """Spark's log at its most talkative but for what helps to find bugs in Spark itself."""
    arguments = [str(secured.tls_port), str(authority.certificate), SECRET, str(tmp_path)]
    command = [sys.executable, "-c", TALKATIVE, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=160, check=False)
    assert ran.returncode == 0 and ran.stdout.endswith("\n20\n"), ran.stderr[-3000:]
    shown = {path: path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    assert len(shown) > 4 and any("INFO" in text for text in shown.values())
    shown = {**shown, "output": ran.stdout, "errors": ran.stderr}
    assert [path for path, text in shown.items() if SECRET in text] == []


def test_an_endpoint_that_can_never_answer_is_refused_at_once(secured, authority):
    """None of them waits for brokerDownTimeoutMs, which is two minutes."""
    plain, tls = f"localhost:{secured.port}", f"localhost:{secured.tls_port}"
    with pytest.raises(ConfigError, match="speaks without TLS: name the TLS port"):
        rows(secured, endpoints=plain, tlsCa=authority.certificate)
    with pytest.raises(ConfigError, match="speaks TLS: set tls=true"):
        rows(secured, endpoints=tls, tls="false")
    with pytest.raises(ProtocolError, match="a MicroMsg2 peer answers there"):
        rows(secured, endpoints=f"localhost:{secured.ports['micromsg2']}", tls="false")
    with pytest.raises(ConfigError, match="there is no host 'no-such-host"):
        rows(secured, endpoints="no-such-host.invalid", tls="false")


def test_a_name_that_was_known_may_be_unknown_for_a_while():
    failed = ConnectionClosed("could not connect")
    failed.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert "no host" in endpoints.mistake("broker.example", 1, failed, tls=False)
    refused = ConnectionClosed("could not connect")
    refused.__cause__ = ConnectionRefusedError()
    assert endpoints.mistake("broker.example", 1, refused, tls=False) == ""
    assert endpoints.mistake("broker.example", 1, failed, tls=False) == ""
