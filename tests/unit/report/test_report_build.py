"""Reports: everything the directory promises, from records alone."""

import json
import re
from xml.etree import ElementTree as ET

import pytest
from runs import measure
from synthetic import MS, Delays

from dutyfree.core.errors import Misuse
from dutyfree.meter.campaign import Choices
from dutyfree.meter.store import RECORDS
from dutyfree.report.build import build
from dutyfree.report.text import Table, percent, seconds

DELAYS = {"host": Delays(), "slow": Delays(create=200 * MS, dispatch=20 * MS), "middle": Delays(dispatch=9 * MS)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    measure(directory, DELAYS, Choices(steps=(0, 10, 50, 150), trials=2, deadline_s=60))
    return directory, build([directory])


def test_everything_promised_is_there(made):
    directory, report = made
    assert report.html == directory / "report.html"
    for name in ("tables.md", "summary.json", "report.html"):
        assert (directory / name).stat().st_size > 500
    assert len(list((directory / "figures").glob("fig[1-6]-*.svg"))) == 6
    assert len(list((directory / "figures").glob("fig[1-6]-*.png"))) == 6


def test_figures_are_well_formed_and_their_text_is_text(made):
    directory, _ = made
    for path in (directory / "figures").glob("*.svg"):
        root = ET.parse(path).getroot()
        texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any("slow" in text for text in texts), path


def test_the_page_fetches_nothing(made):
    text = made[1].html.read_text()
    assert not re.search(r"<(script|link|img|iframe)", text)
    assert not re.search(r"(src|href)\s*=\s*[\"']?https?:", text)
    assert "url(http" not in text
    assert "prefers-color-scheme: dark" in text


def test_the_page_shows_six_figures_the_protocol_and_the_study(made):
    text = made[1].html.read_text()
    assert text.count("<svg") == 6
    for word in ("Protocol", "repetitions", "clock", "warm-up", "cache state", "formula", "2607.01415", "11,811"):
        assert word in text


def test_tables_hold_the_what_ifs(made):
    text = (made[0] / "tables.md").read_text()
    for number in ("278", "417", "4,167"):
        assert re.search(rf"\| +{number} \|", text)


def test_known_delays_come_back_in_the_summary(made):
    summary = json.loads((made[0] / "summary.json").read_text())
    row = next(r for r in summary["results"] if r["substrate"] == "slow" and r["steps"] == 150)
    assert row["p50_s"] == pytest.approx((220 + 150 * 25) / 1000)
    assert row["decomposition_s"]["dispatch"] == pytest.approx(3.0)
    assert row["decomposition_s"]["create"] == pytest.approx(0.2)
    assert row["decomposition_s"]["orchestration"] == pytest.approx(0.003)


def test_a_report_made_twice_is_the_same(made):
    directory, _ = made
    before = {path: path.read_bytes() for path in directory.rglob("*.svg")} | {
        path: path.read_bytes() for path in (directory / "report.html", directory / "tables.md")
    }
    build([directory])
    assert all(path.read_bytes() == data for path, data in before.items())


def test_a_broken_record_is_named_in_the_report_and_the_rest_reported(made, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("manifest.json", RECORDS):
        (copy / name).write_bytes((made[0] / name).read_bytes())
    with (copy / RECORDS).open("a") as file:
        file.write('{"schema": 1, "id"')
    report = build([copy])
    assert any("half-written" in line for line in report.warnings)
    assert "half-written" in report.html.read_text()


def test_a_run_with_cold_starts_only_still_has_a_report(tmp_path):
    measure(tmp_path, {"host": Delays()}, Choices(steps=(0,), trials=2))
    text = build([tmp_path]).html.read_text()
    assert "Not drawn" in text
    assert text.count("<svg") == 2


def test_a_directory_without_trials_says_what_to_do(tmp_path):
    measure(tmp_path, {"host": Delays()}, Choices(steps=(0,), trials=1))
    (tmp_path / RECORDS).write_text("")
    with pytest.raises(Misuse, match="dutyfree measure"):
        build([tmp_path])


def test_what_a_sandbox_said_is_escaped(tmp_path):
    measure(tmp_path, {"<b>host</b>": Delays()}, Choices(steps=(0, 10), trials=2))
    text = build([tmp_path]).html.read_text()
    assert "<b>host</b>" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (1.234e-5, "12.3 µs"),
        (0.00123, "1.23 ms"),
        (0.25, "250 ms"),
        (23.4, "23.4 s"),
        (1234, "1,234 s"),
    ],
)
def test_times_have_three_digits_and_a_unit(value, text):
    assert seconds(value) == text


def test_taxes_have_a_sign():
    assert [percent(x) for x in (None, 0.012, -0.5, 43.162)] == ["–", "+1.2 %", "-50.0 %", "+4,316 %"]


def test_markdown_cells_cannot_break_the_table():
    text = Table(title="t", columns=["a", "b"], rows=[["x|y", "1"]]).to_markdown()
    assert "x\\|y" in text
