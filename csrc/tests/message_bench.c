/* SPDX-License-Identifier: Apache-2.0
 *
 * message_bench: nanoseconds for each function on a message's way, best of several, and GB/s
 * of the JSON check on documents as they come.  It prints a sum of all results, so that nobody
 * makes it quicker by leaving something out.
 *
 *   build/release/message_bench          real: 50 ms for each figure
 *   build/release/message_bench smoke    1 ms, to see that it still runs
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../base/bytes.h"
#include "../message/amqp.h"
#include "../message/amqp_write.h"
#include "../message/text.h"

#define TRIES 5
#define BODY_BYTES 100
#define ROOM_BYTES 65536
#define DOCUMENT_BYTES 10240

static uint8_t body[BODY_BYTES], message[ROOM_BYTES], room[ROOM_BYTES];
static uint32_t message_bytes;
static const char *document;
static size_t document_bytes;
static uint64_t sum;
static double try_s = 0.01;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Nanoseconds for one call. */
static double measure(uint64_t (*call)(void))
{
    double best = 1e9;
    for (int i = 0; i < TRIES; i++) {
        uint64_t rounds = 0;
        double start = now_s(), spent;
        do {
            for (int k = 0; k < 256; k++) sum += call();
            rounds += 256;
            spent = now_s() - start;
        } while (spent < try_s);
        if (spent / (double)rounds < best) best = spent / (double)rounds;
    }
    return best * 1e9;
}

static const uint8_t *text(const char *t) { return (const uint8_t *)t; }

static void message_put(struct writer_bytes *w)
{
    struct amqp_map m;
    amqp_write_properties(w, &(struct amqp_properties){.id = text("9f1c2a7e-0d1b-4c55"), .id_bytes = 18,
                                                       .content_type = AMQP_JSON, .content_type_bytes = AMQP_JSON_BYTES});
    amqp_map_begin(w, &m);
    amqp_map_add(w, &m, text("tenant"), 6, text("vienna"), 6);
    amqp_map_add(w, &m, text("trace-id"), 8, text("4bf92f3577b34da6"), 16);
    amqp_map_end(w, &m);
    amqp_write_data(w, body, BODY_BYTES);
}

static uint64_t write_message(void)
{
    struct writer_bytes w = bytes_writer(room, sizeof room);
    message_put(&w);
    return (uint64_t)(w.at - room);
}

static uint64_t write_data(void)
{
    struct writer_bytes w = bytes_writer(room, sizeof room);
    amqp_write_data(&w, body, BODY_BYTES);
    return (uint64_t)(w.at - room);
}

static uint64_t parse(void)
{
    struct amqp_message m;
    return amqp_parse(message, message_bytes, &m) == OK ? m.body_size : 0;
}

static uint64_t parse_data(void)
{
    struct amqp_message m;
    return amqp_parse(message + message_bytes - BODY_BYTES - 5, BODY_BYTES + 5, &m) == OK ? m.body_size : 0;
}

static struct amqp_message parsed;

static uint64_t read_pairs(void)
{
    struct amqp_pairs it;
    struct amqp_pair pair;
    uint64_t bytes = 0;
    amqp_pairs_begin(&it, parsed.application_properties, parsed.application_properties_size);
    while (amqp_pairs_next(&it, &pair)) bytes += pair.key_bytes + pair.value.bytes;
    return bytes;
}

static uint64_t read_id(void)
{
    struct amqp_value v;
    return amqp_message_id(&parsed, &v) ? v.bytes : 0;
}

static uint64_t check_document(void)
{
    uint64_t position;
    return json_check(text(document), document_bytes, 64, &position) == OK ? position : 0;
}

static uint64_t check_utf8(void) { return utf8_is_valid(text(document), document_bytes); }

static uint64_t write_string(void)
{
    struct writer_bytes w = bytes_writer(room, sizeof room);
    (void)json_string_write(&w, text(document), document_bytes);
    return (uint64_t)(w.at - room);
}

