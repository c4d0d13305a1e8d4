"""The table of drivers in the documentation is what the drivers declare."""

from pathlib import Path

import pytest

from dutyfree.cli.capability import table
from dutyfree.substrates.registry import drivers, find

PAGE = Path(__file__).parents[3] / "docs/reference/substrates.md"


def test_the_page_in_the_documentation_is_current():
    missing = set(table().splitlines()) - set(PAGE.read_text().splitlines())
    assert not missing, "run: make docs"


@pytest.mark.parametrize("name", ["docker", "gvisor", "host", "native", "noop", "podman", "runc"])
def test_a_driver_declares_without_looking_at_the_machine(name):
    driver = find(name)[0]
    assert driver.declared() == driver.declared()
    assert [offered.dispatch for offered in driver.declared()] in (["agent"], ["api"], ["agent", "api"])


@pytest.mark.parametrize("name", [name for name, _ in drivers()])
def test_every_installed_driver_is_in_the_table(name):
    assert f"`{name}`" in PAGE.read_text()


@pytest.mark.parametrize("name", ["docker", "podman", "runc", "gvisor"])
def test_what_a_driver_finds_here_is_no_more_than_it_declares(name):
    driver = find(name)[0]
    found = driver.probe().capabilities
    if found is not None:
        declared = driver.declared()[0]
        assert found.limits <= declared.limits
        assert (found.snapshot, found.fork, found.reset) == (declared.snapshot, declared.fork, declared.reset)
