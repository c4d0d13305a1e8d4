"""T2: repair a bug. Clone over the network at the buggy commit, inspect, patch, test, verify; reset at the end.

Set-up is the clone and the upload of the test dependencies. Each ten actions are one attempt: 4 inspections, 2
commands, 2 edits, 2 tests (one must fail before the patch, one must pass after it). Every attempt but the last throws
its patch away, so all attempts start from the bug, and the last one leaves it fixed.
"""

from __future__ import annotations

from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import READ_ONLY_GIT, Clone, Workload
from dutyfree.meter.workloads.material import Project
from dutyfree.meter.workloads.tree import PYTHON, Tree

CYCLE = 10

RESET = Action(
    kind="command",
    command="git reset -q --hard && git clean -qfdx && git status --porcelain",
    check=Check(equals=b""),
)


def workload(project: Project) -> Workload:
    """T2 over the project's repository, bug and patch."""
    tree = Tree(project.tree)

    def trajectory(steps: int) -> tuple[Action, ...]:
        return tuple(_action(tree, project, index, last=index + CYCLE >= steps) for index in range(steps))

    return Workload(
        tier="T2",
        actions=trajectory,
        description=f"{project.name} cloned at {project.commit[:12]}; inspect, reproduce, patch, test; reset",
        # Relative to the checkout, so that the same environment holds wherever the work directory is. Plug-ins that an
        # image happens to have installed must not change what is measured.
        env={**READ_ONLY_GIT, "PYTHONPATH": "src:../site", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        programs=(PYTHON, "/usr/bin/git"),
        uploads=((project.site, "site"),),
        clone=Clone(served=project.repository.parent, name=project.repository.name, commit=project.commit),
        directory="repo",
        reset=RESET,
    )


def _action(tree: Tree, project: Project, index: int, *, last: bool) -> Action:
    cycle, place = divmod(index, CYCLE)
    match place:
        case 0:
            return Action(kind="inspect", command="git ls-files | wc -l", check=Check(equals=project.files_answer))
        case 1:
            return tree.grep(cycle)
        case 2:
            return Action(kind="test", command=project.reproduce, check=Check(exit_code=1))
        case 3:
            return tree.read(cycle)
        case 4:
            return tree.search_syntax(cycle)
        case 5:
            return Action(kind="edit", command=("git", "apply", "-"), stdin=project.patch)
        case 6:
            return Action(kind="command", command="git diff --stat", check=Check(contains=b"changed"))
        case 7:
            return Action(kind="test", command=project.test, check=Check(contains=project.test_says))
        case 8:
            return Action(kind="inspect", command="git status --porcelain", check=Check(contains=b" M "))
        case _ if last:
            return Action(kind="edit", command="echo 'Fixed the reported bug.' > NOTES.fix")
        case _:
            return Action(kind="edit", command="git checkout -q -- .", check=Check(equals=b""))
