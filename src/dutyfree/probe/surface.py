"""Probes 14, 15, 17 to 28, 35: devices, kernel interfaces and kernel secrets.

Where the sandbox shares the host's kernel, an interface that opens is itself the effect: an object in that kernel.
Where it has a kernel of its own, only what comes out counts.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.probe.canary import changed_settings, settings
from dutyfree.probe.scene import need, shares_kernel, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held, untried

_RANDOM_CALLS = 10_000


def _interface(name: str, what: str) -> Callable[[Substrate], Awaitable[Verdict]]:
    async def run(substrate: Substrate) -> Verdict:
        async with stage(substrate) as box:
            tried = await box.attempt(name)
        if tried.said.get("succeeded") and shares_kernel(substrate):
            return broke(f"{what} could be opened in the host's kernel")
        return held(f"{what}: {tried.said.get('result', 'the caller was killed')}")

    return run


async def disks(substrate: Substrate) -> Verdict:
    """14: nodes of the host's block devices."""
    devices = [list(map(int, line.split()[:2])) for line in Path("/proc/partitions").read_text().splitlines()[2:]]
    need(bool(devices), "the machine has no block device")
    async with stage(substrate) as box:
        tried = await box.attempt("read-disks", devices=devices)
    if (read := tried.said.get("read")) and shares_kernel(substrate):  # another kernel's devices have the same numbers
        return broke(f"block devices of the host were read: {', '.join(read)}")
    return held(f"none of the host's {len(devices)} block devices could be read")


async def devices(substrate: Substrate) -> Verdict:
    """15: character devices of the host."""
    numbers = {}
    for name in ("kvm", "fuse", "vhost-net", "vhost-vsock", "loop-control", "net/tun"):
        with suppress(OSError):
            found = os.stat(f"/dev/{name}").st_rdev
            numbers[name] = [os.major(found), os.minor(found)]
    async with stage(substrate) as box:
        tried = await box.attempt("open-devices", numbers=numbers)
    opened = tried.said.get("opened", [])
    if opened and shares_kernel(substrate):
        return broke(f"devices of the host could be opened: {', '.join(opened)}")
    return held("none of the host's devices could be opened" if not opened else f"its own kernel's devices: {opened}")


async def keyrings(substrate: Substrate) -> Verdict:
    """19: keyrings have no namespace of their own."""
    mark = f"key{secrets.token_hex(8)}"
    async with stage(substrate) as first, stage(substrate) as second:
        left = await first.attempt("key-leave", mark=mark)
        found = await second.attempt("key-find", mark=mark)
        if found.said.get("found"):
            return broke("a key left in one sandbox was read in another")
    async with stage(substrate) as later:
        if (await later.attempt("key-find", mark=mark)).said.get("found"):
            return broke("a key left in one sandbox was read in the next")
    with suppress(OSError):
        if mark in Path("/proc/keys").read_text():
            return broke("a key left in a sandbox is among the host's own")
    return held(f"add_key: {left.said.get('result', 'died')}; nobody else found it")


async def vsock(substrate: Substrate) -> Verdict:
    """23: the socket family that leads from a virtual machine to its host."""
    port = 20_000 + secrets.randbelow(40_000)
    server = None
    with suppress(OSError):
        server = socket.socket(40, socket.SOCK_STREAM)
        server.bind((0xFFFFFFFF, port))
        server.listen()
        server.setblocking(False)
    try:
        async with stage(substrate) as box:
            tried = await box.attempt("vsock", port=port)
        if server is not None:
            with suppress(OSError):
                server.accept()[0].close()
                return broke("a listener of the host was reached by vsock")
    finally:
        if server is not None:
            server.close()
    if tried.said.get("succeeded") and shares_kernel(substrate):
        return broke("a vsock socket could be made in the host's kernel")
    return held(f"vsock: {tried.said.get('result', 'died')}")


async def old_entries(substrate: Substrate) -> Verdict:
    """24: system calls by the 32-bit and the x32 tables."""
    async with stage(substrate) as box:
        tried = await box.attempt("old-entries")
    if (answered := tried.said.get("answered")) and shares_kernel(substrate):
        return broke(f"the host's kernel answered by {', '.join(answered)}")
    return held("neither the 32-bit nor the x32 entry was answered by the host's kernel")


def _looked(name: str, what: str) -> Callable[[Substrate], Awaitable[Verdict]]:
    async def run(substrate: Substrate) -> Verdict:
        before = settings(), Path("/proc/modules").read_text() if Path("/proc/modules").exists() else ""
        async with stage(substrate) as box:
            tried = await box.attempt(name)
        if changed := changed_settings(before[0]):
            return broke(f"settings of the machine were changed: {changed}")
        if (looked := tried.said.get("looked")) and shares_kernel(substrate):
            return broke(f"the host's kernel considered {', '.join(looked)}")
        return held(f"{what} were refused" if "looked" in tried.said else f"{what}: the caller was killed")

    return run


async def kernel_secrets(substrate: Substrate) -> Verdict:
    """26: the kernel's memory, keys, timers, log and firmware tables."""
    async with stage(substrate) as box:
        said = (await box.attempt("kernel-secrets")).said
    leaks = [f"{path} ({size} bytes)" for path, size in said.get("read", {}).items()]
    leaks += ["the kernel's log"] if said.get("log", -1) > 0 else []
    leaks += ["addresses of kernel symbols"] if said.get("symbols", 0) else []
    if leaks and shares_kernel(substrate):
        return broke(f"could be read: {', '.join(leaks)}")
    return held("nothing of the host's kernel could be read")


