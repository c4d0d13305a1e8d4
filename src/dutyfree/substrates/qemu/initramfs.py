"""The machine's first root: our first process, our agent and the modules, as an uncompressed cpio archive ("newc")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from dutyfree.substrates.qemu.kernel import Kernel

_FOLDER, _PROGRAM, _FILE = 0o040755, 0o100755, 0o100644
_FOLDERS = ("dev", "proc", "sys", "lower", "upper", "root", "ko", "extra")


def initramfs(kernel: Kernel, *, init: Path, agent: Path) -> bytes:
    """The same bytes for the same programs and kernel."""
    return b"".join(_archive(kernel, init, agent))


def extra(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """A second archive, to follow the first: files (path without the first slash, mode, content) above the image's own."""
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents if str(parent) != "."}
    parts = [_member(f"extra/{folder}", _FOLDER, b"") for folder in sorted(folders)]
    parts += [_member(f"extra/{path}", 0o100000 | mode, content) for path, (mode, content) in files.items()]
    return b"".join([*parts, _member("TRAILER!!!", 0, b"")])


def _archive(kernel: Kernel, init: Path, agent: Path) -> Iterator[bytes]:
    for name in _FOLDERS:
        yield _member(name, _FOLDER, b"")
    yield _member("init", _PROGRAM, init.read_bytes())
    yield _member("agent", _PROGRAM, agent.read_bytes())
    for module in kernel.modules:
        yield _member(f"ko/{module.name}", _FILE, module.read_bytes())
    yield _member("modules", _FILE, "".join(f"/ko/{module.name}\n" for module in kernel.modules).encode())
    yield _member("TRAILER!!!", 0, b"")


def _member(name: str, mode: int, content: bytes) -> bytes:
    title = name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name, check
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(title), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + title
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
