"""Importing the package does nothing, and its public names are pinned."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import dutyfree

PROBE = """
import json, os, sys, threading
opened = []
sys.addaudithook(lambda event, args: opened.append((event, str(args[0]), args[1])) if event == "open" else
                 opened.append((event, "", "w")) if event in {"socket.__new__", "subprocess.Popen", "os.mkdir", "os.fork", "os.posix_spawn"} else None)
before = set(os.listdir("/proc/self/fd"))
import dutyfree
print(json.dumps({
    "written": [one for one in opened if one[2] and set(str(one[2])) & set("wax+") and "__pycache__" not in one[1]],
    "threads": threading.active_count(),
    "descriptors": len(os.listdir("/proc/self/fd")) - len(before),
    "drivers": [name for name in sys.modules if name.startswith("dutyfree.substrates.")],
    "heavy": [name for name in ("numpy", "scipy", "matplotlib", "rich", "jinja2", "docker") if name in sys.modules],
}))
"""

PUBLIC = [
    "Availability",
    "Capabilities",
    "Check",
    "Command",
    "CommandFailed",
    "Commands",
    "Driver",
    "DriverError",
    "DutyfreeError",
    "Egress",
    "Ending",
    "FileInfo",
    "Files",
    "Forward",
    "Limits",
    "Misuse",
    "Outcome",
    "Process",
    "Repository",
    "Sandbox",
    "SandboxLost",
    "Saturated",
    "Shell",
    "Snapshot",
    "Span",
    "Spec",
    "StageFailed",
    "Substrate",
    "TerminalSize",
    "Timeline",
    "Unavailable",
    "Unsupported",
    "Verification",
    "__version__",
    "connect",
    "drivers",
    "verify",
]


def test_importing_opens_nothing_starts_nothing_and_loads_no_driver():
    found = json.loads(subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=True).stdout)
    assert found == {
        "written": [],
        "threads": 1,
        "descriptors": 0,
        "drivers": [],
        "heavy": [],
    }


def test_the_public_names_are_exactly_these():
    assert dutyfree.__all__ == PUBLIC
    for name in PUBLIC:
        assert hasattr(dutyfree, name)


def modules_after(code):
    probe = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_imports_nothing_else_of_it():
    found = modules_after("import dutyfree")
    assert {name for name in found if name.startswith("dutyfree")} == {"dutyfree"}
    assert found.isdisjoint({"asyncio", "ssl", "socket", "subprocess", "importlib.metadata"})


def test_a_value_needs_no_event_loop():
    found = modules_after("import dutyfree; dutyfree.Spec(limits=dutyfree.Limits(cpus=1)); dutyfree.Misuse('x')")
    assert found.isdisjoint({"asyncio", "ssl", "subprocess"})


def test_help_imports_neither_an_event_loop_nor_a_substrate():
    found = modules_after("from dutyfree.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert found.isdisjoint({"asyncio", "ssl", "importlib.metadata", "dutyfree.core.contract", "dutyfree.guest.link"})
    assert not [name for name in found if name.startswith("dutyfree.substrates")]


def test_editors_are_told_the_names_that_are_imported_late():
    tree = ast.parse(Path(dutyfree.__file__).read_text())
    told = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        for alias in node.names
    }
    assert told == dutyfree._MODULES
    assert sorted({*told, "__version__"}) == sorted(dutyfree.__all__)
    assert set(dutyfree.__all__) <= set(dir(dutyfree))
