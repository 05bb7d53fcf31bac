# SPDX-License-Identifier: Apache-2.0
"""Users, virtual hosts, permissions and policies over HTTP: status codes and contents as RabbitMQ's."""

import base64
import time

import pytest
from http_caller import Http
from peers.streams import connected

from vibemq.access.scopes import TokenAccess
from vibemq.admin.api.answering import missing_tag
from vibemq.admin.api.calls import ADMINISTRATOR, MANAGEMENT, Caller
from vibemq.protocols.streams.spec import Code, Key

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def login(user, password="pw"):
    """SASL PLAIN."""
    return f"\0{user}\0{password}".encode()


# ---- who gets in ----


def test_a_wrong_password_is_401_and_says_how_to_log_in(managed):
    reply = Http(managed, "guest", "wrong").call("GET", "overview")
    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"].startswith("Basic")
    assert reply.json == {"error": "not_authorized", "reason": "Login failed"}


@pytest.mark.parametrize(
    "login", ["", "Bearer abc", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"guest").decode()]
)
def test_what_is_no_login_is_401(http, login):
    assert http.raw("GET", "/api/overview", Authorization=login).status == 401


def test_health_needs_no_login(http):
    reply = http.raw("GET", "/health", Authorization="")
    assert (reply.status, reply.json) == (200, {"status": "ok"})


def test_a_page_of_another_site_changes_nothing(http, name):
    for origin in ("http://evil.example", "null", "http://["):
        assert http.status("PUT", "vhosts", name, Origin=origin) == 403
    own = f"http://127.0.0.1:{http.running.admin_port}"
    assert http.status("PUT", "vhosts", name, Origin=own) == 201
    assert http.status("DELETE", "vhosts", name, Origin=own) == 204


def test_guest_comes_in_only_by_a_name_of_this_machine(http):
    port = http.running.admin_port
    statuses = [http.status("GET", "whoami", Host=f"{host}:{port}") for host in ("localhost", "[::1]", "evil.example")]
    assert statuses == [200, 200, 401]


def test_an_unknown_path_is_404_and_an_unknown_method_405(http):
    assert http.status("GET", "nothing") == 404
    assert http.raw("GET", "/elsewhere").status == 404
    assert http.status("PATCH", "users", "guest") == 405


def test_a_slash_at_the_end_is_accepted(http):
    assert http.raw("GET", "/api/whoami/").json == {"name": "guest", "tags": ["administrator"]}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("nonsense", "Expecting value, line 1, column 1"),
        ('{"password": "pw",\n "tags": }', "Expecting value, line 2, column 10"),
        (b'{"tags": "\xff"}', "no UTF-8 at byte 10"),
        ("[1]", "an object is needed"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "1" * 5000 + "]", "a number has too many digits"),
        ('{"tags": "\\ud800"}', "a text has half of a character in it"),
    ],
    ids=["nothing", "second line", "no UTF-8", "list", "deep", "digits", "half a character"],
)
def test_what_is_no_json_object_is_400_and_is_told_where(http, name, body, why):
    reply = http.raw("PUT", f"/api/users/{name}", body)
    assert (reply.status, reply.json["reason"]) == (400, f"not_json: {why}")


def test_a_path_that_is_no_utf8_is_400(http):
    assert http.raw("PUT", "/api/vhosts/%FF", "{}").status == 400


# ---- what tags allow ----


@pytest.fixture
def user(http, name):
    """Makes users with tags; they are gone afterwards."""
    made = []

    def make(tags):
        who = f"{name}-{len(made)}"
        assert http.status("PUT", "users", who, body={"password": "pw", "tags": tags}) == 201
        made.append(who)
        return Http(http.running, who, "pw")

    yield make
    for who in made:
        http.status("DELETE", "users", who)


def test_tags_say_what_a_user_may_ask(user):
    asked = [("GET", "whoami"), ("GET", "nodes"), ("GET", "users")]
    for tags, statuses in {
        "": [401, 401, 401],
        "management": [200, 401, 401],
        "policymaker": [200, 401, 401],
        "monitoring": [200, 200, 401],
        "administrator": [200, 200, 200],
    }.items():
        who = user(tags)
        assert [who.status(*each) for each in asked] == statuses, tags


