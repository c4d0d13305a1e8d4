"""Runs in the virtual environment of SWE-ReX: times its local runtime, one line in, one line out.

stdin:  start | action | execute
stdout: {"ns": …} or {"failure": "…"}, after {"version": …} once
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from importlib.metadata import version

from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

_ACTION = BashAction(command="true", session="kept")


async def start(_: LocalRuntime) -> int:
    """A runtime, its session, the first action's result."""
    start_ns = time.perf_counter_ns()
    runtime = LocalRuntime(logger=logging.getLogger("quiet"))
    await runtime.create_session(CreateBashSessionRequest(session="fresh"))
    seen = await runtime.run_in_session(BashAction(command="true", session="fresh"))
    elapsed_ns = time.perf_counter_ns() - start_ns
    await runtime.close_session(CloseBashSessionRequest(session="fresh"))
    _check(seen.exit_code)
    return elapsed_ns


async def action(runtime: LocalRuntime) -> int:
    start_ns = time.perf_counter_ns()
    seen = await runtime.run_in_session(_ACTION)
    elapsed_ns = time.perf_counter_ns() - start_ns
    _check(seen.exit_code)
    return elapsed_ns


async def execute(runtime: LocalRuntime) -> int:
    start_ns = time.perf_counter_ns()
    seen = await runtime.execute(Command(command=["true"]))
    elapsed_ns = time.perf_counter_ns() - start_ns
    _check(seen.exit_code)
    return elapsed_ns


def _check(exit_code: int | None) -> None:
    if exit_code != 0:
        raise RuntimeError(f"exit code {exit_code}")


async def main() -> None:
    # Whatever the library prints must not land between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    runtime = LocalRuntime(logger=logging.getLogger("quiet"))
    await runtime.create_session(CreateBashSessionRequest(session="kept"))
    print(json.dumps({"version": version("swe-rex")}), file=answers)
    calls = {"start": start, "action": action, "execute": execute}
    for line in sys.stdin:
        try:
            print(json.dumps({"ns": await calls[line.strip()](runtime)}), file=answers)
        except Exception as error:  # noqa: BLE001 - a trial runner: the other side writes it down
            print(json.dumps({"failure": f"{type(error).__name__}: {error}"}), file=answers)
    await runtime.close_session(CloseBashSessionRequest(session="kept"))


asyncio.run(main())
