# SPDX-License-Identifier: Apache-2.0
"""``python -m vibemq`` is ``vibemq``."""

from vibemq.cli.__main__ import run

if __name__ == "__main__":
    run()
