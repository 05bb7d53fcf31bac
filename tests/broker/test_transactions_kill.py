# SPDX-License-Identifier: Apache-2.0
"""A commit is killed, or the power is cut, at each call that changes a file: every row is there once, none too early.

In CI at every 7th call, from a random one on; `make kills` does it at each, in minutes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import ENVIRONMENT, broker
from staging import begun, entries

from vibemq.client.streams import StreamsConnection

HERE = Path(__file__).parent
EACH = 1 if os.environ.get("VIBEMQ_KILL_EACH_CALL") else 7


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_commit_that_ends_at_any_call_and_is_asked_for_again_leaves_each_row_once(tmp_path, how):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    shim = tmp_path / "kill_at_call.so"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-O1", HERE / "kill_at_call.c", "-o", shim, "-ldl"]
    subprocess.run(command, check=True)
    targets, parts = ["one", "two"], [[], []]
    template = tmp_path / "template"
    with broker(template) as served, StreamsConnection.connect(served.host, served.port) as client:
        client.create("one", {"durability": "disk" if how == "cut" else "os"})
        client.create("two", {"durability": "disk"})
        for version in (0, 1):
            for numbers in (range(4), range(4, 6)):  # two transactions
                with begun(client, "app", version, *targets) as staging:
                    for i in numbers:
                        for target, name in enumerate(targets):
                            staging.stage(target, entries(b"%d %s %d" % (version, name.encode(), i)))
                parts[version].append((staging.name, staging.blocks))
    seed = random.randrange(EACH)
    print(f"from call {seed}, every {EACH}")
    arguments = [json.dumps(value) for value in (targets, parts, EACH, seed)]
    done = subprocess.run(
        [sys.executable, HERE / "killed_commits.py", template, tmp_path / "scratch", how, *arguments],
        env={**ENVIRONMENT, "LD_PRELOAD": str(shim)}, stdout=subprocess.PIPE, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    print(done.stdout)
    assert int(done.stdout.split()[0]) > 50
