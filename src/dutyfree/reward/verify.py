"""`verify`: what the agent changed, judged in a sandbox that the agent never saw.

checks = [dutyfree.Check(command=["python3", "-I", "-m", "pytest", "-q", "--junitxml={report}", "/repo/hidden"],
tests=("test_sum", "test_empty"))] found = await dutyfree.verify(substrate, spec, box, allow=["/repo/src/**"],
hidden={"/repo/hidden/test_it.py": b"…"}, checks=checks) reward = float(found.passed)

A fresh sandbox starts from the same state as the agent's did and receives the hidden files, then allow-listed files,
none of which may touch a hidden one; then the checks run. A check counts by its ending, as the guest agent saw it,
and, if it names tests, by a report at a path nobody could guess before.

Whatever the agent arranged is a verdict with a reason. A failure of the machinery is raised and never becomes a
reward. Where it could be either, a control decides: an untouched sandbox in which the same step is tried.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from dutyfree.core.contract import Command, Sandbox, Substrate, root_of
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost
from dutyfree.core.frozen import FrozenDict
from dutyfree.core.keyword import named_options
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Spec, check_path
from dutyfree.reward.report import REPORT_BYTES, judge_report
from dutyfree.reward.select import AllowList, HiddenPlaces, Selection, TooMuchError, select, shown
from dutyfree.reward.takeover import Ground, NotTakenError

_OUTPUT_BYTES = 1 << 20


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One command that judges. ``{report}`` in it becomes the path where a JUnit report is expected."""

    command: Command
    name: str = "check"
    timeout_s: float = 600.0
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    user: str | None = None
    """The user it runs as; give another than root where the code under test must not touch the hidden files."""
    tests: Sequence[str] = ()
    """Test names that must be in the report, each passed. Without any, the exit code alone decides: enough only for a
    command that does not load the code under test into its own process."""

    def __post_init__(self) -> None:
        if not isinstance(self.command, str):
            object.__setattr__(self, "command", tuple(self.command))
        if self.env is not None:
            object.__setattr__(self, "env", FrozenDict(self.env))
        object.__setattr__(self, "tests", tuple(self.tests))
        if self.tests and "{report}" not in "".join(self.command):
            raise Misuse("names tests, so its command must say where: {report} is missing", field="checks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Result of one check."""

    name: str
    passed: bool
    reason: str
    """Why it did not pass; empty if it did."""
    outcome: Outcome
    """How the command ended; ``cancelled`` if it could not be run, or not to its end, because of the solution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """Result of all checks."""

    passed: bool
    """Every check passed, and there was at least one."""
    results: tuple[Result, ...]
    taken: tuple[str, ...]
    """Paths that were taken over from the agent's sandbox."""
    removed: tuple[str, ...]
    """Allowed paths of the start state that the agent had removed."""
    refused: tuple[str, ...]
    """Paths that matched the allow-list and were not taken, with the reason."""
    unmatched: tuple[str, ...] = ()
    """Patterns of the allow-list that match nothing, neither in the agent's sandbox nor in the start state."""

    @property
    def reason(self) -> str:
        """The first reason why it did not pass; empty if it did."""
        return next((f"{result.name}: {result.reason}" for result in self.results if result.reason), "")


async def verify(
    substrate: Substrate,
    spec: Spec,
    box: Sandbox,
    *,
    allow: Sequence[str],
    checks: Sequence[Check],
    hidden: Mapping[str, bytes] | None = None,
    max_files: int = 10_000,
    max_bytes: int = 64 << 20,
) -> Verification:
    """Judge what `box` holds by checks it cannot see, in a sandbox of its own made from `spec`.

    Raises `Misuse` for arguments that make no sense, also in view of the start state, and whatever the substrate raises:
    none of that says anything about the solution. A solution with more than `max_files` or `max_bytes` to take over does
    not pass. The agent's sandbox is only read, and may be destroyed after.
    """
    listed, secret = AllowList(allow), dict(hidden or {})
    if not checks:
        raise Misuse("there is nothing to check", field="checks")
    for path in secret:
        _check_hidden(path)
    court = _Court(substrate=substrate, spec=replace(spec, idle_s=None), hidden=secret)
    places = HiddenPlaces(secret)
    # The agent's sandbox is read to the end before the judge's starts: nothing of it is live while it is judged.
    solution, trouble = Selection(), ""
    async with _still(box) as still:
        try:
            solution = await select(still, listed, places, max_files=max_files, max_bytes=max_bytes)
        except TooMuchError as error:
            trouble = str(error)
    async with substrate.create(court.spec) as fresh:
        ground = Ground(fresh)
        await ground.check(listed, secret)
        try:
            start = await select(fresh, listed, places, max_files=max_files, max_bytes=max_bytes)
        except TooMuchError as error:
            raise Misuse(f"{error}, in the start state alone; allow less, or raise the bound", field="allow") from None
        await ground.hide(secret)
        taken: list[str] = []
        removed: list[str] = []
        if not trouble:
            taken, removed, trouble = await court.take_over(ground, start, solution)
        results = await court.judge(ground, checks, trouble)
    return Verification(
        passed=all(result.passed for result in results),
        results=tuple(results),
        taken=tuple(taken),
        removed=tuple(removed),
        refused=tuple(solution.refused),
        unmatched=tuple(text for text in listed.texts if text not in solution.matched | start.matched),
    )


def _check_hidden(path: str) -> None:
    check_path("hidden", path)
    if posixpath.normpath(path) != path or path == "/":
        raise Misuse(f"must be a plain path of a file, not {path!r}", field="hidden")


@asynccontextmanager
async def _still(box: Sandbox) -> AsyncIterator[Sandbox]:
    """The agent's files where nothing changes them: in a fork, or where there is none, where they are."""
    async with AsyncExitStack() as stack:
        still = box
        if box.capabilities.fork:
            # An agent may arrange files that cannot be forked or started from. They can still be read where they are: what
            # moves meanwhile is taken as it is at that moment.
            with suppress(DutyfreeError, OSError):
                still = await stack.enter_async_context((await box.fork(1))[0])
        yield still


@dataclass(frozen=True, kw_only=True, slots=True)
class _Court:
    """Judges one solution, and decides who is at fault when a step fails."""

    substrate: Substrate
    spec: Spec
    hidden: Mapping[str, bytes]

    async def take_over(
        self, ground: Ground, start: Selection, solution: Selection
    ) -> tuple[list[str], list[str], str]:
        """Paths taken and removed, or the reason why the solution cannot be judged."""
        try:
            return *await ground.take_over(start, solution), ""
        except NotTakenError as error:
            return [], [], shown(f"cannot be taken over: {error}")
        except (SandboxLost, DriverError) as error:
            await self._clear_the_machine(error)
            return [], [], shown(f"its files broke the sandbox they were taken over to: {error}")

    async def judge(self, ground: Ground, checks: Sequence[Check], trouble: str) -> list[Result]:
        """Run the checks in order. After the loss of the sandbox the rest is lost too."""
        results = []
        for check in checks:
            outcome = Outcome(ending="cancelled")
            if trouble:
                reason = f"not judged: {trouble}"
            else:
                try:
                    outcome, reason = await self._judge(ground, check)
                except (SandboxLost, DriverError, OSError, Misuse) as error:
                    if isinstance(error, Misuse) and error.field not in ("cwd", "user"):
                        raise
                    await self._clear_the_machine(error, check)
                    reason = shown(f"the solution kept it from being judged: {error}")
                    trouble = reason if isinstance(error, SandboxLost) else ""
            results.append(Result(name=check.name, passed=not reason, reason=reason, outcome=outcome))
        return results

    async def _clear_the_machine(self, error: Exception, check: Check | None = None) -> None:
        """Raise what is wrong with the machine or the caller's arguments, if the step fails without the solution too."""
        async with self.substrate.create(self.spec) as control:
            try:
                await Ground(control).hide(self.hidden)
                await _place(control, check)
                if check:
                    await control.run(
                        ["true"], timeout_s=check.timeout_s, cwd=check.cwd, env=check.env, user=check.user
                    )
            except (DutyfreeError, OSError) as also:
                raise also from error

    async def _judge(self, ground: Ground, check: Check) -> tuple[Outcome, str]:
        fresh = ground.box
        # A check before this one may have run the solution, and that may have left bytecode.
        await ground.clear_caches(self.hidden)
        report = f"{await _place(fresh, check)}/report.xml"
        command = check.command
        outcome = await fresh.run(
            command.replace("{report}", report)
            if isinstance(command, str)
            else [word.replace("{report}", report) for word in command],
            timeout_s=check.timeout_s,
            cwd=check.cwd,
            env=check.env,
            user=check.user,
            output_limit_bytes=_OUTPUT_BYTES,
        )
        return outcome, (
            _ending(outcome)
            or await _changed(fresh, self.hidden)
            or (await _reported(fresh, report, check.tests) if check.tests else "")
        )


async def _place(box: Sandbox, check: Check | None) -> str:
    """A directory for the report, by a name that nothing could be left at."""
    place = f"/tmp/{secrets.token_hex(16)}"  # noqa: S108 - inside the sandbox
    await box.mkdir(place, mode=0o777 if check and check.user is not None else 0o700, user=root_of(box))
    return place


def _ending(outcome: Outcome) -> str:
    if outcome.ending != "exit":
        return f"ended by {outcome.ending}"
    return "" if outcome.exit_code == 0 else f"exit code {outcome.exit_code}"


async def _changed(fresh: Sandbox, hidden: Mapping[str, bytes]) -> str:
    """The hidden files are still what was written: code that rewrites its tests does not pass them."""
    for path, data in hidden.items():
        try:
            same = await fresh.read(path, length=len(data) + 1, user=root_of(fresh)) == data
        except OSError:
            same = False
        if not same:
            return f"{path} was changed while it judged"
    return ""


async def _reported(fresh: Sandbox, path: str, tests: Sequence[str]) -> str:
    try:
        data = await fresh.read(path, length=REPORT_BYTES + 1, user=root_of(fresh))
    except OSError:
        return "it ended before its report was written"
    return await asyncio.to_thread(judge_report, data, tests)
