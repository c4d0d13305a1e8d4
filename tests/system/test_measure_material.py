"""T1 and T2 for real: the repository is always the same, the bug is there, the patch fixes it, the clone travels."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from dutyfree.core.errors import Unavailable
from dutyfree.core.spec import Spec
from dutyfree.meter.plan import Cell, Trial
from dutyfree.meter.source import Source
from dutyfree.meter.subject import Subject, examine
from dutyfree.meter.trial import Setting, run_trial
from dutyfree.meter.workloads import bug, material, tier1, tier2
from dutyfree.meter.workloads.gitserver import GitServer
from dutyfree.meter.workloads.tree import PYTHON
from dutyfree.substrates import registry


@pytest.fixture(scope="module")
def project():
    if not Path(PYTHON).exists() or shutil.which("git") is None:
        pytest.skip(f"needs {PYTHON} and git; on Debian: apt-get install -y python3 git")
    try:
        return material.attrs_project()
    except Unavailable as error:
        pytest.skip(str(error))


def run_here(command, cwd, site):
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"src:{site}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=env, capture_output=True, check=False)


def test_the_history_is_always_the_same(project):
    assert project.commit == bug.BUGGY_COMMIT
    log = subprocess.run(["git", "log", "--format=%s"], cwd=project.tree, capture_output=True, text=True, check=True)
    assert log.stdout.splitlines() == [bug.SUBJECT, "Import attrs 24.2.0"]


def test_the_test_fails_before_the_patch_and_passes_after(project, tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(project.tree, tree)
    assert run_here(project.reproduce, tree, project.site).returncode == 1
    before = run_here(project.test, tree, project.site)
    assert before.returncode == 1
    assert b"1 failed, 1 passed" in before.stdout
    subprocess.run(["git", "apply", "-"], cwd=tree, input=project.patch, check=True)
    assert run_here(project.reproduce, tree, project.site).returncode == 0
    after = run_here(project.test, tree, project.site)
    assert after.returncode == 0
    assert project.test_says in after.stdout


def test_the_git_server_serves_clones_and_leaves_nothing(project, tmp_path):
    async def go():
        async with GitServer(project.repository.parent) as (host, port):
            clones = [
                await asyncio.create_subprocess_exec(
                    "git", "clone", "-q", f"git://{host}:{port}/attrs.git", str(tmp_path / str(i))
                )
                for i in range(3)
            ]
            return [await clone.wait() for clone in clones]

    assert asyncio.run(go()) == [0, 0, 0]
    assert (tmp_path / "2" / bug.TEST_PATH).exists()


def trial(name, workload, steps):
    async def go():
        async with (
            registry.connect(name) as substrate,
            GitServer(workload.clone.served if workload.clone else Path()) as server,
        ):
            subject = Subject(label=name, name=name, substrate=substrate)
            offer = await examine(subject, workload)
            if not offer.offered:
                pytest.skip(f"{name}: {offer.reason}")
            source = Source(
                subject=subject, workload=workload, spec=offer.spec or Spec(), profile="controlled", server=server
            )
            setting = Setting(host="h", seed=1, deadline_s=100, warm=False)
            cell = Cell(substrate=name, tier=workload.tier, steps=steps)
            return await run_trial(source, Trial(cell=cell, block=0), setting, 0)

    return asyncio.run(go())


@pytest.fixture(params=["host", "native"])
def name(request):
    found = registry.find(request.param)[0].probe()
    if not found.available:
        pytest.skip(f"{request.param}: {found.reason}; {found.enable}")
    return request.param


def test_code_inspection_gives_the_answers_the_harness_expects(project, name):
    record = trial(name, tier1.workload(project), 50)
    assert record.ok, record.failure_message
    assert record.setup_ns > 0


def test_two_attempts_at_the_bug_fail_pass_and_reset(project, name):
    record = trial(name, tier2.workload(project), 20)
    assert record.ok, record.failure_message
    assert record.reset_ns > 0
    assert len(record.actions_ns) == 20


def test_a_cold_start_clones(project, name):
    record = trial(name, tier2.workload(project), 0)
    assert record.ok, record.failure_message
    assert record.first_result_ns < record.total_ns


def test_another_repository_can_be_given(project, name, tmp_path):
    other = material.upstream_project(
        str(project.repository), project.commit, patch=project.patch, test=project.test, cache=tmp_path
    )
    record = trial(name, tier2.workload(other), 10)
    assert record.ok, record.failure_message
