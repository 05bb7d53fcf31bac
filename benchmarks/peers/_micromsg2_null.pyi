# SPDX-License-Identifier: Apache-2.0
"""Types of the null MicroMsg2 server."""

def serve(listener: int) -> None: ...
