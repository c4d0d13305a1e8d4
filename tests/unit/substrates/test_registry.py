"""Names, and what becomes of those that cannot be had."""

import asyncio
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import dutyfree
from dutyfree.core.contract import Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates import registry


def connected(name: str, **options: str) -> str:
    async def look() -> str:
        async with dutyfree.connect(name, **options) as substrate:
            assert isinstance(substrate, Substrate)
            return substrate.name

    return asyncio.run(look())


def test_a_driver_is_found_by_its_name():
    assert connected("noop") == "noop"


def test_a_driver_is_found_by_its_path():
    assert connected("dutyfree.substrates.noop:driver") == "noop"


def test_an_unknown_name_lists_the_known_ones_and_the_closest():
    with pytest.raises(Misuse, match=r"no substrate is called 'natve'; known: .*noop.*did you mean 'native'") as caught:
        connected("natve")
    assert caught.value.field == "name"


@pytest.mark.parametrize("name", ["warm:docker", "http://localhost:1", "nowrapper:noop"])
def test_a_wrapper_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "WRAPPERS", "dutyfree.no-such-group")
    with pytest.raises(Misuse, match=f"no wrapper '{name.partition(':')[0]}' is installed"):
        connected(name)


@pytest.mark.parametrize("name", ["", 5])
def test_a_name_that_is_none_is_misuse(name: object):
    with pytest.raises(Misuse, match="name"):
        connected(name)


def test_a_path_that_leads_nowhere_says_where_it_ends():
    with pytest.raises(Misuse, match="there is no nosuch"):
        connected("nosuch.module:driver")
    with pytest.raises(Misuse, match="names no driver"):
        connected("dutyfree.substrates.noop:nothing")


def test_options_in_the_name_reach_the_driver():
    with pytest.raises(Misuse, match="colour"):
        connected("noop?colour=red")
    with pytest.raises(Misuse, match="colour"):
        connected("noop", colour="red")


def test_options_that_are_not_pairs_are_misuse():
    with pytest.raises(Misuse, match="key=value"):
        connected("noop?what")


def test_a_missing_extra_is_unavailable_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "outside_driver.py").write_text("import a_module_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint(name="outside", value="outside_driver:driver", group=registry.DRIVERS)
    with pytest.raises(Unavailable) as caught:
        registry._load(point)
    assert caught.value.enable == "pip install a_module_nobody_has"
    assert caught.value.driver == "outside"


def test_an_import_error_of_our_own_is_not_dressed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_driver.py").write_text("import dutyfree.no_such_part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError):
        registry._load(EntryPoint(name="broken", value="broken_driver:driver", group=registry.DRIVERS))


def test_a_wrapper_gets_the_rest_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a_wrapper.py").write_text(
        "from dutyfree import connect\n"
        "class Wrapper:\n"
        "    name = 'twice'\n"
        "    async def connect(self, rest, options):\n"
        "        return await connect(rest)\n"
        "driver = Wrapper()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint(name="twice", value="a_wrapper:driver", group=registry.WRAPPERS)
    real = registry._points
    monkeypatch.setattr(
        registry, "_points", lambda group: {"twice": point} if group == registry.WRAPPERS else real(group)
    )
    assert connected("twice:noop") == "noop"
    assert connected("twice:twice:noop") == "noop"


def test_listing_the_drivers_imports_none_of_them():
    for name in [name for name in sys.modules if name.startswith("dutyfree.substrates.noop")]:
        del sys.modules[name]
    names = [name for name, _ in dutyfree.drivers()]
    assert {"host", "native", "noop"} <= set(names)
    assert "dutyfree.substrates.noop" not in sys.modules
