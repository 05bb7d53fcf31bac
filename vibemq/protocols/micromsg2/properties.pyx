# SPDX-License-Identifier: Apache-2.0
"""A MicroMsg2 message as the AMQP 1.0 message that is stored, and a stored one's properties as they go out.

    name:Tanna;age:N42;at:D1413198000.5;      application properties, each with its type (values.pxd)

`message-id` is the message's id and `content-type` its content type, not application properties; they go out behind
the rest. The type that the dotnet extension gives is the application property `dotnet-type`.

Peers get the bytes that the sender wrote.  Mostly they are what the stored properties are written as again; where
they are not, they are kept beside them in a message annotation, which no other door looks at, and go out as they are
with what they do not say (the content type of another serializer, the dotnet-type) behind them.

A property twice counts with its last value: a map with a key twice is no AMQP.  One without a key does not count.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from vibemq.broker.messages cimport message_view, scratch_room
from vibemq.grow cimport grow
from vibemq.protocols.micromsg2.values cimport TYPED_BYTES_MAX, is_strict, is_text, value_parse, value_put
from vibemq.protocols.micromsg2.wire cimport (
    PROPERTIES_BYTES_MAX, mm_property, percent_decode, percent_encode, property_next,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_CONTENT_TYPE, AMQP_STRING, AMQP_TEXT_MAX_BYTES, OK, amqp_map, amqp_pair, amqp_pairs,
    amqp_properties, amqp_value, bytes_store32, writer_bytes,
)

from vibemq.protocols.micromsg2 import spec

cdef enum:
    CONTENT_TYPE_BYTES_MAX = 255       # it is in each delivery
    FEW = 32                           # properties that are compared each with each
    COLON = 0x3A
    SEMICOLON = 0x3B

cdef uint32_t SINGLE_BYTES_MAX = spec.SHARP_PROPERTIES_BYTES_MAX
cdef bytes ANNOTATION = b"x-micromsg2-properties"
cdef bytes DOTNET_TYPE = b"dotnet-type"
cdef bytes MESSAGE_ID = b"message-id"
cdef bytes CONTENT_TYPE = b"content-type"

cdef struct property:
    const uint8_t *key
    uint32_t key_size
    bint dropped
    amqp_value value

# What a sender's properties say beside those in `parsed`.
cdef struct parsed_properties:
    uint32_t count
    bint strict                        # they would be written like this again
    const uint8_t *id
    const uint8_t *content_type
    uint32_t id_size, content_type_size

# The properties that message_write is about, and how many there is memory for.
cdef property *parsed = NULL
cdef size_t parsed_capacity = 0

# A key and a value of fewer than 64 KiB, each byte encoded, behind others of as many.
cdef uint8_t written[4 * 65536 + TYPED_BYTES_MAX]

# Properties on their way out.
cdef struct writing:
    uint8_t *at
    uint32_t bytes_max
    bint single
    bint full                          # something did not fit, or it is single and written


cdef bint is_key(const uint8_t *key, uint32_t size, bytes name) noexcept:
    return size == <uint32_t> len(name) and memcmp(key, <char *> name, size) == 0


cdef bint is_own(const uint8_t *key, uint32_t size) noexcept:
    return is_key(key, size, MESSAGE_ID) or is_key(key, size, CONTENT_TYPE)


# ---- in ----


cdef bint is_content_type_text(const amqp_value *v) noexcept:
    cdef uint32_t i
    if v.kind != AMQP_STRING or not 0 < v.bytes <= CONTENT_TYPE_BYTES_MAX:
        return False
    for i in range(v.bytes):
        if not 0x20 <= v.data[i] < 0x7F:
            return False
    return True


cdef int parse(const uint8_t *properties, uint32_t size, uint8_t *room, bint has_dotnet_type,
               parsed_properties *out) except -1:
    """At least one byte.  `room` is for decoded texts, of `size` bytes."""
    cdef const uint8_t *at = properties
    cdef const uint8_t *end = properties + size
    cdef const uint8_t *start
    cdef mm_property item
    cdef property *p
    cdef bint escaped
    memset(out, 0, sizeof(parsed_properties))
    out.strict = (end - 1)[0] == SEMICOLON
    while True:
        start = at
        if not property_next(&at, end, &item):
            break
        grow(&parsed, &parsed_capacity, <size_t> out.count + 1, sizeof(property))
        p = parsed + out.count
        p.dropped = False
        p.key, p.key_size = item.key, item.key_size
        if not is_strict(item.key, item.key_size, &escaped) or item.key != start or item.key_size == 0 \
                or (item.value - 1)[0] != COLON:
            out.strict = False
        if escaped:
            p.key = room
            room = percent_decode(room, item.key, item.key_size)
            p.key_size = <uint32_t> (room - p.key)
        if not value_parse(item.value, item.value_size, room, &p.value):
            out.strict = False
        room += item.value_size
        if is_key(p.key, p.key_size, MESSAGE_ID):
            out.strict = out.strict and out.id == NULL and p.value.kind == AMQP_STRING and p.value.bytes > 0
            out.id, out.id_size = p.value.data, p.value.bytes
        elif is_key(p.key, p.key_size, CONTENT_TYPE):
            out.strict = False  # whether it goes out depends on the receiver
            if is_content_type_text(&p.value):
                out.content_type, out.content_type_size = p.value.data, p.value.bytes
        elif p.key_size == 0 or has_dotnet_type and is_key(p.key, p.key_size, DOTNET_TYPE):
            out.strict = False
        else:
            out.strict = out.strict and out.id == NULL
            out.count += 1
    out.strict = out.strict and start == end
    return drop_repeated(out)


cdef int drop_repeated(parsed_properties *of) except -1:
    cdef uint32_t i, j
    cdef bytes name
    cdef dict last
    if of.count <= FEW:
        for i in range(of.count):
            for j in range(i + 1, of.count):
                if parsed[i].key_size == parsed[j].key_size \
                        and memcmp(parsed[i].key, parsed[j].key, parsed[i].key_size) == 0:
                    parsed[i].dropped = True
                    of.strict = False
                    break
        return 0
    last = {}  # of thousands, comparing each with each would take seconds
    for i in range(of.count):
        name = (<const char *> parsed[i].key)[:parsed[i].key_size]
        if name in last:
            parsed[<uint32_t> last[name]].dropped = True
            of.strict = False
        last[name] = i
    return 0


cdef size_t message_write(const uint8_t *properties, uint32_t properties_size, const uint8_t *payload,
                          uint32_t payload_size, const char *content_type, uint32_t content_type_size,
                          bytes dotnet_type, uint8_t **out) except 0:
    """The entry of one message (four bytes of length, then AMQP), in the worker's scratch memory; its size.

    `content_type` is that of the sender's serializer, NULL where it has none, and `dotnet_type` is None where it gave
    none.  Whatever bytes a peer sends are stored; only memory can run out.
    """
    cdef writer_bytes w
    cdef amqp_properties fields
    cdef amqp_map map
    cdef uint32_t i
    cdef parsed_properties found
    # At least two bytes for each property, and each of their bytes once as it is and once in its place.
    cdef size_t room = 4 + core.amqp_size_max(
        properties_size // 2 + 2, <uint64_t> payload_size + 2 * <uint64_t> properties_size + content_type_size
        + (0 if dotnet_type is None else len(DOTNET_TYPE) + len(dotnet_type))
        + core.AMQP_ANNOTATION_OVERHEAD_BYTES + len(ANNOTATION))
    cdef uint8_t *data = scratch_room(room + properties_size)
    found.count = found.id_size = found.content_type_size = 0
    found.strict = True
    if properties_size:
        parse(properties, properties_size, data + room, dotnet_type is not None, &found)
    w = core.bytes_writer(data + 4, room - 4)
    if not found.strict:
        core.amqp_write_annotation(&w, <char *> ANNOTATION, <uint32_t> len(ANNOTATION), properties, properties_size)
    if found.content_type_size:
        content_type, content_type_size = <const char *> found.content_type, found.content_type_size
    if found.id_size or content_type_size:
        memset(&fields, 0, sizeof(fields))
        if found.id_size:
            fields.id, fields.id_bytes = found.id, found.id_size
        if content_type_size:
            fields.content_type, fields.content_type_bytes = content_type, content_type_size
        core.amqp_write_properties(&w, &fields)
    if found.count or dotnet_type is not None:
        core.amqp_map_begin(&w, &map)
        for i in range(found.count):
            if not parsed[i].dropped:
                core.amqp_map_add_value(&w, &map, parsed[i].key, parsed[i].key_size, &parsed[i].value)
        if dotnet_type is not None:
            core.amqp_map_add(&w, &map, <const uint8_t *> <char *> DOTNET_TYPE, <uint32_t> len(DOTNET_TYPE),
                              <const uint8_t *> <char *> dotnet_type, <uint32_t> len(dotnet_type))
        core.amqp_map_end(&w, &map)
    core.amqp_write_data(&w, payload, payload_size)
    if w.failed:
        raise AssertionError("amqp_size_max was too small")
    bytes_store32(data, <uint32_t> (w.at - data - 4))
    out[0] = data
    return w.at - data


# ---- out ----


cdef bint text_of(const uint8_t *map, uint32_t size, bytes name, amqp_pair *out) noexcept:
    """The text of this name in a map; False: there is none, or one that no frame can hold."""
    cdef amqp_pairs it
    core.amqp_pairs_begin(&it, map, size)
    while core.amqp_pairs_next(&it, out):
        if is_key(out.key, out.key_bytes, name) and is_text(&out.value):
            return 0 < out.value.bytes <= PROPERTIES_BYTES_MAX
    return False


cdef bint has_key(const amqp_value *kept, bytes name) noexcept:
    cdef const uint8_t *at = kept.data
    cdef mm_property item
    while property_next(&at, kept.data + kept.bytes, &item):
        if is_key(item.key, item.key_size, name):
            return True
    return False


cdef bint dotnet_type_of(const message_view *m, amqp_pair *out) noexcept:
    return m.is_amqp and text_of(m.amqp.application_properties, m.amqp.application_properties_size, DOTNET_TYPE, out)


cdef bint id_of(const message_view *m, char *text, amqp_value *out) noexcept:
    """A message's id as a text, which may stand in `text` (AMQP_TEXT_MAX_BYTES); False: it has none."""
    if not m.is_amqp or not core.amqp_message_id(&m.amqp, out):
        return False
    if not is_text(out):
        out.bytes = <uint32_t> core.amqp_value_text(out, text, AMQP_TEXT_MAX_BYTES)
        out.kind, out.data = AMQP_STRING, <const uint8_t *> text
    return 0 < out.bytes <= PROPERTIES_BYTES_MAX


