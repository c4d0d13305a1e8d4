"""A protocol server as a process of its own: started, found and ended by tests; ended as well when its owner is gone."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from aiohttp import web

from dutyfree.substrates.registry import connect, find
from dutyfree.testing.leaks import TOKEN_VARIABLE
from support.daemons import detached, end, wait_for
from support.protocol.place import Places

KEY_VARIABLE = "DUTYFREE_PROTOCOL_KEY"
TESTS = Path(__file__).parents[2]
"""Where a server of its own finds `support`."""
PATIENCE_S = 20.0
_STEP_S = 0.01

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

Build = Callable[[Places, str], web.Application]
"""A wire format of HTTP: of what is behind it, and the key that opens it."""

Listen = Callable[[Places, str], AbstractAsyncContextManager[str]]
"""Any wire format: serves until its block ends, which gives the address."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """Where it is."""

    url: str
    key: str = field(repr=False)
    control: str
    """Where tests ask for what no wire format tells."""

    def places(self) -> dict[str, float]:
        """The ids of the places there are, each with the seconds it has left."""
        with urlopen(self.control) as reply:
            found: dict[str, float] = json.loads(reply.read())
        return found

    def connections(self) -> frozenset[str]:
        """Those of the calling process."""
        return _connections(urlsplit(self.url).port or 0)

    def settle(self, before: frozenset[str] = frozenset()) -> None:
        """Wait until this process has no other connection to it any more: clients close theirs when they come to it."""
        end_s = time.monotonic() + PATIENCE_S
        while self.connections() - before:
            if time.monotonic() > end_s:
                raise TimeoutError(f"connections to {self.url} stay open")
            time.sleep(_STEP_S)


@contextmanager
def served(module: str, home: Path) -> Iterator[Served]:
    """Run a wire format's module as a server; skips where nothing can execute commands for it."""
    found = find("native")[0].probe()
    if not found.available:
        pytest.skip(f"native: {found.reason}; enable: {found.enable}")
    key = f"key-{secrets.token_hex(20)}"
    address = home / "address"
    # Its sandboxes are no leak of a test: they are told apart by the missing token.
    env = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    env |= {KEY_VARIABLE: key, "PYTHONPATH": str(TESTS)}
    pid = detached([sys.executable, "-m", module, str(address), str(os.getpid())], home / "log", env)
    try:
        wait_for(address.exists, what=module, log=home / "log")
        url, control = address.read_text().split()
        yield Served(url=url, key=key, control=control)
    finally:
        end(pid)


def main(build: Build, images: Sequence[str]) -> None:
    """What the module of a wire format of HTTP does when it is run."""
    run(lambda places, key: _listening(build(places, key)), images)


def run(listen: Listen, images: Sequence[str]) -> None:
    """What any wire format's module does when it is run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address", type=Path, help="a file to write the url to, once it listens")
    parser.add_argument("owner", type=int, help="a process; the server ends with it")
    given = parser.parse_args()
    asyncio.run(_serve(listen, images, given.address, given.owner))


async def _serve(listen: Listen, images: Sequence[str], address: Path, owner: int) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    watched = os.pidfd_open(owner)
    loop.add_reader(watched, over.set)
    async with connect("native") as substrate:
        places = Places(substrate, images)
        try:
            async with listen(places, os.environ[KEY_VARIABLE]) as url, _listening(_control(places)) as control:
                part = address.with_suffix(".part")
                part.write_text(f"{url}\n{control}")
                part.rename(address)
                await over.wait()
                await places.close()
        finally:
            loop.remove_reader(watched)
            os.close(watched)


def _runner(application: web.Application) -> web.AppRunner:
    async def close_after(request: web.Request, response: web.StreamResponse) -> None:
        """Connections that a client would keep are descriptors that a test seems to leak."""
        del request
        response.headers["Connection"] = "close"
        response.force_close()

    application.on_response_prepare.append(close_after)
    return web.AppRunner(application, access_log=None, shutdown_timeout=1.0)


def _control(places: Places) -> web.Application:
    async def tell(request: web.Request) -> web.Response:
        del request
        return web.json_response({place.id: place.ends_s - time.time() for place in places.found.values()})

    made = web.Application()
    made.add_routes([web.get("/", tell)])
    return made


@asynccontextmanager
async def _listening(application: web.Application) -> AsyncIterator[str]:
    runner = _runner(application)
    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _connections(port: int) -> frozenset[str]:
    """The sockets of this process to that port of the loopback, as far as they are connected."""
    peers = {
        fields[9]
        for fields in (line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:])
        if int(fields[2].rpartition(":")[2], 16) == port
    }
    ours = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            ours.add(os.readlink(f"/proc/self/fd/{name}").removeprefix("socket:[").rstrip("]"))
    return frozenset(ours & peers)
