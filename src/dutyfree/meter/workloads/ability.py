"""The tiers `reset` and `fork`: what a sandbox costs that is made clean again, or made many of.

The sandbox has been used before: 200 small files in a directory of their own, and a file changed
twice. That is what a short trajectory leaves behind; how the cost grows beyond it is a question for
benchmarks.
"""

from __future__ import annotations

from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import Exercise, Workload

FILES = 200
FORKS = 8

DIRTY = Action(
    kind="edit",
    command=f"mkdir marked && cd marked && for i in $(seq {FILES}); do echo $i > $i; done && echo again > 1 && ls | wc -l",
    check=Check(equals=b"%d\n" % FILES),
)
CLEAN = Action(kind="inspect", command="test ! -e marked")
SAME = Action(kind="inspect", command="cat marked/1; ls marked | wc -l", check=Check(equals=b"again\n%d\n" % FILES))


def reset() -> Workload:
    """Measure from the request to reset to the first result after it."""
    return _workload("reset", "a used sandbox is reset; to the first result after it", CLEAN)


def fork() -> Workload:
    """Measure from the request to fork to the first result of every fork."""
    return _workload("fork", f"a used sandbox is forked into {FORKS}; to the first result of each", SAME, FORKS)


def _workload(ability: str, description: str, after: Action, forks: int = 1) -> Workload:
    return Workload(
        tier=ability,
        actions=lambda _steps: (DIRTY, after),
        description=description,
        steps=(0,),
        needs=(ability,),
        exercise=Exercise(ability="fork" if ability == "fork" else "reset", dirty=DIRTY, after=after, forks=forks),
    )
