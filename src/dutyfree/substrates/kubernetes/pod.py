"""One pod: made, reached, executed in, removed.

Its main process ends when the one exec call that holds it does, and that ends with its client's connection: a kill -9
of ours leaves a pod in which nothing runs, for the sweep to remove.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable, Unsupported
from dutyfree.core.pending import completed, finish
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.driver.program import poll
from dutyfree.substrates.kubernetes.client import DRIVER, Client, Refused
from dutyfree.substrates.kubernetes.manifest import CONTAINER, NOT_YET
from dutyfree.substrates.kubernetes.state import check_alive, end_of, is_ready, is_scheduled, is_unschedulable
from dutyfree.substrates.kubernetes.stream import STDERR, STDOUT, Channels

START_S = 300.0
"""From the request to a pod that can be reached: as long as a cluster may take to add a node and to fetch an image."""

POLL_S = 0.02

GREETING = r"""printf '%s\1%s\n' "$PWD" "$(tr '\0\n' '\1\2' </proc/1/environ)" """
"""What the holding exec call says first: the image's own directory and environment, in one line."""

_WRAP = 'cd -- "$1" 2>/dev/null || { printf %s "$0" >&2; exit 125; }; shift; '
"""An exec call of a pod has neither a directory nor an environment of its own."""

_PLAIN = 'exec env "$@"'
_DRAINED = 'env "$@"; code=$?; cat >/dev/null; exit $code'
"""For more input than a pipe holds: what the command leaves is read, as an exec call does not end before its input does."""

_PIPE_BYTES = 1 << 16

_NO_PLACE = 125
_LONGEST_GREETING = 1 << 20
_FORBIDDEN, _ABSENT, _TOO_LONG = 403, 404, (414, 431)
_FINAL = (401, _FORBIDDEN, _ABSENT)
_CLUSTERS_OWN = ("KUBERNETES_", "HOSTNAME", "HOME")
Begin = Callable[[], Awaitable[tuple[Channels, ImageDefaults] | None]]


