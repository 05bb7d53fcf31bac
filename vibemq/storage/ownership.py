# SPDX-License-Identifier: Apache-2.0
"""Why this process may not write a file, for people: whose it is, or that its file system is read-only.

SQLite and access(2) say only that they cannot; the remedy depends on the reason.  A remedy may be pasted by root, so no
command here names a file that is not a broker's: a directory is given away only if all that lies in it is ours.
"""

import errno
import os
import pwd
import re
import shlex
from typing import NamedTuple

#: All names in a data directory (csrc/log/FORMAT.md), and the folder that a file system makes for itself.
OURS = re.compile(
    r"meta\.(db|db-wal|db-shm|db-journal|db\.restoring|check)|streams|identity|audit\.log(\..*)?|harmed-objects|clock|"
    r"reserve|lease|lock|transactions\.lock|restoring|ctl\.sock|remote\.sock|backup\.json|lost\+found"
)
#: Directories of the machine that may be empty.
SYSTEM = {
    *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/proc", "/root", "/run"),
    *("/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/usr/local/lib", "/var", "/var/cache", "/var/lib"),
    *("/var/lock", "/var/log", "/var/opt", "/var/run", "/var/spool", "/var/tmp"),
}
CHOOSE = "choose another directory with --data-dir"


class Refusal(NamedTuple):
    why: str
    hint: str


def others_in(directory: str) -> list[str] | None:
    """Return the names in a directory that are not of a data directory; None: it cannot be listed."""
    try:
        return sorted(name for name in os.listdir(directory) if OURS.fullmatch(name) is None)
    except OSError:
        return None


def is_ours(directory: str) -> bool:
    """Return whether a directory is the broker's alone: listed, without other files, and none of the machine's."""
    return os.path.realpath(directory) not in SYSTEM and others_in(directory) == []


def refusal(path: str, *, directory: bool = False, data_dir: str = "") -> Refusal | None:
    """Return why a file that is there cannot be read and written; None: it can, or nothing says why not.

    ``data_dir``: the data directory where it is not ``path``, or the folder of that file.
    """
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
    data_dir = data_dir or (path if directory else os.path.dirname(path))
    if owner == us:
        why = f"{path} belongs to {owner}, whose rights to it were taken away"
        if not directory and is_ours(data_dir):
            return Refusal(why, f"`chmod u+rw {shlex.quote(path)}` mends it")
        return Refusal(why, f"let {owner} read, write and enter it, or {CHOOSE}")
    return Refusal(f"{path} belongs to {owner}, and this runs as {us}", _remedy(owner, us, data_dir))


def _remedy(owner: str, us: str, data_dir: str) -> str:
    account, shown = us.removeprefix("uid "), shlex.quote(data_dir)
    is_there = os.path.lexists(data_dir)
    if not is_there or (is_ours(data_dir) and not os.listdir(data_dir)):
        return f"as root, `install -d -o {account} -m 700 {shown}` makes it; or {CHOOSE}"
    if is_ours(data_dir):
        return f"run this as {owner}, or give it away: `chown -R {account} {shown}`"
    if others_in(data_dir) is None:
        return f"run this as {owner} if it is a broker's data directory, or {CHOOSE}"
    return f"it has other files than a broker's: {CHOOSE}, such as {shlex.quote(os.path.join(data_dir, 'vibemq'))}"


def read_only(path: str) -> Refusal:
    return Refusal(
        f"{path} is on a read-only file system",
        "the kernel's log says whether a damaged disk made it so, which has to be repaired first; make the file "
        f"system writable, or {CHOOSE}",
    )


def of_error(problem: OSError, path: str, *, directory: bool = False, data_dir: str = "") -> Refusal | None:
    """Return the same for an error that there was already.

    ``path`` is the file that was to be used; the nearest folder that is there is looked at.
    """
    if problem.errno == errno.EROFS:
        return read_only(path)
    data_dir = data_dir or (path if directory else os.path.dirname(path))
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path, directory = os.path.dirname(path), True
    if problem.errno not in (errno.EACCES, errno.EPERM):
        return None
    return refusal(path, directory=directory, data_dir=data_dir)


def account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
