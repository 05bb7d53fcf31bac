# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled looks at bodies."""

import pyarrow as pa

def are_text(values: pa.BinaryArray) -> bool: ...
def json_objects(values: pa.BinaryArray) -> tuple[memoryview, memoryview, list[int]]: ...
