// SPDX-License-Identifier: Apache-2.0
//
// The program of rabbitmq-stream-c-client, which it is compiled with, unmodified; ../README.md has the words of the
// command line and what it prints.  That client hands messages over as they are stored, so these are no AMQP 1.0.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rmqsBroker.h"
#include "rmqsClientConfiguration.h"
#include "rmqsConsumer.h"
#include "rmqsError.h"
#include "rmqsPublisher.h"

enum {
    CONNECT_TIMEOUT_MS = 10000,
    POLL_MS = 20,        // its polls never return earlier
    ANSWERS_S_MAX = 25,  // an end of the connection is nothing that its polls tell of
    CREDITS = 1000,
    MESSAGES_PER_FRAME = 100,
    BODY_SIZE_MAX = 32,
    ID = 1,  // of the one publisher, and of the one subscription
};

static char **options;
static const char *stream;
static uint64_t wanted, first;  // messages, and the offset or the number of the first one
static uint64_t confirmed, refused, received;

static char *option(const char *name, char *otherwise)
{
    for (char **at = options; at[0] != NULL && at[1] != NULL; at += 2)
        if (strncmp(at[0], "--", 2) == 0 && strcmp(at[0] + 2, name) == 0)
            return at[1];
    return otherwise;
}

static void fail(const char *what, unsigned code)
{
    printf("{\"event\": \"error\", \"text\": \"%s, code %u\", \"code\": %u}\n", what, code, code);
    exit(1);
}

static void needs(bool_t is_done, const char *what, rmqsResponseCode_t code)
{
    if (!is_done)
        fail(what, (unsigned)code);
}

// ---- what the client calls ----

static void on_metadata(uint16_t code, char_t *name)
{
    (void)name;
    fail("the stream is not what it was", code);
}

static void on_published(uint8_t id, PublishResult_t *results, size_t count, bool_t is_confirmed)
{
    (void)id, (void)results;
    *(is_confirmed ? &confirmed : &refused) += count;
}

static void on_message(uint8_t id, byte_t *data, size_t size, rmqsDeliverInfo_t *chunk, uint64_t offset, bool_t *store)
{
    (void)id, (void)chunk;
    if (offset < first || received == wanted)  // a chunk may begin before, and is whole
        return;
    printf("{\"event\": \"message\", \"body\": \"");
    for (size_t at = 0; at < size; at++) {
        if (data[at] >= ' ' && data[at] < 127 && data[at] != '"' && data[at] != '\\')
            putchar(data[at]);
    }
    printf("\", \"offset\": %" PRIu64 ", \"stream\": \"%s\"}\n", offset, stream);
    received++;
    *store = received == wanted && option("store", NULL) != NULL;
}

// ---- what users do ----

static rmqsSocket_t log_in(rmqsClient_t *client, rmqsClientConfiguration_t *configuration)
{
    static char *const about[][2] = {{"connection_name", "interop"}, {"product", "rabbitmq-stream-c-client"}};
    enum { COUNT = sizeof about / sizeof *about };
    rmqsProperty_t properties[COUNT] = {0};
    for (int index = 0; index < COUNT; index++) {
        strncpy(properties[index].Key, about[index][0], RMQS_MAX_KEY_SIZE);
        strncpy(properties[index].Value, about[index][1], RMQS_MAX_VALUE_SIZE);
    }
    rmqsBroker_t *broker = rmqsListGetDataByPosition(configuration->BrokerList, 0);
    rmqsSocket_t peer = rmqsSocketCreate();
    needs(rmqsSocketConnect(broker->Hostname, broker->Port, peer, CONNECT_TIMEOUT_MS), "not connected", 0);
    rmqsResponseCode_t code = 0;
    needs(rmqsClientLogin(client, peer, broker->VirtualHost, properties, COUNT, &code), "login", code);
    return peer;
}

static void log_out(rmqsClient_t *client, rmqsSocket_t peer)
{
    rmqsResponseCode_t code = 0;
    rmqsHeartbeat(client, peer);
    needs(rmqsClientLogout(client, peer, 0, "Regular shutdown", &code), "Close", code);
    rmqsSocketDestroy(&peer);
}

static void publish(rmqsPublisher_t *publisher, rmqsSocket_t peer)
{
    rmqsResponseCode_t code = 0;
    needs(rmqsDeclarePublisher(publisher, peer, ID, (char_t *)stream, &code), "DeclarePublisher", code);
    for (uint64_t sent = 0; sent < wanted;) {
        static char bodies[MESSAGES_PER_FRAME][BODY_SIZE_MAX];
        rmqsMessage_t messages[MESSAGES_PER_FRAME] = {0};
        size_t count = 0;
        for (; count < MESSAGES_PER_FRAME && sent < wanted; count++, sent++) {
            int size = snprintf(bodies[count], BODY_SIZE_MAX, "c_client-%" PRIu64, first + sent);
            messages[count].PublishingId = first + sent + 1;
            messages[count].Data = (void *)bodies[count];
            messages[count].Size = (size_t)size;
        }
        rmqsPublish(publisher, peer, ID, messages, count);
    }
    time_t end = time(NULL) + ANSWERS_S_MAX;
    while (confirmed + refused < wanted) {
        bool_t is_lost = false;
        rmqsPublisherPoll(publisher, peer, POLL_MS, &is_lost);
        if (is_lost || time(NULL) > end)
            fail("not all answers have come", 0);
    }
    if (refused > 0)
        fail("messages were refused", (unsigned)refused);
    needs(rmqsDeletePublisher(publisher, peer, ID, &code), "DeletePublisher", code);
    printf("{\"event\": \"confirmed\", \"count\": %" PRIu64 "}\n", confirmed);
}

