"""Probes 1 to 13 and 16: reaching the host's files, mounts, settings and cgroups."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dutyfree.core.contract import Substrate
from dutyfree.probe import posture, start, surface
from dutyfree.probe.canary import Canary, canary, changed_settings, mounts, settings
from dutyfree.probe.scene import Attempt, shares_kernel, stage, unenforced
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_KNOBS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
    "/proc/sys/fs/binfmt_misc/register",
)


def _mark() -> str:
    return f"mark{secrets.token_hex(8)}"


def _mounting(name: str) -> Callable[[Substrate], Awaitable[Verdict]]:
    async def run(substrate: Substrate) -> Verdict:
        mark = _mark()
        async with stage(substrate) as first, stage(substrate) as second:
            tried = await first.attempt(name, mark=mark)
            try:
                if f" {mark} " in mounts():
                    return broke("a mount made inside is in the host's mount table")
                table = await second.box.read("/proc/self/mountinfo")
                if f" {mark} ".encode() in table:
                    return broke("a mount made inside is in a sibling's mount table")
            finally:
                if "place" in tried.said:
                    await first.attempt("unmount", place=tried.said["place"])
            return held(f"mount: {tried.said.get('result', 'died')}; host and sibling do not see it")

    return run


def _reading(name: str) -> Callable[[Substrate], Awaitable[Verdict]]:
    """An attempt to get at a file of the host."""

    async def run(substrate: Substrate) -> Verdict:
        with canary() as bird:
            async with stage(substrate) as box:
                tried = await box.attempt(name, path=str(bird.path))
            return _judge_reach(tried, bird)

    return run


def _judge_reach(tried: Attempt, bird: Canary) -> Verdict:
    if tried.got(bird.secret):
        return broke("the content of a host file came out")
    if disturbed := bird.disturbed():
        return broke(disturbed)
    facts = {key: tried.said[key] for key in ("result", "pivot", "chroot", "joined") if key in tried.said}
    return held("the host's file was not reached" + (f" ({facts})" if facts else ""))


def _privileged(name: str) -> Callable[[Substrate], Awaitable[Verdict]]:
    """An attempt to win capabilities and use them at once."""

    async def run(substrate: Substrate) -> Verdict:
        before, mark = settings(), _mark()
        with canary() as bird:
            async with stage(substrate) as box:
                tried = await box.attempt(name, path=str(bird.path), mark=mark)
                if f" {mark} " in mounts():
                    return broke("a mount made inside is in the host's mount table")
            if changed := changed_settings(before):
                return broke(f"settings of the machine were changed: {changed}")
            return _judge_reach(tried, bird)

    return run


async def enter_namespaces(substrate: Substrate) -> Verdict:
    """6: afterwards none of our namespaces may be the host's."""
    with canary() as bird:
        async with stage(substrate) as box:
            tried = await box.attempt("enter-namespaces", path=str(bird.path))
        if tried.got(bird.secret):
            return broke("the content of a host file came out")
    names = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    host = {name: os.readlink(f"/proc/self/ns/{name}") for name in names}
    inside = tried.said.get("namespaces", {})
    shared = [name for name in names if inside.get(name) == host[name]]
    if shared and shares_kernel(substrate):  # another kernel's first namespaces have the same numbers
        return broke(f"is in the host's own namespaces: {', '.join(shared)}")
    return held(f"joined {len(tried.said.get('joined', []))}, none of them the host's")


async def kernel_knobs(substrate: Substrate) -> Verdict:
    """9: settings that make the kernel run a program, or worse."""
    before, mark = settings(), f"/tmp/{_mark()}"  # noqa: S108 (a value to write, not a file)
    with _kernel_log() as lines:
        async with stage(substrate) as box:
            tried = await box.attempt("write-settings", paths=_KNOBS, mark=mark)
        if changed := changed_settings(before):
            return broke(f"settings of the machine were changed: {', '.join(changed)}")
        if any("sysrq: HELP" in line for line in lines()):
            return broke("sysrq-trigger was obeyed")
    accepted = [path for path, result in tried.said.get("results", {}).items() if result == "ok"]
    return held("the machine's settings are unchanged" + (f"; writes without effect: {accepted}" if accepted else ""))


