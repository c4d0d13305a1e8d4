"""The reference: plain `subprocess.run` on the machine, no isolation, never with a timeout (that path polls)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from benchmarks.interleave import Contender, SampleFailed, now_ns

TRUE = "subprocess/true"
BASH = "subprocess/bash"


def contenders() -> list[Contender]:
    return [
        Contender(name=TRUE, group="reference", label='`subprocess.run(["true"])`', measure=lambda: once(["true"])),
        Contender(
            name=BASH,
            group="reference",
            label='`subprocess.run(["bash", "-c", "true"])`',
            measure=lambda: once(["bash", "-c", "true"]),
        ),
        Contender(
            name="subprocess/spawn",
            group="reference",
            label="the same as the first by absolute path and `close_fds=False` (Python's fastest way)",
            measure=lambda: once([shutil.which("true") or "/bin/true"], close_fds=False),
        ),
    ]


def once(argv: Sequence[str], *, close_fds: bool = True) -> int:
    """Time of one run, output captured as `Sandbox.run` does."""
    start_ns = now_ns()
    done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, close_fds=close_fds, check=False)
    elapsed_ns = now_ns() - start_ns
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()[-300:]
        raise SampleFailed(f"{argv[0]} exited with {done.returncode}: {message}")
    return elapsed_ns
