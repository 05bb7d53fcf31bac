# SPDX-License-Identifier: Apache-2.0
def write(
    properties: bytes, payload: bytes, content_type: bytes | None = None, dotnet_type: bytes | None = None
) -> bytes: ...
def read(
    message: bytes,
    content_type: bytes | None = None,
    *,
    without_dotnet_type: bool = False,
    single: bool = False,
) -> bytes | None: ...
def dotnet_type(message: bytes) -> bytes | None: ...