def test_who_comes_by_a_token_and_lacks_a_tag_is_told_of_the_provider():
    access = TokenAccess("app", ((), ()), 1e12, time.time)
    reason = missing_tag(Caller("app", MANAGEMENT, (), access=access), ADMINISTRATOR)
    assert "rabbitmq.tag:administrator" in reason and "set_user_tags" not in reason


def test_who_lacks_a_tag_is_told_which_and_how_it_comes(user):
    reason = user("").call("GET", "whoami").json["reason"]
    assert "`vibemq ctl set_user_tags " in reason and " management`" in reason
    # The command sets all tags, so it names those that are there.
    assert " policymaker administrator`" in user("policymaker").call("GET", "users").json["reason"]


def test_a_manager_sees_and_changes_only_what_its_permissions_cover(http, user, name):
    who = user("management")
    me = who.get("whoami")["name"]
    http.status("PUT", "vhosts", f"{name}-v")
    stream = {"arguments": {"x-queue-type": "stream"}}
    assert who.status("PUT", "queues", f"{name}-v", "a1", body=stream) == 401
    http.status("PUT", "permissions", f"{name}-v", me, body={**ALL, "configure": "^a"})
    assert who.status("PUT", "queues", f"{name}-v", "a1", body=stream) == 201
    assert who.status("PUT", "queues", f"{name}-v", "b1", body=stream) == 401
    assert [queue["name"] for queue in who.get("queues")] == ["a1"]
    assert who.status("GET", "queues", "/") == 401
    assert [vhost["name"] for vhost in who.get("vhosts")] == [f"{name}-v"]
    assert who.status("DELETE", "queues", f"{name}-v", "a1") == 204
    assert http.status("DELETE", "vhosts", f"{name}-v") == 204


def test_monitoring_sees_every_vhost_and_changes_none(http, user, name):
    who = user("monitoring")
    http.status("PUT", "vhosts", name)
    http.status("PUT", "queues", name, "q", body={"arguments": {"x-queue-type": "stream"}})
    seen = (("queues", name), ("queues", name, "q"), ("exchanges", name), ("policies", name), ("consumers", name))
    assert [who.status("GET", *parts) for parts in seen] == [200] * len(seen)
    assert who.status("DELETE", "queues", name, "q") == 401
    assert who.status("PUT", "queues", name, "p", body={}) == 401
    assert http.status("DELETE", "vhosts", name) == 204


def test_a_policymaker_makes_policies_where_it_may_be(http, user, name):
    who, other = user("policymaker"), user("management")
    for each in (who, other):
        http.status("PUT", "permissions", "/", each.get("whoami")["name"], body=ALL)
    policy = {"pattern": f"^{name}", "definition": {"max-age": "1h"}}
    assert other.status("PUT", "policies", "/", name, body=policy) == 401
    assert who.status("PUT", "policies", "/", name, body=policy) == 201
    assert who.status("DELETE", "policies", "/", name) == 204


# ---- users ----


def test_a_user_is_made_changed_and_deleted(http, name):
    assert http.status("PUT", "users", name, body={"password": "x", "tags": "monitoring"}) == 201
    assert http.status("PUT", "users", name, body={"password": "y", "tags": ["management", "mine"]}) == 204
    assert http.get("users", name) == {"name": name, "tags": ["management", "mine"], "limits": {}}
    assert name in [user["name"] for user in http.get("users")]
    assert Http(http.running, name, "x").status("GET", "whoami") == 401
    assert Http(http.running, name, "y").get("whoami")["name"] == name
    assert http.status("DELETE", "users", name) == 204
    assert http.status("DELETE", "users", name) == http.status("GET", "users", name) == 404
    assert Http(http.running, name, "y").status("GET", "whoami") == 401


def test_an_administrator_cannot_become_who_may_do_all(http, user):
    administrator = user("administrator")
    changed = {"password": "taken over", "tags": "administrator"}
    reply = administrator.call("PUT", "users", "guest", body=changed)
    assert (reply.status, "`vibemq ctl`" in reply.json["reason"]) == (403, True)
    assert administrator.status("DELETE", "users", "guest") == 403
    assert administrator.status("POST", "users", "bulk-delete", body={"users": ["guest"]}) == 403
    assert administrator.status("POST", "definitions", body={"users": [{"name": "guest", **changed}]}) == 403
    assert http.status("GET", "whoami") == 200, "guest's own password still holds"


