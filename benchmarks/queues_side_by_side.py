# SPDX-License-Identifier: Apache-2.0
"""Start VibeMQ, NATS JetStream, Redis and RabbitMQ, whichever are installed, and measure their queues in alternation.

All run on this machine, in folders and on ports of their own, with the durability that a confirm has in the page cache.
Arguments are handed on to `python -m benchmarks queues`:

    python benchmarks/queues_side_by_side.py --rounds 5 --scenario both --output result
"""

import subprocess
import sys

if __name__ == "__main__":
    command = [sys.executable, "-m", "benchmarks", "queues", *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False).returncode)
