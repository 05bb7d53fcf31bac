/* SPDX-License-Identifier: Apache-2.0
 *
 * mutex: the C library's robust, process-shared mutex behind three answers.
 *
 * Of type "error check": a thread that locks twice gets EDEADLK instead of
 * hanging the worker, and unlocking another's mutex is found at once.
 */
#include "mutex.h"

#include <errno.h>

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

enum mutex_taken mutex_try_lock(struct mutex *m) { return taken(m, pthread_mutex_trylock(&m->raw)); }

void mutex_unlock(struct mutex *m) { CHECK(pthread_mutex_unlock(&m->raw) == 0); }
