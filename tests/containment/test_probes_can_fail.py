"""A probe that cannot fail proves nothing: where nothing isolates, the harmless ones must find that out."""

import asyncio
import os

import pytest

import dutyfree
from dutyfree.core.errors import DriverError
from dutyfree.probe.catalogue import CATALOGUE, Probe, judge
from dutyfree.reward import report, select, takeover, verify

ALWAYS_REACHED = {8, 34, 73, 98, 103}
"""What any user reaches on the bare machine."""
REACHED_BY_ROOT = {1, 3, 17, 102}
UNTOUCHED = {85, 88, 89, 108, 109}
"""About the result and not about isolation: these hold without any."""


def verdict_on_host(number):
    async def run():
        probe = next(probe for probe in CATALOGUE if probe.id == number)
        async with dutyfree.connect("host") as substrate:
            return await judge(probe, substrate)

    return asyncio.run(run())


@pytest.mark.parametrize("number", sorted(ALWAYS_REACHED))
def test_without_isolation_it_reaches_the_host(number):
    assert verdict_on_host(number).contained is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and sniff on the bare machine: sudo make test")
@pytest.mark.parametrize("number", sorted(REACHED_BY_ROOT))
def test_without_isolation_root_reaches_the_host(number):
    assert verdict_on_host(number).contained is False


@pytest.mark.parametrize("number", sorted(UNTOUCHED))
def test_what_is_not_about_isolation_holds_without_it(number):
    assert verdict_on_host(number).contained is True


def test_what_would_do_damage_is_not_run_where_nothing_isolates():
    for probe in CATALOGUE:
        if not probe.harmless:
            assert verdict_on_host(probe.id).contained is None


@pytest.mark.parametrize(("step", "contained"), [("destroy", False), ("create", None)])
def test_a_sandbox_that_cannot_be_destroyed_is_not_contained(step, contained):
    async def attempt(substrate):
        raise DriverError("it will not go", step=step)

    async def run():
        async with dutyfree.connect("host") as substrate:
            return await judge(Probe(id=0, name="x", group="escape", run=attempt, harmless=True), substrate)

    verdict = asyncio.run(run())
    assert verdict.contained is contained
    assert "it will not go" in verdict.reason


def test_the_command_says_what_was_reached_and_exits_with_1(capsys):
    import json

    from dutyfree.cli.main import main

    assert main(["probe", "-s", "host", "--only", "8,88", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["substrate"] == "host"
    assert [(row["id"], row["contained"]) for row in report["probes"]] == [(8, False), (88, True)]
    assert all(set(row) == {"id", "name", "group", "contained", "reason"} for row in report["probes"])


def test_the_command_exits_with_0_when_everything_held(capsys):
    from dutyfree.cli.main import main

    assert main(["probe", "-s", "native", "--only", "8,88"]) == 0
    assert "2 contained, 0 not contained" in capsys.readouterr().out


async def take_over_in_place(ground, start, solution):
    for path, (data, info) in solution.files.items():
        await ground.box.write(path, data, mode=info.mode)
    return list(solution.files), []


async def leave_caches(ground, paths):
    pass


async def raise_it(court, error, check=None):
    raise error


ABLATIONS = {
    111: [(takeover.Ground, "take_over", take_over_in_place)],
    112: [(select, "CACHES", ()), (takeover.Ground, "clear_caches", leave_caches)],
    113: [(select, "STEERING", ())],
    114: [(verify._Court, "_clear_the_machine", raise_it)],
    115: [(report, "_MOST_TAG_BYTES", 1 << 30)],
    116: [(takeover, "_differs", lambda start, kept: start is None or start[0] != kept[0])],
}
"""By probe, what of `verify` is taken away."""


@pytest.mark.parametrize("number", sorted(ABLATIONS))
def test_without_its_defence_the_verification_is_cheated(number, monkeypatch):
    for owner, name, weaker in ABLATIONS[number]:
        monkeypatch.setattr(owner, name, weaker)

    async def run():
        probe = next(probe for probe in CATALOGUE if probe.id == number)
        async with dutyfree.connect("native") as substrate:
            return await judge(probe, substrate)

    verdict = asyncio.run(run())
    assert verdict.contained is False, verdict.reason
