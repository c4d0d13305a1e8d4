"""T1: code inspection in a repository that is already there.

The checkout is uploaded before the first action, and the upload is in no time: the tier begins with
it there. Each ten actions are 8 inspections (listing, finding, grepping, reading) and 2 commands (a
search by syntax tree in Python, `git log`). Nothing is changed.
"""

from __future__ import annotations

from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import READ_ONLY_GIT, Workload
from dutyfree.meter.workloads.material import Project
from dutyfree.meter.workloads.tree import PYTHON, Tree

CYCLE = 10


def workload(project: Project) -> Workload:
    """T1 over the project's tree."""
    tree = Tree(project.tree)

    def trajectory(steps: int) -> tuple[Action, ...]:
        return tuple(_action(tree, project, index) for index in range(steps))

    return Workload(
        tier="T1",
        actions=trajectory,
        description=f"{project.name} preloaded (its upload is in no time); listing, searching, reading, parsing",
        env=READ_ONLY_GIT,
        programs=(PYTHON, "/usr/bin/git"),
        uploads=((project.tree, "repo"),),
        directory="repo",
        preloaded=True,
    )


def _action(tree: Tree, project: Project, index: int) -> Action:
    cycle, place = divmod(index, CYCLE)
    match place:
        case 0:
            return Action(kind="inspect", command="ls -la", check=Check(contains=b".git"))
        case 1:
            return tree.find()
        case 2:
            return tree.grep(2 * cycle)
        case 3:
            return tree.read(2 * cycle)
        case 4:
            return tree.search_syntax(cycle)
        case 5:
            return tree.outline(cycle)
        case 6:
            return tree.grep(2 * cycle + 1)
        case 7:
            return Action(
                kind="command", command="git log --oneline | head -n 3", check=Check(contains=project.subject.encode())
            )
        case 8:
            return tree.read(2 * cycle + 1)
        case _:
            return tree.count(cycle) if cycle % 2 else tree.tail(cycle)
