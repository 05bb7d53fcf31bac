# SPDX-License-Identifier: Apache-2.0
"""The worker's loop.  One turn reads like this: **receive** what sockets have, where each session
**decides** what its frames mean; **persist** what they published, each stream once, which
**confirms** it; then **deliver** and **send**, each connection that has something once.  Then wait.

Nothing here waits for a peer or a sync; the disk is met only by the append, by opening a log, by
metadata lookups and by the rest of a half-sent chunk whose subscription ends.  No timer makes batches: what arrived while the
last turn ran is the next batch.  A worker sleeps only after it has told the board so
(csrc/shm/doorbell.h), therefore others ring only workers that sleep.

DEADLINES.  Waiting input may answer a deadline: an acknowledgement, a heartbeat, a subscriber that returns.  So
deadlines do not go by `queues.now_ms` but by `queues.heard_ms`, the time up to which all input has been read.  It
stands still in a turn whose wait did not report all readable descriptors.  After a pause (a stopped process, a slow
write) it stands still until the sockets are empty, each other worker has read its own and its notices have come, and
GRACE_MS have passed: for clients that were paused too, and for deliveries that went out only after the pause.
"""

import errno
import logging
import os
import resource
import socket

from libc.stdint cimport int64_t

from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.stream cimport StreamTable
from vibemq.net.connection cimport Connection, Room
from vibemq.net.sockets cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, READY_MAX, Poller
from vibemq.storage cimport core
from vibemq.storage.calls cimport calls_turn
from vibemq.storage.meters cimport METER_ACCEPTED, Meters, now_us
from vibemq.storage.shm cimport Board

from vibemq.errors import ConnectionClosed, LimitExceeded, ProtocolError
from vibemq.net.door import join
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute, say_due
from vibemq.server import logs
from vibemq.server.listeners import BACKLOG

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)

cdef enum:
    TICK_MS = 500            # heartbeats and deadlines are in seconds
    ACCEPTS_PER_TURN = 64    # a storm of connections does not starve those that exist
    FILES_KEPT = 64          # descriptors that no newcomer gets: logs, answers and rings need some
    CLOSING_MS_MAX = 10_000  # for a peer to take the end of what it asked for
    LINGERING_MS_MAX = 500   # at the broker's end, for a peer to end its side: those that are alive do it at once
    LATE_MS = 500            # a loop that comes back later than this was paused; deadlines are in seconds
    GRACE_MS = 1000          # for peers after a pause, see above
    CATCH_UP_MS_MAX = 10_000 # then deadlines go on: a worker is stuck, or this one is always late
    BEHIND_MS_MAX = 30_000   # so they do where turn after turn is late: the longest pause does not count, the others do
    CATCH_UP_LOOK_MS = 10    # how often to ask whether the other workers have read theirs
    # Reads of one socket that is never empty: one takes up to 512 KiB, and the kernel holds 6 MiB of it (tcp_rmem).
    READS_MAX = 16

cdef int READ = 1
cdef int WRITE = 2


