"""T0: minimal commands, so that nothing but start-up and command launch is left to measure.

Each ten actions are 4 inspections, 3 commands, 2 edits, 1 test: the mix of an agent's trajectory, with programs that
do next to nothing. Needs a shell and coreutils.
"""

from __future__ import annotations

from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import Workload

CYCLE = 10
SHELL, DIRECT = 1, 2
"""Places in the cycle of a shell's builtin and of a program without a shell: their difference is the shell's cost."""


def trajectory(steps: int) -> tuple[Action, ...]:
    """The first `steps` actions of the endless sequence."""
    return tuple(_action(index) for index in range(steps))


def _action(index: int) -> Action:
    cycle, place = divmod(index, CYCLE)
    line = f"line {cycle}".encode()
    match place:
        case 0:
            return Action(kind="inspect", command="ls -a", check=Check(contains=b".\n"))
        case 1:  # SHELL
            return Action(kind="command", command=f"echo step {index}", check=Check(equals=b"step %d\n" % index))
        case 2:  # DIRECT
            return Action(kind="command", command=("true",), check=Check(equals=b""))
        case 3:
            return Action(kind="edit", command=f"echo line {cycle} >> notes.txt", check=Check(equals=b""))
        case 4:
            return Action(kind="inspect", command="tail -n 1 notes.txt", check=Check(equals=line + b"\n"))
        case 5:
            return Action(kind="inspect", command="wc -l < notes.txt", check=Check(equals=b"%d\n" % (cycle + 1)))
        case 6:
            return Action(kind="command", command=("cat",), stdin=line, check=Check(equals=line))
        case 7:
            return Action(kind="edit", command="cp notes.txt copy.txt", check=Check(equals=b""))
        case 8:
            return Action(kind="test", command="cmp notes.txt copy.txt", check=Check(equals=b""))
        case _:
            return Action(kind="inspect", command="head -n 1 notes.txt", check=Check(equals=b"line 0\n"))


def workload() -> Workload:
    """T0 as the trial runner takes it."""
    return Workload(
        tier="T0",
        actions=trajectory,
        description="minimal commands in the sandbox's own directory; no set-up",
    )
