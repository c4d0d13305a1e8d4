"""Foreign text in tables: shown as it is, without what a terminal or rich would obey."""

from dutyfree.cli import doctor, probe
from dutyfree.cli.main import main
from dutyfree.core.contract import Availability
from dutyfree.warm.ledger import Ledger

HOSTILE = "[red]seen[/red] [link=http://x]y[/link]\x1b[2J\x07"


def test_what_a_probe_saw(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    row = {"id": 1, "group": "escape", "name": "x", "contained": False, "reason": HOSTILE}
    probe._show({"substrate": "native", "probes": [row]})
    said = capsys.readouterr().out
    assert "[red]seen[/red] [link=http://x]y[/link]?[2J?" in said
    assert "\x1b[2J" not in said


def test_what_stands_in_a_substrates_way(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    doctor._show([("docker", "", Availability(available=False, reason=HOSTILE, enable=HOSTILE))])
    said = capsys.readouterr().out
    assert said.count("[red]seen[/red] [link=http://x]y[/link]?[2J?") == 2


def test_a_stage_log_keeps_its_lines(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path))
    with Ledger("native").log("ab" * 32) as log:
        log.write(b"one\n\ttwo\x1b[2J\n")
    assert main(["stage", "log", "abababab"]) == 0
    assert capsys.readouterr().out == "one\n\ttwo?[2J\n"
