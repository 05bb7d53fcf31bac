# SPDX-License-Identifier: Apache-2.0
"""What an exception of Spark says to a person.

Spark wraps what ended a job: around the sentence of an error of ours stand the traceback of a Python worker, the
traces of several Java exceptions and the state of the query. The sentence is found by the name of its class.
"""

from __future__ import annotations

import re

from vibemq.errors import VibeMQError

TEXT_MAX = 300  # of what Spark says: the last line, and not its whole trace
OURS = re.compile(r"^\s*vibemq\.[\w.]+: (.+)$", re.MULTILINE)
HINT = re.compile(r"\.\s(?=[A-Z`])")  # where client.with_remedy has put the hint into the message
QUERY = re.compile(r"=== Streaming Query ===.*?(?=^\s+at |\Z)", re.DOTALL | re.MULTILINE)  # its state and plan
GOES_ON = re.compile(r"^(During handling of the above|The above exception was the direct cause)", re.MULTILINE)
FRAME = re.compile(
    r"at |File \"|\+- |:- |\|-- |'|An error occurred while calling |\.\.\. \d+ more|(SQLSTATE: \w+\s*)+$"
)
BEFORE = re.compile(r"^(?:\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: |Caused by: |: )")


def is_of_spark(failed: BaseException) -> bool:
    return type(failed).__module__.split(".")[0] in ("pyspark", "py4j")


def ours(failed: BaseException) -> VibeMQError | None:
    """The error of ours that it wraps, if that is what ended the job."""
    sentence = _sentence(QUERY.sub("", str(failed)))
    if not sentence:
        return None
    message, *hint = HINT.split(sentence, maxsplit=1)
    return VibeMQError(message, hint="".join(hint))


def _sentence(text: str) -> str:
    """The last one of ours; none where another exception came of it."""
    found = list(OURS.finditer(text))
    return "" if not found or GOES_ON.search(text, found[-1].end()) else found[-1][1].strip()


def last_line(failed: BaseException) -> str:
    """The sentence of ours; where there is none, the last word of a chain of causes, or else the first line."""
    text = QUERY.sub("", str(failed))
    if sentence := _sentence(text):
        return sentence[:TEXT_MAX]
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not FRAME.match(line) and not line.endswith("(most recent call last):")]
    if "Caused by: " not in text and "(most recent call last):" not in text:
        lines = lines[:1]  # behind it may stand a plan or a schema
    causes = [line for line in lines if "vibemq" in line.lower() or "Error" in line or line.startswith("Caused by: ")]
    return BEFORE.sub("", (causes or lines or [type(failed).__name__])[-1])[:TEXT_MAX]
