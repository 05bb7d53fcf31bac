# SPDX-License-Identifier: Apache-2.0
"""Bytes to commands and back, for both sides of the streams protocol; no I/O and no state.

At import every layout of spec.COMMANDS is compiled into a plan, a list of steps that read or write one field each.
The decoders and encoders only walk plans, so a command exists here exactly as the table says.

A decoder is given what follows size, key and version. It gives a named tuple or raises MalformedFrame, and
nothing else, whatever the bytes: every read goes through Reader.take, which knows the end, and every count is
compared with what the remaining bytes could hold before anything is allocated for it. A body must be used up to
its last byte, because clients that read field by field lose the thread over one byte too many.

An encoder gives a whole frame, size included, or raises UnencodableValue.

Python objects are right for control frames. The data frames of a busy server are walked in place elsewhere; these
decoders know them too, for tests and for small clients.
"""

from collections import namedtuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from vibemq import errors
from vibemq.errors import UnencodableValue
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.layout import Items, field_of
from vibemq.protocols.streams.spec import CHUNK_HEADER, COMMANDS, EXTENSIONS, RESPONSE_BIT, Key


class MalformedFrame(errors.MalformedFrame):
    """The peer's bytes are not the command they claim to be."""

    def __init__(self, where, needed, had):
        super().__init__(where, needed, had)
        self.code = int(spec.Code.UNKNOWN_FRAME)


SubBatch = namedtuple("SubBatch", "compression records uncompressed_size body")
SubBatch.__doc__ = "An entry that holds several messages, possibly compressed, under one publishing id."
Chunk = namedtuple("Chunk", [field.name for field in CHUNK_HEADER] + ["data", "trailer"])
Chunk.__doc__ = "The fields of a chunk's header, its entries as they came, and its trailer where one was sent."

# ---- plans ----

cdef enum Op:
    UNSIGNED
    OFFSET_TYPE
    OFFSET_TYPE_OR_NONE
    SIGNED
    OFFSET
    NUMBERS_END  # those before it are numbers, of the step's width
    STRING
    BYTES
    MAP
    MAP_TO_END
    ARRAY
    ITEMS
    ENTRY
    CHUNK


cdef class Plan


cdef class Step:
    """How one field is read and written."""

    cdef str name
    cdef str where  # as in "Create.stream", for errors
    cdef Op op
    cdef int width  # bytes, of a number
    cdef int since  # first version that has it
    cdef int size_min  # bytes on the wire that it takes at least
    cdef int condition_index  # the earlier field that decides whether it is there; -1: it always is
    cdef tuple condition_values
    cdef bint may_be_absent
    cdef bint is_nullable
    cdef object default
    cdef object empty  # of this type; a string's null reads as that
    cdef object on_error  # what is written behind a code that is not OK
    cdef Step item  # ARRAY: each of its values; MAP: the value of each pair
    cdef Plan items  # ITEMS: of one record


cdef class Plan:
    """The steps of one frame or record, and the tuple that a decoder makes of them."""

    cdef str name
    cdef object type
    cdef list steps
    cdef set names
    cdef int size_min
    cdef int ignored_tail_size
    cdef frozenset sent_by
    cdef int version_max


# The type's name in the table: operation, smallest size on the wire (a number's only one), what is empty.
cdef dict WIRE_TYPES = {
    "u8": (UNSIGNED, 1, 0), "u16": (UNSIGNED, 2, 0), "u24": (UNSIGNED, 3, 0), "u32": (UNSIGNED, 4, 0),
    "u64": (UNSIGNED, 8, 0), "i16": (SIGNED, 2, 0), "i32": (SIGNED, 4, 0), "i64": (SIGNED, 8, 0),
    "offset_type": (OFFSET_TYPE, 2, 0), "offset_type_or_none": (OFFSET_TYPE_OR_NONE, 2, 0), "offset": (OFFSET, 8, 0),
    "string": (STRING, 2, ""), "nullable_string": (STRING, 2, None), "bytes": (BYTES, 4, b""),
    "map": (MAP, 4, {}), "map_to_end": (MAP_TO_END, 4, {}), "statistics": (MAP, 4, {}),
    "entry": (ENTRY, 4, None), "chunk": (CHUNK, spec.CHUNK_HEADER_SIZE_BYTES, None),
}
cdef dict VALUES_OF_PAIRS = {"map": "string", "map_to_end": "string", "statistics": "i64"}
cdef int PAIR_NAME_SIZE_MIN = 2

TYPES = {"Chunk": Chunk}  # the named tuples of all commands, responses and items, by name


