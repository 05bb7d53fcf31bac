# SPDX-License-Identifier: Apache-2.0
"""A broker whose start leaves every plain log for later, as a start with tens of thousands of them does.

    python leaving_broker.py [--without-process] serve ...

Without the process that looks at what is left, who uses a log does so alone.
"""

import signal
import sys

from vibemq.cli.commands import main
from vibemq.server import recovery, supervisor


def waits(_: recovery.Recovery, supervisor_pid: int) -> int:
    signal.sigwait({recovery.END_SIGNAL})
    return 0


supervisor.BEFORE_SERVING_S = -1.0
if sys.argv[1] == "--without-process":
    signal.pthread_sigmask(signal.SIG_BLOCK, {recovery.END_SIGNAL})
    recovery.Recovery.beside_the_work = waits
    del sys.argv[1]
main()
