/* SPDX-License-Identifier: Apache-2.0 */
#include "../message/amqp.h"

#include "test.h"

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

/* An exact heap copy, so that the address sanitizer sees a read past the end. */
static err parse(const uint8_t *data, size_t size, struct amqp_message *out)
{
    static struct amqp_message kept;
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    memset(&kept, 0, sizeof kept);
    err result = amqp_parse(copy, (uint32_t)size, &kept);
    /* Spans are told as if in `data`, which outlives the copy. */
#define MOVE(field) if (kept.field) kept.field = data + (kept.field - copy)
    MOVE(body); MOVE(header); MOVE(properties); MOVE(application_properties); MOVE(message_annotations);
    free(copy);
    *out = kept;
    return result;
}

static err parse_only(const uint8_t *data, size_t size)
{
    struct amqp_message m;
    return parse(data, size, &m);
}

/* Every section once, in the order of the standard, the forms of encoding mixed. */
static const uint8_t full[] = {
    0x00, 0x53, 0x70, 0xC0, 4, 2, 0x41, 0x50, 7,              /* at 0, header: [true, ubyte 7] */
    0x00, 0x53, 0x71, 0xC1, 1, 0,                             /* at 9, delivery annotations: {} */
    0x00, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x72,                    /* at 15, message annotations (ulong): */
    0xD1, 0, 0, 0, 9, 0, 0, 0, 2, 0xA3, 1, 'k', 0x54, 5,      /*   {k: int 5} */
    0x00, 0x53, 0x73, 0x45,                                   /* at 39, properties: [] */
    0x00, 0x53, 0x74, 0xC1, 5, 2, 0xA1, 1, 'a', 0x42,         /* at 43, application properties: {a: false} */
    0x00, 0x53, 0x75, 0xB0, 0, 0, 0, 3, 'x', 'y', 'z',        /* at 53, data */
    0x00, 0x53, 0x75, 0xA0, 1, 'q',                           /* at 64, more data */
    0x00, 0x53, 0x78, 0xC1, 1, 0,                             /* at 70, footer */
};
static const size_t full_section_ends[] = {9, 15, 39, 43, 53, 64, 70, 76};

TEST(the_smallest_message_has_a_body_alone)
{
    struct amqp_message m;
    static const uint8_t data[] = {0x00, 0x53, 0x75, 0xA0, 0x05, 'h', 'e', 'l', 'l', 'o'};
    REQUIRE_OK(parse(data, sizeof data, &m));
    EXPECT_EQ(AMQP_BODY_DATA, m.body_kind);
    EXPECT_EQ(1, m.data_count);
    EXPECT_EQ(5, m.body_size);
    EXPECT_MEM_EQ("hello", m.body, 5);
    EXPECT(!m.header && !m.properties && !m.application_properties && !m.message_annotations);
}

TEST(every_section_is_found_in_its_place)
{
    struct amqp_message m;
    REQUIRE_OK(parse(full, sizeof full, &m));
    EXPECT_EQ(3, m.header - full);
    EXPECT_EQ(6, m.header_size);
    EXPECT_EQ(25, m.message_annotations - full);
    EXPECT_EQ(14, m.message_annotations_size);
    EXPECT_EQ(42, m.properties - full);
    EXPECT_EQ(1, m.properties_size);
    EXPECT_EQ(46, m.application_properties - full);
    EXPECT_EQ(7, m.application_properties_size);
    EXPECT_EQ(AMQP_BODY_DATA, m.body_kind);
    EXPECT_EQ(2, m.data_count);
    EXPECT_EQ(61, m.body - full);
    EXPECT_EQ(3, m.body_size);
}

TEST(a_prefix_is_truncated_unless_it_ends_with_a_section)
{
    size_t next_end = 0;
    EXPECT_ERR(ERR_CORRUPT, parse_only(full, 0));
    for (size_t size = 1; size <= sizeof full; size++) {
        bool is_end = size == full_section_ends[next_end];
        EXPECT_ERR(is_end ? OK : ERR_TRUNCATED, parse_only(full, size));
        next_end += is_end;
    }
}

TEST(bytes_after_the_message_make_it_no_message)
{
    uint8_t data[sizeof full + 1];
    memcpy(data, full, sizeof full);
    for (int tail = 1; tail < 256; tail++) {
        data[sizeof full] = (uint8_t)tail;
        EXPECT_ERR(ERR_CORRUPT, parse_only(data, sizeof data));
    }
    data[sizeof full] = 0; /* the first byte of another section */
    EXPECT_ERR(ERR_TRUNCATED, parse_only(data, sizeof data));
}

