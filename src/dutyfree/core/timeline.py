"""Named spans of a rollout's time on the monotonic clock.

Owns the vocabulary of the tax (see `SpanName`). It measures nothing by itself: drivers mark what they know (`create`,
`ready`, `reset`, `destroy`), the meter marks the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

SpanName = Literal["create", "ready", "setup", "action", "dispatch", "run", "orchestration", "reset", "destroy"]
"""create: provisioning · ready: from created to the first action being possible · setup: workload preparation ·
action: one command and its observation, of which `run` is the command's own time and `dispatch` the substrate's ·
orchestration: queueing, scheduling, control plane · reset, destroy: clean again, or gone."""

now_ns = time.monotonic_ns
"""The one clock of the project. Differences only; never compared between machines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One named stretch of time."""

    name: SpanName
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Length of the span."""
        return self.end_ns - self.start_ns


@dataclass(kw_only=True, slots=True)
class Timeline:
    """The spans of one sandbox, in the order in which they ended."""

    spans: list[Span] = field(default_factory=list)

    def add(self, name: SpanName, start_ns: int, end_ns: int) -> None:
        """Record a span whose ends the caller has measured with `now_ns`."""
        self.spans.append(Span(name=name, start_ns=start_ns, end_ns=end_ns))

    @contextmanager
    def span(self, name: SpanName) -> Iterator[None]:
        """Record the time spent in the block, also when it raises."""
        start_ns = now_ns()
        try:
            yield
        finally:
            self.add(name, start_ns, now_ns())

    def total_ns(self, name: SpanName) -> int:
        """Sum of all spans of that name."""
        return sum(span.duration_ns for span in self.spans if span.name == name)
