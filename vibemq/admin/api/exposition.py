# SPDX-License-Identifier: Apache-2.0
"""A page in Prometheus's text format: samples by metric, because all of one must stand together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PREFIX = "vibemq_"


class Page:
    """All names begin with vibemq_, and those of counters end with _total."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[str]] = {}

    def add(self, name: str, about: str, value: float, **labels: Any) -> None:
        kind = "counter" if name.endswith("_total") else "gauge"
        self._lines(name, about, kind).append(f"{PREFIX}{name}{_shown(labels)} {value}")

    def histogram(self, name: str, about: str, found: Histogram, **labels: Any) -> None:
        lines = self._lines(name, about, "histogram")
        count = 0
        for bound, more in zip(found.bounds, found.counts, strict=False):
            count += more
            lines.append(f"{PREFIX}{name}_bucket{_shown({**labels, 'le': bound})} {count}")
        count += sum(found.counts[len(found.bounds) :])
        lines.append(f"{PREFIX}{name}_bucket{_shown({**labels, 'le': '+Inf'})} {count}")
        lines.append(f"{PREFIX}{name}_sum{_shown(labels)} {found.sum}")
        lines.append(f"{PREFIX}{name}_count{_shown(labels)} {count}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._metrics.values() for line in lines)

    def _lines(self, name: str, about: str, kind: str) -> list[str]:
        if name not in self._metrics:
            self._metrics[name] = [f"# HELP {PREFIX}{name} {about}", f"# TYPE {PREFIX}{name} {kind}"]
        return self._metrics[name]


class Histogram:
    """``counts[k]`` are at most ``bounds[k]``, and more than the bound before; behind them stands the rest."""

    def __init__(self, bounds: Sequence[float], counts: Sequence[int], sum_: float) -> None:
        self.bounds, self.counts, self.sum = bounds, counts, sum_


def _shown(labels: dict[str, Any]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{label}="{_escaped(str(value))}"' for label, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
