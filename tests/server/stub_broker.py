# SPDX-License-Identifier: Apache-2.0
"""The real supervisor over a worker that only shows who it is: tests of processes need no protocol.

    python stub_broker.py CONFIG.toml [MODE]

A stub worker answers each connection on the streams door with "INDEX PID\n" and then obeys
lines: "exit N" ends the process with that code, "hang" stops accepting, and ignores SIGTERM from now on.
MODE "broken" makes every worker end as soon as it starts; while the file CONFIG.toml.flaky
exists, worker 0 ends right after it is ready.
"""

import logging
import os
import selectors
import signal
import socket
import sys

from vibemq import config
from vibemq.cli.commands import main
from vibemq.server import supervisor
from vibemq.server.context import Context

CONFIG_PATH = sys.argv[1]
MODE = sys.argv[2] if len(sys.argv) > 2 else ""


class StubWorker:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.selector = selectors.DefaultSelector()
        self.stopping = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self.stop)
        log = logging.getLogger("vibemq.stub")
        log.debug("this is debug")
        log.info("two\nlines")
        if MODE == "broken":
            return 3
        for listener in self.context.listeners.values():
            self.selector.register(listener, selectors.EVENT_READ, self.accept)
        os.write(self.context.ready_fd, b"1")
        os.close(self.context.ready_fd)
        if self.context.index == 0 and os.path.exists(CONFIG_PATH + ".flaky"):
            return 4
        while not self.stopping and os.getppid() == self.context.supervisor_pid:
            for key, _ in self.selector.select(0.05):
                key.data(key.fileobj)
        return 0

    def stop(self, *_: object) -> None:
        self.stopping = True

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # another event took it
            return
        connection.sendall(b"%d %d\n" % (self.context.index, os.getpid()))
        self.selector.register(connection, selectors.EVENT_READ, self.obey)

    def obey(self, connection: socket.socket) -> None:
        words = connection.recv(100).split()
        if not words:
            self.selector.unregister(connection)
            connection.close()
        elif words[0] == b"exit":
            os._exit(int(words[1]))
        elif words[0] == b"hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for listener in self.context.listeners.values():
                self.selector.unregister(listener)
                listener.close()
            connection.sendall(b"hanging\n")
        elif words[0] == b"level":
            connection.sendall(logging.getLevelName(logging.getLogger().level).encode() + b"\n")
        elif words[0] == b"files":
            names = [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")
            ]
            connection.sendall(repr(names).encode() + b"\n")


@main.command("stub")
def stub() -> None:
    def load() -> config.Config:
        return config.load(CONFIG_PATH, environ={})

    sys.exit(supervisor.serve(load(), run=lambda context: StubWorker(context).run(), reload=load))


if __name__ == "__main__":
    main(["stub"])