TEST(text_and_other_opaque_bodies_are_not_messages)
{
    static const char *const texts[] = {"hello", "{\"a\":1}", "<x/>", "Sp", "\x01", "S"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        EXPECT_ERR(ERR_CORRUPT, parse_only((const uint8_t *)texts[i], strlen(texts[i])));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x6F, 0x40)));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x79, 0x40)));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x80, 1, 0, 0, 0, 0, 0, 0, 0x77, 0x40)));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x44, 0x40)));
}

TEST(a_section_must_have_the_type_of_the_standard)
{
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x75, 0xA1, 1, 'x'))); /* data as string */
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x75, 0x40)));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x73, 0xC1, 1, 0)));   /* properties as map */
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x74, 0xC0, 1, 0)));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x76, 0xA0, 0)));
}

TEST(sections_may_come_in_any_order_but_only_once)
{
    struct amqp_message m;
    static const uint8_t swapped[] = {0x00, 0x53, 0x75, 0xA0, 0, 0x00, 0x53, 0x73, 0x45, 0x00, 0x53, 0x70, 0x45};
    REQUIRE_OK(parse(swapped, sizeof swapped, &m));
    EXPECT(m.body && m.properties && m.header);
    EXPECT_EQ(0, m.body_size);
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x73, 0x45, 0x00, 0x53, 0x73, 0x45)));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x77, 0x40, 0x00, 0x53, 0x77, 0x40)));
}

TEST(bodies_are_of_one_kind)
{
    struct amqp_message m;
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x75, 0xA0, 0, 0x00, 0x53, 0x77, 0x40)));
    EXPECT_ERR(ERR_CORRUPT, parse_only(BYTES(0x00, 0x53, 0x76, 0x45, 0x00, 0x53, 0x75, 0xA0, 0)));
    static const uint8_t sequences[] = {0x00, 0x53, 0x76, 0xC0, 2, 1, 0x40, 0x00, 0x53, 0x76, 0x45};
    REQUIRE_OK(parse(sequences, sizeof sequences, &m));
    EXPECT_EQ(AMQP_BODY_SEQUENCE, m.body_kind);
    EXPECT_EQ(3, m.body - sequences);
    EXPECT_EQ(4, m.body_size);
    EXPECT_EQ(0, m.data_count);
    static const uint8_t value[] = {0x00, 0x53, 0x77, 0xA1, 2, 'o', 'k'};
    REQUIRE_OK(parse(value, sizeof value, &m));
    EXPECT_EQ(AMQP_BODY_VALUE, m.body_kind);
    EXPECT_EQ(4, m.body_size);
    static const uint8_t none[] = {0x00, 0x53, 0x73, 0x45};
    REQUIRE_OK(parse(none, sizeof none, &m));
    EXPECT_EQ(AMQP_BODY_NONE, m.body_kind);
    EXPECT(m.body == NULL);
}

/* What follows an amqp-value descriptor. */
static err value_parse(const uint8_t *value, size_t size)
{
    uint8_t data[512] = {0x00, 0x53, 0x77};
    if (size > sizeof data - 3) abort();
    memcpy(data + 3, value, size);
    return parse_only(data, size + 3);
}

TEST(exactly_the_assigned_codes_are_stepped_over)
{
    static const uint8_t codes[] = {
        0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x60, 0x61, 0x70, 0x71,
        0x72, 0x73, 0x74, 0x80, 0x81, 0x82, 0x83, 0x84, 0x94, 0x98, 0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3, 0xC0,
        0xC1, 0xD0, 0xD1, 0xE0, 0xF0,
    };
    static const uint8_t widths[16] = {[5] = 1, [6] = 2, [7] = 4, [8] = 8, [9] = 16};
    for (unsigned code = 1; code < 256; code++) {
        uint8_t value[32] = {(uint8_t)code};
        bool known = memchr(codes, (int)code, sizeof codes) != NULL;
        size_t size = 1 + widths[code >> 4];
        switch (code >> 4) {
        case 0xA: size = 2 + (value[1] = 5); break;
        case 0xB: size = 5 + (value[4] = 5); break;
        case 0xC: case 0xE: size = 2 + (value[1] = 1); break;
        case 0xD: case 0xF: size = 5 + (value[4] = 4); break;
        default: break;
        }
        EXPECT_ERR(known ? OK : ERR_CORRUPT, value_parse(value, size));
        if (known) EXPECT(value_parse(value, size + 1) != OK);
        if (known && size > 1) EXPECT_ERR(ERR_TRUNCATED, value_parse(value, size - 1));
    }
}

