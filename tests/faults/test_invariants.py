"""Every fault at every named point of the agent's client, the layer store and the pool: the twelve invariants hold after each."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from failpoint import PROCESS_FAULTS
from family import born, marked, stays, survivors, watch
from invariants import INVARIANTS, STATED_S, Seen, broken

import dutyfree
from dutyfree.core.fault import POINTS
from dutyfree.image.store import Store
from dutyfree.image.verify import verify
from dutyfree.testing.leaks import holdings

ROOT = Path(__file__).resolve().parents[2]
FAULTY = Path(__file__).with_name("faulty.py")
RAISED = {"os": ("ENOSPC", "EMFILE", "EIO"), "driver": ("DriverError", "Saturated", "SandboxLost"), "nothing": ()}
NO_SPAWNER = "dutyfree.store."
"""Its points are passed before there is one: of the faults of processes only our own."""
AGAIN = {f"dutyfree.store.{name}" for name in ("build", "sync", "publish", "save", "name")}
QUICK = ("dutyfree.store.publish", "dutyfree.agent.send", "dutyfree.warm.hand")
"""Points that `make test` shows, with a third of the faults; `make faults` takes every fault at every point."""
SLOW = pytest.mark.slow("every fault at every named point")
SHOWN = [(point, False) for point in QUICK] + [pytest.param(point, True, marks=SLOW) for point in POINTS]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="snapshots and resets need root: sudo make test")


@pytest.fixture
def scene(tmp_path):
    """A store of one's own, and a tree to be stored."""
    (tmp_path / "tree" / "d").mkdir(parents=True)
    (tmp_path / "tree" / "d" / "file").write_text("content")
    for name in ("bin", "etc", "usr", "tmp", "proc", "dev", "sys"):
        (tmp_path / "tree" / name).mkdir()
    return tmp_path


def start(scene, point, number, what):
    environment = {**os.environ, "DUTYFREE_HOME": str(scene / "home")}
    command = [sys.executable, str(FAULTY), point, str(number), what, str(scene / "tree")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(process):
    """Everything it says, until it ends."""
    out, errors = process.communicate(timeout=100)
    said = [json.loads(line) for line in out.splitlines()]
    return said if process.returncode in (0, -signal.SIGKILL) else [*said, {"refused": "all", "error": errors[-2000:]}]


def host_objects():
    """What `holdings` does not see: loop devices, network links, named network namespaces; not those of container engines."""
    loops = [path.read_text().strip() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    links = [name for name in os.listdir("/sys/class/net") if not name.startswith(("veth", "docker", "br-", "cni"))]
    named = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    return {
        *(f"loop {one}" for one in loops if "dutyfree" in one),
        *(f"link {one}" for one in links),
        *(f"netns {one}" for one in named if not one.startswith("cni")),
    }


def stopped_client(process):
    """Wait for its stop; what it runs ends at its deadline all the same. Then it goes on."""
    about = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if about.si_code != os.CLD_STOPPED:
        return []
    late = survivors(watch(marked(f"deadline{process.pid}")), STATED_S)
    process.send_signal(signal.SIGCONT)
    return late


def damage(home):
    """Layers that are not what they were, and what a dead builder left after the next one's sweep."""
    store = Store(home)
    try:
        store.images.sweep()
        found = [f"layer {one.layer.key}" for one in verify(store) if one.intact is False]
        for name in ("building", "trash", "disks"):
            found += [f"{name}/{one}" for one in os.listdir(home / name)] if (home / name).exists() else []
        return found
    finally:
        store.close()


async def sweep():
    """The cgroups of a killed spawner go at the next start."""
    async with dutyfree.connect("native"):
        pass


def run(scene, point, number, what):
    before, objects = holdings(), host_objects()
    process = start(scene, point, number, what)
    outlived = stopped_client(process) if what == "stop" else []
    said = lines(process)
    if what == "kill-spawner":
        asyncio.run(sweep())
    told = [*said, *(line["fault"] for line in said if "fault" in line)]
    family = [pid for line in told for pid, birth in line.get("family", ()) if birth and born(pid) == birth]
    return Seen(
        said=said,
        exit_code=process.returncode,
        what=what,
        survivors=survivors(watch(family), STATED_S),
        left=[*(f"{kind} {one}" for kind, one in stays(holdings, before)), *sorted(stays(host_objects, objects))],
        damaged=damage(scene / "home"),
        outlived=outlived,
        next_one=[],
    )


def faults_at(point, whole):
    found = (*RAISED[POINTS[point]], *(("kill", "delay") if point.startswith(NO_SPAWNER) else PROCESS_FAULTS))
    return found if whole else found[list(POINTS).index(point) % 3 :: 3]


def cases(point, whole):
    """Each fault, and at which passing: the third is where a stage is kept."""
    yield from ((what, 1) for what in faults_at(point, whole))
    if point in AGAIN:
        yield from ((what, 3) for what in RAISED["os"][: None if whole else 1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("point", "whole"), SHOWN)
def test_every_fault_at_a_point_keeps_the_invariants_and_the_next_run_works(point, whole, scene):
    found, struck = [], 0
    for what, number in cases(point, whole):
        seen = run(scene, point, number, what)
        struck += bool(seen.all("fault"))
        found += [f"{what} {number}: {one}" for one in broken(seen)]
    assert found == []
    assert struck == len(list(cases(point, whole))), "the point was not passed"
    after = run(scene, point, 0, "none")
    assert after.all("first")
    assert None not in after.all("first")
    assert broken(after) + [str(line) for line in after.said if "refused" in line] == []


def test_every_point_is_passed_in_one_place_and_is_in_the_list():
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "fault.py")
    assert sorted(re.findall(r'fault\.at\("([a-z.]+)"', sources)) == sorted(POINTS)


def test_the_twelve_are_named_in_the_documentation_with_what_checks_them():
    text = (ROOT / "docs/concepts/invariants.md").read_text()
    rows = {int(row[0]): row for row in re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)}
    assert {number: rows[number][1].strip() for number in rows} == {n: name for n, (name, _) in INVARIANTS.items()}
    for _, _, tests in rows.values():
        names = re.findall(r"`([\w/]+\.py)`", tests)
        assert names
        assert [name for name in names if not (ROOT / name).exists()] == []


def seen_with(*said, **fields):
    plain = {"exit_code": 0, "what": "none", "survivors": [], "left": [], "damaged": [], "outlived": []}
    return Seen(said=[*said, {"done": True}], next_one=[], **{**plain, **fields})


BREAKS = {
    1: seen_with(left=["mount x"]),
    2: seen_with(survivors=[1]),
    3: seen_with({"begun": 1}),
    4: seen_with({"claimed": "a"}, {"claimed": "a"}),
    5: seen_with({"foreign": "mark"}),
    6: seen_with(damaged=["layer x"]),
    7: seen_with({"first": {"memory_bytes": None}}),
    8: seen_with({"keyed": "a"}, {"keyed": "b"}),
    9: seen_with(survivors=[1], what="kill"),
    10: seen_with(outlived=[1]),
    11: seen_with({"bytes": "3 kept"}),
    12: seen_with({"reward": False, "truth": True}),
}


@pytest.mark.parametrize("number", INVARIANTS)
def test_the_check_of_an_invariant_can_fail(number):
    assert [line.split()[0] for line in broken(BREAKS[number])] == [str(number)]


def test_a_run_in_which_nothing_is_wrong_breaks_none():
    assert broken(seen_with({"begun": 1}, {"ended": 1, "state": "exit"}, {"claimed": "a"}, {"returned": "a"})) == []