static uint64_t write_base64(void)
{
    struct writer_bytes w = bytes_writer(room, sizeof room);
    (void)json_base64_write(&w, text(document), document_bytes);
    return (uint64_t)(w.at - room);
}

static void message_report(void)
{
    static const struct { const char *name; uint64_t (*call)(void); } rows[] = {
        {"write id, type, 2 pairs, data", write_message}, {"write data alone", write_data},
        {"parse id, type, 2 pairs, data", parse}, {"parse data alone", parse_data},
        {"read 2 pairs", read_pairs}, {"read message id", read_id},
    };
    struct writer_bytes w = bytes_writer(message, sizeof message);
    memset(body, 'x', sizeof body);
    message_put(&w);
    message_bytes = (uint32_t)(w.at - message);
    if (amqp_parse(message, message_bytes, &parsed) != OK) abort();
    printf("a message of %d bytes, ns\n", BODY_BYTES);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        printf("  %-32s%8.1f\n", rows[i].name, measure(rows[i].call));
}

static void document_report(const char *name, const char *json)
{
    document = json;
    document_bytes = strlen(json);
    if (!check_document()) abort();
    double check = measure(check_document), utf8 = measure(check_utf8);
    double string = measure(write_string), base64 = measure(write_base64);
    printf("  %-32s%8zu%10.1f%10.2f%10.2f%10.2f%10.2f\n", name, document_bytes, check, (double)document_bytes / check,
           (double)document_bytes / utf8, (double)document_bytes / string, (double)document_bytes / base64);
}

/* An array of `item` over and over, about DOCUMENT_BYTES long. */
static const char *repeated(const char *item)
{
    static char json[DOCUMENT_BYTES + 1024];
    size_t size = 1, item_bytes = strlen(item);
    json[0] = '[';
    while (size + item_bytes < DOCUMENT_BYTES) {
        memcpy(json + size, item, item_bytes);
        size += item_bytes;
        json[size++] = ',';
    }
    json[size - 1] = ']';
    json[size] = 0;
    return json;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "smoke") == 0) try_s = 0.0002;
    message_report();
    printf("documents%31s%10s%10s%10s%10s%10s\n", "bytes", "check ns", "GB/s", "UTF-8", "string", "base64");
    document_report("order", "{\"id\":\"a8f5f167\",\"customer\":\"Huber\",\"amount\":129.95,\"currency\":\"EUR\","
                             "\"at\":\"2024-05-01T12:00:00Z\"}");
    document_report("sensor", "{\"sensor\":\"hall-7/temp\",\"value\":21.375,\"ok\":true,\"seq\":184467,\"tags\":"
                              "[\"a\",\"b\"],\"ts\":1714564800}");
    document_report("text", "{\"type\":\"note\",\"text\":\"The quick brown fox jumps over the lazy dog and comes back "
                            "for another go at it.\"}");
    document_report("10 KB of orders", repeated("{\"id\":\"a8f5f167-aa31-4e2c-9d4a\",\"customer\":\"Huber & Sohn\","
                    "\"amount\":129.95,\"items\":[{\"sku\":\"X-1004\",\"n\":2},{\"sku\":\"X-2201\",\"n\":1}],"
                    "\"at\":\"2024-05-01T12:00:00Z\",\"comment\":\"leave it with the neighbour, second floor\"}"));
    document_report("10 KB of orders, indented", repeated("\n    {\n        \"id\": \"a8f5f167-aa31-4e2c-9d4a\",\n"
                    "        \"customer\": \"Huber & Sohn\",\n        \"amount\": 129.95,\n        \"open\": true,\n"
                    "        \"comment\": \"leave it with the neighbour\"\n    }"));
    document_report("10 KB of numbers", repeated("-104.372918,12,0.25,7"));
    document_report("10 KB of Greek", repeated("\"\u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 "
                    "\u03ba\u03cc\u03c3\u03bc\u03b5\""));
    printf("sum %016llx\n", (unsigned long long)sum);
    return 0;
}
