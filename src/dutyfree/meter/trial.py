"""One trial: take a sandbox, set it up, run the actions, give it back; and write down where the time went.

The only place of the project that catches broadly: whatever goes wrong in a trial becomes a record with its reason.
The loop between two actions is lean, and what it costs is not hidden: everything that is not some other component is
`orchestration`, so the components sum to the total.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dutyfree.core.contract import Sandbox
from dutyfree.core.errors import DriverError, DutyfreeError
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import finish
from dutyfree.core.timeline import now_ns
from dutyfree.meter.action import Action, Check
from dutyfree.meter.fingerprint import steal_ns
from dutyfree.meter.plan import Trial
from dutyfree.meter.record import Record
from dutyfree.meter.settle import Settler
from dutyfree.meter.source import Source, Taken
from dutyfree.meter.watch import UNWATCHED, Watched
from dutyfree.meter.workload import CheckFailed, set_up

FIRST = Action(kind="command", command=("true",), check=Check(equals=b""))
"""What a cold start waits for."""

DESTROY_LIMIT_S = 60.0
"""How long a substrate may take to destroy a sandbox whose trial has failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Settings that all trials of a run share."""

    host: str
    seed: int
    deadline_s: float
    warm: bool
    """Warm-up trials have been run before."""
    clock: Callable[[], int] = now_ns
    settler: Settler = field(default_factory=Settler)


@dataclass(slots=True)
class Tape:
    """The times of one rollout so far, also when it fails half-way."""

    begin_ns: int
    end_ns: int = 0
    create_ns: int = 0
    ready_ns: int = 0
    setup_ns: int = 0
    reset_ns: int = 0
    destroy_ns: int = 0
    teardown_ns: int = 0
    first_result_ns: int | None = None
    actions: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    cpu_ns: int = 0
    preload_ns: int = 0
    think_ns: int = 0
    at_action: int | None = None
    start: str = "fresh"


Body = Callable[[Source, Trial, Setting, "Tape"], Awaitable[None]]
"""What a trial does: fills the tape, or raises."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One trial that is over, before it is written down."""

    tape: Tape
    failure: BaseException | None
    started_at: str


async def run_trial(source: Source, trial: Trial, setting: Setting, order: int, body: Body | None = None) -> Record:
    """Run one trial by itself, and write it down."""
    await source.prepare(trial.cell.steps)
    stolen = steal_ns()
    done = await attempt(source, trial, setting, body)
    return write_down(source, trial, setting, done, order=order, stolen_ns=steal_ns() - stolen)


async def attempt(source: Source, trial: Trial, setting: Setting, body: Body | None = None) -> Attempt:
    """Run a trial, whatever happens; only cancellation passes through, and leaves no sandbox behind.

    Nothing but the trial runs here: others of its cohort are on the same event loop, under their own clocks. What
    they need is prepared before (`Source.prepare`) and written down after (`write_down`).
    """
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    failure: BaseException | None = None
    tape = Tape(begin_ns=setting.clock())
    try:
        async with asyncio.timeout(setting.deadline_s):
            await (body or _run)(source, trial, setting, tape)
    except TimeoutError:
        failure = TimeoutError(f"not done after {setting.deadline_s:g} s, the trial's deadline")
    except Exception as error:  # noqa: BLE001 - a failed trial is a record, whatever the reason
        failure = error
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        # Ctrl-C reaches the commands of an unisolated substrate too: what they answered then is not a finding.
        raise asyncio.CancelledError
    if failure is not None:
        tape.end_ns = setting.clock()
    return Attempt(tape=tape, failure=failure, started_at=started_at)


async def _run(source: Source, trial: Trial, setting: Setting, tape: Tape) -> None:
    if trial.cell.steps:
        pauses = random.Random(f"{setting.seed}/{trial.block}/{trial.member}")  # noqa: S311 - pauses, no secrets
        think = [pauses.choice(source.workload.think_s) for _ in range(trial.cell.steps) if source.workload.think_s]
        await rollout(source, source.actions(trial.cell.steps), setting, tape, think)
    else:
        await _cold_start(source, setting, tape)


