/* SPDX-License-Identifier: Apache-2.0
 *
 * mutex: a robust, process-shared mutex that lies in shared memory.
 *
 * The holder may be killed at any instruction.  The next to take the lock is
 * told (`MUTEX_INHERITED`) and must make the guarded state consistent before
 * it goes on; what it guards is laid out so that this is always possible.
 */
#ifndef VIBEMQ_SHM_MUTEX_H
#define VIBEMQ_SHM_MUTEX_H

#include <pthread.h>

struct mutex { pthread_mutex_t raw; };

enum mutex_taken { MUTEX_FAILED = -1, MUTEX_TAKEN = 0, MUTEX_INHERITED = 1 };

/* Make a new mutex in memory that no other process uses yet; 0 or -1 with errno. */
int mutex_init(struct mutex *m);

/* Take it.  MUTEX_INHERITED: the last holder died; the lock is held and already
 * marked consistent, the caller repairs the state it guards. */
enum mutex_taken mutex_lock(struct mutex *m);

/* As mutex_lock, but MUTEX_FAILED with errno EBUSY when another holds it. */
enum mutex_taken mutex_try_lock(struct mutex *m);

void mutex_unlock(struct mutex *m);

#endif
