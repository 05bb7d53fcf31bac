/* SPDX-License-Identifier: Apache-2.0
 *
 * cold_help: a data directory with a log, a folder that plays the object store, and a thread that plays the archiver.
 *
 * cold_send_up copies a segment to the folder and writes its stub; cold_take_away removes it here, as retention does.
 * The archiver fetches what it is asked for, or does what a test tells it to do instead.
 */
#ifndef VIBEMQ_TESTS_COLD_HELP_H
#define VIBEMQ_TESTS_COLD_HELP_H

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../log/cold.h"
#include "../log/handle.h"
#include "log_help.h"

static struct cold_world {
    char data[90], bucket[500], log[500]; /* a socket's address has room for 107 bytes */
    int listener, stop[2];
    pthread_t thread;
    bool running;
    _Atomic int questions, fetched; /* since the start; blocks */
    const char *_Atomic instead;    /* an answer without doing anything; "": the connection is closed; NULL: do it */
} cold_world;

static void cold_copy(const char *from_directory, const char *to_directory, uint64_t segment, const char *suffix)
{
    struct file_path from = file_path_numbered(from_directory, segment, suffix), to = file_path_numbered(to_directory, segment, suffix);
    char data[1 << 16];
    ssize_t n;
    int in = open(from.text, O_RDONLY), out = open(to.text, O_RDWR | O_CREAT | O_TRUNC, 0600);
    EXPECT(in >= 0 && out >= 0);
    while ((n = read(in, data, sizeof data)) > 0) EXPECT_EQ(n, write(out, data, (size_t)n));
    close(in);
    close(out);
}

static void cold_fetch(uint64_t segment, uint64_t from, uint64_t to)
{
    struct cold c;
    struct fault f;
    uint8_t marks[COLD_BLOCKS_MAX];
    if (!EXPECT_OK(cold_open(&c, cold_world.log, segment, &f))) return;
    struct file_path path = file_path_numbered(cold_world.bucket, segment, SEGMENT_SUFFIX);
    int fd = open(path.text, O_RDONLY);
    uint8_t *data = malloc(COLD_BLOCK_BYTES);
    EXPECT(fd >= 0 && to > from && to <= c.bytes);
    EXPECT_OK(cold_marks(&c, marks, NULL));
    for (uint32_t block = (uint32_t)(from / COLD_BLOCK_BYTES); block <= (to - 1) / COLD_BLOCK_BYTES; block++) {
        uint64_t size = cold_block_bytes(c.bytes, block);
        if (marks[block]) continue;
        EXPECT_EQ(size, pread(fd, data, size, (off_t)block * COLD_BLOCK_BYTES));
        EXPECT_OK(cold_put(&c, block, data, size, NULL));
        cold_world.fetched++;
    }
    free(data);
    close(fd);
    cold_close(&c);
}

static void cold_serve(int fd)
{
    uint8_t head[4];
    char question[512] = {0}, log[64] = {0};
    uint64_t segment, from, to;
    if (recv(fd, head, 4, MSG_WAITALL) != 4) return;
    uint32_t size = bytes_load32(head);
    if (!EXPECT(size < sizeof question) || recv(fd, question, size, MSG_WAITALL) != (ssize_t)size) return;
    cold_world.questions++;
    const char *answer = cold_world.instead;
    if (!answer) {
        bool is_fetch = sscanf(question, "{\"do\":\"fetch\",\"log\":\"%63[^\"]\",\"segment\":%" SCNu64 ",\"from\":%" SCNu64 ",\"to\":%" SCNu64 "}",
                               log, &segment, &from, &to) == 4;
        bool is_index = !is_fetch && sscanf(question, "{\"do\":\"index\",\"log\":\"%63[^\"]\",\"segment\":%" SCNu64 "}", log, &segment) == 2;
        EXPECT(is_fetch || is_index);
        EXPECT_STR_EQ("0123456789abcdef", log);
        if (is_fetch) cold_fetch(segment, from, to);
        else cold_copy(cold_world.bucket, cold_world.log, segment, INDEX_SUFFIX);
        answer = "{\"ok\": true}";
    }
    size = (uint32_t)strlen(answer);
    bytes_store32(head, size);
    if (size && send(fd, head, 4, MSG_NOSIGNAL) == 4) send(fd, answer, size, MSG_NOSIGNAL);
}

