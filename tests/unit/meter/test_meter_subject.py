"""What is not there is "not offered", with the reason, before anything is timed."""

import asyncio
import subprocess
import tempfile
from dataclasses import replace

import pytest
from synthetic import Faults, SyntheticSubstrate

from dutyfree.core.spec import Limits
from dutyfree.meter.subject import Subject, examine
from dutyfree.meter.workload import Clone, set_up
from dutyfree.meter.workloads import tier0
from dutyfree.meter.workloads.gitserver import GitServer
from dutyfree.substrates.registry import connect


def look(substrate, workload=None, **options):
    subject = Subject(label="s", name="s", substrate=substrate)
    return asyncio.run(examine(subject, workload or tier0.workload(), **options))


def test_the_first_known_image_is_taken():
    assert look(SyntheticSubstrate(faults=Faults(images=frozenset({"bench"})))).spec.image == "bench"
    assert look(SyntheticSubstrate(faults=Faults(images=frozenset({"bench", "host"})))).spec.image == "host"


def test_an_unknown_image_is_a_reason():
    offer = look(SyntheticSubstrate(), images=("nowhere",))
    assert not offer.offered
    assert "nowhere" in offer.reason


def test_a_missing_program_is_a_reason():
    offer = look(SyntheticSubstrate(), replace(tier0.workload(), programs=("/nowhere/python3",)))
    assert not offer.offered
    assert "lacks /nowhere/python3" in offer.reason


@pytest.mark.parametrize(("forward", "route"), [(True, "relay"), (False, "upload")])
def test_a_clone_without_any_network_is_relayed_or_uploaded(tmp_path, forward, route):
    substrate = SyntheticSubstrate()
    substrate.capabilities = replace(substrate.capabilities, networks=frozenset({"none"}), forward=forward)
    clone = Clone(served=tmp_path, name="x.git", commit="c" * 40)
    offer = look(substrate, replace(tier0.workload(), clone=clone), server=("127.0.0.1", 1))
    assert offer.offered
    assert offer.to_dict()["route"] == route
    assert offer.to_dict()["network"] == "none"


def test_limits_that_cannot_be_enforced_are_left_out_and_shown_so():
    offer = look(SyntheticSubstrate(), limits=Limits(cpus=1))
    assert offer.to_dict()["limits"] == {}


def test_a_medium_that_a_driver_always_writes_to_stands_in_the_manifest_whatever_was_asked_for():
    substrate = SyntheticSubstrate()
    substrate.capabilities = replace(substrate.capabilities, storages=frozenset({"memory", "disk"}), medium="disk")
    assert look(substrate, storage="memory").to_dict()["storage"] == "disk"


@pytest.mark.parametrize(("place", "medium"), [("/dev/shm", "memory"), ("/var/tmp", "disk")])
def test_the_medium_is_seen_and_not_believed(place, medium, monkeypatch):
    said = subprocess.run(["stat", "-f", "-c", "%T", place], capture_output=True, text=True, check=False).stdout.strip()
    if (said == "tmpfs") != (medium == "memory") or said.startswith("overlay"):
        pytest.skip(f"{place} is a {said or 'missing place'} here: mount -t tmpfs tmpfs /dev/shm")
    monkeypatch.setattr(tempfile, "tempdir", place)
    assert look(SyntheticSubstrate()).to_dict()["storage_seen"] == medium


def test_the_image_s_size_is_the_store_s_and_not_what_shows_inside():
    class Sized(SyntheticSubstrate):
        async def image_bytes(self, image):
            return 228 << 20

    assert look(Sized(faults=Faults(images=frozenset({"bench"})))).image_bytes == 228 << 20
    assert look(Sized()).image_bytes is None


def test_looking_leaves_no_sandbox():
    substrate = SyntheticSubstrate()
    look(substrate)
    assert substrate.living == 0


@pytest.mark.parametrize("lose_at", [1, 2])
def test_a_substrate_that_dies_while_looked_at_is_not_offered(lose_at):
    offer = look(SyntheticSubstrate(faults=Faults(lose_at=lose_at)), replace(tier0.workload(), programs=("/bin/sh",)))
    assert not offer.offered
    assert "gone" in offer.reason


@pytest.mark.parametrize("served", [True, False])
def test_a_clone_comes_over_the_network_where_its_server_is_reached_and_else_by_upload(tmp_path, served):
    commit = _repository(tmp_path)
    clone = Clone(served=tmp_path, name="x.git", commit=commit)
    workload = replace(tier0.workload(), clone=clone, directory="repo")

    async def main():
        async with connect("host") as host, GitServer(tmp_path) as (address, port):
            subject = Subject(label="host", name="host", substrate=host)
            offer = await examine(subject, workload, server=(address, port if served else 1))
            async with host.create(offer.spec) as box:
                directory = await set_up(box, workload, (address, port) if offer.route == "network" else None)
                return offer, (await box.run(["git", "-C", directory, "log", "--format=%s"])).text()

    offer, log = asyncio.run(main())
    assert offer.route == ("network" if served else "upload")
    assert log == "first\n"


def _repository(directory):
    """A bare repository x.git of one commit, whose id is returned."""
    git = ["git", "-C", directory / "w", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", directory / "w"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", directory / "w", directory / "x.git"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
