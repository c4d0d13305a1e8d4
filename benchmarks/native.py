"""The native substrate through its asynchronous API. Everything is timed inside the event loop, as its callers see it."""

from __future__ import annotations

from asyncio import Runner
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import dutyfree
from benchmarks.interleave import Contender, Missing, SampleFailed, now_ns

CREATE = "native/create"
LIST = "native/run-list"
STRING = "native/run-string"
SHELL = "native/shell"
FILE = "native/file-1k"

SPEC = dutyfree.Spec(image="host")
REFILL_S = 0.025
"""After a creation the spawner waits for a quiet moment and makes another blank; the next contender must not pay for it. `throughput` is
where creations pay for their blanks."""

_KIB = bytes(range(256)) * 4


def check(outcome: dutyfree.Outcome) -> None:
    if not outcome.ok:
        raise SampleFailed(f"{outcome.ending}, exit code {outcome.exit_code}: {outcome.stderr[-300:]!r}")


@contextmanager
def opened(runner: Runner) -> Iterator[dutyfree.Substrate]:
    """A substrate of its own for the length of the block."""
    try:
        substrate = runner.run(_await(dutyfree.connect("native")))
    except dutyfree.Unavailable as error:
        raise Missing(error.message, error.enable or "dutyfree doctor") from error
    try:
        yield substrate
    finally:
        runner.run(substrate.close())


@contextmanager
def contenders(runner: Runner) -> Iterator[list[Contender]]:
    """Timed in a fresh sandbox (`create`), and in one that lives through the run (the rest)."""
    with opened(runner) as substrate:
        box = runner.run(_await(substrate.create(SPEC)))
        shell = runner.run(box.shell())
        loop = runner.get_loop()

        def timed(call: Callable[[], Coroutine[Any, Any, int]]) -> Callable[[], int]:
            return lambda: loop.run_until_complete(call())

        yield [
            Contender(
                name=CREATE, group="start", label='native: create, then `box.run(["true"])`', settle_s=REFILL_S,
                measure=timed(lambda: create_and_run(substrate)),
            ),
            Contender(
                name=LIST, group="action", label='native: `box.run(["true"])`', measure=timed(lambda: _run(box, ["true"]))
            ),
            Contender(
                name=STRING, group="action", label='native: `box.run("true")`', measure=timed(lambda: _run(box, "true"))
            ),
            Contender(
                name=SHELL, group="action", label='native: `shell.run("true")`', measure=timed(lambda: _run(shell, "true"))
            ),
            Contender(
                name=FILE, group="file", label="native: `box.write` + `box.read` of 1 KiB", measure=timed(lambda: _file(box))
            ),
        ]  # fmt: skip
        runner.run(shell.close())
        runner.run(box.destroy())


async def create_and_run(substrate: dutyfree.Substrate) -> int:
    """From asking for a sandbox to its first command's result in hand; the destruction is not in it."""
    start_ns = now_ns()
    async with substrate.create(SPEC) as box:
        outcome = await box.run(["true"])
        elapsed_ns = now_ns() - start_ns
    check(outcome)
    return elapsed_ns


async def _run(place: dutyfree.Sandbox | dutyfree.Shell, command: Any) -> int:
    start_ns = now_ns()
    outcome = await place.run(command)
    elapsed_ns = now_ns() - start_ns
    check(outcome)
    return elapsed_ns


async def _file(box: dutyfree.Sandbox) -> int:
    start_ns = now_ns()
    await box.write("/tmp/small", _KIB)
    data = await box.read("/tmp/small")
    elapsed_ns = now_ns() - start_ns
    if data != _KIB:
        raise SampleFailed("the file came back different")
    return elapsed_ns


async def _await(pending: Awaitable[Any]) -> Any:
    return await pending
