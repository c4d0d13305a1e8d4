"""Probes 36 to 46: the host's side of the file methods never follows what the sandbox planted."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError, Misuse
from dutyfree.probe.canary import Canary, canary
from dutyfree.probe.scene import need, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_SWAPS = 1_000_000
_SWAPPING_S = 10.0


async def fetch(box: Sandbox, remote: str, local: Path, *, limit_bytes: int = 1 << 24) -> str:
    """Download, whatever comes of it."""
    try:
        await box.download(remote, local, limit_bytes=limit_bytes)
    except (DutyfreeError, OSError) as error:
        return f"refused ({type(error).__name__})"
    return "came"


def leaks(top: Path, bird: Canary) -> str | None:
    """Anything in what was downloaded that shows, or leads to, the host's file."""
    for directory, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = Path(directory) / name
            if path.is_symlink() and not path.resolve().is_relative_to(top.resolve()):
                return f"{name} is a link that leads out"
            if path.is_file() and not path.is_symlink() and bird.secret in path.read_bytes():
                return f"{name} holds the host's file"
    return bird.disturbed()


async def planted_link(substrate: Substrate) -> Verdict:
    """36: links to a file of the host, alone, in a tree, and as the way to it."""
    with canary() as bird, tempfile.TemporaryDirectory(prefix="probe-") as top:
        target = Path(top)
        async with stage(substrate) as box:
            script = (
                f"mkdir -p /tmp/t/d && ln -s {bird.path} /tmp/link && ln -s {bird.path} /tmp/t/file && "
                f"ln -s {bird.directory} /tmp/t/dir && ln -s ../../../../../../../../{bird.path} /tmp/t/d/up"
            )
            await box.box.run(script, timeout_s=30)
            results = [await fetch(box.box, name, target / str(i)) for i, name in enumerate(("/tmp/link", "/tmp/t"))]  # noqa: S108
            with suppress(OSError, DutyfreeError):
                if bird.secret in await box.box.read("/tmp/link"):  # noqa: S108
                    return broke("read followed a link to the host's file")
        leak = leaks(target, bird)
    return broke(leak) if leak else held(f"downloads: {', '.join(results)}; nothing leads out")


async def upload_through_link(substrate: Substrate) -> Verdict:
    """38: an upload, a write, a rename and a removal below a linked parent."""
    with canary() as bird, tempfile.TemporaryDirectory(prefix="probe-") as top:
        source = Path(top) / "tree"
        source.mkdir()
        (source / "secret").write_bytes(b"overwritten")
        async with stage(substrate) as box:
            await box.box.run(f"ln -s {bird.directory} /tmp/out", timeout_s=30)
            for work in (
                box.box.upload(source, "/tmp/out"),  # noqa: S108
                box.box.upload(source / "secret", "/tmp/out/secret"),  # noqa: S108
                box.box.write("/tmp/out/secret", b"overwritten"),  # noqa: S108
                box.box.remove("/tmp/out/secret"),  # noqa: S108
                box.box.remove("/tmp/out", recursive=True),  # noqa: S108
            ):
                with suppress(DutyfreeError, OSError):
                    await work
        disturbed = bird.disturbed()
    return broke(disturbed) if disturbed else held("the host's directory is untouched")


async def odd_names(substrate: Substrate) -> Verdict:
    """39: names that climb, are too long, or are not UTF-8."""
    with canary() as bird:
        async with stage(substrate) as box:
            climb = "/tmp/" + "../" * 40 + str(bird.path)  # noqa: S108
            refused = []
            for path in (climb, "relative", "/tmp/\0x", "/" + "x" * 5000, "/tmp/" + "x" * 300, "/tmp/\udcff\udcfe"):  # noqa: S108
                try:
                    await box.box.write(path, b"overwritten")
                except (DutyfreeError, OSError) as error:
                    refused.append(type(error).__name__)
            if not await box.alive():
                return broke("a name ended the sandbox")
        disturbed = bird.disturbed()
    return broke(disturbed) if disturbed else held(f"the host is untouched; refused: {', '.join(refused)}")


