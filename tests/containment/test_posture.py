"""A native sandbox's view of itself is exactly what posture.toml says."""

import asyncio
import os
import tomllib
from pathlib import Path

import pytest

import dutyfree
from dutyfree.probe.scene import stage

EXPECTED = tomllib.loads(Path(__file__).with_name("posture.toml").read_text())
CAPABILITIES = {
    0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 4: "FSETID", 5: "KILL", 6: "SETGID", 7: "SETUID", 8: "SETPCAP",
    10: "NET_BIND_SERVICE", 31: "SETFCAP",
}  # fmt: skip
PER_RUN = {"LC_CTYPE"}
"""Set by the interpreter that looks, not by us."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the manifest is that of a root owner: sudo make test")


@pytest.fixture(scope="module")
def seen():
    async def look():
        async with dutyfree.connect("native") as substrate, stage(substrate) as box:
            said = (await box.attempt("posture")).said
            assert said, "the attempt did not report"
            return said

    return asyncio.run(look())


def names_of(mask):
    bits = int(mask, 16)
    return sorted(CAPABILITIES.get(bit, f"capability {bit}") for bit in range(64) if bits >> bit & 1)


def test_capabilities_filters_and_ids(seen):
    status, expected = seen["status"], EXPECTED["privilege"]
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert names_of(status[name]) == sorted(expected["capabilities"]), name
    assert names_of(status["CapInh"]) == expected["inheritable"]
    assert names_of(status["CapAmb"]) == expected["ambient"]
    assert status["NoNewPrivs"] == str(int(expected["no_new_privileges"]))
    assert status["Seccomp"] == str(expected["seccomp"])
    assert (status["Uid"].split(), status["Gid"].split()) == (expected["ids"].split(),) * 2
    assert status["Groups"] == expected["groups"]
    for kind in ("uid_map", "gid_map"):
        ((inside, outside, size),) = seen[kind]
        assert (inside, size) == (0, expected["id_map_size"])
        assert outside >= expected["id_map_floor"]


def test_what_a_process_inherits(seen):
    expected = EXPECTED["process"]
    assert seen["descriptors"] == expected["descriptors"]
    assert seen["status"]["SigBlk"] == expected["blocked_signals"]
    assert int(seen["status"]["SigIgn"], 16) & ~PYTHON_IGNORES == int(expected["ignored_signals"], 16)
    assert seen["status"]["Umask"] == expected["umask"]
    assert seen["status"]["TracerPid"] == expected["traced_by"]
    assert sorted(set(seen["environment"]) - PER_RUN) == expected["environment"]
    assert seen["processes"] == expected["processes"]


PYTHON_IGNORES = 1 << 12 | 1 << 24
"""SIGPIPE and SIGXFSZ, by the interpreter itself."""


def test_limits(seen):
    for name, pair in EXPECTED["limits"].items():
        assert seen["limits"][name] == pair, name


def test_every_namespace_is_its_own(seen):
    host = {name: os.readlink(f"/proc/self/ns/{name}") for name in EXPECTED["namespaces"]["own"]}
    assert sorted(seen["namespaces"]) == EXPECTED["namespaces"]["own"]
    assert [name for name, link in seen["namespaces"].items() if link in ("", host[name])] == []
    assert seen["interfaces"] == EXPECTED["network"]["interfaces"]


def test_what_is_to_be_seen_of_dev_sys_and_proc(seen):
    expected = EXPECTED["view"]
    assert seen["devices"] == expected["devices"]
    assert seen["sys"] == expected["sys"]
    assert [name for name in expected["silent"] if "r" in seen["proc"].get(name, "")] == []
    assert [name for name, can in seen["proc"].items() if "w" in can and name not in expected["void"]] == []


def test_every_mount_is_known_and_as_restricted_as_promised(seen):
    for mount in seen["mounts"]:
        point, options = mount["point"], mount["options"].split(",")
        parent = str(Path(point).parent)
        expected = EXPECTED["mounts"].get(point) or EXPECTED["mounts"].get(f"{parent}/*")
        assert expected, f"nobody promised {mount}"
        assert expected["type"] in (mount["type"], "*"), mount
        assert ("rw" in options) == expected["writable"], mount
        assert set(expected["flags"]) <= set(options), mount
        assert mount["peers"] == "", mount
