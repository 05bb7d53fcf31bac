# SPDX-License-Identifier: Apache-2.0
"""Names that nothing new may have.

Whatever has a name has an address in the management API, with the name in its path; and "." and ".." in a path mean
the folder itself and the one above it, percent-encoded too: browsers, proxies and HTTP libraries take them out before
they send the address.  What an earlier version has made under such a name is used and deleted as any other, by every
door and by ``vibemq ctl``, which asks without an address that anybody could change.
"""

from vibemq.errors import UserError

NO_ADDRESS = (".", "..")


def require_address(kind: str, name: str) -> None:
    """Raises UserError for a name under which a new thing of this kind could not be reached over HTTP."""
    if name in NO_ADDRESS:
        raise UserError(
            f"{kind} name {name!r}: browsers and HTTP libraries take it for a folder, so nothing could be asked about "
            "it; needed another name"
        )
