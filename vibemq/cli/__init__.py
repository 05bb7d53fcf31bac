# SPDX-License-Identifier: Apache-2.0
"""The ``vibemq`` command.  This package loads nothing, because __main__.py has work to do before modules are loaded."""

#: Exit codes as a shell reports them of a command that SIGINT or SIGTERM ended.
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
