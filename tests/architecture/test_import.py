"""Importing the package does nothing, and its public names are pinned."""

import json
import subprocess
import sys

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
        "drivers": ["dutyfree.substrates.registry"],
        "heavy": [],
    }


def test_the_public_names_are_exactly_these():
    assert dutyfree.__all__ == PUBLIC
    for name in PUBLIC:
        assert hasattr(dutyfree, name)
