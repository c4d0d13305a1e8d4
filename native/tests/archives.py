"""Trees and tar archives for tests: made, described, compared."""

from __future__ import annotations

import io
import os
import random
import stat
import tarfile
from pathlib import Path


def member(
    name: str, *, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def archive_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def random_tree(root: Path, seed: int, names: str = "full") -> None:
    """Files of awkward sizes, long and foreign names, links, odd modes, times with nanoseconds."""
    chance = random.Random(seed)
    places = [os.fsencode(root)]
    longest = 200 if names == "full" else 20
    for i in range(60):
        stem = {
            0: f"plain-{i}".encode(),
            1: (f"long-{i}-" + "l" * chance.randrange(longest)).encode(),
            2: f"grüße-{i}".encode() if names == "full" else f"x{i}".encode(),
            3: f"raw-{i}-".encode() + (b"\xff\xfe\x80" if names == "full" else b"r"),
            4: f"blank {i}\n=".encode() if names == "full" else f"blank {i}".encode(),
        }[chance.randrange(5)]
        path = chance.choice(places) + b"/" + stem
        what = chance.randrange(4)
        if what == 0:
            os.mkdir(path)
            os.chmod(path, chance.choice([0o755, 0o700, 0o555, 0o1777]))
            places.append(path)
        elif what == 1:
            os.symlink(chance.choice([b"plain-1", b"../up", b"/abs", b"t" * chance.randrange(1, longest)]), path)
        else:
            with open(path, "wb") as file:
                file.write(chance.randbytes(chance.choice([0, 1, 511, 512, 513, 1024, 70_000])))
            os.chmod(path, chance.choice([0o644, 0o755, 0o600, 0o777, 0o444]))
        if what != 0:
            moment = chance.randrange(0, 2**32) * 10**9 + (chance.randrange(10**9) if names == "full" else 0)
            os.utime(path, ns=(0, moment), follow_symlinks=False)


def deep_tree(root: Path, depth: int) -> None:
    """A chain of directories, made by descriptor: its path is longer than any system call takes."""
    at = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def seen(root: Path, *, times: bool = True) -> dict[bytes, tuple[object, ...]]:
    """What a tree is: kind, mode, content, time of everything in it."""
    found: dict[bytes, tuple[object, ...]] = {}
    base = os.fsencode(root)
    for place, directories, files in os.walk(base):
        for name in directories + files:
            path = os.path.join(place, name)
            st = os.lstat(path)
            relative = os.path.relpath(path, base)
            moment = st.st_mtime_ns if times else None
            if stat.S_ISLNK(st.st_mode):
                found[relative] = ("link", os.readlink(path), moment)
            elif stat.S_ISDIR(st.st_mode):
                found[relative] = ("directory", stat.S_IMODE(st.st_mode))
            else:
                content = Path(os.fsdecode(path)).read_bytes()
                found[relative] = ("file", stat.S_IMODE(st.st_mode), content, moment)
    return found


def unpacked(archive: bytes, target: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), errors="surrogateescape") as tar:
        tar.extractall(target)
