/* SPDX-License-Identifier: Apache-2.0
 *
 * A reader driven by any program never leaves its input, yields 0 once it failed, and
 * what a writer of the same size is told to write comes back as it was.
 *
 * The input is a list of steps (one byte: kind and size) followed by the bytes read.
 */
#include "../base/bytes.h"

#include "fuzz.h"

#define STEPS_MAX 64

/* One read; the value goes to the writer too. */
static void step(struct reader_bytes *r, struct writer_bytes *w, uint8_t what)
{
    const uint8_t *before = r->at;
    size_t left = bytes_left(r), wanted = 0;
    uint64_t value = 0;
    switch (what & 7) {
    case 0: wanted = 1; value = bytes_u8(r); break;
    case 1: wanted = 2; value = bytes_u16(r); break;
    case 2: wanted = 4; value = bytes_u32(r); break;
    case 3: wanted = 8; value = bytes_u64(r); break;
    case 4: wanted = SIZE_MAX - (what >> 3); value = bytes_take(r, wanted) != NULL; break;
    default: wanted = what >> 3; break;
    }
    if ((what & 7) > 4) {
        const uint8_t *taken = bytes_take(r, wanted);
        CHECK((taken == NULL) == r->failed);
        if (taken) bytes_put(w, taken, wanted);
    }
    CHECK(r->at <= r->end);
    if (r->failed) {
        CHECK(value == 0 && r->at == before);
        return;
    }
    CHECK(wanted <= left && r->at == before + wanted);
    switch (what & 7) {
    case 0: bytes_put8(w, (uint8_t)value); break;
    case 1: bytes_put16(w, (uint16_t)value); break;
    case 2: bytes_put32(w, (uint32_t)value); break;
    case 3: bytes_put64(w, value); break;
    default: break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t out[1024];
    if (size == 0) return 0;
    size_t steps = data[0] % STEPS_MAX;
    if (size - 1 < steps) return 0;
    const uint8_t *content = data + 1 + steps;
    size_t content_size = size - 1 - steps;
    struct reader_bytes r = bytes_reader(content, content_size);
    struct writer_bytes w = bytes_writer(out, sizeof out < content_size ? sizeof out : content_size);
    for (size_t i = 0; i < steps && !r.failed; i++) step(&r, &w, data[1 + i]);
    CHECK(w.at <= w.end);
    CHECK(!w.failed || content_size > sizeof out);
    CHECK(memcmp(out, content, (size_t)(w.at - out)) == 0);
    return 0;
}