async def release_agent(substrate: Substrate) -> Verdict:
    """11: the kernel would run the named program on the host, as root."""
    with canary() as bird:
        script = bird.directory / "secret"
        before = settings()
        async with stage(substrate) as box:
            tried = await box.attempt("set-release-agent", mark=_mark(), path=str(script))
        results = tried.said.get("results", {})
        if "ok" in results.values() and shares_kernel(substrate):
            return broke(f"release_agent could be written: {results}")
        if changed := changed_settings(before):
            return broke(f"settings of the machine were changed: {changed}")
        return _judge_reach(tried, bird)


async def own_limits(substrate: Substrate) -> Verdict:
    """12, 13: after trying to lift its limits and to leave its cgroup, the limit still holds."""
    if missing := unenforced(substrate, "pids"):
        return broke(missing)
    script = """
    for f in $(find /sys/fs/cgroup /proc/1/root/sys/fs/cgroup -name pids.max -o -name memory.max \
               -o -name memory.limit_in_bytes 2>/dev/null); do echo max >$f; echo -1 >$f; done
    for f in $(find /sys/fs/cgroup -name cgroup.procs -o -name tasks 2>/dev/null); do echo $$ >$f; done
    for p in .. ../.. ../../..; do echo $$ >/sys/fs/cgroup/$p/cgroup.procs; echo $$ >/sys/fs/cgroup/pids/$p/cgroup.procs; done
    exec "$@" """
    async with stage(substrate, pids=64) as box:
        words = box.command("fork-bomb", most=256, hold_s=0)
        outcome = await box.box.run(["sh", "-c", f"( {script} ) 2>/dev/null", "sh", *words], timeout_s=30)
        lived = _lived(outcome.stdout)
    return (
        held(f"{lived} processes at once, the limit is 64") if 0 < lived <= 66 else broke(f"{lived} processes at once")
    )


def _lived(output: bytes) -> int:
    for line in output.splitlines():
        with suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                return int(said.get("lived", 0))
    return 0


class _kernel_log:  # noqa: N801 (used as a function)
    """New lines of the kernel's log, where it can be read."""

    def __enter__(self) -> Callable[[], list[str]]:
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._fd = -1
        return self._lines

    def _lines(self) -> list[str]:
        found: list[str] = []
        with suppress(OSError):
            while self._fd >= 0:
                found.append(os.read(self._fd, 8192).decode(errors="replace"))
        return found

    def __exit__(self, *exc: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


PROBES = (
    Probe(id=1, name="mount-tmpfs", group="escape", run=_mounting("mount-tmpfs"), harmless=True),
    Probe(id=2, name="bind-mount-root", group="escape", run=_reading("bind-root")),
    Probe(id=3, name="fsopen-move-mount", group="escape", run=_mounting("mount-new-api"), harmless=True),
    Probe(id=4, name="unshare-user-and-mount", group="escape", run=_privileged("unshare-and-mount")),
    Probe(id=5, name="clone3-user-namespace", group="escape", run=_privileged("clone3-and-mount")),
    Probe(id=6, name="setns-to-pid-1", group="escape", run=enter_namespaces),
    Probe(id=7, name="pivot-root-and-chroot", group="escape", run=_reading("break-chroot")),
    Probe(id=8, name="canary-through-proc", group="escape", run=_reading("other-roots"), harmless=True),
    Probe(id=9, name="kernel-settings", group="escape", run=kernel_knobs),
    Probe(id=11, name="cgroup-release-agent", group="escape", run=release_agent),
    Probe(id=12, name="write-own-limits", group="escape", run=own_limits),
    Probe(id=13, name="leave-own-cgroup", group="escape", run=own_limits),
    Probe(id=16, name="open-by-handle", group="escape", run=_reading("guess-handles")),
    *start.PROBES,
    *surface.PROBES,
    *posture.PROBES,
)