async def rollout(
    source: Source, actions: tuple[Action, ...], setting: Setting, tape: Tape, think: Sequence[float] = ()
) -> None:
    """Take a sandbox, set it up, run the actions, reset or destroy it."""
    tape.begin_ns = setting.clock()
    taken = await source.take()
    keep = False
    try:
        _note_start(taken, tape, setting)
        directory = await _prepare(source, taken, setting, tape)
        judged = not source.subject.hollow
        await _act(taken.box, actions, directory, setting.clock, tape, judged=judged, think=think)
        begin = setting.clock()
        keep = await _reset(source, taken.box, directory)
        if keep or source.workload.reset is not None:
            tape.reset_ns = setting.clock() - begin
    finally:
        if keep:
            source.keep(taken.box)
        else:
            await finish(destroy(taken.box, setting, tape))
            tape.destroy_ns = tape.teardown_ns
    tape.end_ns = setting.clock()


async def _cold_start(source: Source, setting: Setting, tape: Tape) -> None:
    """Take a sandbox, wait for its first result, set it up. Destroying it is not part of the time."""
    tape.begin_ns = setting.clock()
    taken = await source.take()
    try:
        _note_start(taken, tape, setting)
        await _act(taken.box, (FIRST,), None, setting.clock, tape, judged=not source.subject.hollow)
        directory = await _prepare(source, taken, setting, tape)
        tape.end_ns = setting.clock()
        if source.workload.verify is not None:
            await check(source, taken.box, source.workload.verify, directory)
    finally:
        await finish(destroy(taken.box, setting, tape))


def _note_start(taken: Taken, tape: Tape, setting: Setting) -> None:
    """Note the driver's account of its own start, held to what the caller saw."""
    tape.start = taken.start
    seen = setting.clock() - tape.begin_ns
    if taken.start != "reset":
        tape.create_ns = min(taken.box.timeline.total_ns("create"), seen)
        tape.ready_ns = min(taken.box.timeline.total_ns("ready"), seen - tape.create_ns)


async def _prepare(source: Source, taken: Taken, setting: Setting, tape: Tape) -> str | None:
    if taken.prepared:
        return taken.directory
    begin = setting.clock()
    try:
        return await set_up(taken.box, source.workload, source.server, judged=not source.subject.hollow)
    finally:
        took = setting.clock() - begin
        if source.workload.preloaded:
            # The state is given, not made: the clock stood still meanwhile.
            tape.preload_ns = took
            tape.begin_ns += took
        else:
            tape.setup_ns = took


async def _act(
    box: Sandbox,
    actions: tuple[Action, ...],
    directory: str | None,
    clock: Callable[[], int],
    tape: Tape,
    *,
    judged: bool,
    think: Sequence[float] = (),
) -> None:
    """The measured loop. No deadline per action: the trial has one, and cancelling an action kills it."""
    run, actions_ns, runs_ns = box.run, tape.actions, tape.runs
    for index, action in enumerate(actions):
        tape.at_action = index
        if think:
            await _think(think[index], clock, tape)
        begin = clock()
        out = await run(action.command, cwd=directory, stdin=action.stdin)
        end = clock()
        actions_ns.append(end - begin)
        runs_ns.append(min(out.run_ns, end - begin))
        tape.exit_codes.append(_told(out))
        tape.cpu_ns += out.cpu_ns
        if tape.first_result_ns is None:
            tape.first_result_ns = end - tape.begin_ns
        fault = action.check.fault(out)
        if fault is not None and judged:
            raise CheckFailed(f"{action.kind} action {index} {action.command!r}: {fault}")
    tape.at_action = None


async def _think(pause_s: float, clock: Callable[[], int], tape: Tape) -> None:
    """Pause as a model does. The rollout's clock stands still."""
    begin = clock()
    await asyncio.sleep(pause_s)
    took = clock() - begin
    tape.think_ns += took
    tape.begin_ns += took


