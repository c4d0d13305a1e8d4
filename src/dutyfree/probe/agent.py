"""Probes 127 to 129, 131 and 132: the agent of a sandbox, and what becomes known of its owner or taken from it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.core.errors import DutyfreeError
from dutyfree.core.pending import finish
from dutyfree.probe.canary import marked_processes
from dutyfree.probe.scene import need, shares_kernel, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_BINDS = ("NOFILE", "NPROC", "AS", "FSIZE", "STACK", "")
"""One limit of PID 1 each; the last: all that can be changed."""
_CHAINS = (6, 8, 10, 12)
_ROUNDS = 3
_LOOKS, _LOOK_S = 4, 0.15
_ALL_IDS = 1 << 32
_OWNER = """
import asyncio, sys, dutyfree
async def main():
    async with dutyfree.connect(sys.argv[1]) as substrate, substrate.create(dutyfree.Spec(image=sys.argv[2])) as box:
        print((await box.run(["cat", "/proc/self/uid_map"])).stdout.split()[1].decode(), flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


_SQUAT = r"""
import os, socket, sys
os.setgid(65534), os.setuid(65534)
kept = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(64)]
for number, one in enumerate(kept):
    one.bind(f"\0dutyfree-ids-{number}")
sys.stdin.read()
"""


async def bound_agent(substrate: Substrate) -> Verdict:
    """127: an agent whose limits were lowered from inside still does what it is asked, and so do those it starts."""
    for what in _BINDS:
        async with stage(substrate) as box:
            before = (await box.attempt("inherited")).said
            done = (await box.attempt("bind-agent", only=what)).said.get("done")
            need(done is not None and bool(before), "the attempt did not report")
            try:
                path = f"/tmp/{secrets.token_hex(8)}"  # noqa: S108 (inside the sandbox)
                await box.box.write(path, b"x" * 4096)
                fine = await box.alive() and len(await box.box.read(path)) == 4096
                same = (await box.attempt("inherited")).said == before
            except (DutyfreeError, OSError) as error:
                return broke(f"after {done} were changed: {type(error).__name__}: {error}")
            if not fine or not same:
                return broke(f"after {done} were changed {'commands start differently' if fine else 'nothing works'}")
    return held("the agent's limits, priority and processors cannot be changed to any effect")


async def relays(substrate: Substrate) -> Verdict:
    """128: processes that fork and end, faster than anybody counts them, are gone when their `run` has ended."""
    async with stage(substrate) as box:
        for number in range(_ROUNDS * len(_CHAINS)):
            mark = f"relay{secrets.token_hex(8)}"
            chains = _CHAINS[number % len(_CHAINS)]
            await box.attempt("relay", chains=chains, mark=mark)
            for _ in range(_LOOKS if shares_kernel(substrate) else 0):
                await asyncio.sleep(_LOOK_S)  # for those that are being killed; a chain may be missed in one look
                if left := marked_processes(mark):
                    return broke(f"{len(left)} of {chains} chains live on after their run has ended")
        return held(f"{_ROUNDS * len(_CHAINS)} times, none outlived its run") if await box.alive() else broke("it died")


async def known(substrate: Substrate) -> Verdict:
    """129: neither the owner's number nor a path of the host can be read off the processes inside."""
    async with stage(substrate) as box:
        found = (await box.attempt("names")).said.get("found", {})
    need(bool(found), "the attempt did not report")
    installed = str(files("dutyfree"))
    if places := [place for place, text in found.items() if installed in text]:
        return broke(f"the path of the installation stands in /proc/{places[0]}")
    for place, text in found.items():
        if place.endswith(("cmdline", "environ", "comm")) and str(os.getpid()) in text.replace("\0", " ").split():
            return broke(f"the number of the owner's process stands in /proc/{place}")
    return held(f"{len(found)} files tell neither")


async def opened_agent(substrate: Substrate) -> Verdict:
    """131: the agent stays closed to root inside, also when it has just started a command as somebody else."""
    setting = Path("/proc/sys/fs/suid_dumpable")
    async with stage(substrate) as box:
        for user in (None, "1000", "65534", None):
            if user:
                await box.box.run(["true"], timeout_s=30, user=user)
            found = (await box.attempt("open-agent")).said.get("found")
            need(found is not None, "the attempt did not report")
            if found:
                return broke(f"root inside can open {', '.join(found[:5])} of the agent")
    return held(f"nothing of the agent can be opened (fs.suid_dumpable={setting.read_text().strip()})")


async def ids(substrate: Substrate) -> Verdict:
    """132: owners in two network namespaces hand out different ids of the host, and a stranger cannot keep them from it."""
    need(shares_kernel(substrate), "the ids inside are another kernel's")
    async with stage(substrate) as box:
        _, first, count = (await box.box.read("/proc/self/uid_map")).split()[:3]
        if int(count) >= _ALL_IDS - 1:
            return broke("the ids inside are the host's own")
        need(os.geteuid() == 0 and shutil.which("unshare") is not None, "needs root, and unshare (util-linux)")
        async with AsyncExitStack() as owners:  # all at once: ids of one that has gone may be used again
            elsewhere = [_elsewhere(substrate.name, box.box.spec.image, squat) for squat in ("", _SQUAT)]
            seen = [first.decode(), *[await owners.enter_async_context(owner) for owner in elsewhere]]
    need(seen[1] != "", "no sandbox can be made in a network namespace of its own")
    if "" in seen:
        return broke("where a stranger has bound some names no sandbox can be made")
    if len(set(seen)) < len(seen):
        return broke(f"owners of one machine hand out the same ids: {', '.join(seen)}")
    return held(f"three owners, three ranges: {', '.join(seen)}")


@asynccontextmanager
async def _elsewhere(name: str, image: str, squat: str) -> AsyncIterator[str]:
    """Give the first host id that an owner in a network namespace of its own hands out; `squat`: what a stranger does there."""
    script = 'if [ -n "$2" ]; then "$0" -I -c "$2" <&3 >/dev/null & sleep 1; fi; exec "$0" -c "$1" "$3" "$4"'
    read_end, write_end = os.pipe()
    words = [
        "unshare",
        "--net",
        "sh",
        "-c",
        script.replace("<&3", f"<&{read_end}"),
        sys.executable,
        _OWNER,
        squat,
        name,
        image,
    ]
    owner = await asyncio.create_subprocess_exec(
        *words, stdin=read_end, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, pass_fds=[read_end]
    )
    os.close(read_end)
    try:
        yield await _first_number(owner.stdout)
    finally:
        os.close(write_end)
        await finish(_gone(owner))


async def _first_number(lines: asyncio.StreamReader | None) -> str:
    while lines is not None and (line := await lines.readline()):
        if line.strip().isdigit():
            return line.strip().decode()
    return ""


async def _gone(process: asyncio.subprocess.Process) -> None:
    await process.wait()


PROBES = (
    Probe(id=127, name="bound-agent", group="interference", run=bound_agent),
    Probe(id=128, name="relays-of-processes", group="interference", run=relays),
    Probe(id=129, name="owner-known-inside", group="escape", run=known),
    Probe(id=131, name="opened-agent", group="interference", run=opened_agent),
    Probe(id=132, name="ids-of-other-owners", group="interference", run=ids),
)
