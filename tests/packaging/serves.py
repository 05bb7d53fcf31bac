# SPDX-License-Identifier: Apache-2.0
"""Shows that the VibeMQ installed beside this interpreter serves: it uses nothing from the source tree.

Run with the interpreter of the environment to look at:

    python serves.py

Starts `vibemq serve`, sends messages through it and reads them back, stops it; exits 0 if all was well.
"""

import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

MESSAGES = [b"message %d" % number for number in range(1000)]


def main() -> int:
    # The folder of this file is the first place Python looks; the source tree must not be found from it.
    import vibemq

    assert Path(sys.prefix) in Path(vibemq.__file__).parents, f"{vibemq.__file__} is not of {sys.prefix}"
    from vibemq.client.streams import StreamsConnection

    command = [str(Path(sys.executable).with_name("vibemq"))]
    subprocess.run([*command, "--version"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        broker = subprocess.Popen(
            [*command, "serve", "--workers", "2", "--data-dir", folder]
            + [
                word
                for door in ("streams", "native", "signalr", "micromsg2", "admin")
                for word in (f"--{door}-port", "0")
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            line = broker.stdout.readline() if broker.stdout else ""
            assert line.startswith("vibemq ready "), f"no ready line but {line!r}"
            doors = dict(word.split("=", 1) for word in line.split()[2:])
            for path, needed in (
                ("", b"<title>VibeMQ</title>"),
                ("page/app.js", b"import"),
                ("page/style.css", b":root"),
            ):
                with urllib.request.urlopen(f"http://{doors['admin']}/{path}", timeout=60) as answer:
                    assert needed in answer.read(), f"the management page lacks {path or 'itself'}"
            host, _, port = doors["streams"].rpartition(":")
            with StreamsConnection.connect(host, int(port)) as connection:
                connection.create("packaging")
                with connection.publisher("packaging") as publisher:
                    publisher.publish(MESSAGES)
                stored = sum(chunk.records for chunk in connection.read_chunks("packaging", 0))
            assert stored == len(MESSAGES), f"{stored} of {len(MESSAGES)} messages came back"
        finally:
            broker.terminate()
            code = broker.wait(60)
    assert code == 0, f"the broker ended with exit code {code}"
    print(f"served {stored} messages with {vibemq.__file__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
