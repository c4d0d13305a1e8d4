"""`dutyfree measure` without a name: what is measured unasked, and what is said of the rest."""

import pytest

from dutyfree.cli.measure import _available, progress_console
from dutyfree.core.errors import Unavailable
from dutyfree.substrates import registry


def test_what_is_left_out_is_named_with_the_whole_command_that_enables_it(capsys):
    names = {name.partition("?")[0] for name in _available(progress_console(), quick=False)}
    said = capsys.readouterr().err
    assert {"host", "noop"} <= names
    for name, load in registry.drivers():
        assert (name in names) != (f"not measured: {name}: " in said)
        try:
            found = load().probe()
        except Unavailable as error:
            found = error
        if name not in names and found.enable:
            assert found.enable in said
        if getattr(found, "emulated", False):
            assert name not in names
            assert f"name it to measure it: -s {name}" in said


@pytest.mark.parametrize("name", ["docker", "podman", "runc", "gvisor"])
def test_a_driver_is_measured_in_each_dispatch_mode_that_it_declares(name, capsys):
    driver, _ = registry.find(name)
    if not (found := driver.probe()).available:
        pytest.skip(f"{name}: {found.reason}; {found.enable}")
    names = _available(progress_console(), quick=False)
    assert {f"{name}?dispatch=agent", f"{name}?dispatch=api"} <= set(names)
    assert name not in names


def test_quick_leaves_out_what_brings_a_kernel_of_its_own_and_says_how_to_have_it(capsys):
    names = {name.partition("?")[0] for name in _available(progress_console(), quick=True)}
    said = capsys.readouterr().err
    for name, load in registry.drivers():
        try:
            driver = load()
            found = driver.probe()
        except Unavailable:
            continue
        if found.available and driver.declared()[0].isolation in ("kernel", "vm"):
            assert name not in names
            assert f"name it to measure it: -s {name}" in said
