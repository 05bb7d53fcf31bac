/* SPDX-License-Identifier: Apache-2.0
 *
 * mutex: the C library's robust, process-shared mutex, in shared memory, behind four answers.
 *
 * The holder may be killed at any instruction.  The next to take the lock is told (`MUTEX_INHERITED`) and must make the
 * guarded state consistent before it goes on; what it guards is laid out so that this is always possible.
 */
#ifndef VIBEMQ_SHM_MUTEX_H
#define VIBEMQ_SHM_MUTEX_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>

struct mutex { pthread_mutex_t raw; };

enum mutex_taken { MUTEX_FAILED = -1, MUTEX_TAKEN = 0, MUTEX_INHERITED = 1, MUTEX_BUSY = 2 };

/* Of type "error check": a thread that locks twice gets EDEADLK instead of hanging the worker, and
 * unlocking another's mutex is found at once.  In memory that no other process uses yet; 0 or -1 with errno. */
int mutex_init(struct mutex *m);

/* Take it.  MUTEX_INHERITED: the last holder died; the lock is held and already
 * marked consistent, the caller repairs the state it guards. */
enum mutex_taken mutex_lock(struct mutex *m);

/* Take it if it can be had at once, or within `ms` milliseconds.  MUTEX_BUSY: it could not. */
enum mutex_taken mutex_try(struct mutex *m);
enum mutex_taken mutex_lock_within(struct mutex *m, int64_t ms);

void mutex_unlock(struct mutex *m);

#endif
