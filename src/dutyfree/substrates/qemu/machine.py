"""`Machine`: one QEMU process and the sockets to it. It dies with its owner, whatever that one dies of.

The process runs as nobody where we are root, without the right to start programs, and gets everything it opens as a
descriptor: no path of ours needs to be readable for it, and no socket of ours has a name.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.errors import DriverError, SandboxLost
from dutyfree.core.pending import finish
from dutyfree.driver.program import exit_of
from dutyfree.substrates.qemu.control import Control
from dutyfree.substrates.qemu.monitor import Monitor
from dutyfree.substrates.qemu.plan import Descriptors, Hardware, arguments

PROGRAM = "qemu-system-x86_64"
NOBODY = 65534
BOOT_S = 180.0
"""For an emulated processor on a machine in distress."""
_WORDS_BYTES = 2000
_WAYS = ((False,), (False, True))
"""How disks are opened: the image's, and the one that takes the writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Boot:
    """A kernel to start with."""

    kernel: Path
    initramfs: int
    """A descriptor of the archive."""
    line: str = "console=ttyS0 quiet panic=-1 reboot=t no_timer_check nowatchdog"
    """no_timer_check: an emulated machine whose host is busy fails that check now and then, and panics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """A file as the guest's memory."""

    path: Path
    share: bool
    """True: the file becomes what the guest's memory is. False: it is a template that stays as it is."""


class Machine:
    """Owns the process. Made by `start`."""

    def __init__(
        self, driver: str, process: subprocess.Popen[bytes], ends: Sequence[socket.socket], console: int
    ) -> None:
        self.driver = driver
        self.process = process
        self.monitor = Monitor(ends[0], driver)
        self.control = Control(ends[1], driver)
        self.stream = ends[2]
        """To the agent; whoever takes it over closes it."""
        self._console = console
        self._end: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """Kill it and wait until it is gone. Calling it twice is fine."""
        if self._end is None:
            self._end = asyncio.ensure_future(self._kill())
        await finish(asyncio.shield(self._end))

    def alive(self) -> bool:
        """The process has not ended."""
        return self.process.poll() is None

    async def words(self) -> str | None:
        """The last lines of its console and its own, for people; None: it said nothing."""
        try:
            size = os.fstat(self._console).st_size
            said = os.pread(self._console, _WORDS_BYTES, max(0, size - _WORDS_BYTES)).decode(errors="replace")
        except OSError:
            return None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return f"the machine ended: {' | '.join(lines[-3:])}" if lines else None

    async def _kill(self) -> None:
        self.process.kill()
        # First its end, which those see who wait for its answers; a socket closed under them would not tell.
        await exit_of(self.process)
        self.stream.close()
        self.control.close()
        self.monitor.close()
        console, self._console = self._console, -1
        os.close(console)


def start_machine(
    hardware: Hardware,
    *,
    driver: str,
    disks: Sequence[Path],
    boot: Boot | None = None,
    memory: Memory | None = None,
    generation: int = 1,
    agent: bool = True,
    paused: bool = False,
) -> Machine:
    """Start the process. Without a `boot` it waits for a state to be loaded, which it runs unless `paused`."""
    with ExitStack() as opened:
        console = os.memfd_create("dutyfree-console", os.MFD_CLOEXEC)
        opened.callback(os.close, console)
        pairs = [socket.socketpair() for _ in range(3)]
        for _, theirs in pairs:
            opened.enter_context(theirs)
        with ExitStack() as ours:
            for end, _ in pairs:
                ours.enter_context(end)
            fds = Descriptors(
                monitor=pairs[0][1].fileno(),
                control=pairs[1][1].fileno(),
                agent=pairs[2][1].fileno() if agent else None,
                generation=generation,
                console=console,
                disks=tuple(
                    tuple(opened.enter_context(_opened(path, writable=writable)) for writable in ways)
                    for path, ways in zip(disks, _WAYS, strict=False)
                ),
                kernel=opened.enter_context(_opened(boot.kernel)) if boot else None,
                initramfs=boot.initramfs if boot else None,
                memory=opened.enter_context(_opened(memory.path, writable=True)) if memory else None,
                share=memory.share if memory else False,
            )
            words = arguments(hardware, fds, boot=boot.line if boot else None, paused=paused)
            argv = [*_under(hardware), _program(), *words]
            process = _start(argv, fds, driver)
            ours.pop_all()
        kept = os.dup(console)
        return Machine(driver, process, [end for end, _ in pairs], kept)


def _start(argv: Sequence[str], fds: Descriptors, driver: str) -> subprocess.Popen[bytes]:
    inherited = [fds.monitor, fds.control, fds.console, *(fd for disk in fds.disks for fd in disk)]
    inherited += [fd for fd in (fds.agent, fds.kernel, fds.initramfs, fds.memory) if fd is not None]
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=fds.console, stderr=fds.console, cwd="/", pass_fds=inherited
        )
    except OSError as error:
        raise DriverError(f"cannot start {argv[0]}: {error.strerror}", driver=driver, step="create") from error


def _under(hardware: Hardware) -> list[str]:
    """Command in front of the process: it ends with us, and runs as nobody if we are root."""
    under = [shutil.which("setpriv") or "/usr/bin/setpriv", "--pdeathsig=KILL", "--no-new-privs"]
    if os.geteuid() == 0:
        group = os.stat("/dev/kvm").st_gid if hardware.accel == "kvm" else NOBODY
        under += [f"--reuid={NOBODY}", f"--regid={group}", "--clear-groups"]
    return [*under, "--"]


def _program() -> str:
    return shutil.which(PROGRAM) or f"/usr/bin/{PROGRAM}"


@contextmanager
def _opened(path: Path, *, writable: bool = False) -> Iterator[int]:
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


async def speaking(machine: Machine) -> None:
    """Wait for its monitor; `DriverError` with its own words if it ended at once."""
    try:
        await machine.monitor.greet()
    except SandboxLost as error:
        why = await machine.words()
        raise DriverError(f"QEMU did not start: {why or error}", driver=machine.driver, step="create") from error


async def booted(machine: Machine) -> None:
    """Wait until its first process takes orders; `DriverError` with its last words if it ended or takes too long."""
    try:
        async with asyncio.timeout(BOOT_S):
            await speaking(machine)
            await machine.control.ready()
    except TimeoutError as error:
        why = await machine.words()
        raise DriverError(f"not booted within {BOOT_S:g} s: {why}", driver=machine.driver, step="ready") from error
    except SandboxLost as error:
        why = await machine.words()
        raise DriverError(f"it did not boot: {why or error.message}", driver=machine.driver, step="ready") from error
