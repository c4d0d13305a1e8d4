"""From records to results."""

import pytest
from runs import measure
from synthetic import MS, Delays

from dutyfree.meter.campaign import Choices
from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.stability import doubts
from dutyfree.meter.store import load
from dutyfree.meter.summary import results, to_json

DELAYS = {"host": Delays(), "slow": Delays(create=200 * MS, dispatch=20 * MS)}
KEYS = {
    "substrate", "dispatch", "tier", "steps", "parallel", "n", "failures", "p50_s", "p95_s", "mean_s", "sd_s",
    "ci95_p50_s", "tax", "tax_ci95", "amortised_action_s", "decomposition_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    measure(directory, DELAYS, Choices(steps=(0, 10, 50), trials=5, deadline_s=60))
    return load([directory])


def by_key(run):
    rows = to_json(results(run.records), run.manifest, [])["results"]
    return {(row["substrate"], row["steps"]): row for row in rows}


def test_known_delays_come_back_as_p50_and_tax(run):
    rows = by_key(run)
    once, each = 40 * MS, 7 * MS
    assert rows["host", 50]["p50_s"] == pytest.approx((once + 50 * each) / 1e9)
    assert rows["slow", 50]["p50_s"] == pytest.approx((once + 180 * MS + 50 * (each + 18 * MS)) / 1e9)
    assert rows["slow", 50]["tax"] == pytest.approx((220 + 1250) / (40 + 350) - 1)
    assert rows["host", 50]["tax"] == 0
    assert rows["host", 10]["amortised_action_s"] == pytest.approx((40 + 70) / 10 / 1000)
    assert rows["host", 0]["amortised_action_s"] is None


def test_a_summary_has_every_promised_key(run):
    summary = to_json(results(run.records), run.manifest, [])
    assert summary["schema"] == 1
    assert summary["host"]["id"]
    assert all(row.keys() >= KEYS for row in summary["results"])
    assert all(tuple(row["decomposition_s"]) == COMPONENTS for row in summary["results"])


def test_the_decomposition_sums_to_the_total(run):
    for row in by_key(run).values():
        assert sum(row["decomposition_s"].values()) == pytest.approx(row["mean_s"], rel=0.01)


def test_warm_up_is_not_counted(run):
    assert all(row["n"] == 5 for row in by_key(run).values())


def test_failed_trials_stay_in_the_denominator(run):
    from dataclasses import replace

    records = [
        replace(r, ok=False, failure_kind="SandboxLost") if r.block == 0 and r.substrate == "slow" else r
        for r in run.records
    ]
    rows = {(r.key.substrate, r.key.steps): r for r in results(records)}
    assert (rows["slow", 10].n, rows["slow", 10].failed, len(rows["slow", 10].times)) == (5, 1, 4)
    assert any(
        "1 of 5 trials failed (1 x SandboxLost)" in line for line in doubts(list(rows.values()), run.manifest, "D")
    )


def test_a_cell_of_which_nothing_succeeded_has_a_row_without_times(run):
    from dataclasses import replace

    records = [replace(r, ok=False, failure_kind="deadline") if r.substrate == "slow" else r for r in run.records]
    row = next(r for r in results(records) if r.key.substrate == "slow")
    assert row.summary is None
    assert row.tax is None


def test_few_trials_are_doubted_with_the_command_that_helps(run):
    lines = doubts(results(run.records), run.manifest, "DIR")
    assert any("fewer than" in line and "dutyfree measure" in line and "-o DIR --trials 30" in line for line in lines)


def test_a_run_without_the_host_says_that_there_is_no_tax(run):
    rows = [r for r in results(run.records) if r.key.substrate != "host"]
    assert any(line.startswith("no tax") for line in doubts(rows, run.manifest, "DIR"))


def test_a_repository_that_was_uploaded_is_told(run):
    tiers = run.manifest["subjects"]["slow"]["tiers"]
    told = [line for line in doubts(results(run.records), run.manifest, "DIR") if "git server" in line]
    assert not told
    tier = next(iter(tiers))
    tiers[tier]["route"] = "upload"
    assert any(f"slow {tier}: no way" in line for line in doubts(results(run.records), run.manifest, "DIR"))


def test_a_substrate_that_writes_elsewhere_than_it_says_is_told(run):
    subjects = run.manifest["subjects"]
    subjects["slow"]["tiers"]["T0"] |= {"storage": "memory", "storage_seen": "disk"}
    subjects["host"]["tiers"]["T0"] |= {"storage": "memory", "storage_seen": "memory"}
    lines = doubts(results(run.records), run.manifest, "DIR")
    assert lines[0] == "slow does not write where it says: memory is declared, disk was seen"
    assert lines[1].startswith("not all write to the same medium (disk: slow; memory: host)")


def test_the_command_that_adds_trials_adds_them_for_every_substrate(run):
    run.manifest["protocol"]["command"] = ["-s", "host", "--trials", "5", "--trials-for", "slow=2", "--seed", "1"]
    lines = doubts(results(run.records), run.manifest, "DIR")
    assert any("`dutyfree measure -s host --seed 1 -o DIR --trials 30`" in line for line in lines)
