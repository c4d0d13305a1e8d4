"""The page of settings, variables, options and defaults has all that the code has."""

import asyncio
import re
import runpy
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.substrates.registry import connect, drivers

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/configuration.md").read_text()
WRITER = runpy.run_path(str(ROOT / "scripts/options.py"))
INNER = {"DUTYFREE_LEAK_TOKEN", "DUTYFREE_COMMAND", "DUTYFREE_SECRET_OF_THE_CALLER", "DUTYFREE_JUDGES"}
"""Not for people: marks of ours in other processes' environments."""


def test_the_page_has_every_option_with_its_default():
    def entries(page):
        return {row.rpartition(" | ")[0].rpartition(" | ")[0] for row in page.splitlines() if row.startswith("| ")}

    assert not entries(WRITER["page"]()) ^ entries(PAGE), "run: make docs"


def test_the_page_has_every_variable_that_we_read():
    used = set()
    for pattern in ("src/dutyfree/**/*.py", "scripts/*", "Makefile", "conftest.py", "tests/conftest.py", ".ci/run"):
        for path in ROOT.glob(pattern):
            used |= set(re.findall(r"\bDUTYFREE_[A-Z_]+\b", path.read_text())) if path.is_file() else set()
    told = set(re.findall(r"DUTYFREE_[A-Z_]+", PAGE))
    for names in re.findall(r"`(DUTYFREE_[A-Z_, ]+)`", PAGE):
        first, *others = names.split(", ")
        stem = first.rpartition("_")[0]
        told |= {stem + other for other in others}
    assert used - told - INNER == set()


@pytest.mark.parametrize("name", [*(name for name, _ in drivers()), "warm:noop"])
def test_the_page_has_every_option_that_connect_takes(name):
    async def ask():
        async with connect(name, no_such_option="1"):
            pass

    with pytest.raises(Misuse) as caught:
        asyncio.run(ask())
    offered = set(re.findall(r"[a-z_]+", str(caught.value).partition("there are ")[2].partition(" (")[0])) - {"none"}
    plain = "warm:X" if name.startswith("warm:") else name
    assert offered == {option for where, option, *_ in WRITER["CONNECT"] if plain in where.split(", ")}
