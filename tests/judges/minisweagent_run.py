"""Whole runs of mini-swe-agent by its deterministic model, one and a batch. Run by test_judges."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output
from minisweagent.run.benchmarks.swebench import process_instance
from minisweagent.run.benchmarks.utils.batch_progress import RunBatchProgressManager

from dutyfree.core.errors import SandboxLost

NAME = "dutyfree.adapters.minisweagent.Environment"
TEMPLATES = {"system_template": "be short", "instance_template": "{{task}}", "cost_limit": 0}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat sums.py"
WORK = [
    "echo 'def add(a, b): return a - b' >sums.py",
    "python3 -B -c 'import sums; assert sums.add(1, 2) == 3'",
    "sed -i 's/a - b/a + b/' sums.py",
    "python3 -B -c 'import sums; assert sums.add(1, 2) == 3'",
    SUBMIT,
]
OUTPUTS = [make_output(command, [{"command": command}]) for command in WORK]


def test_a_whole_run_ends_in_what_the_agent_submits() -> None:
    environment = get_environment({"environment_class": NAME, "cwd": "/testbed", "timeout": 20})
    agent = DefaultAgent(DeterministicModel(outputs=OUTPUTS), environment, **TEMPLATES)
    info = agent.run("fix add")
    environment.cleanup()
    assert info["exit_status"] == "Submitted"
    assert info["submission"] == "def add(a, b): return a + b\n"
    said = [message["content"] for message in agent.messages if "<returncode>" in str(message["content"])]
    assert ["<returncode>1" in one for one in said] == [False, True, False, False]
    assert agent.serialize()["info"]["config"]["environment_type"] == NAME


def test_a_batch_over_instances_frees_each_sandbox_and_submits_all(tmp_path: Path) -> None:
    config = {
        "environment": {"environment_class": NAME, "cwd": "/testbed"},
        "model": {"model_class": "deterministic", "model_name": "deterministic", "outputs": OUTPUTS},
        "agent": TEMPLATES,
    }
    instances = [{"instance_id": f"local__sums-{n}", "problem_statement": "fix add"} for n in range(16)]
    progress = RunBatchProgressManager(len(instances), tmp_path / "progress.yaml")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: process_instance(one, tmp_path, config, progress), instances))
    answers = json.loads((tmp_path / "preds.json").read_text())
    assert {answer["model_patch"] for answer in answers.values()} == {"def add(a, b): return a + b\n"}
    assert len(answers) == 16


def test_a_lost_sandbox_ends_the_run_by_its_error_and_submits_nothing() -> None:
    environment = get_environment({"environment_class": NAME})
    agent = DefaultAgent(DeterministicModel(outputs=OUTPUTS), environment, **TEMPLATES)
    environment.box.destroy()
    with pytest.raises(SandboxLost):
        agent.run("fix add")
    assert agent.messages[-1]["extra"]["exit_status"] == "SandboxLost"
    assert agent.messages[-1]["extra"]["submission"] == ""
