"""The arrows of the design, held by walking the syntax trees."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import dutyfree

ROOT = Path(dutyfree.__file__).parent
EVERYTHING = frozenset(
    {
        "adapters",
        "blocking",
        "cli",
        "core",
        "driver",
        "fleet",
        "guest",
        "image",
        "meter",
        "probe",
        "report",
        "reward",
        "service",
    }
) | {
    "substrates",
    "testing",
    "tree",
    "warm",
}
UPPER = frozenset({"warm", "substrates", "driver", "guest", "tree", "core", "blocking"})
MAY_IMPORT = {
    "core": frozenset(),
    "tree": frozenset({"core"}),
    "guest": frozenset({"tree", "core"}),
    "driver": frozenset({"guest", "tree", "core"}),
    "image": frozenset({"tree", "core"}),
    "substrates": frozenset({"driver", "image", "guest", "tree", "core"}),
    "warm": frozenset({"substrates", "driver", "image", "guest", "tree", "core"}),
    "blocking": frozenset({"warm", "reward", "substrates", "core"}),
    "adapters": UPPER,
    "fleet": UPPER,
    "service": UPPER,
    "meter": frozenset({"core"}),
    "report": frozenset({"meter", "core"}),
    "reward": frozenset({"core"}),
    "probe": frozenset({"reward", "core"}),
    "testing": frozenset({"substrates", "driver", "image", "guest", "tree", "core"}),
    "cli": EVERYTHING,
    "": frozenset({"core", "reward", "substrates", "warm"}),
}
"""Each part of the package, and the parts it may know. The façade is the empty name."""

MAY_CATCH_ALL = {
    "blocking/bridge.py": "an error of the loop's thread is raised again in the caller's",
    "blocking/turn.py": "what a signal handler raises is raised once all handlers are back in place",
    "meter/trial.py": "the trial runner writes every failure down as a record",
}
"""Files that catch everything, and why. `except BaseException` is fine anywhere if it ends in `raise`."""

SOURCES = sorted(path for path in ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    inside = path.relative_to(ROOT).parts
    return "cli" if inside == ("__main__.py",) else inside[0] if len(inside) > 1 else ""


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def offences(check: Callable[[Path, ast.Module], Iterator[str]]) -> list[str]:
    return [f"{name_of(path)}: {what}" for path in SOURCES for what in check(path, ast.parse(path.read_text()))]


def test_imports_follow_the_arrows():
    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        part = part_of(path)
        for module in imports(tree):
            pieces = module.split(".")
            if pieces[0] == "dutyfree" and len(pieces) > 1 and pieces[1] in EVERYTHING - {part} - MAY_IMPORT[part]:
                yield f"may not import {module}"

    assert offences(check) == []


def test_every_part_of_the_package_has_its_arrows():
    parts = {path.name for path in ROOT.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert parts <= set(MAY_IMPORT)


def test_drivers_do_not_know_each_other():
    drivers = {name for name, _ in dutyfree.drivers()}

    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        inside = path.relative_to(ROOT).parts
        if inside[0] == "substrates" and len(inside) > 2 and inside[1] in drivers:
            for module in imports(tree):
                pieces = module.split(".")
                if pieces[:2] == ["dutyfree", "substrates"] and len(pieces) > 2 and pieces[2] in drivers - {inside[1]}:
                    yield f"imports {module}"

    assert offences(check) == []


def test_only_the_command_line_prints():
    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id == "print" and part_of(path) != "cli":
                yield f"line {called.lineno} prints"

    assert offences(check) == []


def test_nothing_catches_everything():
    assert {line.partition(":")[0] for line in offences(broad_catches)} == set(MAY_CATCH_ALL)


def broad_catches(path: Path, tree: ast.Module) -> Iterator[str]:
    """Handlers of `Exception`, and those of everything that do not raise it again."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = {one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)} if node.type else set()
            raises = any(isinstance(one, ast.Raise) and one.exc is None for one in ast.walk(node))
            if "Exception" in caught or ((not caught or "BaseException" in caught) and not raises):
                yield f"line {node.lineno}"
