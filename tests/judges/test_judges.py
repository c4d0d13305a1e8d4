"""Each adapter before its framework's own tests, in an environment of the framework's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.judge import SCRIPTS, Judge, check, environment, record, run

from dutyfree.substrates.registry import find

_native = find("native")[0].probe()
pytestmark = [
    pytest.mark.slow("the frameworks' own tests on their adapters"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(not _native.available, reason=f"native: {_native.reason}; enable: {_native.enable}"),
    pytest.mark.xdist_group("judges"),
]
EXAMPLES = SCRIPTS.parents[1] / "examples"
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


HARBOR = Judge(
    framework="Harbor",
    package="harbor",
    version="0.25.0",
    says="`harbor run -a oracle` on 8 local tasks at once: rewards of 1.0",
    python=(3, 12),
    needs=(),
    overrides=("certifi",),
    files=(),
)
TASK = """version = "1.0"
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 60.0
[environment]
build_timeout_sec = 300.0
cpus = 1
memory_mb = 512
"""
DOCKERFILE = """FROM host
# What every task of this kind does, once.
ARG GREETING=hello
ENV WORD=${GREETING} \\
    OTHER="two words"
WORKDIR /app
COPY given/ .
COPY one.txt two/
RUN echo "$WORD, $OTHER" >said && test -f two/one.txt
"""
SOLVE = "#!/bin/bash\nset -euo pipefail\ntr a-z A-Z <given.txt >answer.txt\n"
VERIFY = """#!/bin/bash
reward=0
[ "$(cat /app/answer.txt)" = GIVEN ] && [ "$(cat /app/said)" = "hello, two words" ] && [ "$WORD" = hello ] && reward=1
echo $reward >/logs/verifier/reward.txt
"""


def _task(place: Path, dockerfile: str = DOCKERFILE) -> None:
    for name, text in {
        "task.toml": TASK, "instruction.md": "Write given.txt in capitals to answer.txt.\n",
        "environment/Dockerfile": dockerfile, "environment/given/given.txt": "given\n", "environment/one.txt": "1\n",
        "solution/solve.sh": SOLVE, "tests/test.sh": VERIFY,
    }.items():  # fmt: skip
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def _harbor(tmp_path: Path, *words: str) -> list[dict[str, object]]:
    command = [str(environment(HARBOR).with_name("harbor")), "run", "-e", "dutyfree.adapters.harbor:Environment", "-q", "-y",
               "-a", "oracle", "-p", str(tmp_path / "tasks"), "-o", str(tmp_path / "jobs"), *words]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    trials = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*/*/result.json")]
    assert trials, done.stdout[-3000:] + done.stderr[-3000:]
    return trials


def test_harbor_rewards_the_oracle_on_eight_local_tasks_at_once(tmp_path: Path) -> None:
    for number in range(8):
        _task(tmp_path / "tasks" / f"capitals-{number}")
    trials = _harbor(tmp_path, "-n", "8")
    rewards = [(trial.get("verifier_result") or {}).get("rewards") for trial in trials]
    assert rewards == [{"reward": 1.0}] * 8, [trial.get("exception_info") for trial in trials]
    record(HARBOR.framework, f"harbor {HARBOR.version}", HARBOR.says, "8", "none")


def test_harbor_is_told_of_an_environment_that_cannot_be_and_counts_no_reward(tmp_path: Path) -> None:
    _task(tmp_path / "tasks" / "wrong", DOCKERFILE + "RUN exit 3\n")
    (trial,) = _harbor(tmp_path)
    assert trial["exception_info"]["exception_type"] == "SandboxBuildFailedError"
    assert not trial.get("verifier_result")


_BEFORE = "the suite expects what deepagents' own `glob` and `write` did before 0.7"

DEEPAGENTS = Judge(
    framework="deepagents",
    package="deepagents",
    version="0.7.32",
    says="`SandboxIntegrationTests` of langchain-tests 1.1.9",
    needs=("langchain-tests==1.1.9", "pytest", "pytest-asyncio"),
    files=("deepagents_suite.py",),
    excused=dict.fromkeys(
        (
            "test_glob",
            "test_glob_basic_pattern",
            "test_glob_hidden_files_explicitly",
            "test_glob_with_character_class",
            "test_glob_with_directories",
            "test_glob_with_question_mark",
            "test_write_existing_file_fails",
        ),
        _BEFORE,
    ),
)


@pytest.mark.parametrize(
    "judge", [DEEPAGENTS, replace(DEEPAGENTS, version="0.6.12", excused={})], ids=lambda one: one.version
)
def test_deepagents_passes_langchains_suite_for_sandboxes(judge: Judge, tmp_path: Path) -> None:
    verdict = run(judge, tmp_path)
    check(judge, verdict)
    assert len(verdict.passed) + len(verdict.failed) == 86


GYM = Judge(
    framework="Gymnasium",
    package="gymnasium",
    version="1.4.0",
    says="`check_env`, and episodes one by one and eight at once (on `host`)",
    files=("gym_environment.py",),
)


def test_gymnasium_checks_the_environment(tmp_path: Path) -> None:
    verdict = run(GYM, tmp_path)
    check(GYM, verdict)
    assert len(verdict.passed) == 4


RAY = Judge(
    framework="Ray",
    package="ray",
    version="2.60.0",
    says="`examples/ray_rollouts.py` on three local nodes (on `host`)",
    needs=(),
    files=(),
)


def test_ray_sends_rollouts_to_the_nodes_that_have_their_start_state(tmp_path: Path) -> None:
    words = [str(environment(RAY)), str(EXAMPLES / "ray_rollouts.py"), "host", "--nodes", "3"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert "48 rollouts on 3 nodes" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    assert "mean reward 1.00" in done.stdout
    assert len(re.findall(r"^node \d: \d+ rollouts, start states \[\d", done.stdout, re.MULTILINE)) == 3
    record(RAY.framework, f"ray {RAY.version}", RAY.says, "48", "none")


_TERMINAL = "a session here is a shell without a terminal"

SWEREX = Judge(
    framework="SWE-ReX",
    package="swe-rex",
    version="1.4.0",
    says="its tests of execution, server and remote deployment, through its own server (on `host`)",
    needs=(
        "aiohttp",
        "pexpect",
        "bashlex",
        "fastapi",
        "uvicorn",
        "python-multipart",
        "requests",
        "pytest",
        "pytest-asyncio",
    ),
    repository="https://github.com/SWE-agent/SWE-ReX",
    files=("tests/test_execution.py", "tests/test_server.py", "tests/test_remote_deployment.py"),
    conftest=True,
    plugin="swerex_server",
    excused={
        "test_run_in_shell_interactive_command": _TERMINAL,
        "test_run_in_shell_interactive_command_timeout": _TERMINAL,
        "test_interrupt_pager": _TERMINAL,
        "test_unauthenticated_request": "the FastAPI of today answers 401 where its server's test expects 403",
    },
)


def test_swerex_cannot_tell_our_runtime_from_its_own(tmp_path: Path) -> None:
    check(SWEREX, run(SWEREX, tmp_path, DUTYFREE_JUDGE_SUBSTRATE="host"))