def test_a_user_needs_tags(http, name):
    assert http.call("PUT", "users", name, body={"password": "x"}).json["reason"] == "tags_not_present"
    assert http.status("PUT", "users", name, body={"password": 5, "tags": ""}) == 400
    assert http.status("GET", "users", name) == 404


def test_a_user_without_a_password_never_logs_in_with_one(http, name):
    assert http.status("PUT", "users", name, body={"tags": "administrator"}) == 201
    assert [Http(http.running, name, guess).status("GET", "whoami") for guess in ("", name)] == [401, 401]
    http.status("DELETE", "users", name)


def test_a_user_whose_password_was_cleared_never_logs_in_with_one(http, name):
    http.status("PUT", "users", name, body={"password": "pw", "tags": "administrator"})
    assert Http(http.running, name, "pw").status("GET", "whoami") == 200
    assert http.status("DELETE", "users", name, "password") == 204
    assert [Http(http.running, name, guess).status("GET", "whoami") for guess in ("", "pw")] == [401, 401]
    assert http.status("DELETE", "users", name) == 204


def test_a_hash_of_rabbitmqs_lets_its_user_in(http, name):
    salted = "00qX87Cc+tltiAw/k8/AocACUfjXFEtxr5MDjICdFx57E2Cz"  # of "guest", as a RabbitMQ 3.10.8 exported it
    body = {"password_hash": salted, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "management"}
    assert http.status("PUT", "users", name, body=body) == 201
    assert Http(http.running, name, "guest").get("whoami")["name"] == name
    assert http.status("POST", "users", "bulk-delete", body={"users": [name]}) == 204


def test_no_list_of_users_shows_a_hash(http, name):
    http.status("PUT", "users", name, body={"password": "x", "tags": ""})
    shown = http.call("GET", "users").text + http.call("GET", "users", name).text
    assert "argon2" not in shown
    assert "scram" not in shown
    http.status("DELETE", "users", name)


# ---- virtual hosts and permissions ----


def test_a_vhost_can_be_opened_once_it_is_made_and_its_connections_end_with_it(http, managed, name):
    assert [http.status("PUT", "vhosts", name) for _ in range(2)] == [201, 204]
    assert http.get("vhosts", name)["name"] == name
    with connected(managed, virtual_host=name) as peer:
        peer.create("inside")
        assert [queue["name"] for queue in http.get("queues", name)] == ["inside"]
        assert http.status("DELETE", "vhosts", name) == 204
        peer.rest()  # ends: the broker has closed the connection
    assert http.status("DELETE", "vhosts", name) == http.status("GET", "vhosts", name) == 404


def test_permissions_are_made_changed_and_taken(http, name):
    http.status("PUT", "vhosts", name)
    http.status("PUT", "users", name, body={"password": "x", "tags": ""})
    assert name in [user["name"] for user in http.get("users", "without-permissions")]
    assert http.status("PUT", "permissions", name, name, body=ALL) == 201
    assert http.status("PUT", "permissions", name, name, body={**ALL, "configure": ""}) == 204
    entry = {"user": name, "vhost": name, **ALL, "configure": ""}
    assert http.get("permissions", name, name) == entry
    assert http.get("users", name, "permissions") == [entry]
    assert entry in http.get("vhosts", name, "permissions")
    assert http.status("PUT", "permissions", name, name, body={"configure": ""}) == 400
    assert http.status("PUT", "permissions", name, name, body={**ALL, "read": "("}) == 400
    assert http.status("PUT", "permissions", name, "nobody", body=ALL) == 400
    assert http.status("PUT", "permissions", "nowhere", name, body=ALL) == 400
    assert [http.status("DELETE", "permissions", name, name) for _ in range(2)] == [204, 404]
    http.status("DELETE", "users", name)
    http.status("DELETE", "vhosts", name)


