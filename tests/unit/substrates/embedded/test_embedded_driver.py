"""Embedded microVMs where they cannot run: refused with what the KVM probe saw, before their library is imported."""

import asyncio
import io
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from dutyfree.cli.measure import _available
from dutyfree.core.errors import Misuse, Unavailable, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.substrates.boxlite.driver import driver as boxlite
from dutyfree.substrates.embedded.mark import machine_name, owner_in
from dutyfree.substrates.embedded.size import cpus_of, memory_mib_of
from dutyfree.substrates.hosted.substrate import NAME_LABEL
from dutyfree.substrates.microsandbox.driver import driver as microsandbox
from dutyfree.substrates.qemu.kvm import Verdict, verdict
from dutyfree.substrates.sweep import OWNER_LABEL, is_orphan, owner_mark

PEERS = pytest.mark.parametrize("driver", [boxlite, microsandbox], ids=lambda driver: driver.name)
EMULATED = verdict(711.0)
NATIVE = Verdict(usable=True, reason="guest code runs natively (0.4 ns per round)")


@PEERS
def test_without_usable_kvm_it_is_refused_with_the_probes_reason(driver):
    here = replace(driver, look=lambda: EMULATED)
    found = here.probe()
    assert not found.available
    assert EMULATED.reason in found.reason
    assert "711 ns" in found.reason
    assert found.enable is not None
    assert found.capabilities == driver.capabilities
    with pytest.raises(Unavailable, match="711 ns") as caught:
        asyncio.run(here.connect({}))
    assert caught.value.enable == found.enable


@PEERS
def test_with_usable_kvm_and_its_library_it_is_available(driver):
    found = replace(driver, look=lambda: NATIVE).probe()
    assert found.available, found.reason
    assert found.version.startswith(f"{driver.name} ")


@PEERS
def test_a_library_that_is_not_installed_is_named_with_the_command(driver):
    here = replace(driver, look=lambda: NATIVE, module="dutyfree_no_such_library")
    found = here.probe()
    assert not found.available
    assert found.enable == f"pip install 'dutyfree[{driver.name}]'"


@PEERS
def test_an_unknown_option_is_misuse(driver):
    with pytest.raises(Misuse, match="nonsense"):
        asyncio.run(driver.connect({"nonsense": "1"}))


def test_a_dispatch_mode_that_a_library_cannot_carry_is_misuse_with_the_reason():
    with pytest.raises(Misuse, match="text"):
        asyncio.run(boxlite.connect({"dispatch": "agent"}))


@PEERS
def test_looking_at_it_does_not_import_its_library(driver):
    script = f"""
import sys
from dutyfree.substrates.registry import find
driver, _ = find({driver.name!r})
driver.probe(), driver.declared()
assert {driver.module!r} not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_measure_names_the_reason_and_measures_the_others():
    if boxlite.probe().available:
        pytest.skip("KVM is usable here: there is nothing to name")
    said = io.StringIO()
    names = _available(Console(file=said, width=10_000))
    for driver in (boxlite, microsandbox):
        assert driver.name not in {name.partition("?")[0] for name in names}
        assert f"not measured: {driver.name}: it needs KVM" in said.getvalue()
    assert "host" in names


def test_a_machine_has_whole_processors_and_room_for_a_kernel():
    assert cpus_of(Spec(limits=Limits(cpus=3.0)), "x") == 3
    assert memory_mib_of(Spec(limits=Limits(memory_bytes=(200 << 20) + 5)), "x") == 200
    with pytest.raises(Unsupported, match=r"limits\.cpus"):
        cpus_of(Spec(limits=Limits(cpus=0.5)), "x")
    with pytest.raises(Unsupported, match=r"limits\.memory_bytes"):
        memory_mib_of(Spec(limits=Limits(memory_bytes=64 << 20)), "x")


def test_a_machines_name_tells_its_owner_and_others_machines_are_nobodys():
    name = machine_name({NAME_LABEL: "dutyfree-boxlite-1-1-abcdef", OWNER_LABEL: owner_mark()})
    assert len(name) <= 128
    assert owner_in(name) == owner_mark()
    assert not is_orphan(owner_in(name))
    assert owner_in("dutyfree-like") is None
    assert owner_in("my.own.box") is None
    assert owner_in(None) is None
