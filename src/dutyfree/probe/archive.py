"""Probes 40, 42, 44 and 46: trees that hurt whoever unpacks, counts or stacks them.

A sandbox may replace its own `tar`: what comes out of it is then whatever its code likes to send.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError
from dutyfree.probe.canary import canary
from dutyfree.probe.file_api import fetch, leaks
from dutyfree.probe.scene import Stage, need, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_LIMIT_BYTES = 16 << 20
_BOMB_BYTES = 1 << 30
_FAKE_TAR = "/tmp/fake.tar"  # noqa: S108 (inside the sandbox)


def hostile_tar(directory: Path, target: Path) -> bytes:
    """Every way out that an archive can name: climbing, absolute, through links, by hard links, by a chain too long."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:

        def add(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> None:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size, entry.mode = kind, link, len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))

        add("../climbed", data=b"x")
        add(f"{directory}/absolute", data=b"x")
        add("out", tarfile.SYMTYPE, str(directory))
        add("out/through-link", data=b"x")
        add("hard", tarfile.LNKTYPE, str(target))
        add("hard", data=b"overwritten")
        # Links that resolve to the archive's own root until the path grows past PATH_MAX, and then do not.
        long = "d" * 247
        path = ""
        for step in "abcdefghijklmnop":
            add(path + long, tarfile.DIRTYPE)
            add(path + step, tarfile.SYMTYPE, long)
            path += long + "/"
        chain = "/".join("abcdefghijklmnop")
        add(chain + "/" + "l" * 254, tarfile.SYMTYPE, "../" * 16)
        add("escape", tarfile.SYMTYPE, chain + "/" + "l" * 254 + "/../../..")
        add("escape/climbed-by-chain", data=b"x")
    return buffer.getvalue()


async def _replace_tar(box: Stage, archive: bytes) -> None:
    """From now on `tar` inside says what the archive holds, whoever asks."""
    await box.box.write(_FAKE_TAR, archive)
    fake = f"#!/bin/sh\nexec cat {_FAKE_TAR}\n".encode()
    for path in ("/bin/tar", "/usr/bin/tar", "/usr/local/bin/tar"):
        with suppress(DutyfreeError, OSError):
            await box.box.write(path, fake, mode=0o755)


async def hostile_archive(substrate: Substrate) -> Verdict:
    """40: climbing names, hard links and chains of links, in an archive and in a real tree."""
    with canary() as bird, tempfile.TemporaryDirectory(prefix="probe-") as top:
        target = Path(top) / "deep" / "target"
        target.mkdir(parents=True)
        async with stage(substrate) as box:
            chain = "mkdir -p /tmp/t && cd /tmp/t && for i in $(seq 60); do ln -s $((i + 1)) $i; done; mkdir 61; ln -s .. 61/up"
            await box.box.run(["bash", "-c", chain], timeout_s=30)
            results = [await fetch(box.box, "/tmp/t", target / "links")]  # noqa: S108
            await _replace_tar(box, hostile_tar(bird.directory, bird.path))
            results.append(await fetch(box.box, "/tmp/t", target / "archive"))  # noqa: S108
        stray = sorted({*os.listdir(top), *os.listdir(target.parent), *os.listdir(target)})
        extra = set(stray) - {"deep", "target", "links", "archive"}
        leak = leaks(target, bird)
    if extra or leak:
        return broke(leak or f"outside the target there appeared {sorted(extra)}")
    return held(f"downloads: {', '.join(results)}; nothing outside the target")


async def bomb(substrate: Substrate) -> Verdict:
    """42: far more bytes than the caller allows, packed small."""
    with tempfile.TemporaryDirectory(prefix="probe-") as top:
        async with stage(substrate) as box:
            made = f"mkdir /tmp/t && truncate -s {_BOMB_BYTES} /tmp/t/zeros && for i in $(seq 9); do ln /tmp/t/zeros /tmp/t/$i; done"
            await box.box.run(["bash", "-c", made], timeout_s=30)
            result = await fetch(box.box, "/tmp/t", Path(top) / "out", limit_bytes=_LIMIT_BYTES)  # noqa: S108
            kept = _bytes_in(Path(top))
            alive = await box.alive()
    if kept > 2 * _LIMIT_BYTES or result == "came":
        return broke(f"{kept} bytes arrived ({result}), the limit is {_LIMIT_BYTES}")
    return held(f"{result}, {kept} bytes arrived") if alive else broke("the sandbox does not answer any more")


async def sparse(substrate: Substrate) -> Verdict:
    """44: a file of 1 TiB that has nothing in it."""
    with tempfile.TemporaryDirectory(prefix="probe-") as top:
        async with stage(substrate) as box:
            made = await box.box.run(["truncate", "-s", "1T", "/tmp/sparse"], timeout_s=30)  # noqa: S108
            need(made.ok, "the image's file system has no file of 1 TiB")
            result = await fetch(box.box, "/tmp/sparse", Path(top) / "out", limit_bytes=_LIMIT_BYTES)  # noqa: S108
            part = await box.box.read("/tmp/sparse", offset=1 << 39, length=4096)  # noqa: S108
            whole = await _reads(box.box)
            kept = _bytes_in(Path(top))
            alive = await box.alive()
    if kept > 2 * _LIMIT_BYTES or result == "came" or whole:
        return broke(f"{kept} bytes arrived ({result}, read: {whole}), the limit is {_LIMIT_BYTES}")
    if part != bytes(4096) or not alive:
        return broke("a part of it could not be read" if alive else "the sandbox does not answer any more")
    return held(f"{result}, {kept} bytes arrived; parts can be read")


async def _reads(box: Sandbox) -> bool:
    try:
        await box.read("/tmp/sparse")  # noqa: S108 (inside the sandbox)
    except (DutyfreeError, OSError):
        return False
    return True


async def overlay_marks(substrate: Substrate) -> Verdict:
    """46: what a union file system takes for "deleted" or "opaque", in a tree that is uploaded."""
    with tempfile.TemporaryDirectory(prefix="probe-") as top:
        tree = Path(top) / "tree"
        (tree / "hidden").mkdir(parents=True)
        (tree / "plain").write_bytes(b"plain")
        _mark(tree)
        async with stage(substrate) as box, stage(substrate) as sibling:
            try:
                await box.box.upload(tree, "/etc")
                result = "uploaded"
            except (DutyfreeError, OSError) as error:
                result = f"refused ({type(error).__name__})"
            said = (await box.attempt("overlay-marks", top="/etc")).said
            need(bool(said), "the attempt did not report")
            passwd = [(await each.box.run(["cat", "/etc/passwd"], timeout_s=30)).ok for each in (box, sibling)]
    if said["marks"]:
        return broke(f"inside there are {', '.join(said['marks'])}")
    return held(f"{result}; no mark arrived") if all(passwd) else broke("a file of the image was hidden by an upload")


def _mark(tree: Path) -> None:
    with suppress(OSError):  # only root may make the device, and only some file systems have the attributes
        os.mknod(tree / "passwd", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    for name in ("user.overlay.opaque", "user.overlay.whiteout", "trusted.overlay.opaque", "trusted.overlay.redirect"):
        with suppress(OSError):
            os.setxattr(tree / "hidden", name, b"y")


def _bytes_in(top: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in top.rglob("*"))


PROBES = (
    Probe(id=40, name="hostile-archive", group="file-api", run=hostile_archive),
    Probe(id=42, name="archive-bomb", group="file-api", run=bomb),
    Probe(id=44, name="sparse-file", group="file-api", run=sparse),
    Probe(id=46, name="overlay-marks", group="file-api", run=overlay_marks),
)
