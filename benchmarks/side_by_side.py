# SPDX-License-Identifier: Apache-2.0
"""Start VibeMQ, and RabbitMQ where Debian's is installed, and measure them in alternation (`make bench`).

Both run on this machine, in folders and on ports of their own, with the durability that a confirm has by
default: the page cache. Arguments are handed on to `python -m benchmarks compare`:

    python benchmarks/side_by_side.py --rounds 5 --scenario publish --output result
"""

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.servers import RabbitMQStreams, Server, VibeMQ


def main(arguments: list[str]) -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: list[Server] = [VibeMQ(folder / "vibemq", workers=2)]
        if why := RabbitMQStreams.missing():
            print(f"VibeMQ alone is measured: {why}", file=sys.stderr)
        else:
            servers.append(RabbitMQStreams(folder / "rabbitmq"))
        targets = []
        for server in servers:
            stack.callback(server.start().stop)
            address = f"{server.name}=127.0.0.1:{server.streams_port}"
            targets += ["--target", f"{address},pid={server.pid},durability={server.durability}"]
        command = [sys.executable, "-m", "benchmarks", "compare", *targets, *arguments]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
