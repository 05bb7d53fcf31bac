# SPDX-License-Identifier: Apache-2.0
"""What a shell is told of the commands, man pages, and what --version says of the build."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT

from vibemq import __version__
from vibemq.cli.commands import main
from vibemq.cli.shell import literal

#: For each shell: sources what `vibemq completion` printed, and prints what `vibemq queues cr` would become.
COMPLETES = {
    "bash": "source completion; COMP_WORDS=(vibemq queues cr); COMP_CWORD=2; _vibemq_completion vibemq; "
    'echo "${COMPREPLY[@]}"',
    "zsh": "autoload -Uz compinit && compinit -u -D; source completion; env COMP_WORDS='vibemq queues cr' COMP_CWORD=2 "
    "_VIBEMQ_COMPLETE=zsh_complete vibemq",
    "fish": "source completion; complete --do-complete 'vibemq queues cr'",
}


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(main, arguments, prog_name="vibemq")


@pytest.fixture
def with_command(tmp_path: Path) -> dict[str, str]:
    """An environment in which `vibemq` is the command of these sources, installed or not."""
    command = tmp_path / "bin/vibemq"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {command.parent}/entry.py "$@"\n')
    command.with_name("entry.py").write_text(
        "import sys; from vibemq.cli.__main__ import run; sys.argv[0] = 'vibemq'; run()"
    )
    command.chmod(0o755)
    return ENVIRONMENT | {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.parametrize("shell", COMPLETES)
def test_a_shell_completes_commands(shell, run, with_command, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "completion").write_text(run("completion", shell).stdout)
    script = COMPLETES[shell]
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=with_command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "create" in done.stdout.split() and "delete" not in done.stdout.split()


@pytest.mark.parametrize("shell", COMPLETES)
def test_what_a_shell_asks_is_answered(shell, with_command):
    """Of shells that are not installed, too."""
    asked = {"COMP_WORDS": "vibemq install", "COMP_CWORD": "install" if shell == "fish" else "1"}
    environment = with_command | asked | {"_VIBEMQ_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(["vibemq"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "install-service" in re.split(r"[\s,]", done.stdout) and "serve" not in re.split(r"[\s,]", done.stdout)


def test_main_commands_are_completed_without_loading_any(with_command):
    """A shell waits for it at every tab."""
    code = (
        "import sys; from vibemq.cli.commands import main\n"
        "try: main(prog_name='vibemq', complete_var='_VIBEMQ_COMPLETE')\n"
        "finally: print(*[m for m in sys.modules if m.startswith(('vibemq.cli.', 'vibemq.bench'))])"
    )
    environment = with_command | {"COMP_WORDS": "vibemq ", "COMP_CWORD": "1", "_VIBEMQ_COMPLETE": "bash_complete"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stderr == "" and done.stdout.startswith("plain,")
    assert done.stdout.splitlines()[-1] == "vibemq.cli.groups vibemq.cli.commands"


def test_there_is_a_man_page_for_each_command_and_troff_finds_no_fault(run, tmp_path):
    said = run("man", str(tmp_path / "man1"))
    pages = {path.name: path.read_text() for path in (tmp_path / "man1").iterdir()}
    assert said.stdout == f"{len(pages)} man pages written into {tmp_path}/man1\n"
    assert {"vibemq.1", "vibemq-serve.1", "vibemq-queues.1", "vibemq-queues-create.1"} <= set(pages)
    assert all(f"vibemq\\-{name}\\fR(1)" in pages["vibemq.1"] for name in ("serve", "queues", "ctl"))
    assert r"\fB\-\-workers N\fR" in pages["vibemq-serve.1"].splitlines()
    if shutil.which("groff") is None:
        pytest.skip("what is left: troff has not read the pages, as groff is not installed")
    checked = subprocess.run(
        ["groff", "-man", "-ww", "-z", *map(str, (tmp_path / "man1").iterdir())], capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_man_page_shows_text_as_it_is():
    assert literal(".so /etc/passwd\n'x' C:\\n --a `b`") == "\\&.so /etc/passwd\n\\(aqx\\(aq C:\\en \\-\\-a \\`b\\`"


def test_man_pages_that_cannot_be_written_are_an_error_of_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    said = run("man", str(tmp_path / "file" / "man1"))
    assert said.exit_code == 1
    assert said.stderr == f"vibemq: cannot write man pages into {tmp_path}/file/man1: Not a directory\n"


def facts(**environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "vibemq.cli", "--version"], capture_output=True, text=True, env=ENVIRONMENT | environment
    )
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == f"vibemq {__version__}"
    return dict(line.split(": ", 1) for line in lines) | {"stderr": done.stderr}


def test_the_version_comes_with_facts_of_the_build():
    found = facts()
    assert found["Python"].startswith(platform.python_version()) and platform.machine() in found["Python"]
    assert re.fullmatch(r"(gcc|clang) \d+\.\d.*", found["compiler"])
    assert found["commit"] and found["checksums by"] and found["stderr"] == ""


def test_an_instruction_set_that_the_environment_takes_away_is_not_used():
    without = facts(VIBEMQ_CPU_WITHOUT="vpclmulqdq,pclmulqdq,arm-crc32")
    assert without["checksums by"] == "slicing-by-8" and "pclmulqdq" not in without["instruction sets"]
    assert without["stderr"] == ""
    misspelt = facts(VIBEMQ_CPU_WITHOUT="pclmul")
    assert misspelt["stderr"].startswith("vibemq: VIBEMQ_CPU_WITHOUT: no instruction set that is used here is called")
    assert misspelt["instruction sets"] == facts()["instruction sets"]
