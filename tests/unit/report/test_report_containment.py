"""The catalogue's verdicts, kept beside records and shown in the report."""

import json

import pytest
from runs import measure
from synthetic import Delays

from dutyfree.cli.main import main
from dutyfree.core.errors import Misuse
from dutyfree.meter.campaign import Choices
from dutyfree.report.build import build
from dutyfree.report.containment import VERDICTS, keep, kept, tables


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run and its report. For the module: matplotlib keeps its fonts open from here on."""
    directory = tmp_path_factory.mktemp("run")
    measure(directory, {"host": Delays()}, Choices(steps=(0,), trials=1, deadline_s=60))
    return directory, build([directory])


def probed(name, *verdicts):
    rows = [
        {"id": i, "name": f"n{i}", "group": "escape", "contained": verdict, "reason": f"{name} saw {i}"}
        for i, verdict in enumerate(verdicts, 1)
    ]
    return {"substrate": name, "version": "1", "image": "bench", "probes": rows}


def test_the_best_comes_first_and_every_miss_is_told_with_its_reason():
    counts, misses = tables([probed("leaky", True, False, None), probed("tight", True, True, True)])
    assert [row[0] for row in counts.rows] == ["tight", "leaky"]
    assert [row[3:] for row in counts.rows] == [["3", "0", "0"], ["1", "1", "1"]]
    assert [row[0] for row in misses.rows] == ["2", "3"]
    assert [row[3:] for row in misses.rows] == [["NOT CONTAINED", "leaky saw 2"], ["not tried", "leaky saw 3"]]


def test_a_substrate_probed_again_replaces_its_own_verdicts_only(tmp_path):
    place = tmp_path / "new"
    keep(place, probed("a", False, False))
    keep(place, probed("b", True))
    keep(place, probed("a", True))
    found = {one["substrate"]: [row["contained"] for row in one["probes"]] for one in kept(place)}
    assert found == {"a": [True, False], "b": [True]}
    keep(place, probed("a", True) | {"version": "2"})
    assert {one["substrate"]: len(one["probes"]) for one in kept(place)} == {"a": 1, "b": 1}


@pytest.mark.parametrize("text", ["{", "[1]", '[{"substrate": "x"}]', "3"])
def test_a_foreign_file_is_told_and_not_replaced(tmp_path, text):
    (tmp_path / VERDICTS).write_text(text)
    with pytest.raises(Misuse, match="is not what"):
        keep(tmp_path, probed("a", True))
    assert (tmp_path / VERDICTS).read_text() == text


def test_the_command_keeps_what_it_saw_and_the_report_shows_it(run, capsys):
    directory, report = run
    assert "Not probed in this run" in report.html.read_text()
    assert main(["probe", "-s", "host", "--only", "8,88", "-o", str(directory)]) == 1
    assert "1 contained, 1 not contained, 0 not tried" in capsys.readouterr().out
    assert [row["id"] for row in json.loads((directory / VERDICTS).read_text())[0]["probes"]] == [8, 88]
    text = build([directory]).html.read_text()
    assert "NOT CONTAINED" in text
    assert "Not probed" not in text
