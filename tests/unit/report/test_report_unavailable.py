"""A substrate that cannot run here is named with its reason, and never has a time, a tax, a rank or a failure."""

import asyncio
import json

import pytest
from synthetic import Delays, SyntheticSubstrate, VirtualClock

from dutyfree.core.errors import Unavailable
from dutyfree.meter import campaign
from dutyfree.meter.campaign import Choices
from dutyfree.meter.subject import Subject
from dutyfree.meter.workloads import tier0
from dutyfree.report.build import build

REASON = "it needs KVM: /dev/kvm emulates: 711 ns per round of a loop that takes a processor 1"


class AbsentSubstrate(SyntheticSubstrate):
    async def _create(self, spec):
        raise Unavailable(REASON, driver="peer")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    clock = VirtualClock()
    substrates = {
        "host": SyntheticSubstrate(clock=clock, delays=Delays()),
        "ours": SyntheticSubstrate(clock=clock, delays=Delays(dispatch=9_000_000)),
        "peer": AbsentSubstrate(clock=clock, delays=Delays()),
    }
    subjects = [Subject(label=name, name=name, substrate=one) for name, one in substrates.items()]
    choices = Choices(steps=(0, 10, 150), trials=2, deadline_s=60)

    async def go():
        prepared = await campaign.prepare(directory, subjects, [tier0.workload()], choices)
        await campaign.run(directory, prepared, choices, clock=clock)
        return prepared

    return directory, asyncio.run(go()), build([directory])


def test_no_trial_of_it_is_planned(made):
    _, prepared, _ = made
    assert REASON in prepared.offers["peer", "T0"].reason
    assert {trial.cell.substrate for cohort in prepared.todo for trial in cohort} == {"host", "ours"}


def test_the_summary_has_its_reason_and_no_result(made):
    summary = json.loads((made[0] / "summary.json").read_text())
    assert {row["substrate"] for row in summary["results"]} == {"host", "ours"}
    offer = summary["subjects"]["peer"]["tiers"]["T0"]
    assert not offer["offered"]
    assert REASON in offer["reason"]


def test_it_stands_in_no_order_spread_or_headline(made):
    directory, _, report = made
    assert all("peer" not in row for row in report.headline.rows)
    lines = [line for line in (directory / "tables.md").read_text().splitlines() if "peer" in line]
    assert [line for line in lines if REASON in line]
    rest = [line for line in lines if REASON not in line]
    assert [line.split()[:6] for line in rest] == [["|", "peer", "|", "0", "of", "0"]]


def test_no_figure_draws_it(made):
    for path in (made[0] / "figures").glob("*.svg"):
        assert "peer" not in path.read_text(), path
