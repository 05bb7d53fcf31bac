/* SPDX-License-Identifier: Apache-2.0
 *
 * groups: who belongs to which single-active-consumer group, and which member is the active one, in one table of rows
 * that all workers share (a memfd).
 *
 * A group is (incarnation of a stream, name); it exists while it has a member.  The table knows no rule of who is to be
 * active: that is decided by whoever changed a group, under the mutex (vibemq/broker/groups.py), and kept here as the
 * members' states.
 *
 * A holder of the mutex may be killed at any instruction.  A row counts from the moment its hash is stored, the last
 * store of an insertion and the first of a removal, and a state is one store; so rows are always whole, and what a dead
 * holder leaves is a group without an active member.  `repair_wanted` says that one may be there; deciding every group
 * again mends it, and deciding twice is deciding once.
 *
 * Invariants: the members of a group have one partition index, different registration numbers, and at most one of them
 * is active or deactivating.
 */
#ifndef VIBEMQ_SHM_GROUPS_H
#define VIBEMQ_SHM_GROUPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../base/error.h"
#include "doorbell.h"
#include "mutex.h"

#define GROUPS_ROWS 16384u           /* members of one broker; 8 MiB of address space, touched as used */
#define GROUPS_NAME_BYTES_MAX 255u   /* the RabbitMQ Streams protocol */
#define GROUPS_LABEL_BYTES_MAX 160u  /* for people: two addresses with ports, and a subscription */

enum groups_state { GROUPS_WAITING = 1, GROUPS_ACTIVE = 2, GROUPS_DEACTIVATING = 3 };

struct groups_row {
    uint64_t incarnation;            /* of the stream */
    uint64_t number;                 /* of registration: members of a group are in this order */
    uint64_t member;                 /* the worker's own number for it */
    uint32_t slot;                   /* of the stream */
    uint32_t worker, epoch;          /* whose it is, and of which process on that seat */
    int32_t partition;               /* -1: a plain group */
    _Atomic uint32_t state;          /* enum groups_state */
    uint8_t name_bytes, label_bytes;
    char name[GROUPS_NAME_BYTES_MAX], label[GROUPS_LABEL_BYTES_MAX];
};

struct groups {
    struct mutex mutex;              /* guards every change, and every look at more than one row */
    _Atomic uint32_t repair_wanted;  /* an owner died; set and cleared with the mutex held */
    _Atomic uint32_t high;           /* no row from here on was ever used */
    _Atomic uint64_t numbers;        /* registrations so far */
    _Atomic uint32_t hash[GROUPS_ROWS]; /* 0: the row is free */
    struct groups_row rows[GROUPS_ROWS];
};

/* Lay out a table in zeroed shared bytes; the supervisor does this once.  ERR_LOCK. */
err groups_init(struct groups *g, struct fault *f);

/* Take the mutex.  Whoever finds `repair_wanted` set decides all groups before anything else.  ERR_LOCK. */
err groups_lock(struct groups *g, struct fault *f);
void groups_unlock(struct groups *g);

/* The state of a row of the caller's own; without the mutex. */
enum groups_state groups_state(const struct groups *g, uint32_t row);

/* ---- with the mutex held ---- */

/* Add a member, waiting, behind all others: everything but number and state is the caller's to say.
 * ERR_FULL, ERR_LIMIT (a name or label that is too long, or no name), ERR_INVALID (the group has another partition). */
err groups_add(struct groups *g, const struct groups_row *member, uint32_t *row, struct fault *f);
void groups_remove(struct groups *g, uint32_t row);
void groups_set_state(struct groups *g, uint32_t row, enum groups_state state);

/* Rows in use, in no order, into `rows` (room for GROUPS_ROWS): of one group, or of all. */
uint32_t groups_of(const struct groups *g, uint64_t incarnation, const char *name, uint32_t name_bytes, uint32_t *rows);
uint32_t groups_all(const struct groups *g, uint32_t *rows);
/* Of members whose worker is dead: another process has taken its seat. */
uint32_t groups_dead(const struct groups *g, struct doorbell_board *b, uint32_t *rows);

/* The invariants above.  Ends the process when one is broken. */
void groups_check(const struct groups *g);

#endif
