# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t
from vibemq.broker.backlog cimport Backlog, Member
from vibemq.broker.queue cimport Queue

from vibemq.storage.members cimport MemberTable


cdef class Departed:
    cdef Queue queue
    cdef dict away                    # Members that vanished, the first to vanish first -> their figures (_measure)
    # All of these have members of `away`.
    cdef dict by_record, by_name      # by_name: lists, longest gone first
    cdef dict unnamed, short_lived    # as ordered sets: without a name; without a time to live
    cdef list were_alone              # with was_alone
    # The sum of the figures (_sum_up).
    cdef bint is_summed
    cdef uint64_t summed_at, sum_ends # it holds while summed_at <= next < sum_ends
    cdef uint64_t away_low            # the lowest offset that one is owed
    cdef uint64_t open_departed       # departed() of those whose copies reach beyond `next`
    cdef uint64_t closed_count        # the highest number of copies of one of the others
    cdef dict unaged                  # Members of `away` -> since when (ms, stamp), while that gives no age
    cdef list lapsed                  # Members after the end of their time; their copies leave the queue now
    cdef dict unjoined                # record -> MemberRecord of members that no worker has reported to a new home yet
    cdef Member shed_by_limit         # in `lapsed`: copies that a length limit drops
    cdef Member alone                 # the only member, with an open alone_end
    cdef Member first                 # it subscribed as the only member, and no other has subscribed since
    cdef int64_t due_ms               # the earliest end of a member's time

    cdef int admitted(self, Member m) except -1
    cdef int came(self, Member m, bint is_first) except -1
    cdef int remains(self, dict members) except -1
    cdef int _store_alone(self, Member m, uint64_t first, uint64_t end) except -1
    cdef list _without_acknowledged(self, Backlog of, Member gone, list copies)
    cdef tuple _states(self, Backlog of, list ranges)
    cdef list unsettled(self, Backlog of, list ranges)
    cdef tuple _without_passed_on(self, Member gone, list copies, list shared)
    cdef Member find(self, Member m)
    cdef int give_to_early(self, Member gone, dict members, uint64_t next) except -1
    cdef int give_all_to_early(self, dict members, uint64_t next) except -1
    cdef int _give(self, Member m, Member gone, uint64_t next) except -1
    cdef int _put(self, Member gone) except -1
    cdef int _drop(self, Member gone) except -1
    cdef int _measure(self, Member gone) except -1
    cdef int _sum_up(self, uint64_t next) except -1
    cdef int take(self, Member m, Member gone, uint64_t next) except -1
    cdef bint keep(self, Backlog of, Member gone, uint64_t low, uint64_t next, bint with_ack) except -1
    cdef int forget(self, Member m) except -1
    cdef int place(self, Member m) except -1
    cdef int taken_over(self, Backlog of, uint64_t base, list passed_on) except -1
    cdef uint64_t lowest(self) except? 0
    cdef uint64_t departed(self, uint64_t departed, uint64_t next) except? 0
    cdef uint64_t cut(self, uint64_t below) except? 0
    cdef int end_some(self, Backlog of, int64_t now_ms) except -1
    cdef int _age(self, int64_t now_ms) except -1
    cdef int _end(self, Member gone) except -1
    cdef int _store(self, Member gone) except -1
    cdef int _tell(self) except -1
    cdef int64_t _due_ms(self, Member gone)
    cdef int64_t _grace_ms(self, Member m)
    cdef int shed(self, list copies, list shared, uint64_t below) except -1
    cdef int lapse(self, Backlog of) except -1
    cdef bint _give_late(self, Backlog of, Member gone) except -1
