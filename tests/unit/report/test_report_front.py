"""The first screen: one sentence, a ranked chart, doubts; what is wrong with a run is seen there, and nothing is claimed of few trials."""

import json
import re
from dataclasses import replace

import pytest
from runs import measure
from synthetic import MS, Delays

from dutyfree.meter.campaign import Choices
from dutyfree.meter.stability import doubts
from dutyfree.meter.store import load
from dutyfree.meter.summary import results
from dutyfree.report import cold
from dutyfree.report.build import build
from dutyfree.report.front import front
from dutyfree.report.scale import Scale, tables

DELAYS = {"host": Delays(), "slow": Delays(create=200 * MS, dispatch=20 * MS), "quick": Delays(dispatch=3 * MS)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One trial of each, written down as eight: times are exact, and commands really run."""
    directory = tmp_path_factory.mktemp("front")
    measure(directory, DELAYS, Choices(steps=(0, 150), trials=1, warmup=0, deadline_s=60))
    lines = [
        replace(record, id=f"{record.id}/{block}", block=block).to_json()
        for block in range(8)
        for record in load([directory]).records
    ]
    (directory / "records.jsonl").write_text("\n".join(lines) + "\n")
    return directory, load([directory])


def changed(run, change):
    """The run's results, with some records replaced."""
    return results([change(record) or record for record in run.records])


def of(name, **fields):
    return lambda record: replace(record, **fields) if record.substrate == name and not record.warmup else None


def test_one_sentence_says_times_hours_and_money_with_an_interval_and_numbers(measured):
    text = front(results(measured[1].records)).sentence
    assert text == (
        "A 150-step rollout of T0 takes 3.97 s on slow and 1.24 s on quick: 3.2 × [3.2, 3.2], n=8 and 8. A million of them "
        "cost 1,103 and 344 worker-hours, 110 USD and 34 USD at 0.10 USD an hour."
    )


def test_the_part_of_a_saving_that_is_in_actions_is_told_apart_from_creation(measured):
    text = front(results(measured[1].records)).saving
    assert "2.55 s is in the actions (17 ms for each of 150) and 180 ms in creating" in text


def test_another_currency_is_named(measured):
    found = results(measured[1].records)
    assert "at 2.00 EUR an hour" in front(found, Scale(price=2.0, currency="EUR")).sentence
    assert any("cost per 1M at 2 EUR/h" in table.columns for table in tables(found, Scale(price=2.0, currency="EUR")))


def test_fewer_than_eight_trials_conclude_nothing(measured):
    found = results([record for record in measured[1].records if record.block < 7])
    assert front(found).sentence.startswith("Too few trials to conclude anything")
    ranks = next(table for table in tables(found) if table.title.startswith("Does the ranking"))
    assert "not known from 7 trials (needs 8)" in ranks.note
    assert "100" not in ranks.note


def test_equal_substrates_show_no_difference(measured):
    twins = [
        replace(record, total_ns=10**9 + (record.block * 7 + len(record.substrate)) % 5 * 10**7)
        for record in measured[1].records
    ]
    assert front(results(twins)).sentence.startswith("No difference seen between")


def test_failures_are_paid_and_seen(measured):
    """Half of the trials failing after 600 s: no median, no tax, 600 s more for each success, on the first screen."""

    def half(record):
        bad = record.substrate == "slow" and record.steps and record.block % 2 == 0 and not record.warmup
        return replace(record, ok=False, failure_kind="deadline", total_ns=600 * 10**9) if bad else None

    found = changed(measured[1], half)
    row = next(r for r in found if r.key.substrate == "slow" and r.key.steps)
    assert (row.lasting, row.tax_ci95) == (False, None)
    assert row.cost.seconds == pytest.approx(600 + 3.973, rel=0.01)
    assert any("slow T0 150 steps: 4 of 8 trials failed" in line for line in doubts(found, measured[1].manifest, "D"))


def test_a_single_failure_moves_the_tax_and_never_improves_it(measured):
    def one(record):
        bad = record.substrate == "slow" and record.steps and record.block == 0
        return replace(record, ok=False, failure_kind="deadline", total_ns=600 * 10**9) if bad else None

    before, after = results(measured[1].records), changed(measured[1], one)
    slow = [next(r for r in rows if r.key.substrate == "slow" and r.key.steps) for rows in (before, after)]
    assert slow[1].tax >= slow[0].tax
    assert slow[1].cost.seconds > slow[0].cost.seconds + 80
    assert "1 failed" in next(bar for bar in front(after).bars if bar.name == "slow").number


def test_an_emulated_machine_is_in_no_chart_and_has_a_table_of_its_own(measured, tmp_path):
    directory, run = measured
    (tmp_path / "manifest.json").write_bytes((directory / "manifest.json").read_bytes())
    lines = [(of("quick", version="qemu 7.2, accel=tcg")(record) or record).to_json() for record in run.records]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    build([tmp_path])
    page = (tmp_path / "report.html").read_text()
    assert "Emulated machines (no usable KVM)" in page
    for svg in (tmp_path / "figures").glob("*.svg"):
        assert "quick" not in svg.read_text(), svg
    assert json.loads((tmp_path / "summary.json").read_text())["results"]


def test_the_first_screen_comes_before_figures_and_tables(measured, tmp_path):
    page = build([measured[0]], tmp_path).html.read_text()
    places = [page.index(text) for text in ("takes 3.97 s on slow", 'class="chart"', "<h2>Figures", "<h2>Tables")]
    assert places == sorted(places)
    assert len(re.findall('class="who"', page)) == 3
    assert "Before you rely on this" in page[: page.index("<h2>Figures")]


def test_a_cold_start_says_from_which_stock_it_came(measured):
    _, run = measured
    manifest = json.loads(json.dumps(run.manifest))
    manifest["subjects"]["quick"]["stock"] = 4
    rows = {row[0]: row[1] for row in cold.table(results(run.records), manifest).rows}
    assert rows == {"host": "calm, made when asked for", "slow": rows["host"], "quick": "calm, from a stock of 4"}
    bars = {bar.name: bar.note for bar in front(results(run.records), manifest=manifest).bars}
    assert bars["quick"].endswith("from a stock of 4")
    assert "stock" not in bars["slow"]


def test_a_burst_is_named_and_a_run_of_crowds_alone_has_a_report(tmp_path):
    measure(tmp_path, {"host": Delays(), "slow": DELAYS["slow"]}, Choices(steps=(0, 10), trials=16, parallel=(2, 8)))
    report = build([tmp_path])
    page = report.html.read_text()
    assert "8 at once, made when asked for" in page
    assert page.count("<svg") == 6
    assert 'class="chart"' in page


def test_every_fault_of_a_run_is_on_the_first_screen(measured, tmp_path):
    """Failures, a slow substrate, a drifting host and a lying storage, through the whole pipeline."""
    _, run = measured
    manifest = json.loads(json.dumps(run.manifest))
    manifest["subjects"]["quick"]["tiers"]["T0"] |= {"storage": "memory", "storage_seen": "disk"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    lines = []
    for number in range(24):
        for one in run.records:
            if one.block:
                continue
            fields = {"id": f"{one.id}/{number}", "block": number}
            if one.substrate == "host":
                fields["total_ns"] = one.total_ns + number * one.total_ns // 20
            if one.substrate == "quick" and one.steps and number % 3 == 0:
                fields |= {"ok": False, "failure_kind": "SandboxLost", "total_ns": 60 * 10**9}
            lines.append(replace(one, **fields).to_json())
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    page = build([tmp_path]).html.read_text()
    screen = re.sub(r"<[^>]+>", "", page[: page.index("<h2>Figures")])
    assert "quick does not write where it says: memory is declared, disk was seen" in screen
    assert "quick T0 150 steps: 8 of 24 trials failed (8 x SandboxLost)" in screen
    assert "host T0 150 steps: times rose during the run" in screen
    assert re.search(
        r"rollout of T0 takes 31\.\d s on quick and 3\.97 s on slow, the time of failed trials included \(8 of 24 on quick",
        screen,
    ), screen[:600]