TEST(a_size_that_leads_out_of_its_container_is_corrupt)
{
    EXPECT_OK(value_parse(BYTES(0xC0, 4, 1, 0xA1, 1, 'x')));
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xC0, 4, 1, 0xA1, 2, 'x', 'y'))); /* string leaves the list */
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xC0, 5, 1, 0xA1, 1, 'x', 0x40))); /* bytes left over */
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xC0, 4, 2, 0xA1, 1, 'x')));       /* an element too few */
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xC0, 0)));                         /* no room for the count */
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xC1, 2, 1, 0x40)));                /* a key without a value */
    EXPECT_ERR(ERR_TRUNCATED, value_parse(BYTES(0xD0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0)));
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xD0, 0, 0, 0, 5, 0xFF, 0xFF, 0xFF, 0xFF, 0x40)));
    EXPECT_ERR(ERR_TRUNCATED, value_parse(BYTES(0xB0, 0xFF, 0xFF, 0xFF, 0xFF, 'x')));
}

TEST(arrays_share_one_code_and_may_be_huge_in_count_only)
{
    EXPECT_OK(value_parse(BYTES(0xE0, 1, 0)));                                /* empty, code left out */
    EXPECT_OK(value_parse(BYTES(0xE0, 2, 0, 0xA1)));                          /* empty, with its code */
    EXPECT_OK(value_parse(BYTES(0xE0, 4, 2, 0x50, 1, 2)));
    EXPECT_OK(value_parse(BYTES(0xE0, 6, 2, 0xA3, 1, 'a', 1, 'b')));
    EXPECT_OK(value_parse(BYTES(0xE0, 8, 2, 0x00, 0xA3, 1, 's', 0x50, 7, 8)));
    EXPECT_OK(value_parse(BYTES(0xF0, 0, 0, 0, 5, 0xFF, 0xFF, 0xFF, 0xFF, 0x40))); /* 2^32 - 1 nulls: no loop */
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xF0, 0, 0, 0, 6, 0xFF, 0xFF, 0xFF, 0xFF, 0x98, 0)));
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xE0, 4, 3, 0x50, 1, 2)));
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xE0, 4, 1, 0x50, 1, 2)));
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xE0, 3, 1, 0x99, 1)));
    EXPECT_ERR(ERR_CORRUPT, value_parse(BYTES(0xE0, 1, 1)));
    EXPECT_OK(value_parse(BYTES(0xE0, 6, 2, 0xC0, 1, 0, 1, 0)));              /* two empty lists */
    EXPECT_OK(value_parse(BYTES(0xE0, 6, 2, 0xE0, 1, 0, 1, 0)));              /* two empty arrays */
}

TEST(described_values_nest_up_to_the_limit)
{
    uint8_t value[400];
    EXPECT_OK(value_parse(BYTES(0x00, 0xA3, 1, 't', 0x40)));
    /* Lists in lists: the innermost first, each wrapped by 3 bytes. */
    for (size_t depth = 1; depth < 60; depth++) {
        size_t size = 1 + 3 * depth;
        for (size_t i = 0; i < depth; i++) {
            value[3 * i] = 0xC0;
            value[3 * i + 1] = (uint8_t)(size - 3 * i - 2);
            value[3 * i + 2] = 1;
        }
        value[3 * depth] = 0x40;
        EXPECT_ERR(depth <= 32 ? OK : ERR_CORRUPT, value_parse(value, size));
    }
    memset(value, 0x00, sizeof value); /* descriptors of descriptors of descriptors */
    EXPECT_ERR(ERR_CORRUPT, value_parse(value, sizeof value));
}

TEST(damaged_messages_never_leave_spans_outside_the_input)
{
    uint8_t data[sizeof full];
    for (int round = 0; round < 200000; round++) {
        struct amqp_message m;
        memcpy(data, full, sizeof full);
        for (uint64_t n = 1 + test_random_below(3); n; n--)
            data[test_random_below(sizeof data)] = (uint8_t)test_random();
        if (parse(data, sizeof data, &m) != OK) continue;
#define INSIDE(field) \
    EXPECT(!m.field || (m.field >= data && m.field + m.field##_size <= data + sizeof data))
        INSIDE(body); INSIDE(header); INSIDE(properties); INSIDE(application_properties);
        INSIDE(message_annotations);
    }
}