// `first`: the offset of the first message wanted.  The client writes an offset also where Subscribe has none, as for the
// first, the last and the next message, so that no broker can read these.
static void start_at(rmqsConsumer_t *consumer, rmqsSocket_t peer, const char *from)
{
    if (strncmp(from, "offset:", 7) == 0) {
        first = strtoull(from + 7, NULL, 10);
    } else if (strcmp(from, "stored") == 0) {
        rmqsResponseCode_t code = 0;
        bool_t is_there = false;
        bool_t done = rmqsQueryOffset(consumer, peer, consumer->ConsumerReference, (char_t *)stream, &is_there, &first,
                                      &code);
        needs(done && is_there, "QueryOffset", code);
        first++;
    } else {
        fail("this program consumes from offset:N, and stored", 0);
    }
}

static void consume(rmqsConsumer_t *consumer, rmqsSocket_t peer)
{
    rmqsResponseCode_t code = 0;
    rmqsProperty_t properties[2] = {0};
    size_t count = 0;
    char *filter = option("filter", NULL);
    if (filter != NULL) {
        strcpy(properties[0].Key, "filter.0");
        strncpy(properties[0].Value, filter, RMQS_MAX_VALUE_SIZE);
        strcpy(properties[1].Key, "match-unfiltered");
        strcpy(properties[1].Value, "true");
        count = 2;
    }
    start_at(consumer, peer, option("from", ""));
    needs(rmqsSubscribe(consumer, peer, ID, (char_t *)stream, rmqsotOffset, first, CREDITS, properties, count, &code),
          "Subscribe", code);
    puts("{\"event\": \"subscribed\"}");
    fflush(stdout);
    time_t end = time(NULL) + ANSWERS_S_MAX;
    while (received < wanted) {
        bool_t is_lost = false;
        rmqsConsumerPoll(consumer, peer, POLL_MS, &is_lost);
        if (is_lost || time(NULL) > end)
            fail("not all messages have come", 0);
    }
    needs(rmqsUnsubscribe(consumer, peer, ID, &code), "Unsubscribe", code);
}

int main(int count, char **words)
{
    if (count < 2)
        fail("needed: COMMAND --name value ...", 0);
    const char *command = words[1];
    options = words + 2;
    stream = option("stream", "");
    wanted = strtoull(option("count", "0"), NULL, 10);
    first = strtoull(option("first", "0"), NULL, 10);

    char address[512], error[RMQS_ERR_MAX_STRING_LENGTH] = "";
    snprintf(address, sizeof address, "rabbitmq-stream://%s:%s@%s:%s", option("user", "guest"),
             option("password", "guest"), option("host", "localhost"), option("port", "5552"));
    rmqsClientConfiguration_t *configuration = rmqsClientConfigurationCreate(address, false, "", error, sizeof error);
    if (configuration == NULL)
        fail(error, 0);

    if (strcmp(command, "consume") == 0) {
        rmqsConsumer_t *consumer = rmqsConsumerCreate(configuration, option("reference", "Consumer"), 0, 0, CREDITS,
                                                      on_message, on_metadata);
        rmqsSocket_t peer = log_in(consumer->Client, configuration);
        consume(consumer, peer);
        log_out(consumer->Client, peer);
        rmqsConsumerDestroy(consumer);
    } else {
        rmqsPublisher_t *publisher = rmqsPublisherCreate(configuration, option("reference", "Publisher"), 0,
                                                         on_published, on_metadata);
        rmqsSocket_t peer = log_in(publisher->Client, configuration);
        rmqsResponseCode_t code = 0;
        rmqsCreateStreamArgs_t arguments = {0};
        bool_t is_there = false;
        if (strcmp(command, "create") == 0) {
            needs(rmqsCreate(publisher->Client, peer, (char_t *)stream, &arguments, &is_there, &code), "Create", code);
            puts("{\"event\": \"created\"}");
        } else if (strcmp(command, "delete") == 0) {
            needs(rmqsDelete(publisher->Client, peer, (char_t *)stream, &code), "Delete", code);
            puts("{\"event\": \"deleted\"}");
        } else if (strcmp(command, "publish") == 0) {
            publish(publisher, peer);
        } else {
            fail("this program knows create, delete, publish and consume", 0);
        }
        log_out(publisher->Client, peer);
        rmqsPublisherDestroy(publisher);
    }
    rmqsClientConfigurationDestroy(configuration);
    return 0;
}
