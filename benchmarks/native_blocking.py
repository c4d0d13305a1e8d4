"""The native substrate through `dutyfree.blocking`: the same action, from a caller without an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.interleave import Contender, now_ns
from benchmarks.native import SPEC, check
from dutyfree import blocking

LIST = "blocking/run-list"


@contextmanager
def contenders() -> Iterator[list[Contender]]:
    with blocking.connect("native") as substrate, substrate.create(SPEC) as box:

        def once() -> int:
            # The asynchronous contender's clock starts inside its loop, which it has just entered: so has this one's
            # caller. Without this, the loop's own code would be cold here and warm there, 0.1 ms apart.
            substrate.holds("host")
            start_ns = now_ns()
            outcome = box.run(["true"])
            elapsed_ns = now_ns() - start_ns
            check(outcome)
            return elapsed_ns

        yield [Contender(name=LIST, group="action", label='`dutyfree.blocking`: `box.run(["true"])`', measure=once)]