async def setuid(substrate: Substrate) -> Verdict:
    """27: a setuid program run by somebody else than its owner."""
    need(substrate.capabilities.users, "actions cannot run as another user here")
    script = "cp /usr/bin/python3 /tmp/suid 2>/dev/null || cp $(command -v python3) /tmp/suid; chmod 4755 /tmp/suid; chmod 755 /tmp"
    async with stage(substrate) as box:
        made = await box.box.run(script, timeout_s=30)
        outcome = await box.box.run(["/tmp/suid", "-c", "import os;print(os.geteuid())"], user="65534", timeout_s=30)  # noqa: S108
    if not made.ok or not outcome.ok:
        return held(f"the setuid copy did not run: {outcome.stderr.decode(errors='replace').strip()[:80]}")
    if outcome.stdout.strip() == b"65534":
        return held("it ran as its caller")
    return broke("it ran as its owner") if shares_kernel(substrate) else held("it ran as its owner, in its own kernel")


async def descriptors(substrate: Substrate) -> Verdict:
    """28: only 0, 1 and 2, and none of them leads to the host's files."""
    async with stage(substrate) as box:
        found = (await box.attempt("open-descriptors")).said.get("descriptors", {})
        # A second command at the same time: what the agent holds for the first one must not leak into it.
        running = await box.box.start(["sleep", "30"]) if substrate.capabilities.stream else None
        again = (await box.attempt("open-descriptors")).said.get("descriptors", {})
        if running is not None:
            await running.kill()
            await running.wait()
    need(bool(found), "the attempt did not report")
    extra = {fd: facts["target"] for fd, facts in {**found, **again}.items() if fd not in ("0", "1", "2")}
    if extra:
        return broke(f"descriptors were inherited: {extra}")
    odd = {fd: facts["target"] for fd, facts in found.items() if facts["kind"] != "other"}
    return broke(f"standard descriptors lead to directories or disks: {odd}") if odd else held("only 0, 1 and 2")


async def core_handler(substrate: Substrate) -> Verdict:
    """10: a crash inside never starts the host's core dump handler.

    With a pipe in core_pattern the kernel runs the handler on the host whatever the limit is, except at exactly 1.
    """
    with suppress(OSError):
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
        async with stage(substrate) as box:
            said = (await box.attempt("crash")).said
        need(bool(said), "the attempt did not report")
        if said["dumped"] and shares_kernel(substrate):
            return broke(f"the crash was dumped by the host's rule {pattern!r}")
        if not pattern.startswith("|") and said["limit"] != 1 and shares_kernel(substrate):
            return broke(f"not dumped now, but a pipe in core_pattern would run: the limit is {said['limit']}, not 1")
        return held(f"not dumped; the limit is {said['limit']}")
    return untried("core_pattern cannot be read")


async def random_calls(substrate: Substrate) -> Verdict:
    """35: random system calls; the host and a sibling must not notice."""
    before = settings()
    async with stage(substrate, pids=64, memory_bytes=256 << 20) as first, stage(substrate) as second:
        seed = secrets.randbelow(1 << 30)
        tried = await first.attempt("random-calls", count=_RANDOM_CALLS, seed=seed, timeout_s=60)
        if not await second.alive():
            return broke("a sibling was disturbed")
    if changed := changed_settings(before):
        return broke(f"settings of the machine were changed: {changed}")
    done = 200 * tried.outcome.stdout.count(b"done\n")
    need(done > 0, "the first calls ended their caller")
    return held(f"{done} random calls with seed {seed}; settings and sibling are well")


PROBES = (
    Probe(id=10, name="core-dump-handler", group="escape", run=core_handler),
    Probe(id=14, name="mknod-a-host-disk", group="escape", run=disks, harmless=True),
    Probe(id=15, name="open-host-devices", group="escape", run=devices, harmless=True),
    Probe(id=17, name="bpf-map", group="escape", run=_interface("bpf-map", "a bpf map"), harmless=True),
    Probe(id=18, name="io-uring", group="escape", run=_interface("io-uring", "an io_uring"), harmless=True),
    Probe(id=19, name="keyrings", group="escape", run=keyrings),
    Probe(id=20, name="userfaultfd", group="escape", run=_interface("userfault", "a userfaultfd"), harmless=True),
    Probe(id=21, name="perf-event", group="escape", run=_interface("perf", "a performance counter"), harmless=True),
    Probe(
        id=22, name="crypto-socket", group="escape", run=_interface("crypto-socket", "an AF_ALG socket"), harmless=True
    ),
    Probe(id=23, name="vsock", group="escape", run=vsock, harmless=True),
    Probe(id=24, name="32-bit-and-x32-calls", group="escape", run=old_entries, harmless=True),
    Probe(id=25, name="kexec-and-modules", group="escape", run=_looked("load-code", "kernel images and modules")),
    Probe(id=26, name="kernel-secrets", group="escape", run=kernel_secrets, harmless=True),
    Probe(id=27, name="setuid-program", group="escape", run=setuid),
    Probe(id=28, name="inherited-descriptors", group="escape", run=descriptors, harmless=True),
    Probe(id=35, name="random-system-calls", group="escape", run=random_calls),
)
