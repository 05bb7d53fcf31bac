# SPDX-License-Identifier: Apache-2.0
"""A provider's token in a password's place, at each door of a real broker, by clients that people have."""

import asyncio
import base64
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import rstream
import websockets.exceptions
import websockets.sync.client
from peers.provider import AUDIENCE, ISSUER, Provider, signed
from peers.streams import Peer
from running import Running, broker

from vibemq.client import connect
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError
from vibemq.protocols.streams.spec import Code, Key

ALL = "rabbitmq.configure:%2F/own* rabbitmq.write:%2F/own* rabbitmq.read:%2F/own*"
SHORT_S = 4  # of a token's life: long enough to log in with it on a busy machine
DEADLINE_S = 30
RS = "\x1e"


class Served(NamedTuple):
    running: Running
    folder: Path
    log: Path
    secrets: list[str]

    def token(self, scope: str = ALL, **claims: Any) -> str:
        self.secrets.append(signed({"scope": scope} | claims))
        return self.secrets[-1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, provider = tmp_path_factory.mktemp("oauth"), Provider()
    log = folder / "log"
    options = {"jwks": provider.url, "issuer": ISSUER, "resource_server_id": AUDIENCE, "leeway_s": "0"}
    flags = [word for name, value in options.items() for word in ("--set", f"oauth.{name}={value}")]
    into = ("sh", "-c", f'exec 2>"{log}" "$@"', "sh")
    with broker(folder / "data", *flags, workers=1, through=into) as running:
        yield Served(running, folder / "data", log, [])
    provider.close()


def plain(token: str, user: str = "") -> bytes:
    return f"\0{user}\0{token}".encode()


def test_a_stream_client_comes_in_by_its_token_and_does_what_its_scopes_say(served: Served) -> None:
    async def publish() -> None:
        how = {"username": "whoever", "password": served.token()}
        async with rstream.Producer("localhost", served.running.port, **how) as producer:
            await producer.create_stream("own-rstream")
            await producer.send_wait("own-rstream", b"x")
            with pytest.raises(rstream.exceptions.AccessRefused):
                await producer.create_stream("others")

    asyncio.run(publish())
    for wrong in (served.token(aud="others"), served.token(sub="guest"), served.token()[:-5] + "AAAAA"):
        with pytest.raises(VibeMQError, match="logging in"):
            StreamsConnection.connect("localhost", served.running.port, user="guest", password=wrong)


def test_a_stream_clients_connection_ends_with_its_token_unless_it_brings_another(served: Served) -> None:
    ends_s = time.time() + SHORT_S
    with Peer(served.running) as lasting, Peer(served.running) as ending, Peer(served.running) as changing:
        for peer in (lasting, ending, changing):
            peer.open(data=plain(served.token(exp=ends_s)))
        lasting.create("own-kept")
        lasting.declare("own-kept")
        narrower = plain(served.token("rabbitmq.read:%2F/own*"))
        assert lasting.code(Key.SASL_AUTHENTICATE, mechanism="PLAIN", data=narrower) == Code.OK
        assert lasting.expect(Key.METADATA_UPDATE).stream == "own-kept", "it may not write any more"
        other = plain(served.token(sub="bob"))
        assert changing.code(Key.SASL_AUTHENTICATE, mechanism="PLAIN", data=other) == Code.SASL_CANNOT_CHANGE_USERNAME
        ending.rest()
        assert time.time() >= ends_s
        assert lasting.code(Key.CREATE, stream="own-late", arguments={}) == Code.ACCESS_REFUSED, "it is still there"


def test_a_native_client_comes_in_by_its_token_and_leaves_with_it(served: Served) -> None:
    port = served.running.native_port
    with connect(f"vibemq://any:{served.token()}@127.0.0.1:{port}") as client:
        client.publish("own-native", 1)
        with pytest.raises(VibeMQError, match="ada"):
            client.publish("others", 1)
        with pytest.raises(VibeMQError, match="token"):
            client.change_password("ada", "a password that nobody has")
    with pytest.raises(VibeMQError):
        connect(f"vibemq://any:{served.token(exp=1)}@127.0.0.1:{port}")


def test_a_micromsg2_peer_comes_in_by_its_token(served: Served) -> None:
    port = served.running.ports["micromsg2"]
    with Micromsg2Client("127.0.0.1", port, user="any", password=served.token()) as peer:
        peer.command("create", destination="queue/own-micromsg2")


def hub(served: Served, token: str) -> Any:
    address = f"ws://127.0.0.1:{served.running.ports['signalr']}/hub?access_token={token}"
    socket = websockets.sync.client.connect(address, open_timeout=DEADLINE_S)
    socket.send(json.dumps({"protocol": "json", "version": 1}) + RS)
    assert socket.recv(DEADLINE_S) == "{}" + RS
    return socket


def test_a_hub_connection_comes_in_by_its_token_and_ends_with_it(served: Served) -> None:
    ends_s = time.time() + SHORT_S
    with hub(served, served.token(exp=ends_s)) as socket:
        said = ""
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            while True:
                said += socket.recv(DEADLINE_S)
        assert "The token has expired." in said and time.time() >= ends_s
    with pytest.raises(websockets.exceptions.InvalidStatus):
        hub(served, served.token(iss="https://idp.test/other"))


def ask(served: Served, path: str, authorization: str, method: str = "GET") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", served.running.admin_port, timeout=DEADLINE_S)
    body = json.dumps({"arguments": {"x-queue-type": "stream"}}) if method == "PUT" else None
    connection.request(method, f"/api/{path}", body, {"Authorization": authorization})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


def test_the_management_api_takes_a_token_as_bearer_and_as_password(served: Served) -> None:
    plain_token, tagged = served.token(), served.token(f"{ALL} rabbitmq.tag:management")
    basic = base64.b64encode(f"any:{tagged}".encode()).decode()
    for authorization in (f"Bearer {tagged}", f"Basic {basic}"):
        assert ask(served, "whoami", authorization) == (200, {"name": "ada", "tags": ["management"]})
    assert ask(served, f"queues/%2F/{quote('own-http')}", f"Bearer {tagged}", "PUT")[0] == 201
    assert ask(served, "queues/%2F/others", f"Bearer {tagged}", "PUT")[0] == 401
    assert ask(served, "users", f"Bearer {tagged}")[0] == 401
    assert ask(served, "overview", f"Bearer {plain_token}")[0] == 401, "without a tag"
    assert ask(served, "users", f"Bearer {served.token('rabbitmq.tag:administrator')}")[0] == 200
    assert ask(served, "whoami", f"Bearer {served.token(exp=1)}")[0] == 401


def test_no_token_is_in_any_log_and_no_user_is_kept(served: Served) -> None:
    texts = [served.log.read_text(), (served.folder / "audit.log").read_text()]
    assert "it has expired" in texts[0] and "a token was refused" in texts[0] and "own-http" in texts[1]
    for token in served.secrets:
        assert all(part not in text for part in token.split(".")[1:] for text in texts)
    basic = f"Bearer {served.token('rabbitmq.tag:administrator')}"
    assert [user["name"] for user in ask(served, "users", basic)[1]] == ["guest"]
