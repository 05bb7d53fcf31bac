# SPDX-License-Identifier: Apache-2.0
"""The stores that other tests run against: what is done by hand, and that the way there fails as it is told to."""

import http.client
import http.server
import os
import threading
from datetime import timedelta

import pytest
from peers.faulty import FaultyStore
from peers.s3 import Store
from running import wait_until

obstore = pytest.importorskip("obstore", reason="needs the extra remote")
HOUR = timedelta(hours=1)


def client(store):
    """obstore, which tries nothing again."""
    from obstore.store import from_url

    given = dict(pair.split("=", 1) for pair in store.remote().options.split(",") if not pair.startswith("allow_http"))
    return from_url(
        store.url, config=given, client_options={"allow_http": True, "timeout": "30s"}, retry_config={"max_retries": 0}
    )


def test_what_is_done_by_hand_is_what_a_client_sees(s3):
    s3.overwrite("a/b", b"one")
    assert bytes(obstore.get(client(s3), "a/b").bytes()) == b"one" == s3.read("a/b")
    s3.overwrite("a/b", b"two")
    s3.overwrite("c", b"")
    assert (s3.read("a/b"), s3.keys(), s3.keys("a/"), s3.below("a").keys()) == (b"two", ["a/b", "c"], ["a/b"], ["b"])
    s3.delete("a/b")
    assert s3.keys() == ["c"]


def test_tests_do_not_see_each_others_objects(s3):
    assert s3.keys() == []


def test_without_a_rule_everything_goes_through_and_is_counted(faulty):
    store, body = client(faulty), os.urandom(3_000_000)
    obstore.put(store, "large", body, use_multipart=False)
    assert bytes(obstore.get(store, "large").bytes()) == body
    assert obstore.head(store, "large")["size"] == len(body)
    assert bytes(obstore.get_range(store, "large", start=10, end=20)) == body[10:20]
    assert (faulty.requests, faulty.sent_bytes) == ({"PUT": 1, "GET": 2, "HEAD": 1}, len(body))
    assert faulty.received_bytes == len(body) + 10


def test_a_rule_is_for_a_method_a_path_and_a_number_of_requests(faulty):
    store = client(faulty)
    rule, seen = faulty.answer(503, "PUT", "/a", times=1), faulty.watch("PUT")
    obstore.put(store, "b", b"")
    with pytest.raises(obstore.exceptions.GenericError, match="503"):
        obstore.put(store, "a", b"")
    obstore.put(store, "a", b"")
    assert (rule.met, seen.met, faulty.keys()) == (1, 2, ["a", "b"])
    refused = faulty.answer(403)
    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        obstore.head(store, "a")
    refused.remove()
    obstore.head(store, "a")


def test_a_request_that_is_cut_before_has_no_effect_and_one_that_is_cut_after_has(faulty):
    store = client(faulty)
    faulty.cut_before("PUT")
    with pytest.raises(obstore.exceptions.GenericError):
        obstore.put(store, "a", b"")
    assert faulty.keys() == []
    faulty.up()
    faulty.cut_after("PUT")
    with pytest.raises(obstore.exceptions.GenericError):
        obstore.put(store, "a", b"")
    assert faulty.keys() == ["a"]


def test_an_answer_ends_where_it_is_cut(faulty):
    faulty.overwrite("a", b"0123456789")
    faulty.truncate(4)
    connection = http.client.HTTPConnection(faulty.endpoint.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", obstore.sign(client(faulty), "GET", "a", HOUR).removeprefix(faulty.endpoint))
        with pytest.raises(http.client.IncompleteRead) as cut:
            connection.getresponse().read()
        assert cut.value.partial == b"0123"
    finally:
        connection.close()


def test_who_hangs_does_so_until_all_is_well_again_and_is_not_forwarded(faulty):
    rule = faulty.hang("PUT")
    failed = []

    def put():
        try:
            obstore.put(client(faulty), "a", b"")
        except obstore.exceptions.GenericError as problem:
            failed.append(problem)

    thread = threading.Thread(target=put)
    thread.start()
    wait_until(lambda: rule.met == 1, "the request is there")
    faulty.up()
    thread.join(20)
    assert len(failed) == 1 and faulty.keys() == []
    obstore.put(client(faulty), "a", b"")


class Echo(http.server.BaseHTTPRequestHandler):
    """Gives back what is put, in chunks as it wants them: a store would refuse a body without a length."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size + 2)[:-2]
        self.rfile.readline()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (body[:3], body[3:], b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def log_message(self, *_: object) -> None:
        """Not each request."""


def test_bodies_in_chunks_pass_both_ways():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with FaultyStore(Store(f"http://127.0.0.1:{server.server_port}", "")) as proxy:
            connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=10)
            for _ in range(2):  # on one connection
                connection.request("PUT", "/a", body=iter([b"01234", b"56789"]), encode_chunked=True)
                assert connection.getresponse().read() == b"0123456789"
            connection.close()
        server.shutdown()
