"""Sixty-four MiB through the API: as a command's output, as a file written, as a file read."""

from __future__ import annotations

import os
import subprocess
from asyncio import Runner
from collections.abc import Iterator
from contextlib import contextmanager

import dutyfree
from benchmarks.interleave import Contender, SampleFailed, now_ns
from benchmarks.native import SPEC, opened

SIZE_BYTES = 64 << 20
OUTPUT = "native/output-64m"
WRITE = "native/write-64m"
READ = "native/read-64m"

_COMMAND = ("head", "-c", str(SIZE_BYTES), "/dev/zero")
_PATH = "/tmp/large"


@contextmanager
def contenders(runner: Runner) -> Iterator[list[Contender]]:
    payload = os.urandom(1 << 20) * (SIZE_BYTES >> 20)
    with opened(runner) as substrate:
        box = runner.run(_create(substrate, payload))
        loop = runner.get_loop()
        yield [
            Contender(
                name="subprocess/output-64m", group="transfer", label="`subprocess.run`: 64 MiB of output",
                measure=_subprocess,
            ),
            Contender(
                name=OUTPUT, group="transfer", label="native: 64 MiB of output",
                measure=lambda: loop.run_until_complete(_output(box)),
            ),
            Contender(
                name=WRITE, group="transfer", label="native: `box.write` of 64 MiB",
                measure=lambda: loop.run_until_complete(_write(box, payload)),
            ),
            Contender(
                name=READ, group="transfer", label="native: `box.read` of 64 MiB",
                measure=lambda: loop.run_until_complete(_read(box, payload)),
            ),
        ]  # fmt: skip
        runner.run(box.destroy())


def rate_mb_s(time_ns: float) -> float:
    """Millions of bytes per second for one transfer of that time."""
    return SIZE_BYTES * 1e3 / time_ns


async def _create(substrate: dutyfree.Substrate, payload: bytes) -> dutyfree.Sandbox:
    box = await substrate.create(SPEC)
    await box.write(_PATH, payload)
    return box


def _subprocess() -> int:
    start_ns = now_ns()
    done = subprocess.run(_COMMAND, capture_output=True, stdin=subprocess.DEVNULL, check=True)
    elapsed_ns = now_ns() - start_ns
    _check(len(done.stdout))
    return elapsed_ns


async def _output(box: dutyfree.Sandbox) -> int:
    start_ns = now_ns()
    outcome = await box.run(_COMMAND, output_limit_bytes=SIZE_BYTES)
    elapsed_ns = now_ns() - start_ns
    _check(len(outcome.stdout))
    return elapsed_ns


async def _write(box: dutyfree.Sandbox, data: bytes) -> int:
    start_ns = now_ns()
    await box.write(_PATH, data)
    elapsed_ns = now_ns() - start_ns
    _check((await box.stat(_PATH)).size_bytes)
    return elapsed_ns


async def _read(box: dutyfree.Sandbox, payload: bytes) -> int:
    start_ns = now_ns()
    data = await box.read(_PATH)
    elapsed_ns = now_ns() - start_ns
    if data != payload:
        raise SampleFailed(f"the file came back different: {len(data)} bytes of {SIZE_BYTES}")
    return elapsed_ns


def _check(size_bytes: int) -> None:
    if size_bytes != SIZE_BYTES:
        raise SampleFailed(f"{size_bytes} bytes of {SIZE_BYTES} came through")
