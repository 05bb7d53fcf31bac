# SPDX-License-Identifier: Apache-2.0
"""Who may import whom.  Every import, cimport and #include is read; any arrow not listed here fails.

Why this is a test: the layers are what lets one read a door without the other three, run
the C core under sanitizers without an interpreter, and use the client without a broker.
An arrow that should not be there is always convenient on the day it is added.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# ---- the rules ----

# C: part -> parts whose headers it may include, besides its own.
C_MAY = {
    "base": set(),
    "shm": {"base"},
    "message": {"base"},
    "log": {"base", "shm", "message"},
    "ledger": {"base", "shm", "message"},
}
# Python: package -> packages it may import, besides its own.
MAY = {
    "__main__": {"cli"},
    "storage": set(),
    "net": set(),
    "access": {"storage"},
    "remote": {"access", "storage"},
    "broker": {"access", "storage", "net"},
    "admin": {"broker", "remote", "access", "storage", "client"},
    "protocols": {"broker", "access", "storage", "net"},
    "server": {"protocols", "broker", "admin", "remote", "access", "storage", "net"},
    "client": set(),
    "bench": {"client"},
    "spark": {"client", "remote", "storage"},
    "cli": {"server", "admin", "remote", "access", "storage", "client", "bench", "spark"},
    "pyspark_vibemq": {"spark"},
}
EVERYBODY_MAY = {
    "addresses",
    "build_facts",
    "errors",
    "config",
    "control_groups",
    "grow",
    "once_a_minute",
    "openssl",
    "units",
    "extras",
}
# Bytes to commands and back, without I/O: what is left of a door when the broker is taken away.
CODECS = {"spec", "codec", "wire", "layout", "compression", "options", "extensions"}
MAY_SEE_CODECS = {"client", "bench", "cli"}
# C headers that any Cython module may use: pure functions on bytes in memory.  What is shared
# between processes or lies on disk goes through vibemq.storage.
FORMAT_HEADERS = ("base/", "message/", "log/chunk.h")


def allowed(source: str, target: str) -> bool:
    """May module ``source`` import module ``target``?  Dotted names, all of VibeMQ's own."""
    here, there = place(source), place(target)
    if there[:1] == [] or there[0] in EVERYBODY_MAY:
        return True
    if not here:  # `vibemq.connect`, which is loaded when it is used
        return there[0] == "client"
    if here[:1] != there[:1]:
        if there[0] == "protocols" and here[0] in MAY_SEE_CODECS:
            return len(there) < 3 or there[2] in CODECS
        return there[0] in MAY.get(here[0], set())
    if here[0] == "protocols":  # doors never import each other
        return len(there) < 2 or len(here) < 2 or here[1] == there[1]
    return True


def place(module: str) -> list[str]:
    """'vibemq.protocols.streams.codec' -> ['protocols', 'streams', 'codec']"""
    parts = module.split(".")
    return parts[1:] if parts[0] == "vibemq" else parts


# ---- reading the tree ----

PYX_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n]+)|c?import[ \t]+([^\n]+))", re.M
)
PYX_HEADER = re.compile(r"^[ \t]*cdef extern from \"([\w/]+\.h)\"", re.M)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)


