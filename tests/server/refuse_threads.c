/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel that refuses threads, for processes started with LD_PRELOAD: pthread_create fails with EAGAIN, as at
 * `pids.max`, while the file $VIBEMQ_REFUSES_THREADS exists.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    const char *file = getenv("VIBEMQ_REFUSES_THREADS");
    if (file && access(file, F_OK) == 0) return EAGAIN;
    return real(thread, attributes, run, argument);
}
