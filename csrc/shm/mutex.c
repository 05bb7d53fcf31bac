/* SPDX-License-Identifier: Apache-2.0
 *
 * mutex: how it is made, and what an heir is told.
 */
#include "mutex.h"

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

enum mutex_taken mutex_lock(struct mutex *m)
{
    int result = pthread_mutex_lock(&m->raw);
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

void mutex_unlock(struct mutex *m) { CHECK(pthread_mutex_unlock(&m->raw) == 0); }