def python_imports(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrow: write the whole name"
            for alias in node.names:
                yield from from_import(node.module or "", alias.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def cython_imports(text: str) -> Iterator[str]:
    text = re.sub(r'"""(?:.|\n)*?"""', '""', text)
    for package, names, plain in PYX_IMPORT.findall(text):
        for name in re.sub(r"#[^\n]*", "", names or plain).strip("() \t\n").split(","):
            if word := name.split():
                yield from from_import(package, word[0]) if package else [word[0]]


def from_import(package: str, name: str) -> list[str]:
    """``from vibemq.a import b``: b may be a module of a, or only a name in it."""
    folder = ROOT.joinpath(*package.split("."))
    is_module = (
        any(folder.joinpath(name).with_suffix(s).exists() for s in (".py", ".pyx", ".pxd")) or (folder / name).is_dir()
    )
    return [f"{package}.{name}"] if is_module else [package]


def modules() -> list[Path]:
    return sorted(
        p
        for top in ("vibemq", "pyspark_vibemq")
        for p in (ROOT / top).rglob("*.p*")
        if p.suffix in (".py", ".pyx", ".pxd")
    )


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def wrong_arrows(path: Path) -> list[str]:
    source, text = dotted(path), path.read_text(encoding="utf-8")
    found = python_imports(text) if path.suffix == ".py" else cython_imports(text)
    ours = {t for t in found if t.split(".")[0] in ("vibemq", "pyspark_vibemq")}
    wrong = [f"{source} imports {target}" for target in sorted(ours) if not allowed(source, target)]
    if path.suffix != ".py" and place(source)[:1] != ["storage"]:
        headers = [h for h in PYX_HEADER.findall(text) if (ROOT / "csrc" / h).exists()]
        wrong += [f"{source} uses {h}" for h in headers if not h.startswith(FORMAT_HEADERS)]
    return wrong


def wrong_includes(path: Path) -> list[str]:
    part = path.relative_to(ROOT / "csrc").parts[0]
    wrong = []
    for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
        target = (path.parent / name).resolve().relative_to(ROOT / "csrc").parts[0]
        if target not in C_MAY.get(part, set()) | {part}:
            wrong.append(f"csrc/{part}/{path.name} includes {name}")
    return wrong


# ---- the tests ----


def test_every_python_and_cython_import_follows_the_layers():
    assert [arrow for path in modules() for arrow in wrong_arrows(path)] == []


def test_every_package_has_a_rule():
    packages = {place(dotted(path))[0] for path in modules() if place(dotted(path))}
    assert packages - EVERYBODY_MAY <= set(MAY)


def test_every_include_of_the_c_core_follows_the_layers():
    sources = [p for part in C_MAY for p in (ROOT / "csrc" / part).glob("*.[ch]")]
    assert sources
    assert [arrow for path in sources for arrow in wrong_includes(path)] == []


def test_the_c_core_knows_nothing_of_python():
    sources = (ROOT / "csrc").rglob("*.[ch]")
    assert [str(p) for p in sources if re.search(r"#\s*include\s*[<\"]Python\.h", p.read_text(encoding="utf-8"))] == []


def test_rules_have_no_cycle():
    for rules in (MAY, C_MAY):
        left = dict(rules)
        while left:
            free = [name for name, targets in left.items() if not targets & set(left)]
            assert free, f"cycle among {sorted(left)}"
            for name in free:
                del left[name]


@pytest.mark.parametrize(
    ("source", "target", "may"),
    [
        ("vibemq.broker.stream", "vibemq.storage.log", True),
        ("vibemq.storage.log", "vibemq.broker.stream", False),
        ("vibemq.net.sockets", "vibemq.storage.log", False),
        ("vibemq.access.users", "vibemq.broker.parts", False),
        ("vibemq.net.sockets", "vibemq.errors", True),
        ("vibemq.client.streams", "vibemq.protocols.streams.codec", True),
        ("vibemq.client.streams", "vibemq.protocols.streams.session", False),
        ("vibemq.client.streams", "vibemq.protocols.streams", True),
        ("vibemq.spark.source", "vibemq.protocols.streams.codec", False),
        ("vibemq.protocols.streams.session", "vibemq.protocols.native.codec", False),
        ("vibemq.protocols.streams.session", "vibemq.protocols.streams.codec", True),
        ("vibemq.server.worker", "vibemq.cli", False),
        ("vibemq.bench.load", "vibemq.spark.source", False),
    ],
)
def test_the_rules_say_what_they_should(source, target, may):
    assert allowed(source, target) is may


def test_the_reader_of_cython_sees_every_form():
    text = """
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, err  # a comment
from vibemq.net.door cimport (
    Session,
    Other,
)
import vibemq.broker, os
    from vibemq.errors import StorageError
"""
    assert set(cython_imports(text)) == {
        "vibemq.storage.core",
        "vibemq.net.door",
        "vibemq.broker",
        "os",
        "vibemq.errors",
    }


def test_the_reader_of_python_sees_late_and_named_imports():
    text = """
def f():
    from vibemq import config
    importlib.import_module("vibemq.server.worker")
import vibemq.cli as c
"""
    assert set(python_imports(text)) == {"vibemq.config", "vibemq.server.worker", "vibemq.cli"}
