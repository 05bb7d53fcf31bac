# SPDX-License-Identifier: Apache-2.0
"""What transactions have staged is appended to the logs that it is for (csrc/log/apply.h).  Blocks: helper threads only.

The handles are the caller's own, of this thread.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_END, OK, boolean, err, fault
from vibemq.storage.log cimport Log, storage_error

cdef extern from "log/apply.h" nogil:
    struct apply_target:
        core.log *log
        uint64_t next_number, messages
        boolean rolled
        err failed
        fault fault

    struct apply_t "apply":
        apply_target *targets
        uint32_t target_count, uncompressed_max
        boolean counts_only, parts_kinds
        uint64_t malformed

    err apply_init(apply_t *a, fault *f)
    void apply_free(apply_t *a)
    err apply_begin(apply_t *a, core.log *staged, uint64_t blocks, fault *f)
    err apply_step(apply_t *a, fault *f)

#: Under which logs remember what transactions have appended; refused to clients.
REFERENCE = "\0transactions"


cdef class Apply:
    """One walk over staged logs, one after another: ``begin(log, blocks)``, then ``step()`` while it says True."""

    cdef apply_t raw
    cdef list held  # what the pointers point to
    cdef Log staged

    def __cinit__(self):
        self.raw.targets = NULL

    def __init__(self, list targets, *, uint32_t uncompressed_max, bint parts_kinds, bint counts_only=False):
        """``targets``: for each (its Log or None where it is gone, the number of its first message).  StorageError."""
        cdef fault f
        cdef Log log
        cdef err e
        self.raw.targets = <apply_target *> calloc(len(targets) or 1, sizeof(apply_target))
        if self.raw.targets == NULL:
            raise MemoryError
        self.raw.target_count = <uint32_t> len(targets)
        self.raw.uncompressed_max, self.raw.parts_kinds = uncompressed_max, parts_kinds
        self.raw.counts_only = counts_only
        self.held = [log for log, _ in targets]
        for i, (found, first) in enumerate(targets):
            if found is not None:
                log = found
                self.raw.targets[i].log = log.raw
            self.raw.targets[i].next_number = first
        e = apply_init(&self.raw, &f)
        if e != OK:
            free(self.raw.targets)
            self.raw.targets = NULL
            raise storage_error(e, &f)

    def __dealloc__(self):
        if self.raw.targets != NULL:
            apply_free(&self.raw)
            free(self.raw.targets)

    def begin(self, Log staged, uint64_t blocks):
        cdef fault f
        cdef err e
        with nogil:
            e = apply_begin(&self.raw, staged.raw, blocks, &f)
        if e != OK:
            raise storage_error(e, &f)
        self.staged = staged

    def step(self) -> bool:
        """Some more of it; False: that was all.  StorageError: what is staged cannot be read."""
        cdef fault f
        cdef err e
        with nogil:
            e = apply_step(&self.raw, &f)
        if e != OK and e != ERR_END:
            raise storage_error(e, &f)
        return e == OK

    @property
    def malformed(self) -> int:
        """Places that were no blocks or entries, and damaged chunks."""
        return self.raw.malformed

    @property
    def messages(self) -> list[int]:
        """For each target so far, those included that were there already."""
        return [self.raw.targets[i].messages for i in range(self.raw.target_count)]

    def rolled(self, uint32_t target) -> bool:
        """Was a segment of it closed?"""
        return self.raw.targets[target].rolled

    def problem(self, uint32_t target):
        """The StorageError that keeps this target from taking more; None."""
        cdef apply_target *found = &self.raw.targets[target]
        return None if found.failed == OK else storage_error(found.failed, &found.fault)
