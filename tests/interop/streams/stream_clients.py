# SPDX-License-Identifier: Apache-2.0
"""The stream clients that there are, and how those in Java, Go, Rust and C are built."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from foreign_clients import CACHE, CannotBeHad, Client, build_js, build_python, run_step

HERE = Path(__file__).parent
#: The C client has no release; the id of a commit says which text of it, and git checks that it is that.
C_CLIENT_URL = "https://github.com/GianfrancoGGL/rabbitmq-stream-c-client"
C_CLIENT_COMMIT = "1e6d3bf208d4b31d0f9bc5d528432730bd72899a"
C_CLIENT_FOLDER = os.environ.get("VIBEMQ_C_CLIENT")  # where that text lies already


def build_java(source: Path, target: Path, deadline: float) -> None:
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={target / 'jars'}"]
    run_step(copy, target, deadline)
    run_step(["javac", "-cp", str(target / "jars" / "*"), "-d", "classes", "Program.java"], target, deadline)


def build_c(source: Path, target: Path, deadline: float) -> None:
    run_step(
        ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", "program", "program.c"], target, deadline
    )


def build_c_client(source: Path, target: Path, deadline: float) -> None:
    """With the client's own sources, unmodified: those of VIBEMQ_C_CLIENT, or of GitHub."""
    client = Path(C_CLIENT_FOLDER).absolute() if C_CLIENT_FOLDER else target / "client"
    if not C_CLIENT_FOLDER:
        run_step(["git", "init", "-q", str(client)], target, deadline)
        fetch = ["git", "fetch", "-q", "--depth", "1", C_CLIENT_URL, C_CLIENT_COMMIT]
        run_step(fetch, client, deadline, GIT_TERMINAL_PROMPT="0")
        run_step(["git", "checkout", "-q", "--detach", "FETCH_HEAD"], client, deadline)
    library = client / "src" / "rawClient"
    if not (files := sorted(library.glob("*.c"))):
        raise CannotBeHad(f"{library}: needed the client's sources, had none; VIBEMQ_C_CLIENT names the folder of src/")
    compiler = ["gcc", "-std=gnu11", "-O1", "-I", str(library)]
    run_step([*compiler, "-Wall", "-Wextra", "-Werror", "-c", "program.c"], target, deadline)
    run_step([*compiler, "-w", "-pthread", "-o", "program", "program.o", *map(str, files)], target, deadline)


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
#: No columns of the matrix: a program of our own with the C client's bytes, and that client where it can be had, which
#: hands messages over as they are stored and knows nothing of most lines.
C = Client(HERE / "c", "the bytes of rabbitmq-stream-c-client", ("gcc",), build_c, ("{0}/program",))
C_CLIENT = Client(
    HERE / "c_client",
    f"rabbitmq-stream-c-client {C_CLIENT_COMMIT[:8]} (GitHub)",
    ("gcc",) if C_CLIENT_FOLDER else ("gcc", "git"),
    build_c_client,
    ("{0}/program",),
    quick=bool(C_CLIENT_FOLDER),
    besides=Path(C_CLIENT_FOLDER) if C_CLIENT_FOLDER else None,
)
BY_NAME = {client.name: client for client in (*CLIENTS, C, C_CLIENT)}
