"""The loop: T2's bug as a reinforcement-learning problem.

Four candidate patches, of which one fixes the bug. An attempt looks for the code, reproduces the bug, applies its
candidate and runs the reproduction again: that exit code is the reward. Small enough to train in seconds, and yet every
reward is earned by running code in a sandbox.
"""

from __future__ import annotations

from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import READ_ONLY_GIT, Training, Workload
from dutyfree.meter.workloads import bug
from dutyfree.meter.workloads.material import Project
from dutyfree.meter.workloads.tree import PYTHON, Tree

TIER = "RL"
ITERATIONS = 6
GROUP = 4

_FIX = b"+                        filter=filter,\n"
_WRONG = (
    b"+                        filter=None,  # nothing to leave out\n",
    b"+                        filter=(lambda a, v: True),\n",
    b"+                        filter=None if filter else filter,\n",
)


def workload(project: Project) -> Workload:
    """The training run over the project's tree."""
    tree = Tree(project.tree)
    patches = [project.patch, *(bug.PATCH.replace(_FIX, wrong) for wrong in _WRONG)]
    rewards = (1.0, 0.0, 0.0, 0.0)
    attempts = tuple(
        _attempt(tree, project, patch, reward, number)
        for number, (patch, reward) in enumerate(zip(patches, rewards, strict=True))
    )
    training = Training(attempts=attempts, rewards=rewards, iterations=ITERATIONS, group=GROUP)
    return Workload(
        tier=TIER,
        actions=lambda steps: tuple(action for attempt in attempts for action in attempt)[:steps],
        description=f"REINFORCE over {len(attempts)} candidate patches: {ITERATIONS} iterations of {GROUP} rollouts",
        env={**READ_ONLY_GIT, "PYTHONPATH": "src"},
        programs=(PYTHON, "/usr/bin/git"),
        uploads=((project.tree, "repo"),),
        directory="repo",
        training=training,
        steps=(ITERATIONS * len(attempts[0]),),
    )


def _attempt(tree: Tree, project: Project, patch: bytes, reward: float, number: int) -> tuple[Action, ...]:
    return (
        tree.grep(number),
        Action(kind="test", command=project.reproduce, check=Check(exit_code=1)),
        Action(kind="edit", command=("git", "apply", "-"), stdin=patch),
        Action(kind="inspect", command="git diff --stat", check=Check(contains=b"1 file changed")),
        Action(kind="test", command=project.reproduce, check=Check(exit_code=0 if reward else 1)),
    )
