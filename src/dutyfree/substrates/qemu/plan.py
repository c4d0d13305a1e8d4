"""From what a machine shall be to QEMU's words. Values only; nothing is started or opened here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Accel = Literal["kvm", "tcg"]

CONTROL_PORT = "control"
GENERATIONS = 8
"""Agents that a machine and its copies can have one after the other: each copy of a running machine needs a port more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Hardware that a guest sees. Copies of a machine must have the same."""

    accel: Accel
    memory_bytes: int
    cpus: int = 1
    disks: int = 1
    """The image's, and one for the writes."""
    ethernet: bool = False

    @property
    def key(self) -> str:
        """Differs where the guest would notice."""
        return f"{self.accel}-{self.memory_bytes >> 20}-{self.cpus}-{self.disks}-{int(self.ethernet)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptors:
    """Descriptors that the process inherits, by number. None: not for this machine."""

    monitor: int
    control: int
    console: int
    disks: tuple[tuple[int, ...], ...]
    """The image's first, read-only; a writable one twice, since QEMU opens it for reading before it writes."""
    agent: int | None = None
    """The stream of the agent that is alive; others speak to nobody."""
    generation: int = 1
    """Which agent that is."""
    kernel: int | None = None
    initramfs: int | None = None
    memory: int | None = None
    """A file that is the guest's memory; without one it is anonymous."""
    share: bool = False
    """Writes go to that file; else they stay private, and the file is a template."""


def agent_port(generation: int) -> str:
    """A port's name, as the guest knows it."""
    return f"agent{generation}"


def arguments(hardware: Hardware, fds: Descriptors, *, boot: str | None, paused: bool = False) -> list[str]:
    """QEMU's arguments. `boot`: the kernel's command line; None: a state will be loaded instead. `paused`: not run then."""
    return [
        *(["-S"] if paused else []),
        *_machine(hardware, fds),
        *_sources(fds, boot),
        *_ports(fds),
        *_disks(fds.disks),
        *_network(hardware),
    ]


def _machine(hardware: Hardware, fds: Descriptors) -> Iterator[str]:
    mib = hardware.memory_bytes >> 20
    yield from ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-name", "dutyfree")
    yield from ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
    options = "" if fds.memory is None else ",memory-backend=memory"
    yield from ("-M", f"q35,usb=off,sata=off,smbus=off,vmport=off,i8042=off{options}")
    yield from ("-accel", "tcg,thread=multi,tb-size=256" if hardware.accel == "tcg" else "kvm")
    yield from ("-cpu", "max,la57=off" if hardware.accel == "tcg" else "host")
    yield from ("-m", f"{mib}M", "-smp", str(hardware.cpus))
    if fds.memory is not None:
        place = f"mem-path=/proc/self/fd/{fds.memory},share={'on' if fds.share else 'off'}"
        yield from ("-object", f"memory-backend-file,id=memory,size={mib}M,{place}")


def _sources(fds: Descriptors, boot: str | None) -> Iterator[str]:
    yield from ("-chardev", f"socket,id=monitor,fd={fds.monitor}", "-mon", "chardev=monitor,mode=control")
    yield from ("-chardev", f"file,id=console,path=/proc/self/fd/{fds.console}", "-serial", "chardev:console")
    if boot is None:
        yield from ("-incoming", "defer")
    else:
        yield from ("-kernel", f"/proc/self/fd/{fds.kernel}", "-initrd", f"/proc/self/fd/{fds.initramfs}")
        yield from ("-append", boot)


def _ports(fds: Descriptors) -> Iterator[str]:
    yield from ("-device", f"virtio-serial-pci,id=ports,max_ports={GENERATIONS + 2}")
    yield from ("-chardev", f"socket,id=control,fd={fds.control}")
    yield from ("-device", f"virtserialport,bus=ports.0,nr=1,chardev=control,name={CONTROL_PORT}")
    for generation in range(1, GENERATIONS + 1):
        name = agent_port(generation)
        alive = fds.agent is not None and generation == fds.generation
        yield from ("-chardev", f"socket,id={name},fd={fds.agent}" if alive else f"null,id={name}")
        yield from ("-device", f"virtserialport,bus=ports.0,nr={generation + 1},chardev={name},name={name}")


def _disks(disks: Sequence[Sequence[int]]) -> Iterator[str]:
    for number, fds in enumerate(disks):
        read_only = "on" if number == 0 else "off"
        for fd in fds:
            yield from ("-add-fd", f"fd={fd},set={number}")
        # Nothing of a sandbox outlives it, so nothing has to reach the medium.
        cache = f"cache=unsafe,aio=threads,readonly={read_only}"
        yield from ("-drive", f"if=none,id=disk{number},file=/dev/fdset/{number},format=raw,{cache}")
        yield from ("-device", f"virtio-blk-pci,drive=disk{number}")


def _network(hardware: Hardware) -> Iterator[str]:
    yield from ("-device", "virtio-rng-pci")
    if hardware.ethernet:
        # restrict: the guest reaches neither the machine nor anything beyond; one forwarded port reaches the guest.
        yield from ("-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-10.0.2.15:22")
        yield from ("-device", "virtio-net-pci,netdev=net,romfile=")
