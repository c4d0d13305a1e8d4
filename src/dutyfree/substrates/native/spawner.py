"""The Python end of the spawner: one child process, one packet socket, orders out and events in.

Owns the child and the socket. Knows the packet layout of `native/spawner/spawner.h` and nothing of sandboxes beyond
their tags. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dutyfree.core.errors import DriverError, SandboxLost, Saturated, Step, Unavailable
from dutyfree.core.home import own
from dutyfree.core.pending import finish
from dutyfree.core.timeline import now_ns

CgroupKind = Literal["none", "v1", "v2"]

_LAYER, _CREATE, _DESTROY, _STOCK, _SNAPSHOT, _ABANDON, _FORGET, _INSPECT = range(1, 9)
_EVENT_READY, _EVENT_LAYER, _EVENT_FAILED, _EVENT_GONE, _EVENT_SAVED, _EVENT_INSPECTED = range(1, 7)

_HEAD = struct.Struct("=II")
_NUMBERED = struct.Struct("=IIII")
_COPY = struct.Struct("=IIIII")
_EVENT = struct.Struct("=IIiI112s")
MAX_LAYERS = 60
_MAX_BINDS, _TARGET_SIZE = 8, 64
_MAX_KNOWN = 1024
_MANY_LAYERS = 256
_UNUSED_NS = 60_000_000_000
_REUSE_AFTER = 64
"""Numbers of layers given up are left alone for so long: whoever still has one learns that it means nothing."""
_CREATE_BODY = struct.Struct(f"=QQQQQIIII{MAX_LAYERS}I" + f"I{_TARGET_SIZE}s" * _MAX_BINDS)
_FLAG_HOST_NETWORK, _FLAG_DISK, _FLAG_SETTLED = 1, 2, 4

ENDED_BY_ITSELF = "it ended by itself"
GONE_REASONS = (ENDED_BY_ITSELF, "it was destroyed", "its lifetime was over", "its memory limit was reached")
_DESTROYED = 1
FULL = {errno.EUSERS, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC}


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Settings of one sandbox for the spawner; 0 means no limit."""

    memory_bytes: int
    cpu_quota_us: int
    disk_bytes: int
    files: int
    lifetime_ns: int
    pids: int
    host_network: bool
    settled: bool
    """The layers never change: sandboxes may be made ready with them before they are ordered."""
    layers: Sequence[int]
    binds: Sequence[tuple[int, str]]

    def used(self) -> list[int]:
        """Every layer it names."""
        return [*self.layers, *(number for number, _ in self.binds)]

    def pack(self, *, disk: bool) -> bytes:
        """`struct create_request` without its head: the same for every sandbox of the kind."""
        layers = [*self.layers, *[0] * (MAX_LAYERS - len(self.layers))]
        binds: list[int | bytes] = []
        for number, target in [*self.binds, *[(0, "")] * (_MAX_BINDS - len(self.binds))]:
            binds += [number, os.fsencode(target)]
        flags = self.host_network * _FLAG_HOST_NETWORK | disk * _FLAG_DISK | self.settled * _FLAG_SETTLED
        return _CREATE_BODY.pack(
            self.memory_bytes, self.cpu_quota_us, self.disk_bytes, self.files, self.lifetime_ns,
            self.pids, flags, len(self.layers), len(self.binds), *layers, *binds,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Copied:
    """Size of a snapshot."""

    entries: int
    size_bytes: int


def _launch(program: Path, cgroup: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise Unavailable(f"cannot open a control socket: {error.strerror}", driver="native") from error
    ours.setblocking(False)
    control = str(theirs.fileno())
    try:
        process = subprocess.Popen(
            [program, "--control", control, "--owner", str(os.getpid()), "--cgroup", cgroup],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )
    except OSError as error:
        ours.close()
        raise Unavailable(f"cannot start {program.name}: {error.strerror}", driver="native") from error
    finally:
        theirs.close()
    return process, ours


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


@dataclass(slots=True)
class _Known:
    """A directory that the spawner knows by a number."""

    number: int
    identity: tuple[int, ...]
    """Of the directory: another one may come to lie at the same path."""
    used_ns: int


@dataclass(slots=True)
class _Sandbox:
    """Futures for one tag: its failure to start, and its end."""

    failed: asyncio.Future[DriverError | Saturated]
    gone: asyncio.Future[str]


class Spawner:
    """A running spawner. Made by `start`; `close` ends it and every sandbox it made."""

    cgroup: CgroupKind
    """Which limits can be enforced."""
    idmap: bool
    """Sandboxes have id ranges of their own (the owner is root)."""
    lost: str
    """Why limits cannot be enforced, if they cannot."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._layers: dict[Path, _Known] = {}
        self._stale: list[_Known] = []
        """Whose path means another directory by now; live sandboxes may still stand on them."""
        self._layer_answers: dict[int, asyncio.Future[None]] = {}
        self._sandboxes: dict[int, _Sandbox] = {}
        self._last_layer = 0
        self._free_layers: deque[int] = deque()
        """Numbers given up, to be used again: the longest unused first."""
        self._copies: dict[int, asyncio.Future[Copied]] = {}
        self._inspections: dict[int, asyncio.Future[None]] = {}
        self._last_tag = 0
        self._last_copy = 0
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        """Packets the socket had no room for, with descriptors of our own."""
        self._loop.add_reader(control.fileno(), self._receive)
        own(self)

    @classmethod
    async def start(cls, program: Path, *, cgroup: str = "auto", stock: int = 4) -> Spawner:
        """Start the program and wait until it is ready; `Unavailable` with the failed step if it cannot be."""
        spawner = cls(*_launch(program, cgroup))
        try:
            await spawner._ready
            spawner._send(_NUMBERED.pack(_STOCK, 0, stock, 0))
        except BaseException:
            await spawner.close()
            raise
        return spawner

    async def layer(self, path: Path, *, host: bool = False) -> int:
        """The number of a directory, made known on first use; `host`: one that is shown and not ours."""
        known, identity = self._layers.get(path), _identity(path)
        if known is not None and known.identity != identity:
            self._stale.append(self._layers.pop(path))
            known = None
        if known is None:
            number = self.new_layer()
            self._send(_NUMBERED.pack(_LAYER, number, number, host) + os.fsencode(path) + b"\0")
            known = self._layers[path] = _Known(number, identity, 0)
            self._layer_answers[number] = self._loop.create_future()
        number, known.used_ns = known.number, now_ns()
        if (answer := self._layer_answers.get(number)) is not None:
            await asyncio.shield(answer)
        return number

    def new_layer(self) -> int:
        """A number for a layer that is yet to be made; `forget` it when it is no longer needed."""
        if len(self._free_layers) > _REUSE_AFTER or (self._last_layer + 1 >= _MAX_KNOWN and self._free_layers):
            return self._free_layers.popleft()
        if self._last_layer + 1 >= _MAX_KNOWN:
            raise Saturated(f"{_MAX_KNOWN - 1} layers are in use", driver="native", step="image")
        self._last_layer += 1
        return self._last_layer

    def forget(self, number: int) -> None:
        """Give a layer up. Sandboxes that have it keep it."""
        self._layers = {path: known for path, known in self._layers.items() if known.number != number}
        self._stale = [known for known in self._stale if known.number != number]
        with contextlib.suppress(SandboxLost):
            self._send(_NUMBERED.pack(_FORGET, 0, number, 0))
        self._free_layers.append(number)

    def trim(self, in_use: Callable[[], Collection[int]]) -> None:
        """Give up directories that nobody has asked for in a while, if there are many; never those in use."""
        if len(self._layers) + len(self._stale) < _MANY_LAYERS:
            return
        before_ns, kept = now_ns() - _UNUSED_NS, in_use()
        for known in (*self._stale, *self._layers.values()):
            if known.used_ns < before_ns and known.number not in kept:
                self.forget(known.number)

    async def copy(self, tag: int, *, layer: int = 0, path: Path | None = None, source: int = 0) -> Copied:
        """Copy what the sandbox has written into memory, as a new layer, or into an empty directory.

        Nothing in the sandbox runs meanwhile. With `source`, that layer of the sandbox is copied instead. Cancelled: it
        is given up, and this returns when nobody writes any more.
        """
        number = self._last_copy = self._last_copy + 1
        answer = self._copies[number] = self._loop.create_future()
        try:
            self._send(_COPY.pack(_SNAPSHOT, number, tag, layer, source) + os.fsencode(path or "") + b"\0")
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxLost):
                self._send(_HEAD.pack(_ABANDON, number))
            await finish(_settled(answer))
            raise
        finally:
            self._copies.pop(number, None)

    async def inspect(self, tag: int) -> str:
        """Describe the sandbox as the spawner sees it, in lines; the first has its process and first id."""
        answer = self._inspections[tag] = self._loop.create_future()
        fd = os.memfd_create("manifest", os.MFD_CLOEXEC)
        try:
            self._send(_HEAD.pack(_INSPECT, tag), [fd])
            await answer
            return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="surrogateescape")
        finally:
            self._inspections.pop(tag, None)
            os.close(fd)

    def create(self, order: bytes, stream_fd: int, disk_fd: int | None = None) -> int:
        """Order a sandbox (`Order.pack`) whose agent shall speak on `stream_fd`; gives its tag.

        The caller closes the descriptors.
        """
        tag = self._last_tag = self._last_tag + 1
        self._sandboxes[tag] = _Sandbox(self._loop.create_future(), self._loop.create_future())
        fds = [stream_fd] if disk_fd is None else [stream_fd, disk_fd]
        try:
            self._send(_HEAD.pack(_CREATE, tag) + order, fds)
        except BaseException:
            del self._sandboxes[tag]
            raise
        return tag

    def failure(self, tag: int) -> asyncio.Future[DriverError | Saturated]:
        """Resolves if the sandbox could not be made."""
        return self._sandboxes[tag].failed

    async def end_of(self, tag: int) -> str:
        """Wait until the sandbox is dead and everything it owned is freed; return the reason of its end."""
        sandbox = self._sandboxes.get(tag)
        return await asyncio.shield(sandbox.gone) if sandbox else GONE_REASONS[_DESTROYED]

    async def destroy(self, tag: int) -> None:
        """Kill the sandbox and wait until it is gone; at once if it is already."""
        sandbox = self._sandboxes.get(tag)
        if sandbox is None:
            return
        if not sandbox.gone.done():
            with contextlib.suppress(SandboxLost):
                self._send(_HEAD.pack(_DESTROY, tag))
            await asyncio.shield(sandbox.gone)
        self._sandboxes.pop(tag, None)

    async def close(self) -> None:
        """End the spawner, and with it every sandbox; returns when all of it is gone."""
        if self._control.fileno() >= 0:
            self._end("the substrate was closed")
        if self._process.returncode is None:
            pidfd = os.pidfd_open(self._process.pid)
            exited = asyncio.Event()
            self._loop.add_reader(pidfd, exited.set)
            try:
                await exited.wait()
            finally:
                self._loop.remove_reader(pidfd)
                os.close(pidfd)
            self._process.wait()

    def disown(self) -> None:
        """In a forked child: give up the child's end of the socket, or the spawner would outlive its owner."""
        self._control.close()

    # -- the socket ---------------------------------------------------------------------------------------------------

    def _send(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        if not self._unsent and self._try_send(packet, fds):
            return
        if not self._unsent:
            self._loop.add_writer(self._control.fileno(), self._send_rest)
        self._unsent.append((packet, [os.dup(fd) for fd in fds]))

    def _try_send(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._control, [packet], fds) if fds else self._control.send(packet)
        except BlockingIOError:
            return False
        except OSError as error:
            raise SandboxLost(f"the spawner is gone: {error.strerror}", driver="native") from error
        return True

    def _send_rest(self) -> None:
        try:
            while self._unsent and self._try_send(*self._unsent[0]):
                _close_all(self._unsent.popleft()[1])
        except SandboxLost:
            self._end("the spawner died")
            return
        if not self._unsent:
            self._loop.remove_writer(self._control.fileno())

    def _receive(self) -> None:
        for _ in range(64):  # then let others have the loop
            try:
                packet = self._control.recv(_EVENT.size)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if len(packet) != _EVENT.size:
                self._end("the spawner died")
                return
            kind, tag, error, reason, detail = _EVENT.unpack(packet)
            self._handle(kind, tag, error, reason, detail.rstrip(b"\0").decode(errors="replace"))

    def _handle(self, kind: int, tag: int, error: int, reason: int, detail: str) -> None:
        if kind == _EVENT_READY:
            self._handle_ready(error, detail)
        elif kind == _EVENT_LAYER:
            answer = self._layer_answers.pop(tag)
            if error:
                self._layers = {path: known for path, known in self._layers.items() if known.number != tag}
                answer.set_exception(DriverError(f"{detail}: {os.strerror(error)}", driver="native", step="image"))
            else:
                answer.set_result(None)
        elif kind == _EVENT_SAVED:
            _settle(self._copies.get(tag), error, detail, "snapshot")
        elif kind == _EVENT_INSPECTED:
            _settle(self._inspections.get(tag), error, detail, "reset")
        elif (sandbox := self._sandboxes.get(tag)) and not sandbox.gone.done():  # it may die while we ask for its death
            if kind == _EVENT_FAILED:
                message = f"cannot {detail}: {os.strerror(error)}"
                failure = Saturated if error in FULL else DriverError
                sandbox.failed.set_result(failure(message, driver="native", step="create"))
            sandbox.gone.set_result(GONE_REASONS[reason])

    def _handle_ready(self, error: int, detail: str) -> None:
        if self._ready.done():
            return
        if error:
            message = f"cannot {detail}: {os.strerror(error)}"
            self._ready.set_exception(Unavailable(message, driver="native", enable="dutyfree doctor"))
            return
        cgroup, idmap, self.lost = detail.split(";", 2)
        self.cgroup = "v1" if cgroup == "v1" else "v2" if cgroup == "v2" else "none"
        self.idmap = idmap == "1"
        self._ready.set_result(None)

    def _end(self, why: str) -> None:
        """The socket is over: whatever is awaited will not come any more."""
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._control.close()
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()
        if not self._ready.done():
            self._ready.set_exception(Unavailable(f"{why} before it was ready", driver="native"))
        for answer in self._layer_answers.values():
            answer.set_exception(SandboxLost(why, driver="native"))
        self._layer_answers.clear()
        waits: list[asyncio.Future[Any]] = [*self._copies.values(), *self._inspections.values()]
        for waiting in waits:
            if not waiting.done():
                waiting.set_exception(SandboxLost(why, driver="native"))
        for sandbox in self._sandboxes.values():
            if not sandbox.gone.done():
                sandbox.gone.set_result(why)


def _identity(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()  # the spawner says what is wrong with it
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _settle(answer: asyncio.Future[Any] | None, error: int, detail: str, step: Step) -> None:
    if answer is None or answer.done():
        return
    if error:
        failure = Saturated if error in FULL else DriverError
        answer.set_exception(failure(f"cannot {detail}: {os.strerror(error)}", driver="native", step=step))
    else:
        counts = [int(count) for count in detail.split(";") if count]
        answer.set_result(Copied(*counts) if counts else None)


async def _settled(answer: asyncio.Future[Any]) -> None:
    await asyncio.wait([answer])
    answer.exception()
