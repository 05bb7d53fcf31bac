# SPDX-License-Identifier: Apache-2.0
"""What a hub method raises to refuse; a file of its own, because all of the door imports it."""


class HubError(Exception):
    """A method refuses: a stable code for programs, and for people what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
