# SPDX-License-Identifier: Apache-2.0
FILTER_BYTES_MAX: int
CONDITIONS_MAX: int

class BadFilter(ValueError): ...

class Filter:
    count: int
    text: str

    def matches_bytes(self, message: bytes) -> bool: ...

def compile_filter(text: str) -> Filter: ...
