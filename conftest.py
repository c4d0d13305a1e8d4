"""Which tests a run takes, which of them stay together on one worker, and what the run says at its end.

A test marked `slow` names the proof it belongs to. `make test` leaves those out and lists them; `make test-all` runs them
after the others. Named by path, a test runs whatever its mark.
"""

import ast
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from dutyfree.testing.leaks import Holding, orphans

ORPHANS_S = 30.0
"""For what a dead owner left: its spawner or the next sweep takes it away."""
_STEP_S = 0.2

_TOGETHER = ("docker_engine", "cluster", "opensandbox", "rootless_user", "machines")
"""Fixtures of one daemon of the whole machine: what its tests hold cannot be charged to a worker, so one worker runs them all."""

_left_out: defaultdict[str, set[str]] = defaultdict(set)
"""Proof to files."""
_before = pytest.StashKey[frozenset[Holding]]()
_orphans = pytest.StashKey[list[Holding]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", choices=("with", "without", "only"), default="with", help="run the tests marked slow, or only those"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_before] = orphans()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over a file that is slow as a whole: every worker would import it and make its tests."""
    if config.option.slow != "without" or collection_path.suffix != ".py" or not collection_path.is_file():
        return None
    proof = _proof(collection_path)
    if proof is None:
        return None
    _left_out[proof].add(collection_path.name)
    return True


def _proof(path: Path) -> str | None:
    """What a file's own `pytestmark` names as slow."""
    text = path.read_text(encoding="utf-8")
    if "mark.slow(" not in text:
        return None
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            for call in ast.walk(statement.value):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.slow":
                    return str(ast.literal_eval(call.args[0]))
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Pass over a slow class or function likewise."""
    if collector.config.option.slow != "without":
        return None
    mark = next((mark for mark in getattr(obj, "pytestmark", ()) if mark.name == "slow"), None)
    if mark is None:
        return None
    _left_out[mark.args[0]].add(collector.path.name)
    return []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    choice = config.option.slow
    if choice == "with":
        return
    taken = [item for item in items if (item.get_closest_marker("slow") is not None) == (choice == "only")]
    dropped = [item for item in items if item not in set(taken)]
    config.hook.pytest_deselected(items=dropped)
    for item in dropped:
        if mark := item.get_closest_marker("slow"):
            _left_out[mark.args[0]].add(item.path.name)
    items[:] = taken


def _group(item: pytest.Item) -> str | None:
    """Name the worker's share that this test belongs to, where it shares something that is dear to make."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = {name: found[-1] for name, found in info.name2fixturedefs.items() if found} if info else {}
    for name in _TOGETHER:
        if name in definitions:
            return name
    scopes = {definition.scope for definition in definitions.values()}
    if "module" in scopes:
        return str(item.path)
    return f"{item.path}::{item.cls.__name__}" if "class" in scopes and item.cls else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's list to the run; at the end of a run, look for what owners left that no worker could be charged for."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = {proof: sorted(files) for proof, files in _left_out.items()}
        return
    deadline = time.monotonic() + ORPHANS_S
    while (left := orphans() - session.config.stash[_before]) and time.monotonic() < deadline:
        time.sleep(_STEP_S)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[_orphans] = sorted(left)


def pytest_testnodedown(node: object) -> None:
    """Take a worker's list."""
    for proof, files in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        _left_out[proof].update(files)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """End by saying what was left behind, what was left out, and what this machine could not run."""
    for title, lines in (
        (
            "left behind by an owner that no worker could be charged for",
            [f"{kind}: {what}" for kind, what in config.stash.get(_orphans, [])],
        ),
        (
            "left out: slow proofs, run by make test-all",
            [f"{one}: {', '.join(sorted(_left_out[one]))}" for one in sorted(_left_out)],
        ),
        ("not run on this machine", _counted(Counter(map(_reason, terminalreporter.stats.get("skipped", []))))),
    ):
        if lines:
            terminalreporter.section(title)
            terminalreporter.write_line("\n".join(lines))


def _reason(report: pytest.TestReport) -> str:
    place = report.longrepr
    return place[2].removeprefix("Skipped: ") if isinstance(place, tuple) else str(place)


def _counted(reasons: Counter[str]) -> list[str]:
    return [f"{count:5} × {reason}" for reason, count in sorted(reasons.items())]
