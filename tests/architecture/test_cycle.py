"""Imports make no circle, those for type checkers included; families of drivers know nothing of each other."""

import ast
import itertools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dutyfree

ROOT = Path(dutyfree.__file__).parent
SUBSTRATES = "dutyfree.substrates"

FAMILIES = {
    "local": {"local", "host", "native", "noop"},
    "container": {"container", "docker", "podman", "engine", "runc", "gvisor", "oci"},
    "cluster": {"cluster", "kubernetes", "claim"},
    "vm": {"vm", "microvm", "qemu"},
    "hosted": {"hosted", "daytona", "e2b", "modal", "opensandbox"},
    "login": {"login", "ssh", "ec2"},
}
"""Each family, and the folders below `substrates/` that belong to it."""

KNOWN_RELATIONS = {
    "substrates.claim.driver imports substrates.engine.options",
    "substrates.hosted.driver imports substrates.engine.options",
    "substrates.kubernetes.driver imports substrates.engine.options",
    "substrates.qemu.offer imports substrates.engine.options",
    "substrates.vm.driver imports substrates.engine.options",
    "substrates.vm.remote imports substrates.oci.user",
}
"""Imports from one family into another that are still there. Nothing may be added."""


def module_name(path: Path) -> str:
    parts = path.with_suffix("").relative_to(ROOT.parent).parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module of ours that a file imports, wherever in the file it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def graph() -> dict[str, set[str]]:
    return {
        name: {one for one in imported(ast.parse(path.read_text())) if one in MODULES and one != name}
        for name, path in MODULES.items()
    }


def cycles(known: dict[str, set[str]]) -> set[frozenset[str]]:
    """Each circle found; its edges are then taken out, and the search goes on."""
    edges, found = {name: set(targets) for name, targets in known.items()}, set()
    while True:
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            circle = error.args[1]
            found.add(frozenset(name.removeprefix("dutyfree.") for name in circle))
            for one, other in itertools.pairwise(circle):
                edges[one].discard(other)
                edges[other].discard(one)
        else:
            return found


def family_of(module: str) -> str | None:
    folder = module.removeprefix(f"{SUBSTRATES}.").split(".")[0] if module.startswith(f"{SUBSTRATES}.") else None
    return next((family for family, folders in FAMILIES.items() if folder in folders), None)


def test_a_circle_is_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {frozenset("abc")}
    assert cycles({"a": {"b"}, "b": set()}) == set()


def test_there_are_no_import_cycles_even_for_types():
    assert cycles(graph()) == set()


def test_a_family_of_drivers_imports_no_other_family():
    found = {
        f"{name} imports {target}".replace("dutyfree.", "")
        for name, targets in graph().items()
        for target in targets
        if family_of(name) and family_of(target) and family_of(name) != family_of(target)
    }
    assert found <= KNOWN_RELATIONS


def test_every_driver_belongs_to_a_family():
    found = {name: family_of(type(load()).__module__) for name, load in dutyfree.drivers()}
    assert {name for name, family in found.items() if family is None} == set()