def test_a_permission_given_over_http_holds_at_the_streams_door_at_once(http, managed, name):
    http.status("PUT", "users", name, body={"password": "pw", "tags": ""})
    http.status("PUT", "permissions", "/", name, body={**ALL, "configure": f"^{name}-a"})
    with connected(managed, data=login(name)) as peer:
        assert peer.code(Key.CREATE, stream=f"{name}-a", arguments={}) == Code.OK
        assert peer.code(Key.CREATE, stream=f"{name}-b", arguments={}) == Code.ACCESS_REFUSED
        http.status("PUT", "permissions", "/", name, body=ALL)
        assert peer.code(Key.CREATE, stream=f"{name}-b", arguments={}) == Code.OK
        assert http.status("DELETE", "users", name) == 204
        peer.rest()  # ends: connections of a deleted user are closed


# ---- policies ----


def test_a_policy_is_made_changed_and_deleted_and_shown_with_the_streams_it_holds_for(http, name):
    http.status("PUT", "queues", "/", name, body={"arguments": {"x-queue-type": "stream", "x-max-age": "1h"}})
    policy = {"pattern": f"^{name}$", "definition": {"max-age": "2h"}, "priority": 3, "apply-to": "queues"}
    assert [http.status("PUT", "policies", "/", name, body=policy) for _ in range(2)] == [201, 204]
    assert http.get("policies", "/", name) == {"vhost": "/", "name": name, **policy}
    assert name in [each["name"] for each in http.get("policies", "/")]
    queue = http.get("queues", "/", name)
    assert (queue["policy"], queue["effective_policy_definition"]) == (name, {"max-age": "2h"})
    assert queue["arguments"]["x-max-age"] == "1h"
    for bad in (
        {"definition": {"bogus": 1}},
        {"pattern": "("},
        {"apply-to": "nothing"},
        {"definition": {"max-age": 5}},
    ):
        assert http.status("PUT", "policies", "/", name, body={**policy, **bad}) == 400, bad
    assert [http.status("DELETE", "policies", "/", name) for _ in range(2)] == [204, 404]
    assert http.get("queues", "/", name)["policy"] is None
    http.status("DELETE", "queues", "/", name)


# ---- definitions ----


def test_definitions_bring_everything_and_can_be_taken_elsewhere(http, managed, name):
    document = {
        "users": [{"name": name, "password": "pw", "tags": ""}],
        "vhosts": [{"name": name}],
        "permissions": [{"user": name, "vhost": name, **ALL}],
        "policies": [{"vhost": name, "name": "p", "pattern": "x", "definition": {"max-age": "1h"}, "priority": 0}],
        "queues": [{"name": "s-0", "vhost": name, "durable": True, "arguments": {"x-queue-type": "stream"}}],
        "exchanges": [{"name": "s", "vhost": name, "type": "direct", "arguments": {"x-super-stream": True}}],
        "bindings": [
            {"source": "s", "vhost": name, "destination": "s-0", "destination_type": "queue", "routing_key": "0",
             "arguments": {"x-stream-partition-order": 0}}
        ],
    }  # fmt: skip
    assert [http.status("POST", "definitions", body=document) for _ in range(2)] == [204, 204]
    with connected(managed, virtual_host=name, data=login(name)) as peer:
        assert peer.ask(Key.PARTITIONS, super_stream="s").streams == ["s-0"]
    exported = http.get("definitions")
    for kind in ("vhosts", "permissions", "policies", "queues", "exchanges", "bindings"):
        ours = [each for each in exported[kind] if name in (each.get("vhost"), each.get("name", ""))]
        assert ours, kind
    assert http.status("DELETE", "vhosts", name) == http.status("DELETE", "users", name) == 204
    assert http.status("POST", "definitions", body=exported) == 204
    assert [queue["name"] for queue in http.get("queues", name)] == ["s-0"]
    assert http.get("users", name)["tags"] == []
    with connected(managed, virtual_host=name, data=login(name)):  # the hash of the password came with it
        pass
    assert http.status("DELETE", "vhosts", name) == http.status("DELETE", "users", name) == 204


def test_definitions_that_are_none_are_400_and_say_where(http):
    for document in ({"users": {}}, {"users": [5]}, {"queues": [{"name": "x"}]}, {"vhosts": [{"name": 5}]}):
        assert http.status("POST", "definitions", body=document) == 400, document
    reply = http.call(
        "POST", "definitions", body={"queues": [{"name": "q", "vhost": "/", "arguments": {"x-max-age": "no"}}]}
    )
    assert reply.status == 400
    assert "'q'" in reply.json["reason"] and "max-age" in reply.json["reason"]
