// SPDX-License-Identifier: Apache-2.0
//
// The frames that rabbitmq-stream-c-client sends, of which no release is packaged; ../README.md has the words of the
// command line and what it prints.  Nothing here is that client's code: what is the same is every byte of its login,
// Create, DeclarePublisher, Publish, Subscribe, Credit and Close, with what is peculiar to it:
//   the count of a map in PeerProperties and Subscribe is the map's size in bytes, 4 of its own included;
//   Tune is answered with the server's own frame, by a consumer with 0 and 0; 1,000 credits and 1,000 more a chunk;
//   Close has the code 0.

#include <inttypes.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DECLARE_PUBLISHER = 1, PUBLISH = 2, PUBLISH_CONFIRM = 3, DELETE_PUBLISHER = 6, SUBSCRIBE = 7, DELIVER = 8,
    CREDIT = 9, UNSUBSCRIBE = 12, CREATE = 13, DELETE = 14, PEER_PROPERTIES = 17, SASL_HANDSHAKE = 18,
    SASL_AUTHENTICATE = 19, TUNE = 20, OPEN = 21, CLOSE = 22, HEARTBEAT = 23,
    FRAME_SIZE_MAX = 1 << 20,  // bytes: what the tests' messages never need
    CREDITS = 1000,
    MESSAGES_PER_FRAME = 100,
    CHUNK_HEADER_SIZE = 48,
    OFFSET = 4,
};

static int peer;
static uint32_t correlation_id;
static uint8_t out[FRAME_SIZE_MAX], in[FRAME_SIZE_MAX];
static size_t out_size, in_size;  // bytes of each frame
static char **options;

static void fail(const char *what, unsigned code)
{
    printf("{\"event\": \"error\", \"text\": \"%s, code %u\", \"code\": %u}\n", what, code, code);
    exit(1);
}

static const char *option(const char *name, const char *otherwise)
{
    for (char **at = options; at[0] != NULL && at[1] != NULL; at += 2)
        if (strncmp(at[0], "--", 2) == 0 && strcmp(at[0] + 2, name) == 0)
            return at[1];
    return otherwise;
}

// ---- writing ----

static void put(const void *bytes, size_t size)
{
    if (size > sizeof out - out_size)
        fail("a frame is too large for this program", 0);
    memcpy(out + out_size, bytes, size);
    out_size += size;
}

static void number(uint64_t value, int size)
{
    uint8_t bytes[8];
    for (int at = 0; at < size; at++)
        bytes[at] = (uint8_t)(value >> 8 * (size - 1 - at));
    put(bytes, (size_t)size);
}

static void string(const char *text)
{
    number(strlen(text), 2);
    put(text, strlen(text));
}

static void begin(int key)
{
    out_size = 4;  // of the frame's size
    number((uint64_t)key, 2);
    number(1, 2);
}

static void request(int key)
{
    begin(key);
    number(++correlation_id, 4);
}

// Pairs of strings up to a NULL, after their size where other clients have their count.
static void map(const char *const *texts)
{
    uint32_t size = texts[0] == NULL ? 0 : 4;
    for (const char *const *text = texts; *text != NULL; text++)
        size += 2 + (uint32_t)strlen(*text);
    number(size, 4);
    for (; *texts != NULL; texts++)
        string(*texts);
}

static void send_frame(void)
{
    size_t whole = out_size;
    out_size = 0;
    number(whole - 4, 4);
    for (size_t sent = 0; sent < whole;) {
        ssize_t written = write(peer, out + sent, whole - sent);
        if (written <= 0)
            fail("the connection was closed while a frame was written", 0);
        sent += (size_t)written;
    }
}

// ---- reading ----

static uint64_t at(size_t position, int size)
{
    uint64_t value = 0;
    if (position + (size_t)size > in_size)
        fail("a frame is too short", 0);
    for (int byte = 0; byte < size; byte++)
        value = value << 8 | in[position + (size_t)byte];
    return value;
}

static void read_bytes(uint8_t *to, size_t size)
{
    while (size > 0) {
        ssize_t had = read(peer, to, size);
        if (had <= 0)
            fail("the connection was closed by the broker", 0);
        to += had;
        size -= (size_t)had;
    }
}

// The next frame's key without its response bit; `in` holds what follows its size.
static int next_frame(void)
{
    uint8_t size[4];
    read_bytes(size, sizeof size);
    in_size = (size_t)size[0] << 24 | (size_t)size[1] << 16 | (size_t)size[2] << 8 | size[3];
    if (in_size > sizeof in)
        fail("a frame of the broker is too large for this program", 0);
    read_bytes(in, in_size);
    return (int)(at(0, 2) & 0x7fff);
}

static void expect(int key, const char *what)
{
    send_frame();
    int had;
    do {
        had = next_frame();
    } while (had == HEARTBEAT);
    if (had != key || at(4, 4) != correlation_id || at(8, 2) != 1)
        fail(what, (unsigned)at(8, 2));
}

// ---- what users do ----

static void connect_to_broker(void)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(option("host", "localhost"), option("port", "5552"), &hints, &found) != 0)
        fail("no address of the broker", 0);
    for (struct addrinfo *address = found; address != NULL; address = address->ai_next) {
        peer = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
        if (connect(peer, address->ai_addr, address->ai_addrlen) == 0) {
            freeaddrinfo(found);
            return;
        }
        close(peer);
    }
    fail("not connected", 0);
}

