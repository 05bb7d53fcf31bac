# SPDX-License-Identifier: Apache-2.0
"""Start VibeMQ, and RabbitMQ where Debian's is installed, and measure them in alternation (`make bench`).

Both run on this machine, in folders and on ports of their own, with the durability that a confirm has by
default: the page cache. Arguments are handed on to `vibemq bench compare`:

    python benchmarks/side_by_side.py --rounds 5 --scenario publish --output result
"""

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "spark"))

from spark_brokers import RabbitMQ, VibeMQ  # noqa: E402  # found only now


def main(arguments: list[str]) -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = [VibeMQ]
        if why := RabbitMQ.missing():
            print(f"VibeMQ alone is measured: {why}", file=sys.stderr)
        else:
            brokers.append(RabbitMQ)
        targets = []
        for kind in brokers:
            home = folder / kind.name
            home.mkdir()
            running = kind(home).start()
            stack.callback(running.stop)
            targets += ["--target", f"{running.name}={running.endpoints},pid={running.process.pid},durability=os"]
        command = [sys.executable, "-m", "vibemq.cli", "bench", "compare", *targets, *arguments]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