cdef class Loop:
    cdef object poller               # net.sockets.Poller, or any selector for debugging
    cdef Poller fast                 # the same one, when it is ours
    cdef Board board
    cdef StreamTable table
    cdef Meters meters
    cdef QueueTable queues
    cdef object groups
    cdef readonly object timers
    cdef object on_access            # called when users or permissions may have changed
    cdef readonly object helpers
    cdef readonly Room room          # for what the connections keep of input that they cannot use yet
    cdef readonly dict connections   # fd -> Connection
    cdef list by_fd                  # fd -> Connection or None, for the fast path
    cdef dict listeners              # fd -> (socket, door, certificates or None)
    cdef dict attended               # fd -> what to call when it can be read
    cdef list wanting                # connections that have something to send this turn
    cdef readonly int connections_max
    cdef int64_t next_tick_ms
    cdef public bint draining
    cdef readonly bint suspended      # maintenance: nobody is let in, and who is here is sent away
    cdef int64_t suspended_ms         # until when they may take to leave
    cdef int files_max               # a descriptor from this number on is one of FILES_KEPT
    cdef unsigned int unheard        # requests on the board whose handling failed; the next tick tries again
    cdef bint full                   # nobody is let in, for want of room
    cdef bint accepting              # the listening sockets are watched: neither of these
    cdef int64_t awake_ms            # when the last wait ended; 0: no wait yet
    cdef bint behind                 # after a pause: `heard_ms` stands still
    cdef bint drained                # since the pause, all that was in this worker's sockets has been read
    cdef bint others_heard           # before this turn's wait began, the other workers had read theirs
    cdef int waits                   # of those in a row that reported as many descriptors as one wait can
    cdef int64_t paused_ms, resumed_ms, late_ms  # length and end of the last pause, end of the first since `behind`
    cdef int64_t behind_ms           # when the first pause since `behind` began
    cdef int64_t read_ms             # all input of this worker's sockets that had come by then has been read
    cdef object says_paused, says_behind, says_memory
    cdef object says_full            # OnceAMinute: each that ends lets one in, and it is full again
    cdef object says_ended           # OnceAMinute, by address and kind: anybody may connect to be thrown out

    def __init__(self, poller, Board board, QueueTable queues, groups, helpers, timers, on_access, server):
        """``server``: that section of the configuration."""
        self.poller = poller
        self.fast = poller if isinstance(poller, Poller) else None
        self.board, self.queues, self.table, self.helpers = board, queues, queues.streams, helpers
        self.groups, self.timers, self.on_access = groups, timers, on_access
        self.meters = self.table.meters
        self.room = Room(server.unfinished_input_max_bytes)
        self.connections, self.listeners, self.attended = {}, {}, {}
        self.by_fd = [None] * 1024
        self.wanting = []
        self.connections_max, self.accepting = server.connections_max, True
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.files_max = files_max - min(<int> FILES_KEPT, files_max // 4)
        self.says_full, self.says_ended = OnceAMinute(logger), OnceAMinute(logger, logging.INFO)
        self.says_paused = OnceAMinute(logger, logging.INFO)
        self.says_memory = OnceAMinute(logger)
        self.says_behind = OnceAMinute(logger)
        poller.register(board.doorbell_fd, READ)

    # ---- what connections ask of the loop ----

    def schedule(self, connection):
        """`connection` has something to send; called once per turn and connection."""
        self.wanting.append(connection)

    def watch(self, Connection connection, int before, int after):
        if before == 0 and after == 0:
            return
        if not before:
            self.poller.register(connection.fd, after)
        elif not after:
            self.poller.unregister(connection.fd)
        else:
            self.poller.modify(connection.fd, after)

    def listen(self, listener, door, certificates=None):
        """Who connects gets a session of `door`; with `certificates` there is TLS between."""
        self.listeners[listener.fileno()] = (listener, door, certificates)
        self.poller.register(listener.fileno(), READ)

    def attend(self, int fd, on_readable):
        """Call ``on_readable()`` whenever this descriptor, which is no peer's, can be read."""
        self.attended[fd] = on_readable
        self.poller.register(fd, READ)

    def disregard(self, int fd):
        """The opposite of ``attend``."""
        del self.attended[fd]
        self.poller.unregister(fd)

    def sessions_after(self, int fd):
        """Each connection with its session, by descriptor, from the first one above `fd` on."""
        cdef int at
        for at in range(fd + 1, len(self.by_fd)):
            found = self.by_fd[at]
            if found is not None:
                yield at, found, (<Connection> found).session

    # ---- the turn ----

    def turn(self):
        """One round; waits for something to do unless there is more already."""
        cdef int64_t now_ms
        self._receive(self._timeout_ms())
        self.table.take_news()
        now_ms = self.queues.now_ms
        if self.timers.next_ms <= now_ms:
            self.timers.run(now_ms)
        if self.queues.deadlines.next_ms <= self.queues.heard_ms:
            self.queues.deadlines.run(self.queues.heard_ms)
        self.table.persist()
        self.queues.dispatch()
        self._tell_heard()
        self._deliver()
        if now_ms >= self.next_tick_ms:
            self.next_tick_ms = now_ms + TICK_MS
            self._tick(now_ms)

    cdef int _awake(self) except -1:
        """After the wait: the time, and what others ask, before any socket is read: a right that was revoked is gone."""
        cdef unsigned int requests
        core.doorbell_wake(self.board.raw, self.board.index)
        calls_turn()
        self.meters.begin_turn()
        self.queues.now_ms = self.meters.turn_us // 1000
        requests = core.doorbell_requests_take(self.board.raw, self.board.index)
        return self._heed(requests) if requests else 0

    cdef int _heed(self, unsigned int requests) except -1:
        try:
            if requests & core.DOORBELL_REQUEST_MAIL:
                self.queues.take_mail()
            if requests & core.DOORBELL_REQUEST_SEATS:
                self.queues.seats_changed()
                self.groups.seats_changed()
            if requests & core.DOORBELL_REQUEST_GROUPS:
                self.groups.take_news()
            if requests & core.DOORBELL_REQUEST_ACCESS:
                self.on_access()
            if requests & core.DOORBELL_REQUEST_WORK:
                self.helpers.take_finished()
        except Exception as problem:  # no memory or no descriptor: each of these may be done again
            self.unheard |= requests
            faults.say_fault(problem, "while heeding what other processes and threads asked for")
        return 0

    cdef int _timeout_ms(self):
        cdef int64_t now_ms, due_ms
        if self.behind:
            self.others_heard = core.doorbell_others_heard(self.board.raw, self.board.index, self.resumed_ms)
            if not self.drained:
                return 0
        if self.wanting or self.table.dirty or self.queues.dirty:
            return 0
        if self.queues.mail.dirty:
            return 1  # a full ring: its reader makes room without telling
        if not core.doorbell_sleep(self.board.raw, self.board.index):
            return 0
        now_ms = now_us() // 1000
        due_ms = min(self.next_tick_ms, <int64_t> self.timers.next_ms)
        due_ms = min(due_ms, now_ms + CATCH_UP_LOOK_MS if self.behind else <int64_t> self.queues.deadlines.next_ms)
        return <int> min(max(due_ms - now_ms, 0), TICK_MS)

    cdef int _receive(self, int timeout_ms) except -1:
        cdef int n, i, fd
        cdef unsigned int events
        self.meters.end_turn()
        if self.fast is None:
            found = self.poller.select(timeout_ms / 1000)
            self._awake()
            self._hear(len(found), False, timeout_ms)
            for key, mask in found:
                self._on_event(key.fd, (EPOLLIN if mask & READ else 0) | (EPOLLOUT if mask & WRITE else 0))
                if self.table.disk.full:
                    self.table.persist_full()
            return 0
        n = self.fast.wait(timeout_ms)
        self._awake()
        self._hear(n, self.fast.interrupted, timeout_ms)
        for i in range(n):
            self._on_event(self.fast.ready[i].data.fd, self.fast.ready[i].events)
            if self.table.disk.full:
                self.table.persist_full()
        return 0

    cdef int _hear(self, int n, bint interrupted, int timeout_ms) except -1:
        """Advance `heard_ms` if this turn reads all input that has come.  Called before it does, after the wait."""
        cdef int64_t now_ms = self.queues.now_ms, away_ms = now_ms - self.awake_ms
        cdef bint is_first = self.awake_ms == 0
        self.awake_ms = now_ms
        if away_ms > timeout_ms + LATE_MS and not is_first:
            if not self.behind:
                self.behind, self.late_ms, self.paused_ms = True, now_ms - away_ms, 0
                self.behind_ms = self.late_ms
            self.late_ms += away_ms  # the time in which this worker did not run is not part of the wait
            self.paused_ms = max(self.paused_ms, away_ms)
            self.resumed_ms, self.drained, self.others_heard, self.waits = now_ms, False, False, 0
        elif interrupted:
            return 0
        elif self.behind:
            self._catch_up(n)
        elif n == READY_MAX and self.waits < self._waits_for_all():
            self.waits += 1  # epoll reports each ready descriptor before any for the second time
            return 0
        away_ms = now_ms - self.behind_ms - self.paused_ms
        if self.behind and now_ms - self.late_ms < CATCH_UP_MS_MAX and away_ms < BEHIND_MS_MAX:
            return 0
        if self.behind:
            self.behind = False
            self.says_behind.say("", "this worker was paused for %.1f s; %d s later not all input has been read, but "
                                 "timeouts go on", self.paused_ms / 1000, away_ms // 1000)
        self.waits = 0
        self.queues.heard_ms = self.read_ms = now_ms
        return 0

    cdef int _catch_up(self, int n) except -1:
        """After a pause: see whether everything has been read that had come by its end."""
        cdef bint is_empty = n == 0 or self.waits >= READS_MAX * self._waits_for_all()
        self.waits += 1
        if not is_empty:
            return 0
        self.read_ms, self.waits = self.queues.now_ms, 0
        if not self.drained:
            self.drained = True
        elif self.others_heard and self.queues.now_ms - self.resumed_ms >= GRACE_MS:
            self.behind = False
            self.says_paused.say("", "this worker was paused for %.1f s; timeouts waited %d ms, until all input had "
                                 "been read", self.paused_ms / 1000, self.queues.now_ms - self.late_ms)
        return 0

    cdef int _waits_for_all(self):
        return <int> (len(self.connections) // READY_MAX) + 1

    cdef int _tell_heard(self) except -1:
        """Tell the other workers up to when this one has read its input; its notices about that are in their mailboxes."""
        if not self.queues.mail.dirty:
            core.doorbell_heard_set(self.board.raw, self.board.index, self.read_ms)
        return 0

    cdef int _on_event(self, int fd, unsigned int events) except -1:
        cdef Connection connection
        cdef Py_ssize_t n
        found = self.by_fd[fd] if fd < len(self.by_fd) else None
        if found is None:
            return self._on_other(fd)
        connection = <Connection> found
        try:
            if events & EPOLLOUT:
                connection.writable()
            if events & ~(<unsigned int> EPOLLOUT):
                n = connection.receive()
                if n < 0 or (n == 0 and events & (EPOLLERR | EPOLLHUP)):
                    self.close(connection)
        except Exception as problem:
            self._failed(connection, problem)
        return 0

    cdef int _on_other(self, int fd) except -1:
        if fd == self.board.doorbell_fd:
            try:
                os.read(fd, 8)
            except BlockingIOError:
                pass  # taken already: another event of the same wait
            return 0
        found = self.listeners.get(fd)
        try:
            if found is not None:
                self._accept(*found)
            elif fd in self.attended:
                self.attended[fd]()
        except Exception as problem:  # neither a newcomer nor a question of another process may end this worker
            faults.say_fault(problem, "while reading from a listener or another process")
        return 0

    cdef bint _has_descriptors(self):
        """Whether a newcomer's descriptor would leave FILES_KEPT."""
        try:
            fd = os.dup(self.board.doorbell_fd)  # it gets the lowest free number
        except OSError:
            return False
        os.close(fd)
        return fd < self.files_max

    def _accept(self, listener, door, certificates):
        if not self._has_descriptors():
            self._stop_when_full("the limit of open files is reached")
            return
        for _ in range(ACCEPTS_PER_TURN):
            if len(self.connections) >= self.connections_max:
                self._stop_when_full("server.connections_max is reached")
                return
            try:
                accepted, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._stop_when_full(problem.strerror)
                return  # anything else is the newcomer's own end
            try:
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a peer whose machine is gone
                local = accepted.getsockname()
            except OSError:
                accepted.close()  # gone already
                continue
            try:
                connection = Connection(accepted.fileno(), self, peer, local, certificates)
            except Exception as problem:  # no memory, perhaps for TLS
                accepted.close()
                faults.say_fault(problem, "a connection could not be accepted")
                continue
            accepted.detach()
            self._start(connection, door, b"")
            if connection.fd >= self.files_max:
                return  # the next event asks whether there are more

    def _start(self, Connection connection, door, bytes data):
        self._add(connection)
        self.meters.count(METER_ACCEPTED, 1)
        try:
            connection.start(door.accept(connection))
            connection.take(data)
        except Exception as problem:
            self._failed(connection, problem)

    def adopt(self, int fd, peer, local, bint is_relayed, door, bytes data):
        """A connection that another worker has accepted, and what it has read of it.  False: there is no room."""
        if self.draining or self.suspended or len(self.connections) >= self.connections_max:
            return False
        connection = Connection(fd, self, peer, local)
        connection.is_relayed = is_relayed
        self._start(connection, door, data)
        return True

    def far_end(self, int fd, Connection connection):
        """Pass on what comes through `fd` to the peer of `connection`, and the other way round (net/door.pyx).

        What this worker had read of it and not used has gone another way.
        """
        far = Connection(fd, self, (connection.peer_host, connection.peer_port),
                         (connection.local_host, connection.local_port))
        self._add(far)
        connection.inbox_size = 0
        join(far, connection)
        far.start(far.session)

    def _stop_when_full(self, str why):
        """The kernel's backlog holds newcomers until there may be room again."""
        if not self.full:
            self.full = True
            self.says_full.say(why, "%d connections, no more are accepted for now: %s", len(self.connections), why)
            self._watch_listeners()

    def _add(self, Connection connection):
        while connection.fd >= len(self.by_fd):
            self.by_fd.extend([None] * len(self.by_fd))
        self.by_fd[connection.fd] = connection
        self.connections[connection.fd] = connection

    cdef int _deliver(self) except -1:
        cdef Connection connection
        cdef list wanting
        if not self.wanting:
            return 0
        wanting, self.wanting = self.wanting, []
        for connection in wanting:
            connection.scheduled = False
            if connection.closed:
                continue
            try:
                if connection.problem is not None:
                    raise connection.problem
                if connection.session.deliver():
                    connection.want_turn()
                if connection.paused and not connection.closing:
                    connection.read_on()
                if connection.has_unread() and connection.receive() < 0:
                    self.close(connection)
                elif connection.closing and connection.all_sent():
                    self._all_sent(connection)
            except Exception as problem:
                self._failed(connection, problem)
        return 0

    cdef int _all_sent(self, Connection connection) except -1:
        """It was to be closed after that.  At the broker's end peers are in the middle of sending: see half_close."""
        if connection.lingering:
            return 0
        if connection.leaving and not connection.is_shaking_hands():
            connection.half_close()
            connection.closing_ms = self.queues.now_ms
        else:
            self.close(connection)
        return 0

    cdef int _tick(self, int64_t now_ms) except -1:
        cdef Connection connection
        cdef bint is_wanted = self.room.is_wanted
        for connection in list(self.connections.values()):
            try:
                if self.behind and not (self.draining or self.suspended):
                    if not connection.closing:
                        connection.session.beat(now_ms)
                    continue  # what its peer is waited for may have come, and is not read yet
                connection.make_way(now_ms, is_wanted)
                if connection.closing:
                    # A peer that does not take what is left does not keep its place for ever.
                    connection.closing_ms = connection.closing_ms or now_ms
                    most = LINGERING_MS_MAX if connection.lingering else CLOSING_MS_MAX
                    if now_ms - connection.closing_ms > most or (connection.socket_full and connection.leaving):
                        self.close(connection)
                        continue
                if connection.lingering:
                    continue
                connection.session.tick(now_ms)
                if self.draining or self.suspended:
                    connection.leaving = True
                if self.suspended and not self.draining and now_ms >= self.suspended_ms:
                    self.close(connection)
                elif connection.leaving:
                    connection.session.shutdown()
            except Exception as problem:
                self._failed(connection, problem)
        self.table.tick(self.queues.heard_ms)
        self.queues.tick(now_ms)
        self.on_access()
        say_due()
        logs.write_pending()
        self.helpers.start_refused()
        if self.unheard:
            requests, self.unheard = self.unheard, 0
            self._heed(requests)
        if self.full and len(self.connections) < self.connections_max:
            self.full = False
            self._watch_listeners()
        return 0

    # ---- the end of a connection, and of all ----

    def _failed(self, Connection connection, problem):
        """One bad peer never hurts another: its connection ends, and the log says why."""
        if isinstance(problem, (ConnectionClosed, ProtocolError, LimitExceeded)):
            # Some begin with the peer's name, for clients have them too.
            said = str(problem).removeprefix(connection.peer).removeprefix(": ")
            what = (host_of(connection.peer_host), type(problem))
            self.says_ended.say(what, "%s: closed: %s", connection.peer, said or "it went away")
        elif isinstance(problem, MemoryError):
            self.says_memory.say("", "%s: closed: the kernel refused memory that it needed; raise the limit of memory, or "
                                 "lower server.connections_max", connection.peer)
        else:
            faults.say_fault(problem, "%s: closed by an error of ours", connection.peer)
        self.close(connection)

    def close(self, Connection connection):
        cdef int fd = connection.fd
        if connection.closed:
            return
        self.by_fd[fd] = None
        del self.connections[fd]
        if connection.watched:
            self.poller.unregister(fd)
            connection.watched = 0
        try:
            connection.close()
        except Exception as problem:
            faults.say_fault(problem, "%s: while closing", connection.peer)
        if self.full:
            self.full = False
            self._watch_listeners()

    cdef int _watch_listeners(self) except -1:
        cdef bint wanted = not (self.full or self.suspended or self.draining)
        if wanted != self.accepting:
            self.accepting = wanted
            watched = []
            try:
                for fd in self.listeners:
                    if wanted:
                        self.poller.register(fd, READ)
                        watched.append(fd)
                    else:
                        self.poller.unregister(fd)
            except OSError as problem:  # no memory, or too many descriptors are watched: the next tick tries again
                self.full, self.accepting = True, False
                for fd in watched:
                    self.poller.unregister(fd)
                faults.say_fault(problem, "the listeners cannot be watched for now")
        return 0

    def suspend(self, int64_t timeout_ms):
        """Maintenance: refuse newcomers, also those who wait in the kernel, and send everybody away."""
        if self.suspended or self.draining:
            return
        self.suspended, self.suspended_ms = True, self.queues.now_ms + timeout_ms
        self.queues.ending = True  # nothing that consumers have is theirs to have failed
        self._watch_listeners()
        for listener, _, _ in self.listeners.values():
            # A worker that was here before may have done it.  Twice would be too often: the kernel notes the second
            # one for good, and whoever is accepted after maintenance is shut down from the start.
            if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listener.shutdown(socket.SHUT_RDWR)  # the supervisor's copy of it too: it listens no more
        self.next_tick_ms = 0

    def revive(self):
        """The end of maintenance.  Who is leaving leaves, and may come back."""
        if not self.suspended or self.draining:
            return
        self.suspended = self.queues.ending = False
        self.listen_again()
        self._watch_listeners()

    def listen_again(self):
        """A worker that came while maintenance ended has sockets from before, which listen no more."""
        for listener, _, _ in self.listeners.values():
            if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listener.listen(BACKLOG)

    def drain(self):
        """Stop accepting and tell every client; turn() goes on until connections is empty."""
        self.draining = True
        self._watch_listeners()
        for listener, _, _ in self.listeners.values():
            listener.close()  # newcomers are refused at once instead of waiting for nobody
        self.listeners.clear()
        self.next_tick_ms = 0
