# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.storage.core cimport boolean, shared_word


cdef extern from "base/calls.h" nogil:
    enum:
        CALL_SLOW_MS
        CALL_STALLED_MS
        CALLS_ENTRIES
    struct call:
        pass
    struct calls:
        shared_word slow[10]
        shared_word slow_ms[10]
        unsigned int replaced
    struct call_seen:
        uint32_t entry
        int kind
        int64_t ms
        char path[240]
    void calls_sit(calls *seat)
    call *call_begin(int kind, const char *path)
    void call_end(call *c)
    boolean calls_have_stalled(int64_t ms)
    void calls_turn()
    int64_t calls_first_ms()
    void calls_replace(boolean replaced)
    uint32_t calls_running(calls *seat, int64_t ms, call_seen *out, uint32_t count)
    uint64_t calls_slowest_ms(calls *seat)
    boolean calls_take_ended(calls *seat, call_seen *out)


cdef class Calls:
    cdef calls *raw
    cdef object memory              # keeps what `raw` points into
