# SPDX-License-Identifier: Apache-2.0
"""Types of the null hub."""

def serve(listener: int) -> None: ...
