/* SPDX-License-Identifier: Apache-2.0
 *
 * ask: one question to the archiver and its answer, over a connection of its own.
 *
 * Both are frames: their size as four bytes, big-endian, then JSON.
 *
 *   {"do":"fetch","log":"<the directory's name>","segment":N,"from":N,"to":N}
 *   {"do":"index","log":"<the directory's name>","segment":N}
 *   {"ok":true ...}    or    {"ok":false,"why":"..." ...}
 *
 * A socket's address has room for 107 bytes, and a data directory's path may be longer: so the directory is opened and
 * the socket found beneath its descriptor.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "cold.h"

#define ASK_NAME_BYTES_MAX 64     /* of a log's directory: an incarnation has 16 digits */
#define ASK_QUESTION_BYTES_MAX 256
#define ASK_ANSWER_BYTES_MAX 4096 /* a sentence; what is longer is no answer of ours */

struct asking {
    int fd;
    int64_t until_ms; /* by the monotonic clock */
    struct file_path socket;
};

static int64_t monotonic_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The name of a log, also when its directory is given as one of /proc/self/fd: what it is really called. */
static err log_name(const char *directory, char name[ASK_NAME_BYTES_MAX + 1], struct fault *f)
{
    int fd;
    char link[64], real[PATH_MAX];
    err e = file_open(directory, O_PATH | O_DIRECTORY, &fd, f);
    if (e) return e;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, real, sizeof real - 1);
    if (n < 0) e = fault_from_errno(f, link, 0, 0, 0);
    file_close(&fd);
    if (e) return e;
    real[n] = 0;
    const char *base = strrchr(real, '/');
    base = base ? base + 1 : real;
    size_t size = strlen(base);
    /* It stands in JSON as it is. */
    if (size == 0 || size > ASK_NAME_BYTES_MAX || strpbrk(base, "\"\\"))
        return fault_set(f, ERR_INVALID, 0, directory, 0, ASK_NAME_BYTES_MAX, size);
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)base[i] < 0x20) return fault_set(f, ERR_INVALID, 0, directory, i, 0x20, (unsigned char)base[i]);
    memcpy(name, base, size + 1);
    return OK;
}

static err no_archiver(const struct asking *a, struct fault *f)
{
    char text[FAULT_WHERE_MAX_BYTES];
    int error = errno;
    size_t size = strlen(a->socket.text), room = 200;
    snprintf(text, sizeof text, "the archiver is not running, nobody answers at %s", a->socket.text + (size > room ? size - room : 0));
    return fault_set(f, ERR_IO, error, text, 0, 0, 0);
}