@dataclass(frozen=True, slots=True)
class Pod:
    """By the name we gave it, so that it can be removed even if its creation was never answered."""

    client: Client
    name: str
    container: str = CONTAINER

    async def create(self, manifest: Mapping[str, Any]) -> None:
        """Ask for it; the cluster starts it in its own time."""
        await post(self.client, self.client.place("pods"), manifest)

    async def hold(
        self, script: str, *, wait: bool, reached: Callable[[], None] | None = None
    ) -> tuple[Channels, ImageDefaults]:
        """The exec call that holds the pod, once it can be made: after `Ready`, or as soon as it works.

        `reached` is called when nothing but that call is left to wait for.
        """
        watcher = _Watch(self)
        watching = asyncio.ensure_future(watcher.follow())
        opening = asyncio.ensure_future(self._open(script, watcher.ready if wait else watcher.scheduled, reached))
        held = None
        try:
            async with asyncio.timeout(START_S):
                await asyncio.wait({watching, opening}, return_when="FIRST_COMPLETED")
            if not opening.done():
                watching.result()  # raises: it only ends by what went wrong
            held = opening.result()
        except TimeoutError as error:
            raise watcher.late() from error
        finally:
            watching.cancel()
            await finish(_ended(watching))
            if held is None:
                await finish(_dropped(opening))
        return held

    async def _open(
        self, script: str, moment: asyncio.Event, reached: Callable[[], None] | None
    ) -> tuple[Channels, ImageDefaults]:
        await moment.wait()
        if reached is not None:
            reached()
        found = await poll(lambda: self._try(script), deadline_s=START_S, longest_pause_s=POLL_S)
        if found is None:
            raise TimeoutError
        return found

    async def _try(self, script: str) -> tuple[Channels, ImageDefaults] | None:
        """None: there is no container yet."""
        try:
            channels = await self.execute_raw(["sh", "-c", script])
        except Refused as error:
            if error.status in _FINAL:
                raise DriverError(str(error), driver=DRIVER, step="exec", sandbox=self.name) from error
            return None
        try:
            greeting = await _line(channels)
        except BaseException:
            await finish(channels.close())
            raise
        if greeting is not None:
            return channels, _defaults(greeting)
        await channels.close()
        status = channels.status
        if status is not None and status.exit_code not in (None, NOT_YET):
            raise DriverError(
                f"the image cannot hold a sandbox (it takes root, sh, head and mkfifo): {status.message}",
                driver=DRIVER,
                step="ready",
                sandbox=self.name,
            )
        return None

    async def execute_raw(self, argv: Sequence[str]) -> Channels:
        """An exec call's channels."""
        query = [("container", self.container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        words = [("command", word) for word in argv]
        return Channels(await self.client.websocket(self.client.place("pods", f"{self.name}/exec"), [*query, *words]))

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """An `Execute`: one websocket."""
        if wanted.user not in (None, "0", "root"):
            raise Unsupported(
                "another user is not offered: an exec call of a pod has none; use dispatch=agent",
                driver=DRIVER,
                sandbox=self.name,
            )
        token = secrets.token_hex(12)
        argv = [*wanted.argv] if "=" not in wanted.argv[0] else ["sh", "-c", 'exec "$0" "$@"', *wanted.argv]
        env = [f"{name}={value}" for name, value in wanted.env.items()]
        small = isinstance(wanted.stdin, bytes | bytearray | memoryview) and len(wanted.stdin) <= _PIPE_BYTES
        script = _WRAP + (_PLAIN if small else _DRAINED)
        try:
            channels = await self.execute_raw(["sh", "-c", script, token, wanted.cwd or "/", *env, *argv])
        except Refused as error:
            if error.status in _TOO_LONG:
                raise Misuse(
                    "arguments and environment are longer than an exec call takes", field="command", sandbox=self.name
                ) from error
            raise self._lost(str(error)) from error
        feeder = asyncio.ensure_future(_feed(channels, wanted))
        complaint = b""
        try:
            while (piece := await channels.receive()) is not None:
                if piece[0] == STDERR:
                    complaint = (complaint + piece[1])[: len(token)]
                await sink.add(piece[0], bytes(piece[1]))
        finally:
            feeder.cancel()
            await asyncio.wait({feeder})
            await channels.close()
        status = channels.status
        if status is None or status.exit_code is None:
            raise self._lost(status.message if status else "the stream broke")
        refused = status.exit_code == _NO_PLACE and complaint == token.encode()
        return ExecEnd(exit_code=status.exit_code, refusal="chdir to cwd" if refused else None)

    async def remove(self) -> None:
        """Take it out of the cluster at once; fine if it is gone already."""
        reply = await self.client.call(
            "DELETE", self.client.place("pods", self.name), {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        )
        if not reply.ok and reply.status != _ABSENT:
            raise DriverError(f"cannot remove it: {reply.message}", driver=DRIVER, step="destroy", sandbox=self.name)

    async def why(self) -> str | None:
        """Reason of the pod's end, as far as the cluster knows it."""
        with suppress(Unavailable):
            reply = await self.client.call("GET", self.client.place("pods", self.name))
            if reply.status == _ABSENT:
                return "its pod was deleted"
            return end_of(reply.body) if reply.ok else None
        return None

    def _lost(self, why: str) -> SandboxLost:
        return SandboxLost(f"its pod is gone: {why}", driver=DRIVER, sandbox=self.name)


class _Watch:
    """Watch over a pod that starts."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._last: dict[str, Any] = {}
        self.scheduled = asyncio.Event()
        self.ready = asyncio.Event()

    async def follow(self) -> None:
        """Until it fails, which is raised; or for ever."""
        client = self._pod.client
        async with aclosing(client.follow(client.place("pods"), self._pod.name)) as events:
            async for event in events:
                self._see(event)

    def late(self) -> DutyfreeError:
        """Make the error that says why the start took too long."""
        if is_unschedulable(self._last):
            return Saturated(f"no node takes it: {is_unschedulable(self._last)}", driver=DRIVER, step="create")
        return DriverError(f"it was not ready within {START_S:g} s", driver=DRIVER, step="ready")

    def _see(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "DELETED":
            raise DriverError("its pod was deleted while it started", driver=DRIVER, step="ready")
        if event["type"] not in ("ADDED", "MODIFIED"):
            return
        self._last = event["object"]
        check_alive(self._last)
        if is_scheduled(self._last):
            self.scheduled.set()
        if is_ready(self._last):
            self.ready.set()


async def post(client: Client, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Create a resource. Cancelled or not, it is known afterwards whether there is one to remove."""
    reply = await completed(client.call("POST", path, manifest))
    if reply.ok:
        made: dict[str, Any] = reply.body
        return made
    if reply.status == _FORBIDDEN and "exceeded quota" in reply.message:
        raise Saturated(reply.message, driver=DRIVER, step="create")
    what = str(manifest["kind"])
    raise DriverError(f"the cluster refused to create a {what}: {reply.message}", driver=DRIVER, step="create")


def _defaults(greeting: bytes) -> ImageDefaults:
    """ImageDefaults of the image, without those that the cluster adds."""
    place, *items = greeting.decode(errors="surrogateescape").removesuffix("\n").split("\1")
    pairs = [item.replace("\2", "\n").partition("=") for item in items]
    env = {name: value for name, mark, value in pairs if mark and name and not name.startswith(_CLUSTERS_OWN)}
    return ImageDefaults(env=env, cwd=None if place in ("", "/") else place)


async def _line(channels: Channels) -> bytes | None:
    """The first line that is said; None: the stream ended before."""
    said = b""
    while not said.endswith(b"\n"):
        piece = await channels.receive()
        if piece is None or len(said) > _LONGEST_GREETING:
            return None
        if piece[0] == STDOUT:
            said += piece[1]
    return said


async def _feed(channels: Channels, wanted: ExecCall) -> None:
    """Send a command's input, then its end. Input that nobody reads is no error."""
    with suppress(ConnectionError, aiohttp.ClientError):
        if isinstance(wanted.stdin, bytes | bytearray | memoryview):
            await channels.send(wanted.stdin)
        else:
            async with aclosing(wanted.stdin) as pieces:
                async for piece in pieces:
                    await channels.send(piece)
        await channels.end_input()


async def _ended(task: asyncio.Future[None]) -> None:
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


async def _dropped(opening: asyncio.Future[tuple[Channels, ImageDefaults]]) -> None:
    """A stream that was opened for nobody is closed."""
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        await opening.result()[0].close()
