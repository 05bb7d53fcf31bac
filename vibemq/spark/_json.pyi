# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled writer of JSON."""

from collections.abc import Mapping

import pyarrow as pa

def objects(columns: Mapping[str, pa.Array], rows: int) -> pa.LargeBinaryArray: ...
