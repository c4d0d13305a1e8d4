"""Every public value and every error can be sent to another process, copied, compared, hashed and taken apart."""

import copy
import dataclasses
import importlib
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from dutyfree import warm
from dutyfree.core import contract, egress, errors, outcome, spec, stage, timeline
from dutyfree.reward import verify
from dutyfree.warm import metrics, settings

OUTCOME = dutyfree.Outcome(ending="exit", exit_code=0, stdout=b"\xff", run_ns=1)
STAGES = (
    dutyfree.Files(files={"/a": b"\0", "/b": Path("/etc")}),
    dutyfree.Repository(url="https://example.org/x.git", commit="a" * 40),
    dutyfree.Commands(commands=["echo a", ["echo", "b"]], env={"A": "1"}, cwd="/"),
)
EXAMPLES = {
    dutyfree.Availability: {"available": True, "reason": "there", "capabilities": contract.Capabilities(
        isolation="vm", dispatch="agent", networks=frozenset({"none"}), storages=frozenset({"disk"}), notes={"fork": "no"})},
    dutyfree.Capabilities: {"isolation": "none", "dispatch": "api", "networks": frozenset({"host"}), "storages": frozenset({"disk"}), "limits": frozenset({"pids"}), "notes": {"fork": "none"}},
    dutyfree.Check: {"command": ["true", "{report}"], "env": {"A": "1"}, "tests": ["test_a"]},
    dutyfree.Commands: {"commands": ["echo a", ["echo", "b"]], "env": {"A": "1"}},
    dutyfree.Egress: {"allow": ["example.org:443", "10.0.0.0/8:*", "[fd00::5]:80"]},
    dutyfree.FileInfo: {"name": "a", "kind": "file", "size_bytes": 1, "mode": 0o644, "uid": 0, "gid": 0, "mtime_ns": 1},
    dutyfree.Files: {"files": {"/a": b"\0", "/b": Path("/etc")}},
    dutyfree.Limits: {"cpus": 0.5, "memory_bytes": 1 << 30, "pids": 10},
    dutyfree.Outcome: {"ending": "signal", "signal": 9, "stdout": b"\xff"},
    dutyfree.Repository: {"url": "https://example.org/x.git", "commit": "a" * 40, "network": "none"},
    dutyfree.Span: {"name": "run", "start_ns": 1, "end_ns": 2},
    dutyfree.Spec: {"image": "x", "env": {"A": "1"}, "network": dutyfree.Egress(allow=["a.b:1"]), "stages": STAGES,
                        "limits": dutyfree.Limits(pids=9)},
    dutyfree.TerminalSize: {"rows": 1, "columns": 2},
    dutyfree.Timeline: {"spans": [dutyfree.Span(name="run", start_ns=1, end_ns=2)]},
    dutyfree.Verification: {"passed": False, "results": (verify.Result(
        name="a", passed=False, reason="b", outcome=OUTCOME),), "taken": ("/a",), "removed": (), "refused": ("/b: is a symlink",)},
    verify.Result: {"name": "a", "passed": True, "reason": "", "outcome": OUTCOME},
    warm.Chain: {"image": "host", "root": "r", "stages": STAGES, "recipes": ({"kind": "commands", "commands": ["a"]},), "keys": ("k",)},
    warm.Metrics: {field.name: 1 for field in dataclasses.fields(warm.Metrics)},
    warm.Settings: {"sandboxes": 3},
}  # fmt: skip
"""Arguments of each, not all defaults, with lists and dicts where a caller would write them."""

GROWING = {dutyfree.Timeline}
"""Not frozen: they are compared by what they hold, so they have no hash, as lists have none."""


def public_values():
    modules = (contract, egress, errors, outcome, spec, stage, timeline, verify, metrics, settings)
    found = [value for module in (dutyfree, warm) for value in vars(module).values()]
    found += [
        one for module in modules for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__
    ]
    ours = {one for one in found if isinstance(one, type) and dataclasses.is_dataclass(one)}
    inner = {metrics.Counters, settings.Options}  # a pool's own
    shown = [one for one in ours - inner if not one.__name__.startswith("_")]
    return sorted(shown, key=lambda one: one.__qualname__)


