"""Sandboxes on disk where the store's filesystem is full: what was written is there, or the writer was told."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree import Limits, Sandbox, Saturated, Spec, Substrate
from dutyfree.substrates.registry import find

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="disks are for root"),
    pytest.mark.skipif(not find("native")[0].probe().available, reason="native is not available"),
]

STORE_BYTES = 500 << 20
WRITE = """
import hashlib, random, sys
digest, source, written = hashlib.sha256(), random.Random(int(sys.argv[1])), 0
with open("/root/big", "wb", buffering=0) as file:
    try:
        while written < 400 << 20:
            piece = source.randbytes(1 << 20)
            piece = piece[:file.write(piece)]
            digest.update(piece)
            written += len(piece)
    except OSError as error:
        print(error.strerror, file=sys.stderr)
print(written, digest.hexdigest())
"""
"""Fills the disk; says how much the kernel has taken, and what of."""
READ = """
import hashlib, os
with open("/root/big", "rb") as file:
    print(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())
"""


@pytest.fixture
def small_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store on a filesystem of its own."""
    image, home = tmp_path / "image", tmp_path / "home"
    home.mkdir()
    with image.open("xb") as file:
        file.truncate(STORE_BYTES)
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, home], check=True)
    monkeypatch.setenv("DUTYFREE_HOME", str(home))
    try:
        yield home
    finally:
        subprocess.run(["umount", home], check=True)


def spec(disk_mib: int) -> Spec:
    return Spec(storage="disk", limits=Limits(disk_bytes=disk_mib << 20, memory_bytes=256 << 20))


def fill(home: Path) -> Path:
    """Another writer takes what is left."""
    with (home / "other").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            os.fsync(file.fileno())
    return Path(file.name)


def room(home: Path) -> int:
    return os.statvfs(home).f_bfree


async def write_all(boxes: list[Sandbox]) -> list[bytes]:
    outcomes = await asyncio.gather(*(box.run(["python3", "-c", WRITE, str(n)]) for n, box in enumerate(boxes)))
    assert all(outcome.ok for outcome in outcomes), outcomes
    assert all(outcome.stderr == b"No space left on device\n" for outcome in outcomes), "each fills its disk"
    return [outcome.stdout for outcome in outcomes]


async def read_all(boxes: list[Sandbox]) -> list[bytes]:
    """As the disks have it: nothing is left in the kernel's caches."""
    await asyncio.gather(*(box.run(["sync", "/root/big"]) for box in boxes))
    Path("/proc/sys/vm/drop_caches").write_text("1")
    outcomes = await asyncio.gather(*(box.run(["python3", "-c", READ]) for box in boxes))
    assert all(outcome.ok for outcome in outcomes), outcomes
    return [outcome.stdout for outcome in outcomes]


async def as_many_as_fit(substrate: Substrate, disk_mib: int, most: int) -> tuple[list[Sandbox], list[Saturated]]:
    wanted = [substrate.create(spec(disk_mib)) for _ in range(most)]
    made = await asyncio.gather(*wanted, return_exceptions=True)
    refused = [one for one in made if isinstance(one, Saturated)]
    boxes = [one for one in made if isinstance(one, Sandbox)]
    assert len(boxes) + len(refused) == most, made
    return boxes, refused


def test_what_eight_sandboxes_wrote_until_the_store_was_full_is_there(small_store: Path):
    async def main() -> None:
        async with dutyfree.connect("native") as substrate:
            boxes, refused = await as_many_as_fit(substrate, 100, 8)
            written = await write_all(boxes)
            fill(small_store)
            assert await read_all(boxes) == written
            assert len(boxes) == 4
            for error in refused:
                assert "100 MiB were asked for" in str(error)
                assert str(small_store) in str(error)
                assert error.retry_after_s > 0
            with pytest.raises(Saturated, match="400 MiB are reserved there by 4 disks"):
                await substrate.create(spec(100))

    asyncio.run(main())


def test_who_fills_the_store_beside_them_takes_nothing_from_sandboxes(small_store: Path):
    async def main() -> None:
        async with dutyfree.connect("native") as substrate:
            boxes, refused = await as_many_as_fit(substrate, 50, 8)
            assert not refused
            fill(small_store)
            left = room(small_store)
            written = await write_all(boxes)
            assert await read_all(boxes) == written
            assert room(small_store) <= left, "and they keep what they have reserved"

    asyncio.run(main())


def test_a_sandbox_keeps_its_room_over_a_reset_and_gives_it_back_at_its_end(small_store: Path):
    async def main() -> None:
        async with dutyfree.connect("native") as substrate:
            for _ in range(3):
                async with substrate.create(spec(300)) as box:
                    await box.run("head -c 30000000 /dev/urandom >/root/some")
                    await box.reset()
                    assert (await box.run("ls /root/some")).exit_code != 0
                    await box.reset()
            async with substrate.create(spec(300)) as box:
                written = await write_all([box])
                assert await read_all([box]) == written

    asyncio.run(main())


def test_a_fork_or_snapshot_that_finds_no_room_is_refused_and_its_sandbox_goes_on(small_store: Path):
    async def main() -> None:
        async with dutyfree.connect("native") as substrate:
            box = await substrate.create(spec(100))
            await box.run("head -c 30000000 /dev/urandom >/root/some")
            (heir,) = await box.fork(1)
            async with heir as fork:
                assert (await fork.run("stat -c %s /root/some")).stdout == b"30000000\n"
            written = await write_all([box])
            with pytest.raises(Saturated, match="asked for"):
                await substrate.create(spec(400))
            other = fill(small_store)
            for key in None, "kept":
                with pytest.raises(Saturated, match="No space left"):
                    await box.snapshot(key)
            with pytest.raises(Saturated, match="No space left"):
                await box.fork(1)
            assert await read_all([box]) == written
            other.unlink()

    asyncio.run(main())
