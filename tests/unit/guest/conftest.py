"""What guest tests stand on: coroutine tests, the real agent on a socketpair, and a peer that says any bytes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from dutyfree.core.contract import Capabilities
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import Timeline
from dutyfree.guest.link import Link
from dutyfree.guest.sandbox import AgentSandbox

ABILITIES = Capabilities(
    isolation="none", dispatch="agent", networks=frozenset({"none"}), storages=frozenset({"memory"})
)
BUILD = Path(__file__).parents[3] / "native" / "build"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A coroutine test runs on a loop of its own; tasks it leaves behind fail it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(_alone(pyfuncitem.obj(**arguments)))
    return True


async def _alone(work):
    await work
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
def agent_path():
    path = Path(os.environ.get("DUTYFREE_TEST_AGENT", BUILD / "dutyfree-agent"))
    if not path.exists():
        pytest.skip(f"{path} is missing; build it: make -C native")
    return path


@pytest.fixture
def agent_box(agent_path):
    """`async with agent_box() as box`: a sandbox whose agent is a plain child of the test."""

    @contextlib.asynccontextmanager
    async def make(spec=None, **more):
        ours, child = spawn(agent_path)

        async def release():
            await asyncio.to_thread(child.wait)

        link = Link.attach(ours, sandbox="box-1")
        try:
            await link.hello(30)
            box = AgentSandbox(
                id="box-1",
                spec=spec or Spec(),
                capabilities=ABILITIES,
                timeline=Timeline(),
                link=link,
                release=release,
                **more,
            )
            box.child = child
            yield box
            if link.lost is None:
                assert not link.channels, f"channels left open: {link.channels}"
            await box.destroy()
        finally:
            link.close()
            child.wait()

    return make


def spawn(agent_path):
    ours, theirs = socket.socketpair()
    with theirs:
        return ours, subprocess.Popen([agent_path, "--fd", str(theirs.fileno())], pass_fds=[theirs.fileno()])


class Peer:
    """The agent's end of a stream, played by the test: frames by the protocol's text, not by our own code."""

    def __init__(self, sock):
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)

    async def raw(self, data):
        await self._loop.sock_sendall(self._sock, data)

    async def say(self, channel, kind, payload=b"", flags=0):
        await self.raw(struct.pack("<IIBBH", len(payload), channel, kind, flags, 0) + payload)

    async def hello(self):
        await self.say(0, 0x01, struct.pack("<IHHIQ", 0x41465344, 1, 0, 1 << 20, 0))

    async def exit(self, channel, code=0, ending=0, flags=0, omitted=0, stderr_omitted=0):
        await self.say(
            channel, 0x23, struct.pack("<BBHIQQQQQ", ending, flags, 0, code, 1000, 900, 4096, omitted, stderr_omitted)
        )

    async def error(self, channel, number, what=b"", detail=b""):
        body = struct.pack("<I", number) + struct.pack("<I", len(what)) + what
        await self.say(channel, 0x52, body + struct.pack("<I", len(detail)) + detail)

    async def hear(self):
        """The next frame: channel, kind, flags, payload."""
        size, channel, kind, flags, zero = struct.unpack("<IIBBH", await self._exactly(12))
        assert zero == 0
        return channel, kind, flags, await self._exactly(size)

    async def _exactly(self, count):
        data = b""
        while len(data) < count:
            piece = await self._loop.sock_recv(self._sock, count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    async def ended(self):
        """Wait until the host has closed its end."""
        with contextlib.suppress(ConnectionResetError):
            while await self._loop.sock_recv(self._sock, 65536):
                pass

    def close(self):
        self._sock.close()


@pytest.fixture
def peer_box():
    """`async with peer_box() as (box, peer)`: a sandbox whose agent is the test."""

    @contextlib.asynccontextmanager
    async def make(*, greet=True, **more):
        ours, theirs = socket.socketpair()
        peer = Peer(theirs)
        released = []

        async def release():
            released.append(True)

        link = Link.attach(ours, sandbox="box-1")
        if greet:
            await peer.hello()
            await link.hello(30)
        box = AgentSandbox(
            id="box-1",
            spec=more.pop("spec", Spec()),
            capabilities=ABILITIES,
            timeline=Timeline(),
            link=link,
            release=more.pop("release", release),
            **more,
        )
        box.released = released
        try:
            yield box, peer
        finally:
            await box.destroy()
            peer.close()

    return make