cdef Step make_step(str owner, field, list before):
    cdef Step step = Step()
    step.name, step.where = field.name, f"{owner}.{field.name}"
    step.is_nullable = field.type == "nullable_string"
    step.since, step.may_be_absent, step.default = field.since, field.may_be_absent, field.default
    step.condition_index = -1
    if field.only_if is not None:
        step.condition_index = [(<Step>earlier).name for earlier in before].index(field.only_if[0])
        step.condition_values = field.only_if[1]
    if isinstance(field.type, Items):
        step.op, step.size_min, step.empty = ITEMS, 4, ()
        step.items = make_plan(field.type.name, field.type.fields)
    elif field.type.startswith("array<"):
        step.op, step.size_min, step.empty = ARRAY, 4, ()
        step.item = make_step(step.where, field_of("item " + field.type.removeprefix("array<").removesuffix(">")), [])
    else:
        step.op, step.size_min, step.empty = WIRE_TYPES[field.type]
        if field.type in VALUES_OF_PAIRS:
            step.item = make_step(step.where, field_of("item " + VALUES_OF_PAIRS[field.type]), [])
    step.width = step.size_min
    if step.condition_index >= 0 or step.may_be_absent or step.since > 1:
        step.size_min = 0
    step.on_error = step.empty if step.default is None and len(before) >= 2 else step.default
    return step


cdef Plan make_plan(str name, fields):
    cdef Plan plan = Plan()
    plan.name, plan.steps = name, []
    for field in fields:
        plan.steps.append(make_step(name, field, plan.steps))
    plan.names = {(<Step>step).name for step in plan.steps}
    plan.size_min = sum([(<Step>step).size_min for step in plan.steps])
    if name not in TYPES:  # a request and its response may be one layout, as in Tune
        TYPES[name] = namedtuple(name, [field.name for field in fields], module="vibemq.protocols.streams.codec")
    plan.type = TYPES[name]
    return plan


cdef dict PLANS = {}  # of each frame by its key, RESPONSE_BIT included


cdef Plan make_frame(layout, sent_by, int version_max):
    cdef Plan plan = make_plan(layout.name, layout.fields)
    plan.ignored_tail_size, plan.sent_by, plan.version_max = layout.ignored_tail_size_bytes, sent_by, version_max
    return plan


for command in COMMANDS + EXTENSIONS:
    PLANS[int(command.key)] = make_frame(command.request, command.sent_by, command.version_max)
    if command.response is not None:
        PLANS[command.key | RESPONSE_BIT] = make_frame(command.response, command.answered_by, 1)
cdef Plan CHUNK_PLAN = make_plan("Chunk", CHUNK_HEADER)

globals().update(TYPES)  # Create, CreateResponse, ...: whoever decodes can name what it gets

cdef int PROPERTIES_COUNT_MAX = spec.PROPERTIES_COUNT_MAX
cdef uint64_t SUB_BATCH_BIT = spec.ENTRY_SUB_BATCH_BIT
cdef int OFFSET_TYPE_TIMESTAMP = spec.OffsetType.TIMESTAMP
cdef uint64_t OFFSET_TYPE_LAST = max(spec.OffsetType)

# ---- reading ----