static void *cold_archiver(void *unused)
{
    (void)unused;
    for (;;) {
        int fd = accept(cold_world.listener, NULL, NULL);
        if (fd < 0) return NULL;
        cold_serve(fd);
        close(fd);
    }
}

TEST_UNUSED static void cold_start(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/" ASK_SOCKET, cold_world.data);
    cold_world.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(bind(cold_world.listener, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT(listen(cold_world.listener, 8) == 0);
    cold_world.questions = cold_world.fetched = 0;
    cold_world.instead = NULL;
    EXPECT(pthread_create(&cold_world.thread, NULL, cold_archiver, NULL) == 0);
    cold_world.running = true;
}

TEST_UNUSED static void cold_stop(void)
{
    char path[500];
    if (!cold_world.running) return;
    shutdown(cold_world.listener, SHUT_RDWR);
    pthread_join(cold_world.thread, NULL);
    close(cold_world.listener);
    snprintf(path, sizeof path, "%s/" ASK_SOCKET, cold_world.data);
    unlink(path);
    cold_world.running = false;
}

/* A data directory with an empty log. */
TEST_UNUSED static struct log *cold_begin(const struct log_options *options)
{
    char streams[500];
    snprintf(cold_world.data, sizeof cold_world.data, "%s", help_path());
    snprintf(streams, sizeof streams, "%s/streams", cold_world.data);
    snprintf(cold_world.bucket, sizeof cold_world.bucket, "%s/bucket", cold_world.data);
    snprintf(cold_world.log, sizeof cold_world.log, "%s/streams/0123456789abcdef", cold_world.data);
    cold_world.questions = cold_world.fetched = 0;
    EXPECT(mkdir(cold_world.data, 0700) == 0 && mkdir(streams, 0700) == 0 && mkdir(cold_world.bucket, 0700) == 0);
    return help_log(cold_world.log, options);
}

/* Is such a file of a segment here? */
TEST_UNUSED static bool cold_has(uint64_t segment, const char *suffix)
{
    struct file_path path = file_path_numbered(cold_world.log, segment, suffix);
    return access(path.text, F_OK) == 0;
}

TEST_UNUSED static void cold_unlink(uint64_t segment, const char *suffix)
{
    struct file_path path = file_path_numbered(cold_world.log, segment, suffix);
    EXPECT(unlink(path.text) == 0);
}

TEST_UNUSED static void cold_send_up(uint64_t segment, uint64_t next)
{
    struct stub s;
    struct fault f;
    cold_copy(cold_world.log, cold_world.bucket, segment, SEGMENT_SUFFIX);
    cold_copy(cold_world.log, cold_world.bucket, segment, INDEX_SUFFIX);
    if (!EXPECT_OK(stub_make(cold_world.log, segment, next, 1, &s, &f)) || !EXPECT_OK(stub_write(cold_world.log, &s, &f))) help_fault(&f);
}

/* The first offsets of all segments there are now. */
TEST_UNUSED static uint32_t cold_segments(struct log *l, uint64_t *first, uint32_t most)
{
    const struct segment_list *list;
    struct commit c;
    uint32_t count = 0;
    l->list_known = false;
    EXPECT_OK(log_list(l, &list, &c, NULL));
    for (; count < list->count && count < most; count++) first[count] = list->first[count];
    return count;
}

/* Have all closed segments in the store, and the first `away` of them only there. */
TEST_UNUSED static void cold_all_up(struct log *l, uint32_t away)
{
    uint64_t first[256];
    uint32_t count = cold_segments(l, first, 256);
    for (uint32_t i = 0; i + 1 < count; i++) {
        cold_send_up(first[i], first[i + 1]);
        if (i >= away) continue;
        cold_unlink(first[i], SEGMENT_SUFFIX);
        if (cold_has(first[i], TRACKING_SUFFIX)) cold_unlink(first[i], TRACKING_SUFFIX);
    }
    atomic_fetch_add(&log_control(l)->segments_generation, 1);
}

TEST_UNUSED static void cold_end(struct log *l)
{
    cold_stop();
    log_close(l);
}

#endif
