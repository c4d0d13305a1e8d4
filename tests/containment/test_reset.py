"""That the verification of a reset can fail: a sandbox which is not as at the start is destroyed."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from dutyfree.substrates.registry import find

sys.path.append(str(Path(__file__).parents[2] / "native" / "tests"))
from trespass import trespass

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not find("native")[0].probe().available, reason="resets need native as root: sudo make test"
)


class Tampering:
    """Does something to a fresh sandbox just before it is inspected."""

    def __init__(self, substrate: dutyfree.Substrate, act: object) -> None:
        self._spawner = substrate._spawner
        self._inspect = self._spawner.inspect
        self._act = act
        self._spawner.inspect = self

    async def __call__(self, tag: int) -> str:
        pid = int((await self._inspect(tag)).split()[1])
        await asyncio.to_thread(self._act, pid)
        return await self._inspect(tag)


def plant_file(pid: int) -> None:
    subprocess.run([sys.executable, __file__, "plant", str(pid)], check=True)


def change_limit(pid: int) -> None:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers in ("memory", ""):
            name = "memory.max" if controllers == "" else "memory.limit_in_bytes"
            for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
                path = Path(root + place) / name
                if "dutyfree" in place and path.exists():
                    path.write_text(str(1 << 29))


def make_shared_memory(pid: int) -> None:
    subprocess.run(["nsenter", f"--ipc=/proc/{pid}/ns/ipc", "ipcmk", "-M", "4096"], check=True, capture_output=True)


def rename_host(pid: int) -> None:
    subprocess.run(["nsenter", f"--uts=/proc/{pid}/ns/uts", "hostname", "planted"], check=True)


def mount_over(pid: int) -> None:
    words = [
        "nsenter",
        f"--mount=/proc/{pid}/ns/mnt",
        f"--user=/proc/{pid}/ns/user",
        "mount",
        "-t",
        "tmpfs",
        "x",
        "/mnt",
    ]
    subprocess.run(words, check=True)


def change_resource_limit(pid: int) -> None:
    # As its own root: on the machine itself root need not have CAP_SYS_RESOURCE.
    subprocess.run(["nsenter", f"--user=/proc/{pid}/ns/user", "prlimit", f"--pid={pid}", "--nofile=77:77"], check=True)


def kill_and_wait(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)


TAMPERINGS = {
    "file": (plant_file, "planted"),
    "memory-limit": (change_limit, "memory.max"),
    "shared-memory": (make_shared_memory, "ipc shm 1"),
    "host-name": (rename_host, "hostname planted"),
    "mount": (mount_over, "/mnt"),
    "resource-limit": (change_resource_limit, "77"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_sandbox_that_is_not_as_at_the_start_is_destroyed_and_not_handed_out(name: str):
    act, word = TAMPERINGS[name]

    async def main() -> None:
        async with dutyfree.connect("native") as substrate:
            box = await substrate.create()
            await box.reset()
            Tampering(substrate, act)
            with pytest.raises(dutyfree.DriverError, match="not as at the start") as caught:
                await box.reset()
            assert word in caught.value.message
            with pytest.raises(dutyfree.SandboxLost):
                await box.run(["true"])
            assert substrate._boxes == set()
            assert substrate._spawner._sandboxes == {}

    asyncio.run(main())


def test_a_sandbox_whose_agent_dies_during_its_reset_is_destroyed():
    async def main() -> None:
        async with dutyfree.connect("native") as substrate:
            box = await substrate.create()
            await box.reset()
            Tampering(substrate, kill_and_wait)
            with pytest.raises(dutyfree.DriverError):
                await box.reset()
            assert substrate._boxes == set()

    asyncio.run(main())


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    for name in ("bin", "etc", "usr/bin", "tmp", "proc", "dev", "sys"):
        (tmp_path / "rootfs" / name).mkdir(parents=True)
    (tmp_path / "rootfs/etc/config").write_bytes(b"as it was")
    (tmp_path / "rootfs/bin/sh").write_bytes(b"")
    (tmp_path / "rootfs/bin/sh").chmod(0o755)
    return tmp_path / "rootfs"


def test_a_full_verification_reads_every_file_of_the_image(rootfs: Path):
    async def main() -> None:
        async with dutyfree.connect("native?verify=full") as substrate:
            box = await substrate.create(dutyfree.Spec(image=str(rootfs)))
            await box.write("/etc/config", b"changed")
            await box.reset()
            assert await box.read("/etc/config") == b"as it was"
            about = (rootfs / "etc/config").stat()
            (rootfs / "etc/config").write_bytes(b"as it wa5")  # through the page cache, as probe 77 has it
            os.utime(rootfs / "etc/config", ns=(about.st_atime_ns, about.st_mtime_ns))
            with pytest.raises(dutyfree.DriverError, match="/etc/config"):
                await box.reset()
            assert substrate._boxes == set()

    asyncio.run(main())


def test_a_depth_of_verification_that_is_none_is_misuse():
    async def main() -> None:
        with pytest.raises(dutyfree.Misuse, match="verify"):
            await dutyfree.connect("native?verify=deep")

    asyncio.run(main())


if __name__ == "__main__":
    trespass(int(sys.argv[2]), lambda: Path("planted").write_bytes(b""))
