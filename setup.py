# SPDX-License-Identifier: Apache-2.0
"""Build the C core once, as a library inside the package, and every Cython module beside its .pyx.

Everything declarative is in pyproject.toml; only what needs code is here: finding the
sources, what is built anew when one of them changes, and the flags.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.modified import newer_group

ROOT = Path(__file__).parent
CORE_FOLDERS = ("base", "shm", "log", "ledger", "message")
CPUS = os.cpu_count() or 1

#: Modules that work for every message, or find their way through bytes.  -O3 shows in their figures, and takes twice
#: as long to compile as -O1, which is enough for the others.
HOT = (
    "bench/*.pyx",
    "broker/*.pyx",
    "client/_*.pyx",
    "net/connection.pyx",
    "net/sockets.pyx",
    "protocols/*/codec.pyx",
    "protocols/*/deliveries.pyx",
    "protocols/*/publisher.pyx",
    "protocols/*/session.pyx",
    "protocols/micromsg2/*.pyx",
    "protocols/signalr/*.pyx",
    "server/turn.pyx",
    "spark/_arrow.pyx",
    "spark/_columns.pyx",
    "spark/_lines.pyx",
    "spark/_json.pyx",
    "spark/_rows.pyx",
    "storage/log.pyx",
    "storage/shm.pyx",
)

hot = {path for pattern in HOT for path in (ROOT / "vibemq").glob(pattern)}
if idle := [pattern for pattern in HOT if not list((ROOT / "vibemq").glob(pattern))]:
    raise SystemExit(f"setup.py: HOT names what is not there: {', '.join(idle)}")

core_sources = sorted(str(p.relative_to(ROOT)) for f in CORE_FOLDERS for p in (ROOT / "csrc" / f).glob("*.c"))
core_headers = sorted(str(p.relative_to(ROOT)) for f in CORE_FOLDERS for p in (ROOT / "csrc" / f).glob("*.h"))

# What is compiled depends on these: the flags are in this file.
shared = [*core_headers, "setup.py"]

# setuptools compiles with -DNDEBUG and -O2 or -O3 as Python was built; what must hold uses CHECK, which stays.
flags = ["-std=gnu11", "-fno-strict-aliasing", "-Wno-unused-function"]
link_flags = ["-Wl,--as-needed"]
if not (os.environ.get("VIBEMQ_DEBUG") or os.environ.get("VIBEMQ_SANITIZE")):
    flags.append("-g0")  # Python's own flags ask for debug information: a third of the time, five sixths of the size
    link_flags.append("-s")
macros: list[tuple[str, str | None]] = [("_GNU_SOURCE", None)]
if os.environ.get("VIBEMQ_DEBUG"):
    macros.append(("VIBEMQ_DEBUG", "1"))
if sanitizer := os.environ.get("VIBEMQ_SANITIZE"):
    flags += [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-g"]
    link_flags += [f"-fsanitize={sanitizer}"]


def optimization(hot: bool) -> str:
    return "-O" + os.environ.get("VIBEMQ_OPTIMIZE", "3" if hot else "1")


def extension(path: Path) -> Extension:
    relative = path.relative_to(ROOT)
    name = ".".join(relative.with_suffix("").parts)
    up = "/.." * (len(relative.parts) - 2)  # to vibemq/, where the core lies
    return Extension(
        name,
        [str(relative)],
        include_dirs=["csrc"],
        define_macros=macros,
        depends=shared,  # cythonize follows .pxd files
        libraries=["vibemq_core"],
        runtime_library_dirs=[f"$ORIGIN{up}"],
        extra_compile_args=[*flags, optimization(hot=path in hot), "-fvisibility=hidden"],
        extra_link_args=link_flags,
    )


class BuildWithCore(build_ext):
    """Links vibemq/libvibemq_core.so first, against which the modules are linked."""

    def core(self, package: str) -> str:
        return os.path.join(package, "libvibemq_core.so")

    def build_extensions(self) -> None:
        package = os.path.join(self.build_lib, "vibemq")
        with ThreadPoolExecutor(CPUS) as pool:
            objects = list(pool.map(self.compile_core, core_sources))
        if newer_group(objects, self.core(package)):
            # What a function of the core calls in it is that very function, as in a static library.
            self.compiler.link_shared_object(
                objects, self.core(package), extra_postargs=[*link_flags, "-Wl,-Bsymbolic", "-pthread"]
            )
        for module in self.extensions:
            module.library_dirs.append(package)
        super().build_extensions()

    def compile_core(self, source: str) -> str:
        [compiled] = self.compiler.object_filenames([source], output_dir=self.build_temp)
        if newer_group([source, *shared], compiled):
            self.compiler.compile(
                [source], self.build_temp, macros, ["csrc"], extra_postargs=[*flags, optimization(hot=True)]
            )
        return compiled

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        self.copy_file(self.core(os.path.join(self.build_lib, "vibemq")), self.core("vibemq"))

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), self.core(os.path.join(self.build_lib, "vibemq"))]


def write_commit(package: str) -> None:
    """Which commit is shipped, for `vibemq --version`: by git; what is built from an sdist has it already."""
    if not (ROOT / ".git").exists():
        return
    if shutil.which("git") is None:
        return
    describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    # A container's root builds what another account has checked out.
    told = subprocess.run(["git", "-c", "safe.directory=*", "-C", ROOT, *describe], capture_output=True, text=True)
    if told.returncode == 0:
        Path(package, "COMMIT").write_text(told.stdout, encoding="utf-8")


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(os.path.join(self.build_lib, "vibemq"))


class SdistWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(os.path.join(base_dir, "vibemq"))


# The Makefile builds in place, file by file as they change; pip is then only to register what is there.
only_register = bool(os.environ.get("VIBEMQ_ONLY_REGISTER"))
Options.emit_code_comments = False  # each line of the source with its neighbours, five times as much as the code itself

setup(
    options={"build_ext": {"parallel": CPUS}},
    cmdclass={"build_ext": BuildWithCore, "build_py": BuildWithCommit, "sdist": SdistWithCommit},
    ext_modules=[]
    if only_register
    else cythonize(
        [extension(p) for p in sorted((ROOT / "vibemq").rglob("*.pyx"))],
        build_dir="build/cython",
        nthreads=CPUS,
        cache=os.environ.get("VIBEMQ_CYTHON_CACHE", False),  # a folder: what checkouts have translated, as ccache for C
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "embedsignature": True,
            "auto_pickle": False,  # nothing of a broker is pickled, and each class would have three functions for it
            "freethreading_compatible": False,
        },
    ),
)
