"""Probes 51, 54 to 56, 58, 60 to 64 and 66: what has no limit of its own must be paid from one that there is.

Each is judged by what the host sees: its tables and caches, what it can still do itself while the culprit holds all it
could get, and what is left when the culprit has gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import select
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.core.errors import SandboxLost
from dutyfree.core.spec import Spec
from dutyfree.probe.canary import marked_processes
from dutyfree.probe.exhaustion import beside, judged
from dutyfree.probe.scene import Attempt, Stage, need, shares_kernel, stage, unenforced
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_MEMORY_BYTES = 64 << 20
_DENTRY_BYTES = 192
_DESTROY_S = 20.0
_DEPTH = 10_000
"""Five times as deep as a path can name. An engine opens a file for each level that it removes: one that may open fewer than
that many (Docker 20.10 with a limit of 20,000, at 20,000 levels) keeps the container for good."""
_ORPHANS = 300
_LEAST_SHARE = 0.2
"""Of what 64 spinning processes next door get together, for one process: shared by processes it would be 1/64."""


def _number(path: str, field: int = 0) -> int:
    return int(Path(path).read_text().split()[field])


async def page_cache(substrate: Substrate) -> Verdict:
    """51: the page cache is charged to whoever fills it."""
    if missing := unenforced(substrate, "memory_bytes"):
        return broke(missing)
    mark = f"thrash-{os.urandom(8).hex()}"
    async with stage(substrate, memory_bytes=_MEMORY_BYTES) as culprit, stage(substrate) as sibling:
        attempt = asyncio.ensure_future(culprit.attempt("thrash", seconds=4, mark=mark))
        charged = await _charged_most(mark, attempt) if shares_kernel(substrate) else None
        tried, actions = await beside(sibling, attempt)
        read = tried.said.get("read", 0)
    need(read > _MEMORY_BYTES, f"only {read} bytes were read")
    fault = (
        f"{charged} bytes were charged, the limit is {_MEMORY_BYTES}" if (charged or 0) > 1.1 * _MEMORY_BYTES else None
    )
    if charged == 0:
        fault = "what was read was charged to nobody"
    return judged(fault, actions, f"{read >> 20} MiB were read, {charged} bytes charged at most")


async def _charged_most(mark: str, attempt: asyncio.Future[Attempt]) -> int:
    """The largest charge of the marked processes' memory group while they run."""
    most = 0
    while not attempt.done():
        for pid in marked_processes(mark)[:1]:
            with suppress(OSError, ValueError):
                most = max(most, _charge_of(pid))
        await asyncio.sleep(0.05)
    return most