cdef bint content_type_of(const message_view *m, amqp_value *out) noexcept:
    return m.is_amqp and core.amqp_property(&m.amqp, AMQP_CONTENT_TYPE, out) and is_text(out) \
        and 0 < out.bytes <= PROPERTIES_BYTES_MAX


cdef int put(writing *w, const uint8_t *key, uint32_t key_size, const amqp_value *v) noexcept:
    """One property more, where there is room for it."""
    cdef uint8_t *p
    cdef uint32_t bytes = v.bytes if is_text(v) else 0
    if key_size == 0 or w.full and w.single:
        return 0
    if <uint64_t> key_size + bytes > PROPERTIES_BYTES_MAX:  # encoded they are larger still, and `written` has no room
        w.full = not w.single
        return 0
    p = percent_encode(w.at, key, key_size)
    p[0] = COLON
    p = value_put(p + 1, v)
    if p == NULL:
        return 0
    p[0] = SEMICOLON
    if p + 1 - written > w.bytes_max:
        w.full = not w.single
        return 0
    w.at, w.full = p + 1, w.full or w.single
    return 0


cdef int put_named(writing *w, bytes name, const amqp_value *v) noexcept:
    return put(w, <const uint8_t *> <char *> name, <uint32_t> len(name), v)


cdef int put_one_kept(writing *w, const amqp_value *kept) noexcept:
    """The first that fits, as it is."""
    cdef const uint8_t *at
    cdef mm_property item
    cdef uint32_t size
    cdef bint last
    for last in range(2):
        at = kept.data
        while property_next(&at, kept.data + kept.bytes, &item):
            size = <uint32_t> (item.value + item.value_size - item.key)
            if item.key_size and size < w.bytes_max and last == is_own(item.key, item.key_size):
                memcpy(written, item.key, size)
                written[size] = SEMICOLON
                w.at, w.full = written + size + 1, True
                return 0
    return 0


