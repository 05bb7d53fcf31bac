# SPDX-License-Identifier: Apache-2.0
"""One accepted socket: what has come and is not yet a frame, and what waits to be sent.

Reading goes through a buffer that all connections of a worker share, so an idle
connection owns no buffer at all; only the incomplete frame at the end of a read is kept.
A large incomplete frame is read straight into memory that grows with what has come, so a peer that sends it drop by
drop costs little copying, and one that promises much and sends little no memory.  How much all connections keep
together is bounded (Room).  Writing collects small frames in the outbox and sends them with whatever the session
gathers in one call.  With TLS (net/sockets.pyx) the same calls go through it: bytes count as sent once they are encrypted.

Invariants: outbox_head <= outbox_size <= outbox_capacity; inbox_size <= inbox_capacity; while it is promised room,
inbox_capacity <= promised; who waits for a promise is paused; a closed connection has fd -1, no memory and no room.
"""

import os

from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove
from vibemq.grow cimport grow
from vibemq.net.sockets cimport socket_end_output, socket_receive, socket_send

from vibemq.addresses import host_port
from vibemq.errors import ConnectionClosed, LimitExceeded

cdef enum:
    # What each connection keeps of its input without asking: more than a frame before login, and than most frames.
    SHARE_BYTES = 16 * 1024
    # A frame up to here is a small one: as large as clients make them by default.
    SMALL_FRAME_BYTES = 1 << 20
    # While others wait: a peer that holds room has to send or take so much in so long a time.
    HOLD_MS = 5000
    HOLD_BYTES_MIN = 64 * 1024
    # One read of one connection in one turn.  Half of a common 1 MiB second-level cache:
    # the bytes are still there when they are copied into the chunk.
    RECEIVE_BYTES = 512 * 1024
    # Read at least, beside what is kept.
    READ_BYTES_MIN = 4 * 1024
    # From here on an incomplete frame is read straight to where it is kept.
    DIRECT_BYTES_MIN = SHARE_BYTES
    # Replies and confirms waiting for a peer that does not read; then it is not read either.
    OUTBOX_BYTES_PAUSE = 1 << 20
    # And here the peer is given up: a single reply may be large, a heap of them is an attack.
    OUTBOX_BYTES_MAX = 64 << 20
    # As selectors.EVENT_READ and EVENT_WRITE.
    READ = 1
    WRITE = 2


cdef inline int _part(size_t promised) noexcept:
    """Of the room, for a connection that is promised so much: 0 is nothing, and it keeps what it has read."""
    return ROOM_READ if promised == 0 else ROOM_SMALL if promised <= SMALL_FRAME_BYTES else ROOM_LARGE


cdef class Room:
    """How much a worker keeps of what its connections have sent and it cannot use yet: incomplete frames above all.

    Each connection keeps up to SHARE_BYTES without asking, so that nobody can keep others from logging in, from frames
    of that size and from heartbeats.  What goes beyond the shares is counted, for all connections together:

    - A connection that keeps nothing reads as much as is free of the part for reading.
    - One with a frame that has begun and is larger than its share needs a promise for the whole of it before it reads
      on, so that whoever has a promise can be finished; who cannot have one is not read until others are done.  Small
      frames have a part of their own, so large ones do not keep them waiting.
    - Whoever is alone with a promise in its part always gets it, so the largest frame that a door allows goes through.

    So input takes at most SHARE_BYTES for each connection, `limit`, and one frame of each kind above it.  What a peer
    is to read beyond OUTBOX_BYTES_PAUSE is counted as well: it cannot be refused, but nobody is promised room for a
    large frame while there is that much.

    A peer that holds a promise and hardly goes on, or hardly reads, is closed when somebody waits: Connection.make_way.
    """

    def __init__(self, size_t limit):
        self.limit = limit
        self.size[ROOM_READ], self.size[ROOM_SMALL], self.size[ROOM_LARGE] = limit // 2, limit // 4, limit // 4
        self.waiting = ({}, {}, {})

    @property
    def is_wanted(self) -> bool:
        """Does somebody wait?"""
        return any(self.waiting)

    cdef size_t readable(self) noexcept:
        """How many bytes a connection may read that keeps nothing."""
        cdef size_t size = self.size[ROOM_READ], taken = self.taken[ROOM_READ]
        return SHARE_BYTES + (size - taken if taken < size else 0)

    cdef bint may_promise(self, int part, size_t more) noexcept:
        return self.promises[part] == 0 or self.taken[part] + more <= self.size[part]

    cdef int serve(self, int part) except -1:
        """Something was given back: promise it to those who wait, in their order."""
        cdef dict waiting = self.waiting[part]
        while waiting:
            first = next(iter(waiting))
            if not first.promised_room():
                return 0
            waiting.pop(first, None)
        return 0


