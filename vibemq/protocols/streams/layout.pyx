# SPDX-License-Identifier: Apache-2.0
"""The layouts of spec.py compiled into plans: lists of steps that the codec reads and writes one field with each.

It is apart from the codec because a plan knows no bytes: it turns names into small numbers, once, at import. Each
plan carries the named tuple that a decoder makes; TYPES holds them all by name.
"""

from collections import namedtuple

from vibemq.protocols.streams import spec
from vibemq.protocols.streams.spec import CHUNK_HEADER, COMMANDS, EXTENSIONS, Items

# The type's name in the table: operation, width where it is a number, smallest size on the wire.
cdef dict WIRE_TYPES = {
    "u8": (UNSIGNED, 1, 1), "u16": (UNSIGNED, 2, 2), "u24": (UNSIGNED, 3, 3), "u32": (UNSIGNED, 4, 4),
    "u64": (UNSIGNED, 8, 8), "i16": (SIGNED, 2, 2), "i32": (SIGNED, 4, 4), "i64": (SIGNED, 8, 8),
    "string": (STRING, 0, 2), "nullable_string": (NULLABLE_STRING, 0, 2), "bytes": (BYTES, 0, 4),
    "map": (MAP, 0, 4), "map_to_end": (MAP_TO_END, 0, 4), "statistics": (STATISTICS, 0, 4), "offset_type": (OFFSET_TYPE, 2, 2),
    "offset_type_or_none": (OFFSET_TYPE_OR_NONE, 2, 2), "offset": (OFFSET, 8, 8), "entry": (ENTRY, 0, 4),
    "chunk": (CHUNK, 0, spec.CHUNK_HEADER_SIZE_BYTES),
}

TYPES = {}  # the named tuples of all commands, responses and items, by name


cdef class Step:
    """How one field is read and written."""


cdef class Plan:
    """The steps of one frame or record, and the tuple that a decoder makes of them."""


cdef Step make_step(str owner, field, list before):
    cdef Step step = Step()
    step.name, step.where = field.name, f"{owner}.{field.name}"
    step.since, step.may_be_absent = field.since, field.may_be_absent
    step.default, step.on_error = field.default, field.on_error
    step.condition_index = -1
    if field.only_if is not None:
        step.condition_index = [(<Step>earlier).name for earlier in before].index(field.only_if[0])
        step.condition_values = frozenset(int(value) for value in field.only_if[1])
    if isinstance(field.type, Items):
        step.op, step.size_min = ITEMS, 4
        step.items = make_plan(field.type.name, field.type.fields, 0)
    elif field.type.startswith("array<"):
        step.op, step.size_min = ARRAY, 4
        item = spec.Field("item", field.type.removeprefix("array<").removesuffix(">"))
        step.items = make_plan(step.where, (item,), 0, False)
    else:
        step.op, step.width, step.size_min = WIRE_TYPES[field.type]
    if step.condition_index >= 0 or step.may_be_absent or step.since > 1:
        step.size_min = 0
    return step


cdef Plan make_plan(str name, fields, int ignored_tail_size, bint has_type=True):
    cdef Plan plan = Plan()
    plan.name, plan.steps, plan.ignored_tail_size = name, [], ignored_tail_size
    for field in fields:
        plan.steps.append(make_step(name, field, plan.steps))
    plan.names = {(<Step>step).name for step in plan.steps}
    plan.size_min = sum([(<Step>step).size_min for step in plan.steps])
    if has_type:
        if name not in TYPES:  # a request and its response may be one layout, as in Tune
            TYPES[name] = namedtuple(name, [field.name for field in fields], module="vibemq.protocols.streams.codec")
        plan.type = TYPES[name]
    return plan


cdef Plan plan_of(layout):
    return None if layout is None else make_plan(layout.name, layout.fields, layout.ignored_tail_size_bytes)


REQUEST_PLANS = {int(command.key): plan_of(command.request) for command in COMMANDS + EXTENSIONS}
RESPONSE_PLANS = {
    int(command.key): plan_of(command.response) for command in COMMANDS + EXTENSIONS if command.response is not None
}
CHUNK_PLAN = make_plan("Chunk", CHUNK_HEADER, 0, False)
