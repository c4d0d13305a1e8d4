"""The committed study: its numbers follow from its records, by two implementations that share no code."""

import ast
import json
import subprocess
import sys
from pathlib import Path

from dutyfree.meter.store import load
from dutyfree.meter.summary import results, to_json

STUDY = Path(__file__).parents[3] / "docs" / "study"
SCRIPT = STUDY / "recompute.py"


def recompute(directory):
    return subprocess.run([sys.executable, SCRIPT, directory], capture_output=True, text=True, check=False)


def test_the_summary_is_what_the_records_give():
    run = load([STUDY])
    here = json.loads(json.dumps(to_json(results(run.records), run.manifest, [])))
    told = json.loads((STUDY / "summary.json").read_text())
    assert rounded(here["results"]) == rounded(told["results"])


def rounded(value):
    """Floats to nine digits: other processors add in another order."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def test_a_second_implementation_finds_the_same_numbers():
    done = recompute(STUDY)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("equal")


def test_the_second_implementation_would_find_another_number(tmp_path):
    (tmp_path / "records.jsonl.gz").write_bytes((STUDY / "records.jsonl.gz").read_bytes())
    told = json.loads((STUDY / "summary.json").read_text())
    told["results"][7]["tax_ci95"] = [0.0, 1.0]
    (tmp_path / "summary.json").write_text(json.dumps(told))
    done = recompute(tmp_path)
    assert done.returncode == 1
    assert "tax_ci95" in done.stdout


def test_the_second_implementation_is_short_and_imports_nothing_of_ours():
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 150
    names = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert "dutyfree" not in names


def test_the_study_stays_small():
    assert sum(path.stat().st_size for path in STUDY.rglob("*") if path.is_file()) < 1_500_000
