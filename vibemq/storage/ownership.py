# SPDX-License-Identifier: Apache-2.0
"""Why this process may not write a file, for people: whose it is, or that its file system is read-only.

SQLite and access(2) say only that they cannot; what to do about it depends on the reason.
"""

import errno
import os
import pwd
from typing import NamedTuple


class Refusal(NamedTuple):
    why: str
    hint: str


def refusal(path: str, *, directory: bool = False) -> Refusal | None:
    """Why a file that is there cannot be read and written; None: it can, or there is nothing that says why not."""
    wanted = os.R_OK | os.W_OK | (os.X_OK if directory else 0)
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return read_only(path)
        if os.access(path, wanted, effective_ids=True):
            return None
        owner = account_name(os.stat(path).st_uid)
    except OSError:  # nothing is there, or not even that may be seen
        return None
    us = account_name(os.geteuid())
    if owner == us:
        return Refusal(
            f"{path} belongs to {owner}, whose rights to it were taken away", f"`chmod u+rw {path}` mends it"
        )
    return Refusal(
        f"{path} belongs to {owner}, and this runs as {us}",
        f"run this as {owner}, or give it away: `chown -R {us.removeprefix('uid ')} "
        f"{path if directory else os.path.dirname(path)}`",
    )


def read_only(path: str) -> Refusal:
    return Refusal(
        f"{path} is on a read-only file system",
        "mount that writable (`mount -o remount,rw ...`; the kernel's log says if a damaged disk made it so), "
        "or choose another directory with --data-dir",
    )


def of_error(problem: OSError, path: str, *, directory: bool = False) -> Refusal | None:
    """The same for an error that there was already; ``path`` is what was to be used, or the nearest that is there."""
    if problem.errno == errno.EROFS:
        return read_only(path)
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path, directory = os.path.dirname(path), True
    return refusal(path, directory=directory) if problem.errno in (errno.EACCES, errno.EPERM) else None


def account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
