"""A suite may name what of it is run unless all was asked for: the rest is marked before anything is set up for it.

`cases` names tests, for emulated machines; `topics` names parts of the contract, for containers whose other parts are common code that
another suite of the same run shows.
"""

import os

import pytest
from support import daemons, machines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = getattr(item, "cls", None)
        cases, topics = getattr(suite, "cases", None), getattr(suite, "topics", None)
        if cases is not None and getattr(item, "originalname", "") not in cases:
            _leave_out(item, machines.ASKED, "the rest of the suite on emulated machines takes long")
        if topics is not None and isinstance(item, pytest.Function) and _topic(item) not in topics:
            _leave_out(item, daemons.VARIABLE, "the rest of the contract is common code, shown by another suite")


def _leave_out(item: pytest.Item, variable: str, why: str) -> None:
    if os.environ.get(variable) != "1":
        item.add_marker(pytest.mark.skip(f"{why}; all of it: {variable}=1 make test"))


def _topic(item: pytest.Function) -> str:
    return item.function.__qualname__.partition(".")[0]
