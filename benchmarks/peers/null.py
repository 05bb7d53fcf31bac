# SPDX-License-Identifier: Apache-2.0
"""The null servers as processes: `python -m benchmarks.peers.null PROTOCOL`, or `... echo REQUEST_BYTES REPLY_BYTES`.

They say their port on the first line and run until they are ended.
"""

import socket
import sys

from benchmarks.peers import _micromsg2_null, _null, _signalr_null

SERVE = {
    "native": _null.Native.serve,
    "echo": _null.echo,
    "micromsg2": _micromsg2_null.Server.serve,
    "signalr": _signalr_null.Hub.serve,
    "signalr-messagepack": _signalr_null.Hub.serve,
}

if __name__ == "__main__":
    protocol, *sizes = sys.argv[1:]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"null ready port={listener.getsockname()[1]}", flush=True)
        SERVE[protocol](listener.fileno(), *map(int, sizes))