cdef const uint8_t *properties_of(const message_view *m, const char *content_type, uint32_t content_type_size,
                                  bint without_dotnet_type, bint single, uint32_t *size) noexcept:
    """A message's properties as they go out, in the message itself or in memory that lives until the next call.

    *size is 0 where there are none and TOO_LARGE where they need more than a frame can hold.  `content_type` is that of
    the receiver's serializer (NULL: none).  `single`: one property at most, in few bytes, for peers that read no more.
    """
    cdef amqp_pairs it
    cdef amqp_pair pair
    cdef amqp_value v
    cdef amqp_pair kept
    cdef writing w
    cdef char text[AMQP_TEXT_MAX_BYTES]
    cdef bint is_kept
    cdef uint8_t *without
    size[0] = 0
    if not m.is_amqp:
        return NULL
    w.at, w.single, w.full = written, single, False
    w.bytes_max = SINGLE_BYTES_MAX if single else PROPERTIES_BYTES_MAX
    # The sender's own bytes, where they had to be kept.
    is_kept = m.amqp.message_annotations_size and text_of(
        m.amqp.message_annotations, m.amqp.message_annotations_size, ANNOTATION, &kept) \
        and kept.value.kind == AMQP_BINARY
    if is_kept:
        if single:
            put_one_kept(&w, &kept.value)
        else:
            memcpy(written, kept.value.data, kept.value.bytes)
            w.at = written + kept.value.bytes
            if (w.at - 1)[0] != SEMICOLON:
                w.at[0] = SEMICOLON
                w.at += 1
        without = w.at
        if not without_dotnet_type and not has_key(&kept.value, DOTNET_TYPE) and dotnet_type_of(m, &pair):
            put_named(&w, DOTNET_TYPE, &pair.value)
    else:
        without = NULL
        core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
        while core.amqp_pairs_next(&it, &pair):
            if not without_dotnet_type or not is_key(pair.key, pair.key_bytes, DOTNET_TYPE):
                put(&w, pair.key, pair.key_bytes, &pair.value)
        if w.full and not single:
            size[0] = TOO_LARGE
            return NULL
        if id_of(m, text, &v):
            put_named(&w, MESSAGE_ID, &v)
    if content_type_of(m, &v) and not (v.bytes == content_type_size and memcmp(v.data, content_type, v.bytes) == 0) \
            and not (is_kept and has_key(&kept.value, CONTENT_TYPE)):
        put_named(&w, CONTENT_TYPE, &v)
    if is_kept and not single and w.at == without:
        size[0] = kept.value.bytes
        return kept.value.data
    size[0] = <uint32_t> (w.at - written)
    return written


