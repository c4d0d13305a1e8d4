"""`make speed`: everything in one run, written as markdown. See docs/guide/speed.md for what the rows mean."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from asyncio import Runner
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import dutyfree
from benchmarks import bwrap, capacity, docker, native, native_blocking, report, subprocess_run, swerex, transfer
from benchmarks.bounds import Results, judge
from benchmarks.interleave import Contender, Missing, Records, Samples, interleave
from dutyfree.meter.fingerprint import fingerprint, steal_ns

GROUPS = ("calls", "transfer", "throughput", "crowd")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The same few directories as in a sandbox: a longer PATH would be searched by the reference alone."""

_WARM_UP = 5


def main() -> int:
    options = _options()
    os.environ["PATH"] = PATH
    # Both decide how much a shell loads at its start: the references get the sandbox's.
    for name in [name for name in os.environ if name == "LANG" or name.startswith("LC_")]:
        del os.environ[name]
    os.environ["LC_CTYPE"] = "C.UTF-8"
    os.environ["SHELL"] = "/bin/bash"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: what was started is cleared away
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    facts, steal_before_ns, begun_s = fingerprint(), steal_ns(), time.monotonic()
    contenders, results = measure(options)
    facts["load_1min_after"] = round(os.getloadavg()[0], 2)
    facts["steal_s"] = round((steal_ns() - steal_before_ns) / 1e9, 2)
    bounds = judge(results)
    text = report.markdown(
        facts=facts,
        protocol=_protocol(options, time.monotonic() - begun_s),
        contenders=contenders,
        results=results,
        bounds=bounds,
    )
    (options.output / "report.md").write_text(text)
    content = report.summary(facts=facts, results=results, bounds=bounds)
    (options.output / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    print(text)
    _progress(f"written: {options.output}/report.md, summary.json and the raw samples beside them")
    return 1 if options.strict and any(bound.met is not True for bound in bounds) else 0


def measure(options: argparse.Namespace) -> tuple[list[Contender], Results]:
    """Run the groups that were asked for, one after the other."""
    known: list[Contender] = []
    samples: dict[str, Samples] = {}
    missing: dict[str, str] = {}
    flow = crowd = None
    with Runner() as runner:
        if "calls" in options.only:
            sources: dict[str, Callable[[], AbstractContextManager[list[Contender]]]] = {
                "subprocess": lambda: nullcontext(subprocess_run.contenders()),
                "native": lambda: native.contenders(runner),
                "blocking": native_blocking.contenders,
                "bwrap": lambda: nullcontext(bwrap.contenders()),
                "docker": lambda: docker.contenders(_progress),
                "swe-rex": lambda: swerex.contenders(_progress),
            }
            samples |= _interleaved("calls", sources, options, known, missing)
        if "transfer" in options.only:
            samples |= _interleaved(
                "transfer", {"native": lambda: transfer.contenders(runner)}, options, known, missing
            )
        if "throughput" in options.only:
            _progress(f"throughput: {capacity.IN_FLIGHT} in flight for {options.throughput_s:g} s")
            with _noted("throughput", missing), closing(_records(options, "throughput")) as records:
                flow = capacity.throughput(runner, options.throughput_s, records)
        if "crowd" in options.only:
            _progress(f"crowd: {options.boxes} sandboxes, then {capacity.IDLE_S:g} s idle")
            with _noted("crowd", missing), closing(_records(options, "crowd")) as records:
                crowd = capacity.crowd(runner, options.boxes, records)
    return known, Results(samples=samples, throughput=flow, crowd=crowd, missing=missing)


def _interleaved(
    phase: str,
    sources: dict[str, Callable[[], AbstractContextManager[list[Contender]]]],
    options: argparse.Namespace,
    known: list[Contender],
    missing: dict[str, str],
) -> dict[str, Samples]:
    """One interleaved run of all contenders that can take part."""
    with ExitStack() as stack:
        present: list[Contender] = []
        for name, source in sources.items():
            _progress(f"{phase}: setting up {name}")
            with _noted(name, missing):
                present += stack.enter_context(source())
        known += present
        records = stack.enter_context(closing(_records(options, phase)))
        return interleave(
            present, phase=phase, rounds=options.samples, warm_up=_WARM_UP, seed=options.seed, records=records,
            progress=_progress,
        )  # fmt: skip


@contextmanager
def _noted(name: str, missing: dict[str, str]) -> Iterator[None]:
    """What cannot take part is noted with the command that would let it, and the run goes on."""
    try:
        yield
    except (Missing, dutyfree.DutyfreeError) as error:
        missing[name] = str(error)
        _progress(f"without {name}: {error}")


def _records(options: argparse.Namespace, phase: str) -> Records:
    return Records(options.output / f"samples-{phase}.jsonl")


def _protocol(options: argparse.Namespace, elapsed_s: float) -> list[str]:
    short = "" if options.samples >= 300 else " (**short**: the bounds are meant for 300 or more)"
    rounds = f"{options.samples} rounds{short} after {_WARM_UP} of warm-up, in each every contender once"
    return [
        f"{rounds}, in random order (seed {options.seed}); slow rivals in a part of the rounds, spread evenly",
        "clock: perf_counter_ns, read around the call in the process that makes it; garbage collection on",
        f"PATH is {PATH} for all; no call has a timeout",
        "creations are followed by a pause in which the spawner makes another blank; the throughput pays for its own",
        f"the run took {elapsed_s:.0f} s; ratios are of medians, with 95 % bootstrap intervals in brackets",
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--samples", type=int, help="rounds of each interleaved group (300; quick: 30)")
    parser.add_argument("--seed", type=int, default=1, help="of the random order")
    parser.add_argument("--quick", action="store_true", help="30 rounds, 5 s of throughput, 100 sandboxes alive")
    parser.add_argument("--only", action="append", choices=GROUPS, help="a group to run; may be repeated")
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless every bound was met")
    parser.add_argument("-o", dest="output", type=Path, default=Path("out/speed"), help="where the report goes")
    options = parser.parse_args()
    options.samples = options.samples or (30 if options.quick else 300)
    options.throughput_s = 5.0 if options.quick else 30.0
    options.boxes = 100 if options.quick else 1000
    options.only = options.only or list(GROUPS)
    options.output.mkdir(parents=True, exist_ok=True)
    return options


def _progress(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
