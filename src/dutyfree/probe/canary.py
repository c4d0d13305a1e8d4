"""Canaries on the host that show whether an attempt reached it: files, listeners, the machine's settings.

Everything made here is removed on leaving. Nothing here touches a setting of the machine, except to put back what an
attempt managed to change.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

KNOBS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/fs/binfmt_misc/status",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled",
)
"""Settings of the whole machine: writing one of them from inside is an escape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Canary:
    """A directory of the host with one file of random content."""

    directory: Path
    path: Path
    secret: bytes

    def disturbed(self) -> str | None:
        """Say what changed a canary, if anything did."""
        try:
            if self.path.read_bytes() != self.secret + b"\n":
                return "the host's canary file was changed"
        except OSError as error:
            return f"the host's canary file is gone: {error.strerror}"
        if f" {self.directory}" in mounts():
            return "something was mounted on the host's canary directory"
        extra = sorted(set(os.listdir(self.directory)) - {self.path.name})
        return f"in the host's canary directory there appeared {extra}" if extra else None


@contextmanager
def canary() -> Iterator[Canary]:
    """A canary below the machine's temporary directory, readable by everybody."""
    directory = Path(tempfile.mkdtemp(prefix="canary-"))
    secret = secrets.token_hex(24).encode()
    path = directory / "secret"
    try:
        path.write_bytes(secret + b"\n")
        directory.chmod(0o755)
        path.chmod(0o666)
        yield Canary(directory=directory, path=path, secret=secret)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def settings() -> dict[str, bytes]:
    """The machine's settings that attempts go for."""
    found = {}
    for name in KNOBS:
        with suppress(OSError):
            found[name] = Path(name).read_bytes()
    found["hostname"] = socket.gethostname().encode()
    return found


def changed_settings(before: dict[str, bytes]) -> list[str]:
    """The names of those that are not as before; files are put back."""
    changed = [name for name, value in settings().items() if before.get(name) != value]
    for name in changed:
        if name in KNOBS:
            with suppress(OSError):
                Path(name).write_bytes(before[name])
    return changed


def mounts() -> str:
    """The host's mount table. Others change it too: only what carries a mark of ours tells something."""
    return Path("/proc/self/mountinfo").read_text()


def marked_processes(mark: str) -> list[int]:
    """The host's processes whose command line holds the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


async def marked_processes_end(mark: str, *, within_s: float = 5.0) -> list[int]:
    """The marked processes that are still there when they all should have ended."""
    deadline = asyncio.get_running_loop().time() + within_s
    # Nobody tells us of processes that are not our children: looking is all there is.
    while (found := marked_processes(mark)) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return found


@dataclass(slots=True)
class Listener:
    """Sockets of the host that count who comes."""

    port: int
    """The same for TCP and UDP, on every address."""
    abstract: str
    """Name of an abstract unix socket, which lives in the network namespace."""
    visitors: list[str] = field(default_factory=list)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._listener.visitors.append(f"udp from {addr}: {data[:32]!r}")


@asynccontextmanager
async def listener() -> AsyncIterator[Listener]:
    """Listens on every address of the host, v4 and v6, TCP and UDP, and on an abstract unix name."""
    loop = asyncio.get_running_loop()
    heard = Listener(port=0, abstract=f"canary-{secrets.token_hex(8)}")

    async def visit(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.visitors.append(f"{writer.get_extra_info('socket').family.name} stream")
        writer.close()

    tcp = await asyncio.start_server(visit, "0.0.0.0", 0)  # noqa: S104 (who reaches it is the question)
    heard.port = tcp.sockets[0].getsockname()[1]
    servers = [tcp, await asyncio.start_unix_server(visit, path="\0" + heard.abstract)]
    with suppress(OSError):
        servers.append(await asyncio.start_server(visit, "::", heard.port))
    udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(heard), local_addr=("0.0.0.0", heard.port))  # noqa: S104
    try:
        yield heard
    finally:
        udp.close()
        for server in servers:
            server.close()
            await server.wait_closed()


def host_addresses() -> list[str]:
    """The host's own addresses, its routers' and those of name resolution, as far as can be read."""
    found = {"127.0.0.1", "::1"}
    with suppress(OSError):
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            gateway = int(line.split()[2], 16)
            if gateway:
                found.add(socket.inet_ntoa(gateway.to_bytes(4, "little")))
    with suppress(OSError):
        for line in Path("/proc/net/fib_trie").read_text().split("|-- ")[1:]:
            address, _, rest = line.partition("\n")
            if "host LOCAL" in rest.partition("|--")[0] and not address.startswith("127."):
                found.add(address.strip())
    with suppress(OSError):
        for line in Path("/etc/resolv.conf").read_text().splitlines():
            if line.startswith("nameserver "):
                found.add(line.split()[1])
    return sorted(found)
