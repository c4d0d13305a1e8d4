"""The drivers of embedded microVMs against the libraries they were written for, as far as those go without KVM."""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import boxlite
import microsandbox
import pytest

from dutyfree.substrates.qemu.kvm import judge

PROGRAM = Path(__file__).with_name("peers.py")
COMMAND = [sys.executable, "-m", "dutyfree.cli.main"]


def played(scenario, place):
    env = {**os.environ, "DUTYFREE_HOME": str(place), "HOME": str(place), "MSB_HOME": str(place / "msb")}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), scenario, str(place)],
        env=env, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "scenario",
    [
        "microsandbox_takes_images",
        "microsandbox_takes_arguments",
        "boxlite_shares_no_home",
        "unknown_images_are_misuse",
    ],
)
def test_the_library_does_what_the_driver_expects(scenario):
    with tempfile.TemporaryDirectory(prefix="peers-", dir="/tmp") as place:  # short: the library keeps sockets in it
        played(scenario, Path(place))


def binds(function, *args, **options):
    inspect.signature(function).bind(*args, **options)


def test_the_calls_of_the_microsandbox_driver_are_those_of_its_library():
    box, handle = object(), object()
    binds(
        microsandbox.Sandbox.exec_stream, box, "ls", ["-l"], cwd="/", user="0", env={}, stdin=microsandbox.Stdin.pipe()
    )
    binds(microsandbox.Sandbox.get, "name")
    binds(microsandbox.Sandbox.list_with, cursor=None, limit=100, labels={})
    binds(microsandbox.SandboxHandle.destroy, handle, force=True, timeout=30.0)
    binds(microsandbox.ExecHandle.recv, handle)
    binds(microsandbox.ExecHandle.take_stdin, handle)
    binds(microsandbox.ExecSink.write, handle, b"x")
    binds(microsandbox.ExecSink.close, handle)
    binds(microsandbox.Image.load, "path", tag="name")
    binds(microsandbox.Volume.bind, "/path", readonly=True)
    with pytest.raises(TypeError):
        binds(microsandbox.SandboxHandle.destroy, handle, violently=True)


def test_the_calls_of_the_boxlite_driver_are_those_of_its_library():
    runtime, box, execution = object(), object(), object()
    native = boxlite.boxlite
    binds(native.Boxlite.create, runtime, object(), name="name")
    binds(native.Boxlite.remove, runtime, "name", force=True)
    binds(native.Boxlite.list_info, runtime)
    binds(native.Boxlite.close, runtime)
    binds(native.Box.start, box)
    binds(native.Box.info, box)
    binds(native.Box.exec, box, "sh", ["-c", "true"], None, user="0")
    for name in ("stdin", "stdout", "stderr", "wait"):
        binds(getattr(native.Execution, name), execution)
    binds(native.ExecStdin.send_input, object(), b"x")
    binds(native.ExecStdin.close, object())
    with pytest.raises(TypeError):
        binds(native.Box.exec, box, "sh", violently=True)


@pytest.mark.parametrize("name", ["boxlite", "microsandbox"])
def test_doctor_and_measure_say_what_the_kvm_probe_saw(name, tmp_path):
    found = judge()
    if found.usable:
        pytest.skip("KVM is usable here, so nothing is refused")
    heart = found.reason.partition(":")[0]  # numbers differ from one look to the next
    done = subprocess.run([*COMMAND, "doctor", "--json"], capture_output=True, text=True, timeout=110, check=True)
    (row,) = [row for row in json.loads(done.stdout)["substrates"] if row["name"] == name]
    assert not row["available"]
    assert f"it needs KVM: {heart}" in row["reason"]
    assert row["capabilities"]["isolation"] == "vm"
    out = tmp_path / "run"
    refused = subprocess.run(
        [*COMMAND, "measure", "-s", "noop", "-s", name, "--tier", "T0", "-o", str(out)],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert refused.returncode == 3
    assert f"it needs KVM: {heart}" in refused.stderr
    assert not (out / "records.jsonl").exists()
