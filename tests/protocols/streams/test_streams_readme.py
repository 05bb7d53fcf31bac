# SPDX-License-Identifier: Apache-2.0
"""The door's README says what the code does: its table of frames is the codec's own."""

from pathlib import Path

from vibemq.protocols import streams
from vibemq.protocols.streams import commands, spec

README = (Path(streams.__file__).parent / "README.md").read_text()


def test_the_table_of_frames_is_the_one_the_codec_is_made_from():
    assert spec.markdown_table().strip() in README
    assert spec.markdown_table(spec.EXTENSIONS).strip() in README


def test_the_diagram_names_every_state():
    missing = [state for state in commands.STATES if state not in README]
    assert not missing
