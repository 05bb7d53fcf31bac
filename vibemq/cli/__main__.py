# SPDX-License-Identifier: Apache-2.0
"""The process of ``vibemq``, and of ``python -m vibemq.cli``.

Everything else is imported after `begin`: as process 1 of a container this process hears SIGTERM only from then on, and
a file that a module opened before would get the number of a closed standard stream.
"""

import os
import sys


def run() -> None:
    begin()
    from vibemq.cli import standard_streams

    code = standard_streams.run(_run_command)
    if "obstore" not in sys.modules:
        sys.exit(code)
    # The object store's client has threads, and one that calls Python while it is taken down aborts it.  So Python is
    # not taken down; nothing here needs it.
    os._exit(code)


def begin() -> None:
    if os.getpid() == 1:
        _obey_as_init()
    for fd in range(3):
        _open_closed(fd)


def _obey_as_init() -> None:
    """Obey SIGTERM and SIGINT as any other process does.

    The kernel drops the signals of process 1 that have no handler: a container could not be stopped before the
    supervisor's loop waits for them, and other commands not at all.
    """
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda told, _: os._exit(128 + told))


def _open_closed(fd: int) -> None:
    """Give the number of a closed standard stream to /dev/null, or the next file gets it: a log, or the database.

    It is opened the wrong way round, so that a command that needs the stream fails as it does with a closed one.
    """
    try:
        os.fstat(fd)
    except OSError:
        taken = os.open(os.devnull, os.O_RDONLY if fd else os.O_WRONLY)  # the lowest free number, which is `fd`
        os.set_inheritable(taken, True)


def _run_command() -> None:
    from vibemq.cli.commands import main

    main()


if __name__ == "__main__":
    run()