# Sockets are read into it, and frames are used in place; only an incomplete rest is kept by its connection.  Only the
# loop's thread uses it.
cdef uint8_t shared[RECEIVE_BYTES]


cdef class Connection:
    def __init__(self, int fd, object loop, peer_address, local_address, certificates=None):
        """``certificates`` (net.certificates.Certificates): of a port that speaks TLS."""
        self.fd = fd
        self.loop = loop
        self.room = loop.room
        self.is_trusted = True
        self.peer_host, self.peer_port = _as_dialled(peer_address[0]), peer_address[1]
        self.local_host, self.local_port = _as_dialled(local_address[0]), local_address[1]
        self.peer = f"{host_port(self.peer_host, self.peer_port)} -> {host_port(self.local_host, self.local_port)}"
        self.is_loopback = self.peer_host.startswith("127.") or self.peer_host == "::1"
        if certificates is not None:
            self.tls = Tls(certificates, self.peer)

    def __dealloc__(self):
        free(self.inbox)
        free(self.outbox)

    def __repr__(self):
        return f"<Connection {self.peer}>"

    @property
    def is_tls(self) -> bool:
        return self.tls is not None or self.is_relayed

    @property
    def server_name(self) -> str:
        """The host name that a TLS client asked for; "" where there was none."""
        return "" if self.tls is None else self.tls.server_name

    @property
    def peer_certificate(self):
        """What the checked certificate of a TLS client says of it (net.certificates); None without one."""
        return None if self.tls is None else self.tls.peer_certificate

    # ---- the TLS handshake ----

    cdef Py_ssize_t _shake_hands(self) except -2:
        """Let a helper thread answer what has come; as _recv, of ciphertext.

        The session knows nothing of it: what it writes waits, and its own deadline for a first frame ends those who
        take too long.
        """
        cdef ssize_t n
        if self.tls.working:
            return 0  # an event all the same: a peer that is gone is reported whatever is watched
        n = self.tls.fill(self.fd)
        if n > 0:
            self.bytes_in += n
            self.tls.working = True
            self.pause()
            self.loop.helpers.submit_hash(self.tls.step, self._shook_hands)
        return n

    def _shook_hands(self, finished, error):
        try:
            self.tls.step_done(finished, error, self.closed)
        except Exception as problem:
            self.fail(problem)
            return
        self.want_turn()  # sends our part, and reads on

    # ---- in ----

    cdef Py_ssize_t receive(self) except -2:
        """Read once and let the session take whole frames; -1 when the peer is gone, else bytes read."""
        cdef size_t had = self.inbox_size
        cdef size_t size
        cdef ssize_t n
        if self.tls is not None and not self.tls.established:
            return self._shake_hands()
        if had >= DIRECT_BYTES_MIN and self.session.wanted > had:
            if self.session.wanted > self.promised and not self._ask_room():
                return 0
            size = min(self.session.wanted, 2 * had)
            self._inbox_reserve(size)
            n = self._recv(self.inbox + had, size - had)
            if n <= 0:
                return n
            self.inbox_size += n
            if self.inbox_size == self.session.wanted:
                self._take_inbox()
            return n
        if had:
            if had >= RECEIVE_BYTES // 2:
                raise LimitExceeded("unread input", had, RECEIVE_BYTES // 2)
            memcpy(shared, self.inbox, had)
        size = min(<size_t> RECEIVE_BYTES, self.room.readable() if self.is_trusted else <size_t> SHARE_BYTES)
        n = self._recv(shared + had, max(size, had + READ_BYTES_MIN) - had)
        if n <= 0:
            return n
        self.inbox_size = 0
        self._take(shared, had + <size_t> n)
        return n

    cdef ssize_t _recv(self, uint8_t *data, size_t size) except -2:
        """Bytes read, 0 when there are none now, -1 when the peer is gone."""
        cdef ssize_t n
        if self.tls is None:
            n = socket_receive(self.fd, data, size)
        else:
            n = self.tls.receive(self.fd, data, size)
            if self.tls.unread or self.tls.has_unsent():
                self.want_turn()
        if n > 0:
            self.bytes_in += n
        return n

    cdef int _take(self, const uint8_t *data, size_t size) except -1:
        """Give bytes to the session and keep what it leaves."""
        cdef Py_ssize_t used = 0
        cdef size_t left
        if not self.session.busy and not self.closing:
            self.session.wanted = 0
            used = self.session.receive(data, size)
        elif self.closing:
            used = size  # nothing after a close is read, but the peer must be able to send it
        left = size - <size_t> used
        if left:
            self._inbox_reserve(left)
            memmove(self.inbox, data + used, left)
        elif self.inbox != NULL:
            free(self.inbox)
            self.inbox = NULL
            self.inbox_capacity = 0
        self.inbox_size = left
        if self.promised and used:  # the frame at the front, which it was for
            self._end_promise()
        if self.counted or left > SHARE_BYTES:
            self._count()
        if not self.closing and (self.session.busy or self.outbox_size - self.outbox_head > OUTBOX_BYTES_PAUSE):
            self.pause()
        return 0

    cdef int _take_inbox(self) except -1:
        # The session reads from the inbox itself; _take moves the rest to its front.
        return self._take(self.inbox, self.inbox_size)

    cdef int _count(self) except -1:
        """Tell the room what this connection keeps now, and who waits for it if that is less."""
        cdef size_t keeps = max(self.inbox_capacity, self.promised), unread = 0
        cdef size_t freed = self.counted
        cdef int part = self.part
        keeps = keeps - SHARE_BYTES if keeps > SHARE_BYTES else 0
        if self.outbox_capacity > OUTBOX_BYTES_PAUSE:
            unread = self.outbox_capacity - OUTBOX_BYTES_PAUSE
        self.room.taken[part] -= self.counted
        self.part = _part(self.promised)
        self.room.taken[self.part] += keeps
        self.counted = keeps
        if part != ROOM_READ and (keeps < freed or self.part != part):
            self.room.serve(part)
        if unread != self.counted_out:
            freed = self.counted_out
            self.room.taken[ROOM_LARGE] += unread - freed
            self.counted_out = unread
            if unread < freed:
                self.room.serve(ROOM_LARGE)
        return 0

    cdef bint _ask_room(self) except -1:
        """Room for the whole frame at the front, before more of it is read; False: it waits for that."""
        cdef int part = _part(self.session.wanted)
        if not self.room.waiting[part] and self.promised_room():
            return True
        self.waits = True
        self.room.waiting[part][self] = None
        self.pause()
        return False

    def promised_room(self) -> bool:
        """Take a promise for the frame at the front, if there is one to be had."""
        cdef int part = _part(self.session.wanted)
        if not self.room.may_promise(part, self.session.wanted):
            return False
        self._end_promise()
        self.room.promises[part] += 1
        self.promised = self.session.wanted
        self.held_ms = 0
        self._count()
        if self.waits:
            self.waits = False
            self.want_turn()  # the loop resumes it
        return True

    cdef int _end_promise(self) except -1:
        """Whoever calls it counts afterwards."""
        if self.promised:
            self.room.promises[_part(self.promised)] -= 1
            self.promised = 0
        return 0

    cdef int _leave_room(self) except -1:
        """Nothing is kept here any more, and nothing waited for."""
        if self.waits:
            self.waits = False
            self.room.waiting[_part(self.session.wanted)].pop(self, None)
        self._end_promise()
        return self._count()

    cdef int make_way(self, int64_t now_ms, bint wanted) except -1:
        """Twice a second, `wanted` saying whether somebody waits for room: no peer may keep that for hardly anything."""
        cdef uint64_t moved = self.bytes_in + self.bytes_out
        if not wanted or not (self.promised or self.counted_out):
            self.held_ms = 0
        elif self.held_ms == 0 or (now_ms - self.held_ms > HOLD_MS and moved - self.held_bytes >= HOLD_BYTES_MIN):
            self.held_ms, self.held_bytes = now_ms, moved
        elif now_ms - self.held_ms > HOLD_MS and self.session.busy and not self.counted_out:
            self.held_ms = 0
            self._end_promise()  # it is not read, and not by its own doing; it asks again when it is
            self._count()
        elif now_ms - self.held_ms > HOLD_MS:
            raise LimitExceeded(
                f"it sent and took only {moved - self.held_bytes} bytes in {HOLD_MS // 1000} s, with {self.inbox_size} of a "
                f"frame's {self.promised} bytes here, while others waited for room (server.unfinished_input_max_bytes)")
        return 0

    cdef int _inbox_reserve(self, size_t size) except -1:
        if size > self.inbox_capacity:
            grown = <uint8_t *> realloc(self.inbox, size)
            if grown == NULL:
                raise MemoryError
            self.inbox = grown
            self.inbox_capacity = size
        return 0

    cpdef pause(self):
        """Stop reading: the peer feels it through TCP."""
        if not self.paused and not self.closed:
            self.paused = True
            self._watch()

    cdef int read_on(self) except -1:
        """Read again, beginning with what was kept."""
        if self.closed or self.waits or self.session.busy or (self.tls is not None and self.tls.working):
            return 0
        if self.outbox_size - self.outbox_head > OUTBOX_BYTES_PAUSE:
            return 0
        if self.inbox_size:
            self._take_inbox()
            if self.session.busy:
                return 0
        if self.outbox_size - self.outbox_head > OUTBOX_BYTES_PAUSE:
            return 0
        if self.paused:
            self.paused = False
            self._watch()
        return 0

    # ---- out ----

    cdef uint8_t *outbox_reserve(self, size_t size) except NULL:
        """Room for a frame of `size` bytes at the end of the outbox; the caller fills all of it."""
        cdef size_t need
        if self.outbox_head and self.outbox_head == self.outbox_size:
            self.outbox_head = self.outbox_size = 0
        need = self.outbox_size + size
        if need > self.outbox_capacity:
            if self.outbox_head:
                memmove(self.outbox, self.outbox + self.outbox_head, self.outbox_size - self.outbox_head)
                self.outbox_size -= self.outbox_head
                self.outbox_head = 0
                need = self.outbox_size + size
            if need > OUTBOX_BYTES_MAX:
                raise LimitExceeded("outbox (the peer does not read)", need, OUTBOX_BYTES_MAX)
            if need > self.outbox_capacity:
                grow(&self.outbox, &self.outbox_capacity, need, 1)
                if self.outbox_capacity > OUTBOX_BYTES_PAUSE:
                    self._count()
        self.outbox_size += size
        self.want_turn()
        return self.outbox + self.outbox_size - size

    cdef int write(self, const uint8_t *data, size_t size) except -1:
        memcpy(self.outbox_reserve(size), data, size)
        return 0

    cdef int prepend(self, const uint8_t *data, size_t size) except -1:
        """Put the rest of a frame whose beginning is out already before everything queued."""
        cdef size_t pending = self.outbox_size - self.outbox_head
        self.outbox_reserve(size)
        memmove(self.outbox + self.outbox_head + size, self.outbox + self.outbox_head, pending)
        memcpy(self.outbox + self.outbox_head, data, size)
        return 0

    def write_bytes(self, bytes frame):
        """Queue whole frames; they are sent at the end of this turn."""
        if not self.closed:
            self.write(<const uint8_t *> frame, len(frame))

    cdef Py_ssize_t send(self, iovec *iov, int count, bint outbox_first) except -2:
        """One gathering call of the outbox (if `outbox_first`) and `count` further pieces.

        Returns how many bytes of the further pieces went out, -1 when the outbox itself is
        not empty afterwards.  Sets `socket_full` when the socket took less than everything.
        `iov` has a free place in front: iov[0] is written here, pieces begin at iov[1].
        """
        cdef iovec *pieces = iov + 1
        cdef size_t pending = self.outbox_size - self.outbox_head if outbox_first else 0
        cdef size_t total = pending
        cdef ssize_t n
        cdef int i
        for i in range(1, count + 1):
            total += iov[i].iov_len
        if pending:
            iov[0].iov_base = self.outbox + self.outbox_head
            iov[0].iov_len = pending
            pieces = iov
            count += 1
        if self.tls is None:
            n = socket_send(self.fd, self.peer, pieces, count)
        else:
            n = self.tls.send(self.fd, pieces, count)
            if not self.tls.established:
                return -1 if pending else 0
            if self.tls.has_unsent():
                self._block()
        self.bytes_out += n
        if <size_t> n < total:
            self._block()
        if <size_t> n < pending:
            self.outbox_head += n
            return -1
        if pending:
            self.outbox_head = self.outbox_size = 0
            if self.outbox_capacity > 64 * 1024:  # a burst of confirms is over: give the memory back
                free(self.outbox)
                self.outbox = NULL
                self.outbox_capacity = 0
                if self.counted_out:
                    self._count()
        return n - <ssize_t> pending

    cdef bint flush(self) except -1:
        """Send the outbox; True when it is empty afterwards."""
        cdef iovec only[1]
        if self.outbox_head == self.outbox_size and (self.tls is None or not self.tls.has_unsent()):
            return True
        if self.socket_full or self.closed:
            return False
        if self.tls is not None and not self.tls.working and not self.tls.flush(self.fd):
            self._block()
            return False
        return self.send(only, 0, True) >= 0

    cdef bint all_sent(self):
        """Nothing is left that the peer could still be sent."""
        if self.tls is not None:
            if not self.tls.established:
                return not self.tls.working
            if self.tls.has_unsent():
                return False
        return self.outbox_head == self.outbox_size

    cdef bint is_shaking_hands(self):
        return self.tls is not None and not self.tls.established

    cdef bint has_unread(self):
        """Is there something to receive that the poller does not report?"""
        return self.tls is not None and self.tls.unread and not self.paused and not self.closing

    cdef size_t pending(self):
        return self.outbox_size - self.outbox_head

    cdef int _block(self) except -1:
        if not self.socket_full:
            self.socket_full = True
            self._watch()
        return 0

    def writable(self):
        """The poller says that the socket takes bytes again."""
        if self.socket_full:
            self.socket_full = False
            self._watch()
            self.want_turn()

    cdef int want_turn(self) except -1:
        """Ask to be sent at the end of this turn."""
        if not self.scheduled and not self.closed:
            self.scheduled = True
            self.loop.schedule(self)
        return 0

    def fail(self, problem):
        """End this connection at its next turn: for those who are in the middle of telling many."""
        if self.problem is None:
            self.problem = problem
            self.want_turn()

    cdef int close_after_flush(self) except -1:
        self.closing = True
        self.want_turn()
        return 0

    def finish(self):
        """Send what is queued, then close; input is ignored from now on."""
        self.close_after_flush()

    cdef int half_close(self) except -1:
        """Everything is sent: say that no more comes, and pass over what the peer still sends, until it ends too.

        To close while input is unread resets the connection, and a reset may cost the peer what it has not read yet.
        """
        self.lingering = self.closing = True
        if self.tls is not None:
            self.tls.say_goodbye(self.fd)
            self.tls = None  # what comes now is looked at by nobody
        free(self.inbox)
        self.inbox = NULL
        self.inbox_size = self.inbox_capacity = 0
        self._leave_room()
        self.session.wanted = 0
        self.paused = self.socket_full = False
        self._watch()
        socket_end_output(self.fd)
        return 0

    def _watch(self):
        cdef int bits = (0 if self.paused else READ) | (WRITE if self.socket_full else 0)
        if bits != self.watched and not self.closed:
            self.loop.watch(self, self.watched, bits)
            self.watched = bits

    def start(self, Session session):
        self.session = session
        self._watch()
        session.open()

    def take(self, bytes data):
        """As if `data` had just been received: what another worker had read of a connection that it gave away."""
        if data and not self.closed:
            self._take(<const uint8_t *> data, len(data))

    def close(self):
        """Give back the socket and all memory; safe to call twice."""
        if self.closed:
            return
        self.closed = True
        fd, self.fd = self.fd, -1
        try:
            if self.session is not None:
                self.session.close()
        finally:
            if self.tls is not None:
                self.tls.say_goodbye(fd)
            os.close(fd)
            free(self.inbox)
            free(self.outbox)
            self.inbox = self.outbox = NULL
            self.inbox_size = self.inbox_capacity = 0
            self.outbox_head = self.outbox_size = self.outbox_capacity = 0
            self._leave_room()


def _as_dialled(host: str) -> str:
    """An IPv4 address that a socket of both families shows as ::ffff:a.b.c.d, as people and clients write it."""
    return host[7:] if host.startswith("::ffff:") and "." in host else host
