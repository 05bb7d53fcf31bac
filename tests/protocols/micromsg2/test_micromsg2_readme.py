# SPDX-License-Identifier: Apache-2.0
"""The door's README says what the code does: commands, options, states, codes and extensions; and its examples run."""

import contextlib
import io
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from running import Running

from vibemq.client.micromsg2 import client_proof
from vibemq.config import Micromsg2
from vibemq.protocols import micromsg2
from vibemq.protocols.micromsg2 import commands, handshake, options, spec

README = (Path(micromsg2.__file__).parent / "README.md").read_text()
NEVER_SENT = {spec.ErrorCode.UNSUPPORTED_EXTENSIONS}


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.S)
    assert found is not None
    return found[1]


def test_the_example_in_python_runs(served: Running):
    code = example("python").replace("Micromsg2Client()", f"Micromsg2Client(port={served.ports['micromsg2']})")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code, {})
    assert shown.getvalue() == "b'{\"amount\": 250}' {'amount': 250, 'currency': 'EUR'}\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_example_by_hand_gets_its_message(served: Running):
    printing = "\n".join(line for line in example("sh").splitlines() if line.startswith("printf"))
    sent = subprocess.run(["bash", "-c", printing.replace(">&3", "")], capture_output=True, check=True).stdout
    got = b""
    with socket.create_connection((served.host, served.ports["micromsg2"]), timeout=10) as connection:
        connection.sendall(sent)
        while not got.endswith(b"\0\0\1\6orders\0\x0ccolour:Tred;\5hello"):
            data = connection.recv(4096)
            assert data, got
            got += data


def test_the_example_of_a_proof_is_one():
    assert f"`{client_proof('bob', 'pencil', bytes(range(16)), 4096, bytes([1]) * 24).hex()}`" in README


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_every_command_has_its_line(command):
    assert f"\n| `{command}` | `" in README


def test_every_option_of_create_is_named():
    keys = next(line for line in README.splitlines() if line.startswith("| `create` |"))
    assert not [key for key in options.OPTIONS if f"`{key}`" not in keys]


def test_the_diagram_names_every_state():
    diagram = README.rpartition("```\n")[0].rpartition("```\n")[2]
    assert not [state for state in (*handshake.STEPS, "judgement", "open", "closed") if state not in diagram]


@pytest.mark.parametrize("code", spec.ErrorCode)
def test_every_code_has_its_reason(code):
    assert (f"\n| `{code}` |" in README) is (code not in NEVER_SENT)
    assert f"`{code}`" in README


def test_every_extension_and_other_spelling_is_named():
    names = [*spec.ExtensionName, *spec.EXTENSION_ALIASES, *spec.COUNT_KEYS - {"messagesperack"}]
    assert not [name for name in names if not re.search(rf"`{name}[`:=]", README)]


def test_every_option_of_the_door_that_is_named_exists():
    assert set(re.findall(r"`micromsg2\.(\w+)", README)) <= set(Micromsg2.__struct_fields__)


def test_what_was_contradictory_in_the_published_text_is_all_there():
    numbers = [int(n) for row in re.findall(r"^\| ([\d, ]+) \|", README, re.M) for n in row.split(",")]
    assert numbers == list(range(1, 34))