def _charge_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if path == "/":
            continue  # of a process that has ended: charges nobody
        if "memory" in controllers.split(","):
            return _number(f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes")
        if not controllers and Path(f"/sys/fs/cgroup{path}/memory.current").exists():
            return _number(f"/sys/fs/cgroup{path}/memory.current")
    return 0


async def deep_tree(substrate: Substrate) -> Verdict:
    """54: directories deeper than any path; the end of the sandbox stays bounded."""
    async with stage(substrate) as sibling:
        async with stage(substrate) as culprit:
            tried, actions = await beside(sibling, culprit.attempt("deep-tree", depth=_DEPTH))
            start = time.monotonic()
            await culprit.box.destroy()
            took = time.monotonic() - start
        made = tried.said.get("made", 0)
    need(made > 4096, f"only {made} directories could be made")
    fault = f"destroying {made} nested directories took {took:.1f} s" if took > _DESTROY_S else None
    return judged(fault, actions, f"{made} nested directories were gone in {took:.2f} s")


async def while_full(
    culprit: Stage, name: str, check: Callable[[], Awaitable[str | None]], **arguments: object
) -> tuple[str | None, str]:
    """Let the attempt take all it can get and hold it while the host checks; the fault, and what was held."""
    running = await culprit.box.start(culprit.command(name, hold=True, **arguments), stdin=None, timeout_s=60)
    said = b""
    try:
        async for _, chunk in running:
            said += chunk
            if b"full\n" in said:
                break
        fault = await check()
        await running.close_stdin()
        async for _, chunk in running:
            said += chunk
    finally:
        with suppress(SandboxLost):  # what it held may take longer to let go than a kill may last
            await running.kill()
            await running.wait()
    return fault, said.splitlines()[-1].decode(errors="replace") if said else "nothing was said"


def _holding(
    name: str, check: Callable[[], str | None], **arguments: object
) -> Callable[[Substrate], Awaitable[Verdict]]:
    async def run(substrate: Substrate) -> Verdict:
        need(substrate.capabilities.stream, "commands cannot be left running here")
        wanted = {"pids": 256, "memory_bytes": 4 * _MEMORY_BYTES}
        limits = {limit: value for limit, value in wanted.items() if limit in substrate.capabilities.limits}
        async with stage(substrate, **limits) as culprit, stage(substrate) as sibling:
            fault, said = await while_full(culprit, name, partial(asyncio.to_thread, check), **arguments)
            async with substrate.create(Spec(network=sibling.box.network)) as later:
                new = await later.run(["true"], timeout_s=30)
            actions = 1 if await sibling.alive() else -1
            if not fault and not (new.ok and await culprit.alive()):
                fault = "no new sandbox works" if not new.ok else "the sandbox does not answer any more"
            return judged(fault, actions, f"the host had enough beside {said}")

    return run


def _opens_files() -> str | None:
    files: list[int] = []
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        files += (os.open("/dev/null", os.O_RDONLY) for _ in range(min(512, soft // 2)))
    except OSError as error:
        return f"the host cannot open files: {error.strerror}"
    finally:
        for fd in files:
            os.close(fd)
    used, most = _number("/proc/sys/fs/file-nr"), _number("/proc/sys/fs/file-max")
    return f"{used} of the host's {most} open files are in use" if used > most // 2 else None


def _makes_queues() -> str | None:
    fd = ctypes.CDLL(None, use_errno=True).inotify_init()
    if fd < 0:
        return "the host cannot make an inotify queue"
    try:
        if ctypes.CDLL(None).inotify_add_watch(fd, tempfile.gettempdir().encode(), 0x100) < 0:
            return "the host cannot watch a directory"
        select.epoll().close()
    except OSError as error:
        return f"the host cannot wait for events: {error.strerror}"
    finally:
        os.close(fd)
    return None


def _mounts_stay() -> str | None:
    count = len(Path("/proc/self/mountinfo").read_text().splitlines())
    most = _number("/proc/sys/fs/mount-max")
    return f"the host has {count} mounts" if count > most // 10 else None


async def buffers(substrate: Substrate) -> Verdict:
    """56: bytes parked in sockets count as memory."""
    if missing := unenforced(substrate, "memory_bytes"):
        return broke(missing)
    async with stage(substrate, memory_bytes=_MEMORY_BYTES) as culprit, stage(substrate) as sibling:
        tried, actions = await beside(sibling, culprit.attempt("fill-pipes", most_bytes=4 * _MEMORY_BYTES))
        parked = tried.said.get("parked", 0)
        fault = f"{parked} bytes were parked, the limit is {_MEMORY_BYTES}" if parked > 1.1 * _MEMORY_BYTES else None
        return judged(fault, actions, f"stopped ({tried.outcome.ending}, {parked} bytes parked)")


async def one_line(substrate: Substrate) -> Verdict:
    """58: a line of 1 GiB; neither a command nor a shell makes the host keep it."""
    limit = 1 << 20
    async with stage(substrate) as culprit, stage(substrate) as sibling:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        script = "head -c 1073741824 /dev/zero | tr '\\0' x"
        outcomes = [await culprit.box.run(script, timeout_s=60, output_limit_bytes=limit)]
        if substrate.capabilities.shell:
            async with await culprit.box.shell() as shell:
                outcomes.append(await shell.run(script, timeout_s=60, output_limit_bytes=limit))
                after = await shell.run("echo after", timeout_s=30)
                need(after.stdout == b"after\n", f"the shell did not go on: {after.stdout[:40]!r}")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        actions = 1 if await sibling.alive() else -1
    kept = max(len(outcome.stdout) for outcome in outcomes)
    fault = f"{kept} bytes were kept, the limit is {limit}" if kept > limit else None
    if grown > 64 << 20:
        fault = f"the host's memory grew by {grown >> 20} MiB"
    elif not all(outcome.truncated for outcome in outcomes):
        fault = "what is missing is not said"
    return judged(fault, actions, f"{len(outcomes)} lines of 1 GiB, {kept} bytes kept")


async def spinning(substrate: Substrate) -> Verdict:
    """60: processor time is shared between sandboxes, not between processes."""
    async with stage(substrate) as culprit, stage(substrate) as sibling:
        attempt = asyncio.ensure_future(culprit.attempt("spin", processes=64, seconds=3))
        share = (await sibling.attempt("share", seconds=2)).said.get("share", 0.0)
        theirs = (await attempt).said.get("share", 0.0)
    need(theirs > 0, "the attempt did not report")
    theirs = min(theirs, float(os.cpu_count() or 1))  # a kernel of its own may count time that it never had
    fact = f"a sibling's one process got {share:.2f} processors beside {theirs:.2f} for 64"
    return held(fact) if share >= _LEAST_SHARE * theirs else broke(fact)


async def sync_storm(substrate: Substrate) -> Verdict:
    """61: writes that wait for the disk; the host's own still come through."""
    async with stage(substrate) as culprit, stage(substrate) as sibling:
        attempt = asyncio.ensure_future(culprit.attempt("sync-storm", seconds=2))
        start = time.monotonic()
        await asyncio.to_thread(_sync_once)
        took = time.monotonic() - start
        tried, actions = await beside(sibling, attempt)
    fault = f"the host waited {took:.1f} s for its own disk" if took > _DESTROY_S else None
    return judged(fault, actions, f"{tried.said.get('done', 0)} syncs; the host's own took {took:.3f} s")


def _sync_once() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(4096))
        file.flush()
        os.fsync(file.fileno())


async def missing_names(substrate: Substrate) -> Verdict:
    """62: the kernel remembers names that are not there; whoever asks pays for that memory."""
    if missing := unenforced(substrate, "memory_bytes"):
        return broke(missing)
    before = _number("/proc/sys/fs/dentry-state")
    async with stage(substrate, memory_bytes=_MEMORY_BYTES) as culprit, stage(substrate) as sibling:
        tried, actions = await beside(sibling, culprit.attempt("missing-names", count=1_000_000, timeout_s=60))
        grown = _number("/proc/sys/fs/dentry-state") - before
    most = 2 * _MEMORY_BYTES // _DENTRY_BYTES
    fault = f"the host remembers {grown} names more" if grown > most else None
    return judged(
        fault, actions, f"{tried.said.get('asked', tried.outcome.ending)} asked, the host remembers {grown} more"
    )


async def zombies(substrate: Substrate) -> Verdict:
    """66: orphans that end at once are collected, inside."""
    limits = {"pids": 64} if "pids" in substrate.capabilities.limits else {}
    async with stage(substrate, **limits) as culprit, stage(substrate) as sibling:
        before = _zombies()
        tried, actions = await beside(sibling, culprit.attempt("zombies", most=_ORPHANS, timeout_s=60))
        alive = await culprit.alive()
        after = _zombies()
    made = tried.said.get("made", 0)
    fault = None if alive else "the sandbox does not answer any more"
    if after - before > 100 or made < _ORPHANS:
        fault = f"of {made} orphans {after - before} are left as zombies on the host"
    return judged(fault, actions, f"{made} orphans, {max(0, after - before)} left")


def _zombies() -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                count += (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    return count


PROBES = (
    Probe(id=51, name="page-cache-thrash", group="exhaustion", run=page_cache),
    Probe(id=54, name="deep-tree", group="exhaustion", run=deep_tree),
    Probe(
        id=55, name="descriptor-exhaustion", group="exhaustion", run=_holding("open-many", _opens_files, most=1 << 20)
    ),
    Probe(id=56, name="socket-buffers", group="exhaustion", run=buffers),
    Probe(id=58, name="endless-line", group="exhaustion", run=one_line),
    Probe(id=60, name="spinning-processes", group="exhaustion", run=spinning),
    Probe(id=61, name="sync-storm", group="exhaustion", run=sync_storm),
    Probe(id=62, name="missing-names", group="exhaustion", run=missing_names),
    Probe(id=63, name="event-queues", group="exhaustion", run=_holding("watches", _makes_queues, most=20_000)),
    Probe(id=64, name="namespace-objects", group="exhaustion", run=_holding("namespaces", _mounts_stay, most=2000)),
    Probe(id=66, name="zombie-storm", group="exhaustion", run=zombies),
)
