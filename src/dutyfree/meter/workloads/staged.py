"""T2 from each stage: what is left of its set-up when the sandbox starts from a state that has part of
it.

`T2` itself starts from the image. `T2@repository` has the checkout, `T2@dependencies` also what the
tests import. Cold starts only: once ready, the trajectory is that of T2.
"""

from __future__ import annotations

from dutyfree.core.stage import Files, Repository
from dutyfree.meter.action import Action, Check
from dutyfree.meter.workload import READ_ONLY_GIT, Workload
from dutyfree.meter.workloads.material import Project
from dutyfree.meter.workloads.tree import PYTHON

BASE = "/work"
STAGES = ("repository", "dependencies")


def workload(project: Project, stage: str) -> Workload:
    """T2's cold start from one of `STAGES`."""
    repository = Repository(url=str(project.repository), commit=project.commit, path=f"{BASE}/repo")
    dependencies = Files(files={f"{BASE}/site": project.site}, name="dependencies")
    deep = stage == "dependencies"
    return Workload(
        tier=f"T2@{stage}",
        actions=lambda _steps: (),
        description=f"T2 from a state that has {'the repository and the dependencies' if deep else 'the repository'}",
        env={**READ_ONLY_GIT, "PYTHONPATH": "src:../site", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        programs=(PYTHON, "/usr/bin/git"),
        uploads=() if deep else ((project.site, "site"),),
        directory="repo",
        base=BASE,
        steps=(0,),
        needs=("stages",),
        stages=(repository, dependencies) if deep else (repository,),
        verify=Action(
            kind="test",
            command=f"git rev-parse HEAD && {PYTHON} -c 'import attr, pytest' && echo ready",
            check=Check(equals=project.commit.encode() + b"\nready\n"),
        ),
    )
