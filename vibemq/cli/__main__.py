# SPDX-License-Identifier: Apache-2.0
"""``python -m vibemq.cli``: the same as ``vibemq``."""

from vibemq.cli import main

main()
