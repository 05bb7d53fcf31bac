/* SPDX-License-Identifier: Apache-2.0
 *
 * amqp_codes: the constructors of AMQP 1.0 values and the descriptors of sections, for those who
 * read and write them (part 1 section 1.2, part 3 section 3.2).
 */
#ifndef VIBEMQ_MESSAGE_AMQP_CODES_H
#define VIBEMQ_MESSAGE_AMQP_CODES_H

#include <stdbool.h>
#include <stdint.h>

enum amqp_code {
    CODE_DESCRIBED = 0x00,
    CODE_NULL = 0x40, CODE_TRUE, CODE_FALSE, CODE_UINT_0, CODE_ULONG_0, CODE_LIST_EMPTY,
    CODE_UBYTE = 0x50, CODE_BYTE, CODE_SMALL_UINT, CODE_SMALL_ULONG, CODE_SMALL_INT, CODE_SMALL_LONG, CODE_BOOLEAN,
    CODE_USHORT = 0x60, CODE_SHORT,
    CODE_UINT = 0x70, CODE_INT, CODE_FLOAT,
    CODE_ULONG = 0x80, CODE_LONG, CODE_DOUBLE, CODE_TIMESTAMP,
    CODE_UUID = 0x98,
    CODE_BINARY_8 = 0xA0, CODE_STRING_8, CODE_SYMBOL_8 = 0xA3,
    CODE_BINARY_32 = 0xB0, CODE_STRING_32, CODE_SYMBOL_32 = 0xB3,
    CODE_LIST_8 = 0xC0, CODE_MAP_8, CODE_LIST_32 = 0xD0, CODE_MAP_32
};

/* The upper half of a code says how wide the value is. */
enum amqp_category {
    CATEGORY_FIXED_0 = 0x4, CATEGORY_FIXED_1, CATEGORY_FIXED_2, CATEGORY_FIXED_4, CATEGORY_FIXED_8, CATEGORY_FIXED_16,
    CATEGORY_VARIABLE_1 = 0xA, CATEGORY_VARIABLE_4, CATEGORY_COMPOUND_1, CATEGORY_COMPOUND_4, CATEGORY_ARRAY_1,
    CATEGORY_ARRAY_4
};

/* The bytes after a code whose width the code alone gives. */
static inline bool amqp_fixed_width(uint8_t code, uint32_t *width)
{
    uint8_t category = code >> 4;
    if (category < CATEGORY_FIXED_0 || category > CATEGORY_FIXED_16) return false;
    *width = category == CATEGORY_FIXED_0 ? 0 : 1u << (category - CATEGORY_FIXED_1);
    return true;
}

/* Sections in the order of the standard: their descriptors count up from SECTION_FIRST. */
#define SECTION_FIRST 0x70u
enum amqp_section {
    SECTION_HEADER, SECTION_DELIVERY_ANNOTATIONS, SECTION_MESSAGE_ANNOTATIONS, SECTION_PROPERTIES,
    SECTION_APPLICATION_PROPERTIES, SECTION_DATA, SECTION_SEQUENCE, SECTION_VALUE, SECTION_FOOTER, SECTION_COUNT
};

#endif
