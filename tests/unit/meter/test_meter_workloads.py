"""Workloads as data: the same commands every time, in the documented mix, with checks that bite."""

import io
import json
import os
import tarfile
from collections import Counter

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome
from dutyfree.meter.action import Check, digest
from dutyfree.meter.workload import Surroundings
from dutyfree.meter.workloads import bug, material, tier0, tier1, tier2, trace
from dutyfree.meter.workloads.material import Project
from dutyfree.meter.workloads.tree import Tree


@pytest.fixture
def project(tmp_path):
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    for name in ("alpha", "beta", "gamma"):
        body = "".join(f"def {name}_{i}():\n    return {i}\n\n\n" for i in range(20))
        (tree / "src" / f"{name}.py").write_text(body)
    return Project(
        name="toy", repository=tmp_path / "served" / "toy.git", tree=tree, site=tmp_path, commit="c" * 40,
        subject="s", patch=b"p", reproduce="r", test="t", test_says=b"passed", files_answer=b"3\n",
    )  # fmt: skip


def kinds(actions):
    return Counter(action.kind for action in actions)


def test_t0_mixes_four_kinds(project):
    assert kinds(tier0.workload().actions(150)) == {"inspect": 60, "command": 45, "edit": 30, "test": 15}


def test_t1_only_looks(project):
    assert kinds(tier1.workload(project).actions(150)) == {"inspect": 120, "command": 30}


def test_t2_mixes_four_kinds(project):
    assert kinds(tier2.workload(project).actions(150)) == {"inspect": 60, "command": 30, "edit": 30, "test": 30}


def test_t2_patches_as_often_as_it_reverts_but_once(project):
    commands = [action.command for action in tier2.workload(project).actions(150)]
    assert commands.count(("git", "apply", "-")) == 15
    assert commands.count("git checkout -q -- .") == 14


@pytest.mark.parametrize("steps", [1, 7, 10, 50, 150, 300])
def test_trajectories_of_any_length_are_the_same_every_time(project, steps):
    for make in (tier0.workload, lambda: tier1.workload(project), lambda: tier2.workload(project)):
        first, second = make().actions(steps), make().actions(steps)
        assert len(first) == steps
        assert digest(first) == digest(second)


def test_the_tree_knows_the_answers(project):
    tree = Tree(project.tree)
    assert tree.find().check.equals == b"3\n"
    assert tree.grep(0).check.equals == b"1\n"
    assert tree.search_syntax(0).check.equals.startswith(b"1 alpha_0\n5 alpha_1\n")


@pytest.mark.parametrize(
    ("check", "out", "reason"),
    [
        (Check(), Outcome(ending="timeout"), "timeout"),
        (Check(), Outcome(ending="exit", exit_code=2), "exit code 2"),
        (Check(equals=b"a"), Outcome(ending="exit", exit_code=0, stdout=b"b"), "stdout is"),
        (Check(contains=b"a"), Outcome(ending="exit", exit_code=0, stdout=b"b"), "lacks"),
        (Check(exit_code=1), Outcome(ending="exit", exit_code=0), "exit code 0, not 1"),
    ],
)
def test_a_check_says_what_is_wrong(check, out, reason):
    assert reason in check.fault(out)


def test_a_right_answer_has_no_fault():
    assert Check(equals=b"x", exit_code=0).fault(Outcome(ending="exit", exit_code=0, stdout=b"x")) is None
    assert Check(exit_code=None).fault(Outcome(ending="exit", exit_code=3)) is None


def test_the_bug_is_only_put_where_it_belongs():
    with pytest.raises(ValueError, match="not the file"):
        bug.inject("something else")


