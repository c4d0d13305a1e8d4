"""What users of other libraries expect: names that are corrected, shell's numbers, text, uids and paths."""

import pickle
from pathlib import Path, PurePosixPath

import pytest

import dutyfree
from dutyfree import CommandFailed, Limits, Misuse, Outcome, Spec, blocking
from dutyfree.core.contract import Sandbox
from dutyfree.core.keyword import nearest

NAMES = {
    "timeout": "timeout_s",
    "timout_s": "timeout_s",
    "workdir": "cwd",
    "environment": "env",
    "input": "stdin",
    "merge_stdout": "merge_stderr",
    "zzz": None,
}


@pytest.mark.parametrize(("given", "meant"), NAMES.items())
def test_the_option_that_was_meant_is_named(given, meant):
    assert nearest(given, Sandbox.run.__kwdefaults__) == meant


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (Spec, "lifetime", "lifetime_s"),
        (Spec, "imgae", "image"),
        (Limits, "memory", "memory_bytes"),
        (Limits, "cpu", "cpus"),
        (dutyfree.Commands, "timeout", "timeout_s"),
        (dutyfree.Check, "timeout", "timeout_s"),
    ],
)
def test_a_value_names_the_field_that_was_meant(kind, given, meant):
    with pytest.raises(Misuse, match=f"no option '{given}'; did you mean '{meant}'") as caught:
        kind(**{given: 1})
    assert caught.value.field == given


def test_another_mistake_in_a_constructor_is_told_as_it_is():
    with pytest.raises(TypeError, match="positional"):
        Spec("host")


@pytest.fixture
def box():
    with blocking.connect("host") as substrate, substrate.create() as box:
        yield box


def test_run_and_start_name_the_option_that_was_meant(box):
    for call in (box.run, box.start):
        with pytest.raises(Misuse, match="did you mean 'timeout_s'"):
            call("true", timeout=1)


def test_create_says_where_its_options_go():
    with blocking.connect("noop") as substrate:
        for wrong in ({"image": "host"}, {"spec": "host"}):
            with pytest.raises(Misuse, match=r"create\(Spec\("):
                substrate.create(**wrong)


@pytest.mark.parametrize(
    ("name", "option", "hint"),
    [
        ("native", "stok", "did you mean 'stock'"),
        ("warm:noop", "sandboxs", "did you mean 'sandboxes'"),
        ("host", "x", "none"),
    ],
)
def test_connect_names_the_option_that_was_meant(name, option, hint):
    with pytest.raises(Misuse, match=hint):
        blocking.connect(name, **{option: 1})


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(ending="exit", exit_code=0), 0),
        (Outcome(ending="exit", exit_code=3), 3),
        (Outcome(ending="signal", signal=15), 143),
        (Outcome(ending="timeout", signal=9), 124),
        (Outcome(ending="timeout", exit_code=None), 124),
        (Outcome(ending="oom", signal=9), 137),
        (Outcome(ending="output-limit"), 137),
    ],
)
def test_the_return_code_is_a_shells(outcome, code):
    assert outcome.returncode == code


def test_each_stream_is_text(box):
    outcome = box.run("echo out; echo err >&2")
    assert (outcome.text(), outcome.text("stdout"), outcome.text("stderr")) == ("out\n", "out\n", "err\n")
    with pytest.raises(Misuse, match="stream"):
        outcome.text("both")


def test_check_gives_the_outcome_or_raises_with_the_end_of_the_output(box):
    assert box.run("echo fine").check().text() == "fine\n"
    outcome = box.run("seq 10000; echo the reason >&2; exit 7")
    with pytest.raises(
        CommandFailed, match=r"exit code 7; stdout ends:\n(?s:.*)10000; stderr ends:\nthe reason$"
    ) as caught:
        outcome.check()
    assert caught.value.outcome is outcome
    assert len(str(caught.value)) < 5000
    assert pickle.loads(pickle.dumps(caught.value)).outcome == outcome
    with pytest.raises(CommandFailed, match=r"timeout \(124\)"):
        box.run("sleep 1000", timeout_s=0.05).check()


def test_a_place_may_be_a_path_and_a_user_a_number(box, tmp_path):
    assert (Spec(cwd=Path("/usr")).cwd, Spec(user=1000).user) == ("/usr", "1000")
    for wrong in (-1, True, 1.5):
        with pytest.raises(Misuse):
            Spec(user=wrong)
    assert box.run("pwd", cwd=tmp_path).text().strip() == str(tmp_path)
    file = tmp_path / "dir" / "file"
    box.write(file, "text")
    assert (box.read(file), box.stat(file).name, [one.name for one in box.list(file.parent)]) == (
        b"text",
        "file",
        ["file"],
    )
    box.rename(file, PurePosixPath(f"{file}2"))
    box.mkdir(tmp_path / "other")
    box.remove(tmp_path / "other")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["dir"]
