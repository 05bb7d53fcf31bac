/* SPDX-License-Identifier: Apache-2.0
 *
 * mutex: how it is made, and what an heir is told.
 */
#include "mutex.h"

#include <time.h>

#include "../base/check.h"

int mutex_init(struct mutex *m)
{
    pthread_mutexattr_t attributes;
    int result = pthread_mutexattr_init(&attributes);
    if (result == 0) {
        result = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        if (result == 0) result = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        if (result == 0) result = pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
        if (result == 0) result = pthread_mutex_init(&m->raw, &attributes);
        pthread_mutexattr_destroy(&attributes);
    }
    if (result == 0) return 0;
    errno = result;
    return -1;
}

static enum mutex_taken taken(struct mutex *m, int result)
{
    if (result == 0) return MUTEX_TAKEN;
    if (result == EBUSY || result == ETIMEDOUT) return MUTEX_BUSY;
    if (result == EOWNERDEAD) {
        /* Marked now and not after the repair: if we are killed too, the next owner is
         * told again, and a repair that begins anew is what it guards is made for. */
        CHECK(pthread_mutex_consistent(&m->raw) == 0);
        return MUTEX_INHERITED;
    }
    errno = result;
    return MUTEX_FAILED;
}

enum mutex_taken mutex_lock(struct mutex *m) { return taken(m, pthread_mutex_lock(&m->raw)); }

enum mutex_taken mutex_try(struct mutex *m) { return taken(m, pthread_mutex_trylock(&m->raw)); }

enum mutex_taken mutex_lock_within(struct mutex *m, int64_t ms)
{
    enum mutex_taken at_once = mutex_try(m);
    if (at_once != MUTEX_BUSY || ms <= 0) return at_once;
    /* By the clock that can be set: glibc has the other one since 2.30.  A clock that is set back meanwhile makes this wait as
     * long as the holder needs. */
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)(ms / 1000);
    end.tv_nsec += (long)(ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    return taken(m, pthread_mutex_timedlock(&m->raw, &end));
}

void mutex_unlock(struct mutex *m) { CHECK(pthread_mutex_unlock(&m->raw) == 0); }
