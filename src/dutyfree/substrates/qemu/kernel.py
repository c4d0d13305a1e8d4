"""The guest's kernel: Debian's cloud kernel, unpacked below the store and never installed.

    <home>/machines/kernel/<package>/boot/vmlinuz-*, lib/modules/…      as `make substrates` unpacks the package

Only finds; what fetches it is scripts/substrates.sh.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = ("virtio_blk", "virtio_console", "virtio_net", "virtio-rng", "overlay", "virtio_pci")
"""What the machine's devices and its root need; the bus comes last, so that its devices find their drivers."""

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One kernel that can be booted."""

    version: str
    image: Path
    modules: tuple[Path, ...]
    """In the order in which they can be loaded."""


def kernels(home: Path) -> Path:
    """Directory of the unpacked kernels."""
    return home / "machines" / "kernel"


def find_kernel(home: Path) -> Kernel | None:
    """The newest kernel there; None: none was fetched yet."""
    found = sorted(kernels(home).glob("*/boot/vmlinuz-*"), key=lambda path: _numbers(path.name))
    if not found:
        return None
    image = found[-1]
    version = image.name.removeprefix("vmlinuz-")
    return Kernel(version=version, image=image, modules=_modules(image.parents[1] / "lib/modules" / version))


def _modules(folder: Path) -> tuple[Path, ...]:
    files = {_plain(path.stem): path for path in folder.rglob("*.ko")}
    ordered: dict[str, Path] = {}
    for name in MODULES:
        _add(_plain(name), files, ordered)
    return tuple(ordered.values())


def _add(name: str, files: dict[str, Path], ordered: dict[str, Path]) -> None:
    """A module after those it needs; one that has no file is part of the kernel."""
    if name in ordered or name not in files:
        return
    for needed in _needs(files[name]):
        _add(needed, files, ordered)
    ordered[name] = files[name]


def _needs(module: Path) -> Iterator[str]:
    match = _DEPENDS.search(module.read_bytes())
    return (_plain(name) for name in match[1].decode().split(",") if name) if match else iter(())


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _numbers(name: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", name)]
