"""`make speed-state`: snapshots, forks and resets of the native substrate, against plain creation in the same run.

Every round takes each of them once, in random order. The reset follows a trajectory: a repository cloned, a file
changed, its tests run. The bounds are those of docs/concepts/state.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from asyncio import Runner
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import dutyfree
from benchmarks.bounds import quantile
from benchmarks.interleave import Contender, Records, SampleFailed, Samples, interleave, now_ns
from dutyfree.meter.fingerprint import fingerprint

CREATE, FROM_MEMORY, FROM_STORE = "create", "create-from-memory", "create-from-store"
RESET, FORK, FORK_LARGE, SNAPSHOT = "reset", "fork-8", "fork-large", "snapshot"
LARGE_FILES, LARGE_BYTES = 2000, 50_000
FORKS = 8
BOUNDS_MS = {RESET: 10.0, FORK: FORKS * 3.0, FORK_LARGE: 100.0}
"""On the median."""

_SETTLE_S = 0.05
_FILL = f"mkdir /srv/d && cd /srv/d && for i in $(seq {LARGE_FILES}); do head -c {LARGE_BYTES} /dev/urandom >$i; done"
_TRAJECTORY = (
    "git clone -q --no-hardlinks /srv/origin /root/repo && cd /root/repo && git log --oneline | head -3 && echo '# x' >>package/m1.py"
    " && python3 -m unittest -q 2>&1 | tail -1"
)


class Scene:
    """One substrate, with what the contenders start from."""

    def __init__(self, runner: Runner) -> None:
        self.run = runner.run
        self.substrate: dutyfree.Substrate
        self.boxes: dict[str, dutyfree.Sandbox] = {}
        self.snapshots: list[dutyfree.Snapshot] = []

    async def open(self) -> None:
        """Connect, and make the states to start from."""
        self.substrate = await dutyfree.connect("native")
        box = await self.substrate.create()
        with tempfile.TemporaryDirectory() as place:
            await asyncio.to_thread(_make_repository, Path(place) / "origin")
            await box.upload(Path(place) / "origin", "/srv/origin")
        self.snapshots = [await box.snapshot(), await box.snapshot(f"speed-state-{secrets.token_hex(8)}")]
        await box.destroy()
        repository = dutyfree.Spec(image=self.snapshots[0].image)
        self.boxes = {name: await self.substrate.create(repository) for name in (RESET, FORK, FORK_LARGE, SNAPSHOT)}
        filled = await self.boxes[FORK_LARGE].run(_FILL)
        if not filled.ok:
            raise SampleFailed(filled.text())

    async def close(self) -> None:
        """Give everything back."""
        for box in self.boxes.values():
            await box.destroy()
        for snapshot in self.snapshots:
            await snapshot.remove()
        await self.substrate.close()

    async def create(self, image: str) -> int:
        """One creation."""
        begun_ns = now_ns()
        box = await self.substrate.create(dutyfree.Spec(image=image))
        took_ns = now_ns() - begun_ns
        await box.destroy()
        return took_ns

    async def reset(self) -> int:
        """One reset, after a trajectory."""
        box = self.boxes[RESET]
        done = await box.run(_TRAJECTORY)
        if not done.ok or not done.stdout.endswith(b"OK\n"):
            raise SampleFailed(done.text() + done.stderr.decode())
        begun_ns = now_ns()
        await box.reset()
        return now_ns() - begun_ns

    async def fork(self, name: str, n: int) -> int:
        """Forks, until all are there."""
        begun_ns = now_ns()
        boxes = await asyncio.gather(*await self.boxes[name].fork(n))
        took_ns = now_ns() - begun_ns
        for box in boxes:
            await box.destroy()
        return took_ns

    async def snapshot(self) -> int:
        """One snapshot of a small change."""
        box = self.boxes[SNAPSHOT]
        await box.write("/root/file", b"x" * 1000)
        begun_ns = now_ns()
        saved = await box.snapshot()
        took_ns = now_ns() - begun_ns
        await saved.remove()
        return took_ns


def _make_repository(path: Path) -> None:
    package = path / "package"
    package.mkdir(parents=True)
    for number in range(300):
        (package / f"m{number}.py").write_text(f"VALUE = {number}\n" * 40)
        if number < 20:
            test = f"import unittest\nfrom package import m{number}\n\n\nclass T(unittest.TestCase):\n    def test_value(self):\n        self.assertEqual(m{number}.VALUE, {number})\n"
            (path / f"test_{number}.py").write_text(test)
    (package / "__init__.py").touch()
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=path, check=True)


@contextmanager
def _scene() -> Iterator[Scene]:
    with Runner() as runner:
        scene = Scene(runner)
        runner.run(scene.open())
        try:
            yield scene
        finally:
            runner.run(scene.close())


def contenders(scene: Scene) -> list[Contender]:
    """What is timed."""

    def timed(name: str, label: str, work: Callable[[], Awaitable[int]]) -> Contender:
        return Contender(
            name=name, group="state", label=label, measure=lambda: scene.run(work()), settle_s=_SETTLE_S
        )  # fmt: skip

    memory, stored = (snapshot.image for snapshot in scene.snapshots)
    large = f"{LARGE_FILES:,} files, {LARGE_FILES * LARGE_BYTES / 1e6:.0f} MB written"
    return [
        timed(CREATE, "create", lambda: scene.create("host")),
        timed(FROM_MEMORY, "create from a snapshot in memory", lambda: scene.create(memory)),
        timed(FROM_STORE, "create from a snapshot in the store", lambda: scene.create(stored)),
        timed(SNAPSHOT, "snapshot after one small write", scene.snapshot),
        timed(FORK, f"fork({FORKS}) of a fresh sandbox, all {FORKS} created", lambda: scene.fork(FORK, FORKS)),
        timed(FORK_LARGE, f"fork(1) after {large}", lambda: scene.fork(FORK_LARGE, 1)),
        timed(RESET, "reset, verified, after clone and tests", scene.reset),
    ]


def table(known: list[Contender], samples: dict[str, Samples]) -> str:
    """As markdown."""
    lines = ["| what | p50 | p95 | × create | bound on p50 |", "|---|--:|--:|--:|---|"]
    create = quantile(samples[CREATE].times_ns, 0.5)
    for contender in known:
        seen = samples[contender.name]
        if not seen.times_ns:
            lines.append(f"| {contender.label} | failed | | | {seen.failures[0]} |")
            continue
        middle, tail = (quantile(seen.times_ns, q) for q in (0.5, 0.95))
        limit = BOUNDS_MS.get(contender.name)
        met = "" if limit is None else f"<= {limit:g} ms: {'met' if middle <= limit * 1e6 else '**missed**'}"
        failed = f" ({len(seen.failures)} failed)" if seen.failures else ""
        row = f"{middle / 1e6:.2f} ms | {tail / 1e6:.2f} ms | {middle / create:.2f}"
        lines.append(f"| {contender.label}{failed} | {row} | {met} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state", description=__doc__)
    parser.add_argument("--samples", type=int, default=100, help="rounds")
    parser.add_argument("--seed", type=int, default=1, help="of the random order")
    parser.add_argument("-o", dest="output", type=Path, default=Path("out/state"), help="where the report goes")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    facts = fingerprint()
    with _scene() as scene, closing(Records(options.output / "samples.jsonl")) as records:
        known = contenders(scene)
        samples = interleave(
            known, phase="state", rounds=options.samples, warm_up=3, seed=options.seed, records=records,
            progress=lambda text: print(f"· {text}", file=sys.stderr, flush=True),
        )  # fmt: skip
    text = table(known, samples)
    (options.output / "report.md").write_text(text)
    facts["load_1min_after"] = round(os.getloadavg()[0], 2)
    (options.output / "facts.json").write_text(json.dumps(facts, indent=1, default=str) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
