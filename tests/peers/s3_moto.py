# SPDX-License-Identifier: Apache-2.0
"""A program: moto's S3 on a free port of this machine, with one empty bucket, until its standard input ends.

`python -P s3_moto.py BUCKET` prints the port once it serves.  moto looks whether a key exists and creates the object in
two steps; a store does it in one, so what changes something has its turn here.  A body is read before, lest who sends
one slowly keeps the others waiting.
"""

import io
import os
import sys
import threading
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

READS = {"GET", "HEAD"}


class InTurn:
    def __init__(self, application: Any) -> None:
        self._application, self._turn = application, threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] in READS:
            return self._application(environ, start_response)
        body = get_input_stream(environ).read()
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        with self._turn:
            return list(self._application(environ, start_response))


class Handler(MotoRequestHandler):
    disable_nagle_algorithm = True  # head and body are two calls, and the second would wait 40 ms for an answer

    def log(self, *_: Any, **__: Any) -> None:
        """Not each request."""


def main() -> None:
    bucket = sys.argv[1]
    application = InTurn(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.server_port}").create_bucket(Bucket=bucket)
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