cdef class Reader:
    """A pointer that carries its end. It borrows the bytes: the caller keeps them alive."""

    cdef const uint8_t *at
    cdef const uint8_t *end

    cdef inline Py_ssize_t left(self) noexcept:
        return self.end - self.at

    cdef const uint8_t *take(self, uint64_t size, str where) except NULL:
        """The only way forward: `size` bytes, or MalformedFrame."""
        cdef const uint8_t *start = self.at
        if size > <uint64_t>self.left():
            raise MalformedFrame(where, f"{size} bytes", f"{self.left()}")
        self.at += size
        return start

    cdef uint64_t unsigned(self, int width, str where) except? 0xDEADBEEF:
        cdef const uint8_t *p = self.take(width, where)
        cdef uint64_t value = 0
        cdef int i
        for i in range(width):
            value = (value << 8) | p[i]
        return value

    cdef int64_t signed(self, int width, str where) except? -0x5EED:
        cdef int shift = 64 - 8 * width
        return <int64_t>(self.unsigned(width, where) << shift) >> shift

    cdef uint64_t count(self, int item_size_min, str where) except? 0xDEADBEEF:
        """A count that the rest of the frame can hold, so a few bytes can never ask for gigabytes."""
        cdef int64_t count = <int32_t>self.unsigned(4, where)
        if count < 0 or (item_size_min > 0 and count > self.left() // item_size_min):
            raise MalformedFrame(where, f"{count} items of {item_size_min} bytes or more", f"{self.left()} bytes")
        return count

    cdef dict pairs_to_end(self, str where):
        """As the reference server reads properties: the count before them is not believed, or looked at."""
        cdef dict pairs = {}
        cdef int count = 0
        self.take(4, where)
        while self.left():
            count += 1
            if count > PROPERTIES_COUNT_MAX:
                raise MalformedFrame(where, f"{PROPERTIES_COUNT_MAX} pairs or fewer", f"{self.left()} bytes more")
            name = self.string(where, "")
            pairs[name] = self.string(where, "")
        return pairs

    cdef object string(self, str where, object null):
        # Read as u16, as the reference server does; only 0xFFFF is a null.
        cdef uint64_t size = self.unsigned(2, where)
        if size == 0xFFFF:
            return null
        cdef const uint8_t *p = self.take(size, where)
        try:
            return PyUnicode_DecodeUTF8(<const char *>p, <Py_ssize_t>size, NULL)
        except UnicodeDecodeError as error:
            raise MalformedFrame(where, "UTF-8", f"{error.reason} at byte {error.start}") from None

    cdef bytes data(self, uint64_t size, str where):
        return PyBytes_FromStringAndSize(<const char *>self.take(size, where), <Py_ssize_t>size)

    cdef bytes sized_bytes(self, str where):
        cdef int64_t size = <int32_t>self.unsigned(4, where)
        if size == -1:
            return b""
        if size < 0:
            raise MalformedFrame(where, "a size of -1 or more", f"{size}")
        return self.data(size, where)

    cdef object entry(self, int version, str where):
        cdef uint64_t first = self.unsigned(4, where)
        if not first & SUB_BATCH_BIT:
            return self.data(first, where)
        if version > 1:
            raise MalformedFrame(where, "a message, since version 2 has no sub-batches", "a sub-batch")
        self.at -= 4
        cdef uint64_t compression = (self.unsigned(1, where) >> 4) & 7
        cdef uint64_t records = self.unsigned(2, where)
        cdef uint64_t uncompressed_size = self.unsigned(4, where)
        cdef uint64_t size = self.unsigned(4, where)
        return SubBatch(compression, records, uncompressed_size, self.data(size, where))

    cdef object chunk(self, str where):
        header = read_fields(self, CHUNK_PLAN, 1)
        if header[0] != spec.CHUNK_MAGIC_VERSION:
            raise MalformedFrame(where, f"magic and version {spec.CHUNK_MAGIC_VERSION:#x}", f"{header[0]:#x}")
        data = self.data(header[8], where)
        # A trailer is only sent to a subscriber that asked for all kinds of chunk; then it is whole.
        trailer = self.data(header[9], where) if self.left() else b""
        return Chunk(*header, data, trailer)


cdef object read_value(Reader reader, Step step, int version, list before):
    cdef uint64_t i, count, number
    cdef Op op = step.op
    if op == SIGNED or (op == OFFSET and before[step.condition_index] == OFFSET_TYPE_TIMESTAMP):
        return reader.signed(step.width, step.where)
    if op < NUMBERS_END:
        number = reader.unsigned(step.width, step.where)
        if (op == OFFSET_TYPE and not 1 <= number <= OFFSET_TYPE_LAST) or (
            op == OFFSET_TYPE_OR_NONE and number > OFFSET_TYPE_LAST
        ):
            raise MalformedFrame(step.where, "an offset type", f"{number}")
        return number
    if op == STRING:
        return reader.string(step.where, step.empty)
    if op == BYTES:
        return reader.sized_bytes(step.where)
    if op == MAP:
        pairs = {}
        for i in range(reader.count(PAIR_NAME_SIZE_MIN + step.item.size_min, step.where)):
            name = reader.string(step.where, "")
            pairs[name] = read_value(reader, step.item, version, None)
        return pairs
    if op == MAP_TO_END:
        return reader.pairs_to_end(step.where)
    if op == ARRAY:
        count = reader.count(step.item.size_min, step.where)
        return [read_value(reader, step.item, version, None) for i in range(count)]
    if op == ITEMS:
        count = reader.count(step.items.size_min, step.where)
        return [step.items.type._make(read_fields(reader, step.items, version)) for i in range(count)]
    if op == ENTRY:
        return reader.entry(version, step.where)
    return reader.chunk(step.where)


cdef list read_fields(Reader reader, Plan plan, int version):
    cdef list values = []
    cdef Step step
    for step in plan.steps:
        if step.since > version or (
            step.condition_index >= 0 and values[step.condition_index] not in step.condition_values
        ):
            values.append(None)
        elif step.may_be_absent and reader.left() == 0:
            values.append({} if step.op == MAP_TO_END else step.default)
        else:
            values.append(read_value(reader, step, version, values))
    return values


cdef object decode(str sender, int key, int version, payload):
    """A key without the response bit is the frame that `sender` originates, or else its response."""
    cdef Plan plan = PLANS.get(key)
    cdef Reader reader = Reader()
    cdef Py_buffer view
    if plan is None or sender not in plan.sent_by:
        named, plan = plan, PLANS.get(key | <int>RESPONSE_BIT)
        if plan is None or sender not in plan.sent_by:
            needed = "a known command" if named is None and plan is None else f"a frame that a {sender} may send"
            raise MalformedFrame("key", needed, f"{key:#06x}")
    if not 1 <= version <= plan.version_max:
        raise MalformedFrame(f"{plan.name}.version", f"1 to {plan.version_max}", f"{version}")
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        reader.at = <const uint8_t *>view.buf
        reader.end = reader.at + view.len
        values = read_fields(reader, plan, version)
        if reader.left() and reader.left() != plan.ignored_tail_size:
            raise MalformedFrame(plan.name, "the end of the frame", f"{reader.left()} bytes more")
        return plan.type._make(values)
    finally:
        PyBuffer_Release(&view)


def decode_request(int key, int version, payload):
    """What a client sent. `payload` is the frame after size, key and version.

    Gives the command's named tuple (`Create`, `Subscribe`, ...). The key may carry the response bit: a client answers
    ConsumerUpdate, Close and Tune. Without the bit, ConsumerUpdate is read as that answer, since no client asks it.
    """
    return decode("client", key, version, payload)


def decode_response(int key, int version, payload):
    """What a server sent: `CreateResponse`, ... for answers, `Deliver`, `MetadataUpdate`, ... for its own frames.

    The key may be given with or without the response bit; only for Close does it matter (0x0016 is the server's own
    Close, 0x8016 its answer to ours).
    """
    return decode("server", key, version, payload)


# ---- writing ----


cdef int write_number(bytearray out, value, int width, bint signed, str where) except -1:
    try:
        out += value.to_bytes(width, "big", signed=signed)
    except (OverflowError, AttributeError, TypeError):
        raise UnencodableValue(where, f"{'an' if signed else 'an unsigned'} integer of {8 * width} bits",
                               repr(value)) from None
    return 0


cdef int write_string(bytearray out, value, str where) except -1:
    try:
        encoded = value.encode("utf-8")
    except (UnicodeEncodeError, AttributeError):
        raise UnencodableValue(where, "a string that UTF-8 can carry", repr(value)) from None
    if len(encoded) > spec.STRING_SIZE_MAX_BYTES:
        raise UnencodableValue(where, f"at most {spec.STRING_SIZE_MAX_BYTES} bytes", f"{len(encoded)}")
    write_number(out, len(encoded), 2, False, where)
    out += encoded
    return 0


cdef int write_entry(bytearray out, value, int version, str where) except -1:
    if isinstance(value, SubBatch):
        if version > 1:
            raise UnencodableValue(where, "a message, since version 2 has no sub-batches", "a sub-batch")
        if not 0 <= value.compression <= 7:
            raise UnencodableValue(f"{where}.compression", "0 to 7", f"{value.compression}")
        out.append(0x80 | value.compression << 4)
        write_number(out, value.records, 2, False, where)
        write_number(out, value.uncompressed_size, 4, False, where)
        write_number(out, len(value.body), 4, False, where)
        out += value.body
        return 0
    return write_sized(out, value, where)


cdef int write_sized(bytearray out, value, str where) except -1:
    """i32 size and data: the layout of `bytes` and of a simple entry alike."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise UnencodableValue(where, "bytes", repr(type(value).__name__))
    write_number(out, len(value), 4, True, where)
    out += value
    return 0


cdef int write_chunk(bytearray out, value, str where) except -1:
    if len(value.data) != value.data_size:
        raise UnencodableValue(where, f"data_size {value.data_size}, as its header says", f"{len(value.data)} bytes")
    write_item(out, CHUNK_PLAN, value[:len(CHUNK_PLAN.steps)], 1)
    out += value.data
    out += value.trailer
    return 0


cdef int write_value(bytearray out, Step step, value, int version, before) except -1:
    cdef Op op = step.op
    if op < NUMBERS_END:
        is_signed = op == SIGNED or (op == OFFSET and before == OFFSET_TYPE_TIMESTAMP)
        return write_number(out, value, step.width, is_signed, step.where)
    if value is None and step.is_nullable:
        return write_number(out, -1, 2, True, step.where)
    if op == STRING:
        return write_string(out, value, step.where)
    if op == BYTES:
        return write_sized(out, value, step.where)
    if op == ENTRY:
        return write_entry(out, value, version, step.where)
    if op == CHUNK:
        return write_chunk(out, value, step.where)
    try:
        write_number(out, len(value), 4, True, step.where)
    except TypeError:
        raise UnencodableValue(step.where, "something with a length", repr(value)) from None
    if op == MAP or op == MAP_TO_END:
        for name, item in value.items():
            write_string(out, name, step.where)
            write_value(out, step.item, item, version, None)
    elif op == ARRAY:
        for item in value:
            write_value(out, step.item, item, version, None)
    else:
        for item in value:
            write_item(out, step.items, item, version)
    return 0


cdef int write_item(bytearray out, Plan plan, item, int version) except -1:
    """`item` is a dict as for a frame, or has all of the record's fields, or those alone that this version knows."""
    if isinstance(item, dict):
        return write_fields(out, plan, item, version, False)
    names = [(<Step>step).name for step in plan.steps]
    if len(item) != len(names):
        names = [(<Step>step).name for step in plan.steps if (<Step>step).since <= version]
    if len(item) != len(names):
        raise UnencodableValue(plan.name, f"({', '.join(names)})", repr(item))
    return write_fields(out, plan, dict(zip(names, item)), version, False)


cdef int write_fields(bytearray out, Plan plan, dict fields, int version, bint is_error) except -1:
    cdef Step step
    cdef dict written = {}
    if not fields.keys() <= plan.names:
        raise UnencodableValue(plan.name, f"only {sorted(plan.names)}", f"{sorted(fields.keys() - plan.names)}")
    for step in plan.steps:
        value = fields.get(step.name)
        if step.since > version:
            if value is not None:
                raise UnencodableValue(step.where, f"version {step.since}", f"version {version}")
            continue
        if step.condition_index >= 0:
            condition = written[(<Step>plan.steps[step.condition_index]).name]
            if condition not in step.condition_values:
                continue
        else:
            condition = None
        if value is None and step.name not in fields:
            value = step.on_error if is_error else step.default
        if value is None and not step.is_nullable:
            if step.may_be_absent and step.name in fields:
                continue
            raise UnencodableValue(step.where, "a value", "none")
        write_value(out, step, value, version, condition)
        written[step.name] = value
    return 0


cdef Plan plan_to_encode(int key, str sender):
    cdef Plan plan = PLANS.get(key)
    if plan is None:
        raise UnencodableValue("key", "a frame of the table", f"{key:#06x}")
    if sender not in plan.sent_by:
        raise UnencodableValue("key", f"a frame that a {sender} originates", plan.name)
    return plan


cdef bytes frame(Plan plan, int key, int version, dict fields, bint is_error):
    cdef bytearray out = bytearray(4)
    write_number(out, key, 2, False, "key")
    write_number(out, version, 2, False, f"{plan.name}.version")
    if not 1 <= version <= plan.version_max:
        raise UnencodableValue(f"{plan.name}.version", "a version of the table", f"{version}")
    write_fields(out, plan, fields, version, is_error)
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def encode_request(int key, correlation_id=None, *, int version=1, **fields):
    """A whole frame that a client originates. Fields with a default in the table may be left out."""
    if correlation_id is not None:
        fields["correlation_id"] = correlation_id
    return frame(plan_to_encode(key, "client"), key, version, fields, False)


def encode_response(int key, correlation_id, code, *, int version=1, **fields):
    """A whole answer, response bit set, from either side.

    When the code is not OK, fields that are on the wire all the same may be left out: they are zero or empty.
    `correlation_id` or `code` is None where the layout has none (Metadata, Credit, Tune).
    """
    cdef int answer = key | <int>RESPONSE_BIT
    cdef Plan plan = PLANS.get(answer)
    cdef bint is_error = code is not None and code != spec.Code.OK
    if plan is None:
        raise UnencodableValue("key", "a command with a response", f"{key:#06x}")
    if correlation_id is not None:
        fields["correlation_id"] = correlation_id
    if is_error or (code is not None and "code" in plan.names):
        fields["code"] = code
    return frame(plan, answer, version, fields, is_error)


def encode_server_frame(int key, *, int version=1, **fields):
    """A whole frame that a server originates: no response bit, except on Credit, which is only seen after an error."""
    if key == Key.CREDIT:
        key |= <int>RESPONSE_BIT
    return frame(plan_to_encode(key, "server"), key, version, fields, False)
