# SPDX-License-Identifier: Apache-2.0
"""Every script in benchmarks/ runs as its README says, here with few messages: what it measures then says nothing."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"
#: Each script with what makes it small.  Peers that are not installed are left out by the scripts, which say so.
SCRIPTS = {
    "micromsg2.py": ["--rounds", "1", "--scale", "0.001"],
    "queues_scale.py": ["--queues", "10", "--connections", "2", "--waiting", "1000"],
    "queues_side_by_side.py": ["--rounds", "1", "--scale", "0.001", "--scenario", "both"],
    "scale.py": ["--connections", "20", "--streams", "20", "--scale", "0.001"],
    "side_by_side.py": ["--rounds", "1", "--scale", "0.001", "--scenario", "pubsub-100"],
    "signalr.py": [
        *("--rounds", "1", "--scale", "0.002", "--load", "publish", "--load", "both", "--load", "fan-out"),
        *("--peer-python", os.path.relpath(sys.executable, ROOT)),
    ],
    "spark/batch_read.py": ["--rows", "2000", "--rounds", "1"],
    "streams_features.py": ["--rounds", "1", "--scale", "0.001"],
}
#: What the scripts use of one another, and a server that signalr.py starts.
PARTS = {"aiosignalr_hub.py", "commands.py", "figures.py", "loads.py", "fanout.py", "report.py", "compare.py"}
PARTS |= {"queues_compare.py", "servers.py", "setup.py", "__init__.py", "__main__.py"}
TIMEOUT_S = 500


def run(*command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_runs(script: str) -> None:
    if script.startswith("spark/") and importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if script == "streams_features.py" and shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    assert run(str(BENCHMARKS / script), *SCRIPTS[script]).strip(), "it reports nothing"


def test_every_script_is_run_here() -> None:
    found = {str(path.relative_to(BENCHMARKS)) for path in BENCHMARKS.rglob("*.py")}
    scripts = {name for name in found if not Path(name).name.startswith("test_") and not name.startswith("peers/")}
    assert scripts == set(SCRIPTS) | PARTS


def test_the_parts_that_pytest_measures_run() -> None:
    assert " passed" in run("-m", "pytest", "-q", "benchmarks", "--benchmark-disable", "-p", "no:cacheprovider")
