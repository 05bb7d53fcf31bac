# SPDX-License-Identifier: Apache-2.0
"""The null servers as processes: `python -m benchmarks.peers.null KIND`.

KIND is `queue`, `signalr`, `micromsg2`, or `echo REQUEST_BYTES REPLY_BYTES`.

They say their port on the first line and run until they are ended.
"""

import socket
import sys

from benchmarks.peers import _micromsg2_null, _signalr_null
from benchmarks.peers._null import echo, serve


def main(arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"null ready port={listener.getsockname()[1]}", flush=True)
        if arguments[0] == "echo":
            echo(listener.fileno(), int(arguments[1]), int(arguments[2]))
        elif arguments[0] == "signalr":
            _signalr_null.serve(listener.fileno())
        elif arguments[0] == "micromsg2":
            _micromsg2_null.serve(listener.fileno())
        else:
            serve(listener.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
