# SPDX-License-Identifier: Apache-2.0
"""Build the C core once as a static library and every Cython module beside its .pyx.

Everything declarative is in pyproject.toml; only what needs code is here: finding the
sources, listing headers so that a change to one rebuilds its users, and the flags.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
CORE_FOLDERS = ("base", "shm", "log", "ledger", "message")

core_sources = sorted(str(p.relative_to(ROOT)) for f in CORE_FOLDERS for p in (ROOT / "csrc" / f).glob("*.c"))
core_headers = sorted(str(p.relative_to(ROOT)) for f in CORE_FOLDERS for p in (ROOT / "csrc" / f).glob("*.h"))

# setuptools compiles with -DNDEBUG and -O2 or -O3 as Python was built; what must hold uses CHECK, which stays.
optimization = "-O" + os.environ.get("VIBEMQ_OPTIMIZE", "3")
flags = ["-std=gnu11", optimization, "-fvisibility=hidden", "-fno-strict-aliasing", "-Wno-unused-function"]
link_flags: list[str] = []
debugging = bool(os.environ.get("VIBEMQ_DEBUG") or os.environ.get("VIBEMQ_SANITIZE"))
if not debugging:
    flags.append("-g0")  # Python's own flags ask for debug information: a third of the time, five sixths of the size
    link_flags.append("-s")
macros = [("_GNU_SOURCE", None)]
if os.environ.get("VIBEMQ_DEBUG"):
    macros.append(("VIBEMQ_DEBUG", "1"))
if sanitizer := os.environ.get("VIBEMQ_SANITIZE"):
    flags += [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-g"]
    link_flags += [f"-fsanitize={sanitizer}"]


def extension(path: Path) -> Extension:
    relative = path.relative_to(ROOT)
    return Extension(
        ".".join(relative.with_suffix("").parts),
        [str(relative)],
        include_dirs=["csrc"],
        define_macros=macros,
        depends=core_headers + core_sources,  # linked anew; cythonize follows .pxd files
        extra_compile_args=flags,
        extra_link_args=link_flags,
    )


# The Makefile builds in place, file by file as they change; pip is then only to register what is there.
only_register = bool(os.environ.get("VIBEMQ_ONLY_REGISTER"))
extensions = [] if only_register else [extension(p) for p in sorted((ROOT / "vibemq").rglob("*.pyx"))]

setup(
    libraries=[
        (
            "vibemq_core",
            {
                "sources": core_sources,
                "include_dirs": ["csrc"],
                "macros": macros,
                "cflags": [*flags, "-fPIC"],
                "obj_deps": {"": core_headers},
            },
        )
    ]
    if sys.platform == "linux" and not only_register
    else [],
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=cythonize(
        extensions,
        build_dir="build/cython",
        nthreads=os.cpu_count() or 1,
        cache=os.environ.get("VIBEMQ_CYTHON_CACHE", False),  # a folder: what checkouts have translated, as ccache for C
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "embedsignature": True,
            "freethreading_compatible": False,
        },
    ),
)