async def endless_files(substrate: Substrate) -> Verdict:
    """43: fifos, devices and growing files are bounded."""
    limits = {"disk_bytes": 64 << 20} if "disk_bytes" in substrate.capabilities.limits else {}
    with tempfile.TemporaryDirectory(prefix="probe-") as top:
        async with stage(substrate, **limits) as box:
            script = "mkdir /tmp/t && mkfifo /tmp/t/fifo && ln -s /dev/zero /tmp/t/zero && (yes >/tmp/t/growing &)"
            await box.box.run(["bash", "-c", script], timeout_s=30, background=True)
            results = []
            for number, name in enumerate(("/tmp/t/fifo", "/dev/zero", "/tmp/t/growing", "/tmp/t", "/proc/self/mem")):  # noqa: S108
                target = Path(top) / str(number)
                results.append(await fetch(box.box, name, target))
                with suppress(DutyfreeError, OSError):
                    await box.box.read(name, length=1 << 16)
                if (
                    sum(path.stat().st_blocks * 512 for path in [target, *target.rglob("*")] if path.is_file())
                    > 1 << 25
                ):
                    return broke(f"{name} filled the host's disk")
            if not await box.alive():
                return broke("the sandbox does not answer any more")
    return held(f"bounded: {', '.join(results)}")


async def swapped_link(substrate: Substrate) -> Verdict:
    """37: what is a file when it is looked at and a link when it is opened, swapped as fast as the kernel can."""
    with canary() as bird, tempfile.TemporaryDirectory(prefix="probe-") as top:
        async with stage(substrate) as box:
            attempt = box.attempt("swap-names", target=str(bird.path), times=_SWAPS, seconds=_SWAPPING_S)
            swapping = asyncio.ensure_future(attempt)
            number = 0
            try:
                while not swapping.done():
                    number += 1
                    with suppress(DutyfreeError, OSError):
                        if bird.secret in await box.box.read("/tmp/swap/a"):  # noqa: S108
                            return broke("read followed a swapped link to the host's file")
                    with suppress(DutyfreeError, OSError):
                        await box.box.write("/tmp/swap/a", b"own")  # noqa: S108
                    await fetch(box.box, "/tmp/swap", Path(top) / str(number))  # noqa: S108
                    if leak := leaks(Path(top) / str(number), bird):
                        return broke(leak)
                    shutil.rmtree(Path(top) / str(number), ignore_errors=True)
            finally:
                swapping.cancel()
            swaps = (await swapping).said.get("swaps", 0)
    need(swaps > 0, "nothing was swapped")
    return held(f"{number} reads, writes and downloads during {swaps} swaps")


async def special_files(substrate: Substrate) -> Verdict:
    """41: devices, fifos, sockets, setuid bits and hard links in a downloaded tree."""
    with tempfile.TemporaryDirectory(prefix="probe-") as top:
        target = Path(top) / "out"
        async with stage(substrate) as box:
            script = (
                "mkdir -p /tmp/t && cd /tmp/t && mkfifo fifo; mknod null c 1 3; cp /bin/true suid; chmod 6755 suid; "
                "ln suid hard; ln /etc/passwd passwd; "
                "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/t/sock\")'; true"
            )
            await box.box.run(script, timeout_s=30)
            result = await fetch(box.box, "/tmp/t", target)  # noqa: S108
        for path in target.rglob("*") if target.exists() else []:
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                return broke(f"{path.name} is neither file, directory nor link")
            if mode & 0o6000 and not stat.S_ISDIR(mode):
                return broke(f"{path.name} kept its setuid bits on the host")
    return held(f"download {result}: nothing special arrived")


async def long_listing(substrate: Substrate) -> Verdict:
    """45: a directory of very many entries is refused or bounded, and costs the host little."""
    async with stage(substrate) as box:
        await box.box.run("mkdir /tmp/many && cd /tmp/many && seq 30000 | xargs touch", timeout_s=60)
        try:
            entries = await box.box.list("/tmp/many", limit=1000)  # noqa: S108
        except Misuse:
            entries = []
        whole = await box.box.list("/tmp/many")  # noqa: S108
        if len(entries) > 1000 or len(whole) != 30_000:
            return broke(f"{len(entries)} entries came, the limit was 1000; of 30000 there were {len(whole)}")
        return held("bounded") if await box.alive() else broke("the sandbox does not answer any more")


PROBES = (
    Probe(id=36, name="download-a-link", group="file-api", run=planted_link),
    Probe(id=37, name="swapped-link", group="file-api", run=swapped_link),
    Probe(id=38, name="upload-through-a-link", group="file-api", run=upload_through_link),
    Probe(id=39, name="odd-names", group="file-api", run=odd_names),
    Probe(id=41, name="special-files", group="file-api", run=special_files),
    Probe(id=43, name="endless-files", group="file-api", run=endless_files),
    Probe(id=45, name="long-listing", group="file-api", run=long_listing),
)