/* How long the next call may take.  false: the time is over. */
static bool time_left(const struct asking *a)
{
    int64_t left = a->until_ms - monotonic_ms();
    struct timeval limit = {.tv_sec = left / 1000, .tv_usec = (left % 1000) * 1000};
    return left > 0 && sys->setsockopt(a->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
           sys->setsockopt(a->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0;
}

static err too_late(const struct asking *a, struct fault *f)
{
    char text[FAULT_WHERE_MAX_BYTES];
    snprintf(text, sizeof text, "the archiver did not answer within %d s", ASK_TIMEOUT_S);
    (void)a;
    return fault_set(f, ERR_IO, ETIMEDOUT, text, 0, 0, 0);
}

static err ask_connect(struct asking *a, const char *directory, struct fault *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct file_path data = file_path_name(directory, "../..");
    int data_fd;
    a->socket = file_path_name(data.text, ASK_SOCKET);
    err e = file_open(data.text, O_PATH | O_DIRECTORY, &data_fd, f);
    if (e) return e;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" ASK_SOCKET, data_fd);
    a->fd = sys->socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (a->fd < 0) e = fault_from_errno(f, a->socket.text, 0, 0, 0);
    while (!e) {
        if (!time_left(a)) e = too_late(a, f);
        else if (sys->connect(a->fd, (const struct sockaddr *)&address, sizeof address) == 0) break;
        else if (errno == EAGAIN) e = too_late(a, f); /* so many are asking that there is no room to wait */
        else if (errno != EINTR) e = no_archiver(a, f);
    }
    file_close(&data_fd);
    return e;
}

static err ask_send(const struct asking *a, const uint8_t *data, size_t size, struct fault *f)
{
    while (size > 0) {
        if (!time_left(a)) return too_late(a, f);
        ssize_t n = sys->send(a->fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return no_archiver(a, f);
        data += n;
        size -= (size_t)n;
    }
    return OK;
}

static err ask_receive(const struct asking *a, uint8_t *data, size_t size, struct fault *f)
{
    while (size > 0) {
        if (!time_left(a)) return too_late(a, f);
        ssize_t n = sys->recv(a->fd, data, size, 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n == 0) errno = ECONNRESET; /* it was stopped while we waited */
        if (n <= 0) return no_archiver(a, f);
        data += n;
        size -= (size_t)n;
    }
    return OK;
}

/* Step over a word of JSON and the spaces around it; NULL when something else stands there. */
static const char *past(const char *at, const char *word)
{
    if (!at) return NULL;
    at += strspn(at, " \t\r\n");
    if (strncmp(at, word, strlen(word)) != 0) return NULL;
    at += strlen(word);
    return at + strspn(at, " \t\r\n");
}

/* The archiver's reason, as it stands in the JSON. */
static err refused(const char *answer, struct fault *f)
{
    char text[FAULT_WHERE_MAX_BYTES];
    const char *why = strstr(answer, "\"why\"");
    why = why ? past(past(past(why, "\"why\""), ":"), "\"") : NULL;
    size_t size = 0;
    if (why)
        while (why[size] && why[size] != '"') size += why[size] == '\\' && why[size + 1] ? 2 : 1;
    if (size > 250) size = 250; /* the rest of a fault's place is ours */
    snprintf(text, sizeof text, "the archiver says: %.*s", (int)size, why && size ? why : "no reason");
    if (!(why && size)) snprintf(text, sizeof text, "the archiver refused and gave no reason");
    return fault_set(f, ERR_IO, 0, text, 0, 0, 0);
}

static err ask_answer(const struct asking *a, struct fault *f)
{
    uint8_t head[4];
    char answer[ASK_ANSWER_BYTES_MAX + 1];
    err e = ask_receive(a, head, sizeof head, f);
    if (e) return e;
    uint32_t size = bytes_load32(head);
    if (size > ASK_ANSWER_BYTES_MAX)
        return fault_set(f, ERR_IO, 0, "the archiver's answer is too long", 0, ASK_ANSWER_BYTES_MAX, size);
    e = ask_receive(a, (uint8_t *)answer, size, f);
    if (e) return e;
    answer[size] = 0;
    const char *ok = past(past(past(answer, "{"), "\"ok\""), ":");
    return past(ok, "true") ? OK : refused(answer, f);
}

static err ask(const char *directory, const char *question, struct fault *f)
{
    struct asking a = {.fd = -1, .until_ms = monotonic_ms() + ASK_TIMEOUT_S * INT64_C(1000)};
    uint8_t frame[4 + ASK_QUESTION_BYTES_MAX];
    size_t size = strlen(question);
    CHECK(size <= ASK_QUESTION_BYTES_MAX);
    bytes_store32(frame, (uint32_t)size);
    memcpy(frame + 4, question, size);
    err e = ask_connect(&a, directory, f);
    if (!e) e = ask_send(&a, frame, 4 + size, f);
    if (!e) e = ask_answer(&a, f);
    file_close(&a.fd);
    return e;
}

err ask_fetch(const char *directory, uint64_t segment, uint64_t from, uint64_t to, struct fault *f)
{
    char name[ASK_NAME_BYTES_MAX + 1], question[ASK_QUESTION_BYTES_MAX + 1];
    err e = log_name(directory, name, f);
    if (e) return e;
    snprintf(question, sizeof question,
             "{\"do\":\"fetch\",\"log\":\"%s\",\"segment\":%" PRIu64 ",\"from\":%" PRIu64 ",\"to\":%" PRIu64 "}", name, segment,
             from, to);
    return ask(directory, question, f);
}

err ask_index(const char *directory, uint64_t segment, struct fault *f)
{
    char name[ASK_NAME_BYTES_MAX + 1], question[ASK_QUESTION_BYTES_MAX + 1];
    err e = log_name(directory, name, f);
    if (e) return e;
    snprintf(question, sizeof question, "{\"do\":\"index\",\"log\":\"%s\",\"segment\":%" PRIu64 "}", name, segment);
    return ask(directory, question, f);
}
