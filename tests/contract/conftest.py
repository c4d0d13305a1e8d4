"""A suite may name the cases that are run unless all were asked for: the others are marked before anything is set up for them."""

import os

import pytest

from dutyfree.testing.machines import ALL, ASKED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(ASKED) == ALL:
        return
    rest = pytest.mark.skip(f"the rest of the suite on emulated machines takes long: {ASKED}={ALL} make test")
    for item in items:
        cases = getattr(getattr(item, "cls", None), "cases", None)
        if cases is not None and getattr(item, "originalname", "") not in cases:
            item.add_marker(rest)
