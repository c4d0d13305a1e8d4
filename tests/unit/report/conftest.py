"""The synthetic substrate lives with the meter's tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "meter"))


@pytest.fixture(scope="session", autouse=True)
def fonts_are_open(tmp_path_factory):
    """matplotlib opens its fonts with the first words it draws, and keeps them: that is no test's leak."""
    from dutyfree.report.style import drawing, figure, save

    with drawing():
        made, (axes,) = figure(1, 1)
        axes.set_title("– × µ")
        save(made, tmp_path_factory.mktemp("fonts"), "words")