async def _reset(source: Source, box: Sandbox, directory: str | None) -> bool:
    """Make the sandbox clean again: by itself where it is to be kept, else as the workload says."""
    if source.resets:
        await box.reset()
        return True
    action = source.workload.reset
    if action is not None:
        out = await box.run(action.command, cwd=directory, stdin=action.stdin)
        fault = action.check.fault(out)
        if fault is not None and not source.subject.hollow:
            raise CheckFailed(f"reset: {fault}")
    return False


async def check(source: Source, box: Sandbox, action: Action, directory: str | None = None) -> None:
    """Run something that must hold, outside of the time."""
    out = await box.run(action.command, cwd=directory, stdin=action.stdin)
    fault = action.check.fault(out)
    if fault is not None and not source.subject.hollow:
        raise CheckFailed(f"{action.command!r}: {fault}")


async def destroy(box: Sandbox, setting: Setting, tape: Tape) -> None:
    """Give the sandbox up, within a limit."""
    begin = setting.clock()
    try:
        async with asyncio.timeout(DESTROY_LIMIT_S):
            await box.destroy()
    except TimeoutError as error:
        raise DriverError(f"destroy was not done after {DESTROY_LIMIT_S:g} s", sandbox=box.id) from error
    tape.teardown_ns = setting.clock() - begin


def write_down(
    source: Source,
    trial: Trial,
    setting: Setting,
    done: Attempt,
    *,
    order: int,
    stolen_ns: int,
    settled_ns: int = 0,
    watched: Watched = UNWATCHED,
) -> Record:
    """Make the record of a trial that is over."""
    tape, failure = done.tape, done.failure
    total = tape.end_ns - tape.begin_ns
    run = sum(tape.runs)
    dispatch = sum(tape.actions) - run
    known = tape.create_ns + tape.ready_ns + tape.setup_ns + dispatch + run + tape.reset_ns + tape.destroy_ns
    subject, cell = source.subject, trial.cell
    return Record(
        id=trial.id,
        host=setting.host,
        substrate=subject.name,
        version=subject.substrate.version,
        dispatch=subject.dispatch,
        tier=cell.tier,
        steps=cell.steps,
        parallel=cell.parallel,
        block=trial.block,
        order=order,
        warmup=trial.warmup,
        profile=source.profile,
        start=tape.start,
        seed=setting.seed,
        image=source.spec.image,
        cache="warm" if setting.warm and not trial.warmup else "unknown",
        started_at=done.started_at,
        ok=failure is None,
        failure_kind=_kind(failure),
        failure_message=None if failure is None else str(failure)[:2000],
        failure_action=tape.at_action if failure is not None else None,
        total_ns=total,
        create_ns=tape.create_ns,
        ready_ns=tape.ready_ns,
        setup_ns=tape.setup_ns,
        dispatch_ns=dispatch,
        run_ns=run,
        orchestration_ns=max(0, total - known),
        reset_ns=tape.reset_ns,
        destroy_ns=tape.destroy_ns,
        first_result_ns=tape.first_result_ns,
        teardown_ns=tape.teardown_ns,
        actions_ns=tape.actions,
        actions_run_ns=tape.runs,
        steal_ns=max(0, stolen_ns),
        exit_codes=tape.exit_codes,
        cpu_ns=tape.cpu_ns,
        preload_ns=tape.preload_ns,
        think_ns=tape.think_ns,
        machine_cpu_ns=watched.cpu_ns,
        live_bytes=watched.memory_bytes,
        settled_ns=settled_ns,
    )


def _told(out: Outcome) -> int:
    """The exit code as a shell tells it."""
    if out.exit_code is not None:
        return out.exit_code
    return 124 if out.ending == "timeout" else 128 + (out.signal or 9)


def _kind(failure: BaseException | None) -> str | None:
    """Name the party that failed: the substrate's machinery by its error class, a wrong answer, a deadline, or anything."""
    if failure is None:
        return None
    if isinstance(failure, TimeoutError):
        return "deadline"
    if isinstance(failure, CheckFailed):
        return "wrong-answer"
    return type(failure).__name__ if isinstance(failure, DutyfreeError) else f"unexpected:{type(failure).__name__}"