# ---- for tests ----


cdef void view_of(bytes data, message_view *out) noexcept:
    memset(out, 0, sizeof(message_view))
    out.data, out.size = <const uint8_t *> <char *> data, <uint32_t> len(data)
    out.is_amqp = core.amqp_parse(out.data, out.size, &out.amqp) == OK


def write(bytes properties not None, bytes payload not None, bytes content_type=None, bytes dotnet_type=None) -> bytes:
    """The message that is stored."""
    cdef uint8_t *entry = NULL
    cdef size_t size = message_write(
        <const uint8_t *> <char *> properties, <uint32_t> len(properties), <const uint8_t *> <char *> payload,
        <uint32_t> len(payload), NULL if content_type is None else <char *> content_type,
        0 if content_type is None else <uint32_t> len(content_type), dotnet_type, &entry)
    return (<char *> entry)[4:size]


def read(bytes message not None, bytes content_type=None, *, bint without_dotnet_type=False, bint single=False):
    """The properties of a stored message; None: they are too large."""
    cdef message_view m
    cdef uint32_t size = 0
    cdef const uint8_t *properties
    view_of(message, &m)
    properties = properties_of(&m, NULL if content_type is None else <char *> content_type,
                               0 if content_type is None else <uint32_t> len(content_type), without_dotnet_type,
                               single, &size)
    return None if size == <uint32_t> TOO_LARGE else (<const char *> properties)[:size] if size else b""


def dotnet_type(bytes message not None):
    cdef message_view m
    cdef amqp_pair pair
    view_of(message, &m)
    return (<const char *> pair.value.data)[:pair.value.bytes] if dotnet_type_of(&m, &pair) else None