SWE_AGENT = (
    '{"trajectory": [{"action": "ls -F\\n", "observation": ""}, {"action": ""}, {"action": "cat x"}], "info": {}}'
)
MINI = """{"trajectory_format": "mini-swe-agent-1", "messages": [
 {"role": "system", "content": "```bash\\nnot this\\n```"},
 {"role": "assistant", "content": "THOUGHT\\n\\n```bash\\nls -la\\n```"},
 {"role": "user", "content": "out"},
 {"role": "assistant", "content": "x", "extra": {"actions": [{"command": "git diff"}]}},
 {"role": "assistant", "content": "y", "tool_calls": [{"function": {"name": "bash", "arguments": "{\\"command\\": \\"pwd\\"}"}}]}
]}"""


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        (SWE_AGENT, ["ls -F\n", "cat x"]),
        (MINI, ["ls -la", "git diff", "pwd"]),
        ('["true", "echo a"]', ["true", "echo a"]),
        (json.dumps(json.loads(MINI)["messages"]), ["ls -la", "git diff", "pwd"]),
    ],
    ids=["swe-agent", "mini-swe-agent", "list", "bare messages"],
)
def test_recorded_trajectories_are_read(tmp_path, text, commands):
    path = tmp_path / "t.traj"
    path.write_text(text)
    assert list(trace.read(path).commands) == commands
    work = trace.workload(path, anywhere=True)
    assert work.steps == (len(commands),)
    assert [action.command for action in work.actions(len(commands))] == commands


WHOLE = {
    "info": {"config": {"environment": {"image": "swe:1", "cwd": "/testbed", "env": {"PAGER": "cat"}}}},
    "messages": [
        {"role": "assistant", "content": "```bash\nls\n```"},
        {"role": "user", "content": "<returncode>2</returncode>\n<output>\n<returncode>0</returncode>\n</output>"},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": "a"}, {"command": "b"}]}},
        {"role": "tool", "content": "x", "extra": {"returncode": 0}},
        {"role": "tool", "content": [{"type": "text", "text": "<returncode>127</returncode>"}]},
        {"role": "assistant", "content": "```bash\nlast\n```"},
    ],
}


def test_exit_codes_and_surroundings_are_read_from_the_recording(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(WHOLE))
    found = trace.read(tmp_path / "t.json")
    assert list(zip(found.commands, found.exit_codes, strict=True)) == [("ls", 2), ("a", 0), ("b", 127), ("last", None)]
    work = trace.workload(tmp_path / "t.json")
    assert (work.surroundings.image, work.surroundings.cwd, work.surroundings.missing) == ("swe:1", "/testbed", ())
    assert work.actions(1)[0].command == ("bash", "-lc", "ls")
    assert work.env == {"PAGER": "cat"}


def test_a_recording_that_does_not_say_where_it_ran_is_refused_until_it_is_told(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(["pytest -q"]))
    with pytest.raises(Misuse, match=r"image and directory and shell.*--trace-cwd"):
        trace.workload(path)
    told = Surroundings(image="bench", cwd="/repo", shell=("bash", "-c"))
    assert trace.workload(path, given=told).surroundings.missing == ()
    assert trace.workload(path, anywhere=True).surroundings.missing == ("image", "directory", "shell")


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[1, 2]", '{"messages": [{"role": "user"}]}', '{"trajectory": [3]}'])
def test_what_is_no_trajectory_is_misuse(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(Misuse, match="trace"):
        trace.read(path)


@pytest.mark.parametrize("has_filters", [True, False])
def test_material_unpacks_on_each_python_as_the_users_files(tmp_path, monkeypatch, has_filters):
    if not has_filters:  # as in Python 3.11.0 to 3.11.3
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    member = tarfile.TarInfo("attrs/setup.py")
    member.size, member.uid, member.gid, member.uname = 3, 4321, 4321, "daemon"
    with tarfile.open(tmp_path / "it.tar.gz", "w:gz") as archive:
        archive.addfile(member, io.BytesIO(b"1+1"))

    material.unpack(tmp_path / "it.tar.gz", tmp_path / "out")

    file = tmp_path / "out" / "attrs" / "setup.py"
    assert file.read_bytes() == b"1+1"
    assert (file.stat().st_uid, file.stat().st_gid) == (os.getuid(), os.getgid())
