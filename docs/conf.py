# SPDX-License-Identifier: Apache-2.0
"""The documentation site: the project's own Markdown where it lies, and the clients' docstrings (`make docs`)."""

import vibemq

project = "VibeMQ"
author = "the VibeMQ authors"
release = vibemq.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"VibeMQ {release}"
html_copy_source = False

# The source folder is the project's, so that links between these files hold here as they do in the tree.
root_doc = "docs/index"
include_patterns = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "benchmarks/README.md"),
    "examples/monitoring/README.md",
    *("csrc/*/FORMAT.md", "vibemq/*/FORMAT.md", "vibemq/*/README.md", "vibemq/protocols/*/README.md"),
]
exclude_patterns = [".venv", "build"]

suppress_warnings = ["misc.highlighting_failure"]  # examples leave things out: ...
myst_heading_anchors = 4  # what #links name, by GitHub's rule

default_role = "code"  # docstrings write code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["pyspark", "pyarrow"]  # for what is said of them nobody needs half a gigabyte
