# SPDX-License-Identifier: Apache-2.0
"""The stream clients that there are, and how those in Java, Go and Rust are built."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from foreign_clients import CACHE, Client, build_js, build_python, run_step

HERE = Path(__file__).parent


def build_java(source: Path, target: Path, deadline: float) -> None:
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={target / 'jars'}"]
    run_step(copy, target, deadline)
    run_step(["javac", "-cp", str(target / "jars" / "*"), "-d", "classes", "Program.java"], target, deadline)


def build_go(source: Path, target: Path, deadline: float) -> None:
    run_step(["go", "build", "-o", "program", "."], target, deadline, GOFLAGS="-mod=readonly", GOTOOLCHAIN="local")


def build_rust(source: Path, target: Path, deadline: float) -> None:
    compiled = CACHE / "rust-target"  # the dependencies stay compiled when only the program has changed
    run_step(["cargo", "build", "--locked"], target, deadline, CARGO_TARGET_DIR=str(compiled))
    shutil.copy2(compiled / "debug" / "program", target / "program")


JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", "{0}/classes:{0}/jars/*")
CLIENTS = (
    Client(HERE / "rstream", "rstream 1.1.1 (PyPI)", (), build_python, (sys.executable, "{0}/program.py")),
    Client(HERE / "js", "rabbitmq-stream-js-client 1.0.0 (npm)", ("node", "npm"), build_js, ("node", "{0}/program.js")),
    Client(
        HERE / "java",
        "com.rabbitmq:stream-client 1.11.0 (Maven Central)",
        ("java", "javac", "mvn"),
        build_java,
        (*JAVA, "Program"),
    ),
    Client(HERE / "go", "rabbitmq-stream-go-client 1.8.3 (Go proxy)", ("go",), build_go, ("{0}/program",), quick=False),
    Client(
        HERE / "rust",
        "rabbitmq-stream-client 0.11.0 (crates.io)",
        ("cargo",),
        build_rust,
        ("{0}/program",),
        quick=False,
    ),
)
BY_NAME = {client.name: client for client in CLIENTS}