static void log_in(bool consumes)
{
    static const char *const properties[] = {
        "connection_name", "c-stream-locator", "product", "RabbitMQ Stream",
        "copyright", "Copyright (c) Gianfranco Giugliano", "information", "Licensed under the MIT license",
        "version", "1.0", "platform", "C", NULL,
    };
    const char *user = option("user", "guest"), *password = option("password", "guest");
    connect_to_broker();
    request(PEER_PROPERTIES);
    map(properties);
    expect(PEER_PROPERTIES, "PeerProperties");
    request(SASL_HANDSHAKE);
    expect(SASL_HANDSHAKE, "SaslHandshake");
    request(SASL_AUTHENTICATE);
    string("PLAIN");
    number(strlen(user) + strlen(password) + 2, 4);
    put("", 1);
    put(user, strlen(user) + 1);
    put(password, strlen(password));
    expect(SASL_AUTHENTICATE, "SaslAuthenticate");
    if (next_frame() != TUNE)
        fail("Tune is not the next frame", 0);
    uint64_t frame_max = at(4, 4);
    begin(TUNE);
    number(consumes ? 0 : frame_max, 4);
    number(0, 4);
    send_frame();
    request(OPEN);
    string(option("vhost", "/"));
    expect(OPEN, "Open");
}

static void log_out(void)
{
    begin(HEARTBEAT);
    send_frame();
    request(CLOSE);
    number(0, 2);
    string("Regular shutdown");
    expect(CLOSE, "Close");
    close(peer);
}

static void create(const char *stream)
{
    static const char *const arguments[] = {
        "max-length-bytes", "1000000000", "max-age", "12h", "stream-max-segment-size-bytes", "100000000",
        "queue-leader-locator", "client-local", "initial-cluster-size", "1",
    };
    request(CREATE);
    string(stream);
    number(5, 4);  // here it is a count
    for (size_t index = 0; index < sizeof arguments / sizeof *arguments; index++)
        string(arguments[index]);
    expect(CREATE, "Create");
    puts("{\"event\": \"created\"}");
}

static void publish(const char *stream, uint64_t count, uint64_t first)
{
    request(DECLARE_PUBLISHER);
    number(1, 1);
    string(option("reference", "Publisher"));
    string(stream);
    expect(DECLARE_PUBLISHER, "DeclarePublisher");
    for (uint64_t sent = 0; sent < count;) {
        uint64_t more = count - sent < MESSAGES_PER_FRAME ? count - sent : MESSAGES_PER_FRAME;
        begin(PUBLISH);
        number(1, 1);
        number(more, 4);
        for (; more > 0; more--, sent++) {
            char body[32];
            int size = snprintf(body, sizeof body, "c-%" PRIu64, first + sent);
            number(first + sent + 1, 8);
            number((uint64_t)size, 4);
            put(body, (size_t)size);
        }
        send_frame();
    }
    for (uint64_t confirmed = 0; confirmed < count;) {
        int key = next_frame();
        if (key == PUBLISH_CONFIRM)
            confirmed += at(5, 4);
        else if (key != HEARTBEAT)
            fail("not confirmed", (unsigned)key);
    }
    request(DELETE_PUBLISHER);
    number(1, 1);
    expect(DELETE_PUBLISHER, "DeletePublisher");
    printf("{\"event\": \"confirmed\", \"count\": %" PRIu64 "}\n", count);
}

// `filter`: a property of Subscribe, which makes its map one that is not empty.
static void consume(const char *stream, uint64_t count, uint64_t first)
{
    const char *filter = option("filter", NULL);
    const char *const properties[] = {
        filter ? "filter.0" : NULL, filter, "match-unfiltered", filter ? "true" : "", NULL
    };
    request(SUBSCRIBE);
    number(1, 1);
    string(stream);
    number(OFFSET, 2);
    number(first, 8);
    number(CREDITS, 2);
    map(properties);
    expect(SUBSCRIBE, "Subscribe");
    puts("{\"event\": \"subscribed\"}");
    fflush(stdout);
    for (uint64_t received = 0; received < count;) {
        if (next_frame() != DELIVER)
            continue;
        size_t chunk = 5, position = chunk + CHUNK_HEADER_SIZE;
        uint64_t entries = at(chunk + 2, 2), offset = at(chunk + 24, 8);
        for (; entries > 0 && received < count; entries--, offset++) {
            uint64_t size = at(position, 4);
            position += 4;
            if (position + size > in_size)
                fail("a message ends behind its chunk", 0);
            if (offset >= first) {
                printf("{\"event\": \"message\", \"body\": \"%.*s\", \"offset\": %" PRIu64 ", \"stream\": \"%s\"}\n",
                       (int)size, (const char *)in + position, offset, stream);
                received++;
            }
            position += size;
        }
        begin(CREDIT);
        number(1, 1);
        number(CREDITS, 2);
        send_frame();
    }
    request(UNSUBSCRIBE);
    number(1, 1);
    send_frame();
    while (next_frame() != UNSUBSCRIBE)  // chunks may still be on their way
        ;
}

int main(int count, char **words)
{
    if (count < 2)
        fail("needed: COMMAND --name value ...", 0);
    const char *command = words[1];
    options = words + 2;
    const char *stream = option("stream", "");
    uint64_t messages = strtoull(option("count", "0"), NULL, 10);
    bool consumes = strcmp(command, "consume") == 0;
    log_in(consumes);
    if (strcmp(command, "create") == 0) {
        create(stream);
    } else if (strcmp(command, "delete") == 0) {
        request(DELETE);
        string(stream);
        expect(DELETE, "Delete");
        puts("{\"event\": \"deleted\"}");
    } else if (strcmp(command, "publish") == 0) {
        publish(stream, messages, strtoull(option("first", "0"), NULL, 10));
    } else if (consumes && strncmp(option("from", ""), "offset:", 7) == 0) {
        consume(stream, messages, strtoull(option("from", "") + 7, NULL, 10));
    } else {
        fail("this program knows create, delete, publish, and consume from offset:N", 0);
    }
    log_out();
    return 0;
}
