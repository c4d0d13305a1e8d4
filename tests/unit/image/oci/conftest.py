"""A store of the test's own."""

from pathlib import Path

import pytest

from dutyfree.image.store import Store


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()
