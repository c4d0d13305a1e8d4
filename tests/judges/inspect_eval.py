"""Evals by Inspect's mock model, through the entry point. Run by test_judges."""

from pathlib import Path

from inspect_ai import Task
from inspect_ai import eval as conduct
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from dutyfree.adapters.inspect import Environment, Settings

COMPOSE = """
services:
  default:
    image: host
    command: tail -f /dev/null
    working_dir: /tmp
    environment: {WHO: composed}
    network_mode: none
    mem_limit: 256m
"""


@scorer(metrics=[mean()])
def wrote():
    async def score(state, target):
        done = await sandbox().exec(["cat", "answer"])
        return Score(value=1.0 if done.stdout.strip() == target.text else 0.0)

    return score


@scorer(metrics=[mean()])
def lost():
    async def score(state, target):
        await sandbox().as_type(Environment).rollout.end()
        await sandbox().exec(["true"])
        return Score(value=0.0)

    return score


def conducted(sandbox_spec, scored, samples=4, command="echo $WHO-42 >answer"):
    calls = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}),
        ModelOutput.from_content("mockllm/model", "done"),
    ]
    for call in calls:
        call.usage = ModelUsage()  # else it is counted by a tokenizer that has to be downloaded
    task = Task(
        dataset=[Sample(input="write 42", target="composed-42") for _ in range(samples)],
        solver=[use_tools(bash(timeout=20)), generate()],
        scorer=scored,
        sandbox=sandbox_spec,
    )
    (log,) = conduct(
        task, model=get_model("mockllm/model", custom_outputs=calls * samples), display="none", max_samples=1,
        log_dir="logs",
    )  # fmt: skip
    return log


def test_an_eval_by_the_mock_model_scores_what_was_done_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    log = conducted(("dutyfree", str(tmp_path / "compose.yaml")), wrote())
    assert log.status == "success", log.error
    assert [sample.scores["wrote"].value for sample in log.samples] == [1.0] * 4


def test_settings_are_written_down_and_read_again() -> None:
    settings = Settings(image="host", cwd="/tmp", env={"WHO": "composed"})
    log = conducted(SandboxEnvironmentSpec("dutyfree", settings), wrote(), samples=1)
    assert log.samples[0].scores["wrote"].value == 1.0
    again = SandboxEnvironmentSpec.model_validate({"type": "dutyfree", "config": settings.model_dump()})
    assert again.config == settings


def test_a_lost_sandbox_is_an_error_of_the_sample_and_no_score() -> None:
    log = conducted("dutyfree", lost(), samples=1)
    assert log.status == "error"
    assert "SandboxUnavailable" in log.error.traceback
    assert not log.samples[0].scores


def test_what_a_compose_file_asks_for_beyond_one_container_is_refused(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE + "    privileged: true\n")
    log = conducted(("dutyfree", str(tmp_path / "compose.yaml")), wrote(), samples=1)
    assert log.status == "error"
    assert "privileged cannot be mapped" in log.error.message
