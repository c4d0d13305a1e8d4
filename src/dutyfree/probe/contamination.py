"""Probes 67 to 81: what one rollout leaves, and the next must not find.

Without `reset`, the next rollout is the next sandbox; with it, also the same one after its reset.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.probe.canary import marked_processes, marked_processes_end
from dutyfree.probe.scene import Stage, need, shares_kernel, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held


async def daemon(substrate: Substrate) -> Verdict:
    """67: a daemon dies with its command, and with its sandbox if it was allowed to outlive the command."""
    mark = f"daemon{secrets.token_hex(8)}"
    async with stage(substrate) as box:
        tried = await box.attempt("daemon", mark=mark)
        need(tried.said.get("started") is True, "the daemon could not be started")
        if left := await marked_processes_end(mark):
            return broke(f"{len(left)} processes of a finished command are still there")
        if b"0" not in (await box.box.run(f"pgrep -fc {mark}[^[] || true", timeout_s=10)).stdout[
            :2
        ] and not shares_kernel(substrate):
            return broke("the daemon is still there inside")
        await box.box.run(box.command("daemon", mark=mark), background=True, timeout_s=10)
        if shares_kernel(substrate):
            need(bool(marked_processes(mark)), "a background process was not kept")
        if substrate.capabilities.reset:
            await box.reset()
            if left := await marked_processes_end(mark):
                return broke(f"{len(left)} processes outlived a reset")
    if left := await marked_processes_end(mark):
        return broke(f"{len(left)} processes outlived their sandbox")
    return held("ended with its command, and in the background with its sandbox")


async def stubborn(substrate: Substrate) -> Verdict:
    """68: ignoring every signal does not help at the deadline."""
    mark = f"stubborn{secrets.token_hex(8)}"
    async with stage(substrate) as box:
        tried = await box.attempt("stubborn", mark=mark, timeout_s=1)
        if tried.outcome.ending != "timeout":
            return broke(f"the ending is {tried.outcome.ending!r}, not 'timeout'")
        if left := await marked_processes_end(mark):
            return broke(f"{len(left)} processes survived their deadline")
    return held("the whole tree died at its deadline")


async def nested_daemon(substrate: Substrate) -> Verdict:
    """69: a process that hides in a pid namespace or a cgroup of its own."""
    mark = f"nested{secrets.token_hex(8)}"
    async with stage(substrate) as box:
        tried = await box.attempt("nested-daemon", mark=mark)
        if left := await marked_processes_end(mark):
            return broke(f"{len(left)} processes of a finished command are still there")
        alive = await box.alive()
    return (
        held(f"ended with its command (own namespace: {tried.said.get('unshared')})")
        if alive
        else broke("the sandbox died")
    )


async def planted_edits(substrate: Substrate) -> Verdict:
    """74: start-up files, search paths and caches that the next rollout would run."""
    mark = f"planted{secrets.token_hex(8)}"
    async with stage(substrate) as first, stage(substrate) as sibling:
        paths = (await first.attempt("plant", mark=mark)).said.get("planted", [])
        if found := (await sibling.attempt("planted", paths=paths, mark=mark)).said.get("found"):
            return broke(f"a sibling has {found}")
        if substrate.capabilities.reset:
            await first.reset()
            if found := (await first.attempt("planted", paths=paths, mark=mark)).said.get("found"):
                return broke(f"after a reset there is {found}")
    async with stage(substrate) as later:
        if found := (await later.attempt("planted", paths=paths, mark=mark)).said.get("found"):
            return broke(f"the next sandbox has {found}")
    on_host = [path for path in paths if Path(path).is_file() and mark.encode() in Path(path).read_bytes()]
    return broke(f"the host has {on_host}") if on_host else held(f"{len(paths)} edits, none of them anywhere else")


async def process_state(substrate: Substrate) -> Verdict:
    """76: umask, limits, working directory, environment and host name of one command do not reach the next."""
    show = "umask; pwd; env | sort; ulimit -n; hostname 2>/dev/null || cat /proc/sys/kernel/hostname"
    change = "umask 0; cd /; export PLANTED=1; ulimit -n 20; hostname planted 2>/dev/null; true"
    async with stage(substrate) as box, stage(substrate) as sibling:
        before = [(await each.box.run(show, timeout_s=30)).stdout for each in (box, sibling)]
        await box.box.run(change, timeout_s=30)
        if substrate.capabilities.reset:
            await box.reset()
        after = [(await each.box.run(show, timeout_s=30)).stdout for each in (box, sibling)]
    if before == after:
        return held("the next command starts as the first one did")
    unlike = {
        line for old, new in zip(before, after, strict=True) for line in {*old.split(b"\n")} ^ {*new.split(b"\n")}
    }
    return broke(f"the next command starts differently: {b', '.join(sorted(unlike)).decode(errors='replace')}")


async def lower_layers(substrate: Substrate) -> Verdict:
    """77: files of the image, changed in one sandbox, as others and the host read them."""
    paths = ["/usr/bin/env", "/usr/bin/python3", "/etc/passwd", "/bin/sh", "/usr/bin/git"]
    async with stage(substrate) as sibling:
        before = (await sibling.attempt("digest", paths=paths)).said.get("digests")
        host = {path: Path(path).read_bytes() for path in paths if Path(path).is_file()}
        async with stage(substrate) as box:
            changed = (await box.attempt("overwrite", paths=[*paths[:1], *paths[2:]])).said.get("changed", [])
            if substrate.capabilities.reset:
                await box.reset()
                if (await box.attempt("digest", paths=paths)).said.get("digests") != before:
                    return broke("after a reset the files of the image are others")
        if (await sibling.attempt("digest", paths=paths)).said.get("digests") != before or not before:
            return broke("a sibling reads changed files of the image")
    if {path: Path(path).read_bytes() for path in host} != host:
        return broke("files of the host were changed")
    async with stage(substrate) as later:
        same = (await later.attempt("digest", paths=paths)).said.get("digests") == before
    return (
        held(f"{len(changed)} files changed inside, the image is as it was") if same else broke("the image was changed")
    )


async def files(substrate: Substrate) -> Verdict:
    """71: files in every place that can be written."""
    mark = f"file{secrets.token_hex(8)}"
    async with stage(substrate) as first, stage(substrate) as sibling:
        made = (await first.attempt("leave-files", mark=mark)).said.get("made", [])
        if found := await _visible(sibling, mark):
            return broke(f"a sibling sees {found}")
        if on_host := [path for path in made if Path(path).exists()]:
            return broke(f"the host sees {on_host}")
        if substrate.capabilities.reset:
            await first.reset()
            if found := await _visible(first, mark):
                return broke(f"after a reset there is {found}")
    async with stage(substrate) as later:
        if found := await _visible(later, mark):
            return broke(f"the next sandbox sees {found}")
    return held(f"{len(made)} files, seen by nobody else")


async def _visible(box: Stage, mark: str) -> list[str]:
    found = (await box.attempt("visible-marks", mark=mark)).said.get("found", [])
    return [str(path) for path in found]


async def shared_memory(substrate: Substrate) -> Verdict:
    """72: System V objects and POSIX queues."""
    mark, number = f"ipc{secrets.token_hex(8)}", 1 + secrets.randbelow(1 << 30)
    async with stage(substrate) as first, stage(substrate) as sibling:
        made = (await first.attempt("leave-ipc", number=number, mark=mark)).said.get("made", [])
        if found := (await sibling.attempt("find-ipc", number=number, mark=mark)).said.get("found"):
            return broke(f"a sibling sees {found}")
        if any(
            str(number) in Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg") if _has(kind)
        ):
            return broke("the host sees them")
        if substrate.capabilities.reset:
            await first.reset()
            if found := (await first.attempt("find-ipc", number=number, mark=mark)).said.get("found"):
                return broke(f"after a reset there is {found}")
    async with stage(substrate) as later:
        if found := (await later.attempt("find-ipc", number=number, mark=mark)).said.get("found"):
            return broke(f"the next sandbox sees {found}")
    return held(f"made {made}, seen by nobody else")


def _has(kind: str) -> bool:
    return Path(f"/proc/sysvipc/{kind}").exists()


async def names(substrate: Substrate) -> Verdict:
    """73: a bound port and an abstract name."""
    need(substrate.capabilities.stream, "commands cannot be left running here")
    port, abstract = 20_000 + secrets.randbelow(10_000), f"name{secrets.token_hex(8)}"
    async with stage(substrate) as first, stage(substrate) as sibling:
        holding = await first.box.start(first.command("hold-names", port=port, abstract=abstract), timeout_s=60)
        async for _ in holding:
            break
        refused = (await sibling.attempt("bind-names", port=port, abstract=abstract)).said.get("refused")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
            reached = own.connect_ex("\0" + abstract) == 0
        await holding.kill()
        await holding.wait()
        if refused or reached:
            return broke(f"the names of one sandbox are in the way of another: {refused or 'the host reaches them'}")
        again = (await first.attempt("bind-names", port=port, abstract=abstract)).said.get("refused")
    return (
        broke(f"the names outlived their holder: {again}")
        if again
        else held("seen by nobody else, gone with their holder")
    )


async def siblings(substrate: Substrate) -> Verdict:
    """80: forks do not see each other's writes."""
    need(substrate.capabilities.fork, "fork is not offered")
    mark = f"fork{secrets.token_hex(8)}"
    async with stage(substrate) as parent:
        first, second = await parent.box.fork(2)
        async with first as one, second as two:
            await one.write(f"/tmp/{mark}", b"one")  # noqa: S108 (inside the sandbox)
            for other in (two, parent.box):
                if any(entry.name == mark for entry in await other.list("/tmp")):  # noqa: S108
                    return broke("a fork's write is visible elsewhere")
    return held("writes stay in the fork that made them")


PROBES = (
    Probe(id=67, name="daemon", group="contamination", run=daemon),
    Probe(id=68, name="ignores-every-signal", group="contamination", run=stubborn),
    Probe(id=69, name="nested-daemon", group="contamination", run=nested_daemon),
    Probe(id=71, name="files-everywhere", group="contamination", run=files),
    Probe(id=72, name="shared-memory", group="contamination", run=shared_memory),
    Probe(id=73, name="ports-and-abstract-names", group="contamination", run=names, harmless=True),
    Probe(id=74, name="planted-edits", group="contamination", run=planted_edits),
    Probe(id=76, name="process-state", group="contamination", run=process_state),
    Probe(id=77, name="image-layers", group="contamination", run=lower_layers),
    Probe(id=80, name="sibling-forks", group="contamination", run=siblings),
)
