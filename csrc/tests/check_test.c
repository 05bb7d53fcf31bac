/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/check.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "test.h"

TEST(what_holds_costs_nothing)
{
    CHECK(1 + 1 == 2);
    DEBUG_CHECK(1 + 1 == 2);
}

TEST(what_does_not_hold_ends_the_process_and_says_where)
{
    int ends[2], status;
    char text[1024] = "", place[100];
    REQUIRE(pipe(ends) == 0);
    int line = __LINE__ + 7;
    pid_t child = fork();
    if (child == 0) {
        static const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        CHECK(2 + 2 == 5);
        _exit(0);
    }
    close(ends[1]);
    ssize_t size = read(ends[0], text, sizeof text - 1);
    waitpid(child, &status, 0);
    close(ends[0]);
    EXPECT(size > 0);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    snprintf(place, sizeof place, "check_test.c:%d: 2 + 2 == 5\n", line);
    EXPECT(strstr(text, place) != NULL);
}
