# SPDX-License-Identifier: Apache-2.0
"""The process of ``vibemq``, and of ``python -m vibemq.cli``."""

import os
import sys

from vibemq.cli import main


def run() -> None:
    """The object store's client has threads, and one that calls Python while it is taken down aborts it.

    So where that client was used Python is not taken down; nothing here needs it.
    """
    try:
        main()
    except SystemExit as ended:
        if "obstore" not in sys.modules:
            raise
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # who read it is gone
                code = code or 1
        os._exit(code)


if __name__ == "__main__":
    run()
