# SPDX-License-Identifier: Apache-2.0
"""Builds the compiled parts of benchmarks/ beside their sources, with the .pxd files of the VibeMQ that is there:

python benchmarks/setup.py -q build_ext --inplace
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

os.chdir(Path(__file__).resolve().parent.parent)
OPTIMIZATION = "-O" + os.environ.get("VIBEMQ_OPTIMIZE", "3")
FLAGS = ["-std=gnu11", OPTIMIZATION, "-fno-strict-aliasing", "-g0", "-Wno-unused-function"]
BUILT_WITH = Path(
    "build/benchmarks.flags"
)  # the tests build with others, and what they have built is not to be measured

setup(
    name="vibemq-benchmarks",
    packages=[],
    options={
        "build_ext": {
            "force": not BUILT_WITH.exists() or BUILT_WITH.read_text() != OPTIMIZATION,
            "parallel": os.cpu_count() or 1,
        }
    },
    ext_modules=cythonize(
        [
            Extension(
                f"benchmarks.peers.{path.stem}",
                [str(path)],
                include_dirs=["csrc"],
                define_macros=[("_GNU_SOURCE", None)],
                extra_compile_args=FLAGS,
            )
            for path in sorted(Path("benchmarks/peers").glob("*.pyx"))
        ],
        build_dir="build/cython",
        nthreads=os.cpu_count() or 1,
        cache=os.environ.get("VIBEMQ_CYTHON_CACHE", False),
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "freethreading_compatible": False,
        },
    ),
)
BUILT_WITH.parent.mkdir(exist_ok=True)
BUILT_WITH.write_text(OPTIMIZATION)
