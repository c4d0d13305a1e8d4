"""`Workshop`: what one substrate of machines holds: kernel, initramfs, disks made of images, the accelerator.

    <home>/machines/disks/<key>.ext4      an image as a read-only disk, shared by all its machines

Disks appear by one rename; what a killed maker left, and what nobody has used for `KEPT_S`, goes at the next start.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path

from dutyfree.core.checkout import make
from dutyfree.core.errors import DutyfreeError, Unavailable
from dutyfree.core.pending import completed
from dutyfree.driver.agent import agent_program
from dutyfree.driver.owner import is_orphan, owner_mark
from dutyfree.image.disk import MKFS, write_disk
from dutyfree.image.resolve import Image
from dutyfree.image.store import Store, delete
from dutyfree.substrates.qemu.initramfs import initramfs
from dutyfree.substrates.qemu.kernel import find_kernel
from dutyfree.substrates.qemu.kvm import judge
from dutyfree.substrates.qemu.machine import PROGRAM, Boot
from dutyfree.substrates.qemu.plan import Accel

ENABLE = make("substrates")
KEPT_S = 7 * 86_400.0
_PLACES = ("disks", "templates", "writes", "keys")


def obstacle(home: Path) -> str | None:
    """Reason why no virtual machine can run here; None: one can."""
    for program in (PROGRAM, "setpriv"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/sbin") is None:
            return f"{program} is not installed"
    if not Path(MKFS).exists():
        return "mkfs.ext4 is not installed"
    if find_kernel(home) is None:
        return "no kernel for guests was fetched yet"
    return None


def qemu_version() -> str:
    """As in `qemu 7.2.22`."""
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=False).stdout
    words = said.split()
    return f"qemu {words[words.index('version') + 1]}" if "version" in words else "qemu"


class Workshop:
    """Owns the initramfs; knows the places. Holds nothing before the first machine."""

    def __init__(self, driver: str, store: Store, accel: Accel, why: str) -> None:
        kernel = find_kernel(store.root)
        if kernel is None:
            raise Unavailable("no kernel for guests was fetched yet", enable=ENABLE, driver=driver)
        self.driver = driver
        self.accel = accel
        self.version = f"{qemu_version()} accel={accel}, linux {kernel.version}"
        self.why = why
        """Of the accelerator."""
        self.store = store
        self.kernel = kernel
        agent = agent_program(driver)
        archive = initramfs(kernel, init=agent.with_name("dutyfree-machine"), agent=agent)
        self.programs = archive
        self._initramfs = -1

    @property
    def boot(self) -> Boot:
        """Parts that a virtual machine boots from; opened at the first use."""
        if self._initramfs < 0:
            self._initramfs = memory_file(self.programs)
        return Boot(kernel=self.kernel.image, initramfs=self._initramfs)

    def place(self, name: str) -> Path:
        """One of our directories."""
        path = self.store.root / "machines" / name
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
        return path

    async def disk(self, image: Image) -> Path:
        """The image as a disk; made now if it is not there."""
        path = self.place("disks") / f"{image.key}.ext4"
        if not path.exists():
            await completed(asyncio.to_thread(self._make_disk, image, path))
        os.utime(path)
        return path

    def scratch(self, place: str) -> Path:
        """A name in one of our directories that a sweep knows as ours while we live, and as nobody's afterwards."""
        return self.place(place) / f".{owner_mark()}-{os.urandom(6).hex()}"

    def sweep(self) -> None:
        """Remove what dead owners left, and what was long unused."""
        for place in _PLACES:
            for path in self.place(place).iterdir():
                made = path.name.startswith(".")
                mark = path.name[1:].rpartition("-")[0]
                if is_orphan(mark) if made else path.stat().st_mtime + KEPT_S < time.time():
                    _remove(path)

    def close(self) -> None:
        """Give up the initramfs."""
        if self._initramfs >= 0:
            os.close(self._initramfs)
            self._initramfs = -1

    def _make_disk(self, image: Image, path: Path) -> None:
        with self.store.exclusive(f"disk {image.key}"):
            if path.exists():
                return
            scratch = self.scratch("disks")
            try:
                write_disk(image, scratch)
                scratch.rename(path)
            except DutyfreeError as error:
                error.driver = self.driver
                raise
            finally:
                scratch.unlink(missing_ok=True)


def memory_file(content: bytes) -> int:
    """A descriptor of a file that exists in memory only; the caller closes it."""
    fd = os.memfd_create("dutyfree-initramfs", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    return fd


def open_workshop(driver: str, store: Store, accel: str) -> Workshop:
    """Judge the accelerator (`auto`, or as asked), prepare, sweep. Blocks for a moment."""
    why = obstacle(store.root)
    if why is not None:
        raise Unavailable(why, enable=ENABLE, driver=driver)
    chosen: Accel = "tcg"
    reason = "asked for"
    if accel != "tcg":
        found = judge()
        reason = found.reason
        if accel == "kvm" and not found.usable:
            raise Unavailable(f"KVM is not usable: {reason}", driver=driver)
        chosen = "kvm" if found.usable else "tcg"
    workshop = Workshop(driver, store, chosen, reason)
    workshop.sweep()
    return workshop


def _remove(path: Path) -> None:
    if path.is_dir():
        delete(path)
    else:
        path.unlink(missing_ok=True)
