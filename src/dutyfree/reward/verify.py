"""`verify`: what the agent changed, judged in a sandbox that the agent never saw.

    checks = [dutyfree.Check(command=["python3", "-I", "-m", "pytest", "-q", "--junitxml={report}", "/repo/hidden"],
                             tests=("test_sum", "test_empty"))]
    found = await dutyfree.verify(substrate, spec, box, allow=["/repo/src/**"], hidden={"/repo/hidden/test_it.py": b"…"},
                                  checks=checks)
    reward = float(found.passed)

A fresh sandbox starts from the same state as the agent's did and receives allow-listed files only; then the hidden files are
written over them; then the checks run. A check counts by its ending, as the guest agent saw it, and, if it names tests, by a
report at a path nobody could guess before. A failure of the machinery is raised: it never becomes a reward.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree as ET

from dutyfree.core.contract import Command, Sandbox, Substrate
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Spec, check_path
from dutyfree.reward.select import AllowList, Selection, select

_REPORT_BYTES = 16 << 20
_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One command that judges. ``{report}`` in it becomes the path where a JUnit report is expected."""

    command: Command
    name: str = "check"
    timeout_s: float = 600.0
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    user: str | None = None
    """Whom it runs as; give another user than root where the code under test must not touch the hidden files."""
    tests: Sequence[str] = ()
    """Test names that must be in the report, each passed. Without any, the exit code alone decides: enough only for a
    command that does not load the code under test into its own process."""

    def __post_init__(self) -> None:
        if self.tests and "{report}" not in "".join(self.command):
            raise Misuse("names tests, so its command must say where: {report} is missing", field="checks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What one check came to."""

    name: str
    passed: bool
    reason: str
    """Why it did not pass; empty if it did."""
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What all checks came to."""

    passed: bool
    """Every check passed, and there was at least one."""
    results: tuple[Result, ...]
    taken: tuple[str, ...]
    """Paths that were taken over from the agent's sandbox."""
    removed: tuple[str, ...]
    """Allowed paths of the start state that the agent had removed."""
    refused: tuple[str, ...]
    """Paths that matched the allow-list and were not taken, with the reason."""


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

    Raises `Misuse` for arguments that make no sense or more to take over than expected, and whatever the two sandboxes
    raise: none of that says anything about the solution. The agent's sandbox is only read, and may be destroyed after.
    """
    listed, secret = AllowList(allow), dict(hidden or {})
    if not checks:
        raise Misuse("there is nothing to check", field="checks")
    for path in secret:
        check_path("hidden", path)
    # The agent's sandbox is read to the end before the judge's starts: nothing of it is live while it is judged.
    solution = await select(box, listed, secret, max_files=max_files, max_bytes=max_bytes)
    async with substrate.create(replace(spec, idle_s=None)) as fresh:
        start = await select(fresh, listed, secret, max_files=max_files, max_bytes=max_bytes)
        taken, removed = await _take_over(fresh, start, solution)
        for path, data in secret.items():
            await fresh.write(path, data, mode=0o444)
        results = tuple([await _judge(fresh, check, secret) for check in checks])
    return Verification(
        passed=all(result.passed for result in results),
        results=results,
        taken=taken,
        removed=removed,
        refused=tuple(solution.refused),
    )


async def _take_over(fresh: Sandbox, start: Selection, solution: Selection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make the allowed files of the fresh sandbox those of the agent's."""
    changed = {path: kept for path, kept in solution.files.items() if start.files.get(path) != kept}
    removed = sorted(set(start.files) - set(solution.files))
    for path in removed:
        await fresh.remove(path)
    for path, (data, mode) in changed.items():
        await fresh.write(path, data, mode=mode)
    return tuple(sorted(changed)), tuple(removed)


async def _judge(fresh: Sandbox, check: Check, hidden: Mapping[str, bytes]) -> Result:
    place = f"/tmp/{secrets.token_hex(16)}"  # noqa: S108 - inside the sandbox; a name that nothing could be left at
    await fresh.mkdir(place, mode=0o700 if check.user is None else 0o777)
    report = f"{place}/report.xml"
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
    reason = (
        _ending(outcome)
        or await _changed(fresh, hidden)
        or (await _reported(fresh, report, check.tests) if check.tests else "")
    )
    return Result(name=check.name, passed=not reason, reason=reason, outcome=outcome)


def _ending(outcome: Outcome) -> str:
    if outcome.ending != "exit":
        return f"ended by {outcome.ending}"
    return "" if outcome.exit_code == 0 else f"exit code {outcome.exit_code}"


async def _changed(fresh: Sandbox, hidden: Mapping[str, bytes]) -> str:
    """The hidden files are still what was written: code that rewrites its tests does not pass them."""
    for path, data in hidden.items():
        try:
            same = await fresh.read(path, length=len(data) + 1) == data
        except OSError:
            same = False
        if not same:
            return f"{path} was changed while it judged"
    return ""


async def _reported(fresh: Sandbox, path: str, tests: Sequence[str]) -> str:
    try:
        data = await fresh.read(path, length=_REPORT_BYTES)
    except OSError:
        return "it ended before its report was written"
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        return "its report defines entities"
    try:
        cases = list(ET.fromstring(data).iter("testcase"))  # noqa: S314 - no entities, bounded size
    except ET.ParseError as error:
        return f"its report cannot be read: {error}"
    passed = {
        name
        for case in cases
        if len([child for child in case if child.tag != "properties"]) == 0
        for name in _names(case)
    }
    missing = [test for test in tests if test not in passed]
    return f"not passed: {', '.join(missing[:5])}" if missing else ""


def _names(case: ET.Element) -> tuple[str, str]:
    name, owner = case.get("name", ""), case.get("classname", "")
    return name, f"{owner}.{name}"
