"""Live sandboxes: many at once that idle while a model thinks, as real agents' do most of the time.

The mix of commands and the think times are those of 320 rollouts of mini-swe-agent on SWE-bench tasks, published with
its pull requests 814 and 816 (MIT): 25,333 actions, 74 in the median rollout, of which the sandbox idles 94 % of its
life. Each pause is drawn from their distribution, by the trial's own seed, so every substrate meets the same pauses.
"""

from __future__ import annotations

from dutyfree.meter.action import Action
from dutyfree.meter.workload import READ_ONLY_GIT, Workload
from dutyfree.meter.workloads.material import Project
from dutyfree.meter.workloads.tree import PYTHON, Tree

TIER = "live"
STEPS = 74
"""Actions of the median rollout."""

THINK_MEAN_S = 8.77
THINK_S = (
    2.31, 2.53, 2.67, 2.79, 2.88, 2.96, 3.04, 3.12, 3.21, 3.28, 3.37, 3.45, 3.53, 3.62, 3.72, 3.83, 3.93, 4.05, 4.18,
    4.32, 4.48, 4.65, 4.88, 5.13, 5.47, 5.89, 6.46, 7.17, 8.05, 9.1, 10.32, 11.66, 13.09, 14.48, 16.35, 18.55, 21.1,
    24.78, 29.85, 45.17,
)  # fmt: skip
"""Forty equally likely think times before an action: the middles of the distribution's fortieths."""

VERBS = (
    "cat", "grep", "python", "cat", "sed", "grep", "python", "cat", "grep", "find",
    "sed", "python", "cat", "grep", "python", "git", "cat", "grep", "sed", "python",
)  # fmt: skip
"""Twenty actions in the rollouts' mix: 25 % cat, 23 grep, 21 python, 13 sed, 6 find, 3 git."""


def workload(project: Project, think: float) -> Workload:
    """The rollouts' mix over the project's tree, with `think` times their think times."""
    tree = Tree(project.tree)
    return Workload(
        tier=TIER,
        actions=lambda steps: tuple(_action(tree, index) for index in range(steps)),
        description=f"{project.name} preloaded; real agents' mix of commands, {think:g} x their think times",
        env=READ_ONLY_GIT,
        programs=(PYTHON, "/usr/bin/git"),
        uploads=((project.tree, "repo"),),
        directory="repo",
        preloaded=True,
        think_s=tuple(round(one * think, 4) for one in THINK_S) if think else (),
        steps=None,
    )


def _action(tree: Tree, index: int) -> Action:
    match VERBS[index % len(VERBS)]:
        case "cat":
            return tree.read(index)
        case "grep":
            return tree.grep(index)
        case "python":
            return tree.search_syntax(index)
        case "sed":
            return tree.tail(index)
        case "find":
            return tree.find()
        case _:
            return Action(kind="command", command="git log --oneline | head -n 3")