def all_errors():
    for module in pkgutil.walk_packages(dutyfree.__path__, "dutyfree."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # an extra that is not installed
            if (error.name or "").startswith("dutyfree"):
                raise
    kinds, waiting = [], [dutyfree.DutyfreeError]
    while waiting:
        kinds.append(waiting.pop())
        waiting += kinds[-1].__subclasses__()
    return kinds


def trips(value):
    yield from (pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1))
    yield copy.copy(value)
    yield copy.deepcopy(value)


def test_there_is_an_example_of_every_public_value():
    assert set(public_values()) == set(EXAMPLES)


@pytest.mark.parametrize("kind", public_values(), ids=lambda kind: kind.__name__)
def test_a_value_survives_every_way_of_copying_it(kind):
    value, same = kind(**EXAMPLES[kind]), kind(**EXAMPLES[kind])
    for other in (*trips(value), dataclasses.replace(value), same):
        assert type(other) is kind
        assert other == value
        if kind not in GROWING:
            assert hash(other) == hash(value)
            assert len({other, value}) == 1
    assert value != object()


@pytest.mark.parametrize("kind", public_values(), ids=lambda kind: kind.__name__)
def test_a_value_can_be_taken_apart_and_put_together(kind):
    value = kind(**EXAMPLES[kind])
    apart = dataclasses.asdict(value)
    assert set(apart) == {field.name for field in dataclasses.fields(kind)}
    assert all(field.init for field in dataclasses.fields(kind))
    assert kind(**{name: getattr(value, name) for name in apart}) == value


def test_a_plain_spec_goes_through_its_parts():
    value = dutyfree.Spec(env={"A": "1"}, cwd="/tmp", user="agent")
    parts = dataclasses.asdict(value)
    assert dutyfree.Spec(**{**parts, "limits": dutyfree.Limits(**parts["limits"])}) == value


def test_what_is_in_a_value_cannot_be_changed():
    env = {"A": "1"}
    value = dutyfree.Spec(env=env)
    env["A"] = "2"
    assert value.env == {"A": "1"}
    for change in (
        lambda: value.env.update(A="2"),
        lambda: value.env.__setitem__("A", "2"),
        lambda: value.env.__ior__({"A": "2"}),
        lambda: value.env.pop("A"),
        value.env.popitem,
        lambda: value.env.setdefault("B", "1"),
        lambda: value.env.__delitem__("A"),
        value.env.clear,
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    assert value.env == {"A": "1"}
    assert value.env | {"B": "2"} == {"A": "1", "B": "2"}


def made(kind):
    if kind is dutyfree.CommandFailed:
        return kind(dutyfree.Outcome(ending="exit", exit_code=3, stderr=b"the end"))
    where = {"driver": "native", "step": "create", "sandbox": "native-1-1"}
    special = {
        dutyfree.Misuse: {"field": "cwd"},
        dutyfree.Unavailable: {"enable": "make setup"},
        dutyfree.Saturated: {"retry_after_s": 3.5},
        dutyfree.StageFailed: {"key": "k", "log_tail": "the end"},
    }
    return kind("it failed", **where, **special.get(kind, {}))


def test_every_error_survives_every_way_of_copying_it():
    # Not parametrized: that would import the whole package in each worker, only to collect this.
    for error in map(made, all_errors()):
        error.add_note("while it was tested")
        for other in trips(error):
            assert type(other) is type(error)
            assert str(other) == str(error)
            assert other.args == error.args
            assert vars(other) == vars(error)
            assert hash(other) == hash(other)


def test_an_error_reaches_another_process():
    told = "import pickle, sys; [print(str(one)) for one in pickle.load(sys.stdin.buffer)]"
    errors = [made(kind) for kind in all_errors()]
    out = subprocess.run([sys.executable, "-c", told], input=pickle.dumps(errors), capture_output=True, check=True)
    assert out.stdout.decode() == "".join(f"{error}\n" for error in errors)
