"""What `dutyfree simulate -o` writes."""

import json

import pytest

from dutyfree.cli.main import main


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Drawn once, before the tests: matplotlib keeps its fonts open."""
    directory = tmp_path_factory.mktemp("simulation")
    options = ["--nodes", "4", "--tasks", "10", "--groups", "20", "--group", "2"]
    assert main(["simulate", *options, "-o", str(directory)]) == 0
    return directory


def test_a_figure_and_the_document_are_written_where_asked(written):
    assert {path.name for path in written.iterdir()} == {"simulation.json", "simulation.png", "simulation.svg"}
    assert json.loads((written / "simulation.json").read_text())["scenario"]["nodes"] == 4
