"""Each adapter before its framework's own tests, in an environment of the framework's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.judge import SCRIPTS, Judge, check, run

from dutyfree.substrates.registry import find

_native = find("native")[0].probe()
pytestmark = [
    pytest.mark.slow("the frameworks' own tests on their adapters"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(not _native.available, reason=f"native: {_native.reason}; enable: {_native.enable}"),
    pytest.mark.xdist_group("judges"),
]
START = {"DUTYFREE_JUDGE_START": str(SCRIPTS / "start.toml")}

INSPECT = Judge(
    framework="Inspect",
    package="inspect-ai",
    version="0.3.285",
    says="`self_check`, as a user who is not root",
    files=("inspect_self_check.py",),
)


def test_inspect_finds_a_sandbox_that_keeps_its_contract(tmp_path: Path) -> None:
    verdict = run(INSPECT, tmp_path, **START)
    assert len(verdict.passed) == 44, verdict.output
    check(INSPECT, verdict)


def test_inspect_runs_an_eval_and_tells_a_lost_sandbox_from_a_wrong_answer(tmp_path: Path) -> None:
    verdict = run(replace(INSPECT, files=("inspect_eval.py",)), tmp_path, **START)
    assert not verdict.failed, verdict.output
    assert verdict.passed


_HOST = "expects the host's own directories, files or environment inside"
_THEIRS = "looks at their container, directory or program, not at what a command does"

MINI = Judge(
    framework="mini-swe-agent",
    package="mini-swe-agent",
    version="2.4.6",
    says="its tests of docker, local and bubblewrap, by class name",
    repository="https://github.com/SWE-agent/mini-swe-agent",
    files=(
        "tests/environments/test_docker.py",
        "tests/environments/test_local.py",
        "tests/environments/extra/test_bubblewrap.py",
    ),
    plugin="minisweagent_classes",
    deselected={"podman": "the same tests a second time"},
    excused={
        "test_docker_environment_custom_container_timeout[docker]": _THEIRS,
        "test_local_environment_existing_env_variables": _HOST,
        "test_local_environment_cwd_parameter_override": _HOST,
        "test_local_environment_default_cwd": _HOST,
        "test_local_environment_timeout_kills_child_process": _HOST,
        "test_local_environment_file_operations": _HOST,
        "test_bubblewrap_environment_cwd_parameter_override": _HOST,
        "test_bubblewrap_environment_file_operations": _HOST,
        "test_bubblewrap_environment_working_directory_creation": _THEIRS,
        "test_bubblewrap_environment_cleanup": _THEIRS,
        "test_bubblewrap_environment_custom_executable": _THEIRS,
        "test_bubblewrap_environment_custom_wrapper_args": _THEIRS,
    },
)


@pytest.fixture
def docker_by_name(tmp_path: Path) -> str:
    """Their tests ask for a `docker` that answers, and then use the class alone."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def test_mini_swe_agent_cannot_tell_our_class_from_its_own(tmp_path: Path, docker_by_name: str) -> None:
    verdict = run(MINI, tmp_path, PATH=docker_by_name, MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=str(tmp_path))
    check(MINI, verdict)


def test_mini_swe_agent_runs_one_instance_and_a_batch(tmp_path: Path) -> None:
    whole = replace(MINI, repository="", plugin="", files=("minisweagent_run.py",), deselected={})
    verdict = run(whole, tmp_path, MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=str(tmp_path))
    assert not verdict.failed, verdict.output
    assert len(verdict.passed) == 3
