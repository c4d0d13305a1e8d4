"""From connecting to closing: what is given back, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dutyfree.core.contract import Capabilities, Sandbox, Substrate
from dutyfree.core.errors import Misuse, SandboxLost, Unsupported
from dutyfree.core.spec import Limits
from dutyfree.testing.base import Suite, until


async def is_lost(box: Sandbox) -> bool:
    """A call says that the sandbox is gone."""
    try:
        await box.stat("/")
    except (SandboxLost, Misuse):
        return True
    return False


class LifecycleSuite(Suite):
    async def test_a_substrate_says_what_it_is(self) -> None:
        assert isinstance(self.substrate, Substrate)
        assert isinstance(self.substrate.capabilities, Capabilities)
        assert self.substrate.name
        assert self.substrate.version

    async def test_declared_abilities_are_consistent(self) -> None:
        offered = self.substrate.capabilities
        assert offered.limits <= set(Limits.__dataclass_fields__)
        assert offered.networks
        assert offered.storages
        assert offered.stream or not offered.terminal
        async with self.box() as box:
            assert box.capabilities == offered

    async def test_a_sandbox_says_what_it_is(self) -> None:
        spec = self.spec(env={"A": "1"})
        async with self.substrate.create(spec) as box:
            assert isinstance(box, Sandbox)
            assert replace(box.spec, network=None) == spec
            assert box.network == ("none" if "none" in box.capabilities.networks else min(box.capabilities.networks))
            assert box.id

    async def test_a_sandbox_can_be_awaited_and_destroyed_by_hand(self) -> None:
        box = await self.box()
        assert (await box.run(["true"])).ok
        await box.destroy()
        assert await is_lost(box)

    async def test_a_sandbox_that_was_awaited_can_still_be_entered(self) -> None:
        async with await self.box() as box:
            assert (await box.run(["true"])).ok
        assert await is_lost(box)

    async def test_a_sandbox_that_is_entered_is_destroyed_at_the_end(self) -> None:
        async with self.box() as box:
            assert not await is_lost(box)
        assert await is_lost(box)

    async def test_a_sandbox_is_destroyed_when_the_block_fails(self) -> None:
        with pytest.raises(ZeroDivisionError):
            async with self.box() as box:
                raise ZeroDivisionError
        assert await is_lost(box)

    async def test_destroying_twice_is_fine(self) -> None:
        box = await self.box()
        await box.destroy()
        await box.destroy()
        await asyncio.gather(box.destroy(), box.destroy())

    async def test_destroying_from_two_places_at_once_is_fine(self) -> None:
        box = await self.box()
        await asyncio.gather(*(box.destroy() for _ in range(5)))
        assert await is_lost(box)

    async def test_after_its_end_every_call_says_that_the_sandbox_is_gone(self, tmp_path: Path) -> None:
        box = await self.box()
        await box.destroy()
        (tmp_path / "file").write_bytes(b"")
        calls = (
            lambda: box.run(["true"]),
            lambda: box.read("/etc/passwd"),
            lambda: box.write("/tmp/x", b""),
            lambda: box.list("/"),
            lambda: box.mkdir("/tmp/y"),
            lambda: box.remove("/tmp/x"),
            lambda: box.upload(tmp_path / "file", "/tmp/x"),
            lambda: box.download("/etc/passwd", tmp_path / "back"),
        )
        for call in calls:
            with pytest.raises((SandboxLost, Misuse)):
                await call()
        assert not (tmp_path / "back").exists()

    async def test_closing_a_substrate_destroys_what_is_left(self) -> None:
        boxes = [await self.box() for _ in range(3)]
        await self.substrate.close()
        for box in boxes:
            assert await is_lost(box)
        await self.substrate.close()

    async def test_a_timeline_tells_of_creation_and_end(self) -> None:
        async with self.box() as box:
            names = [span.name for span in box.timeline.spans]
            assert "create" in names
            assert "ready" in names
            assert all(span.end_ns >= span.start_ns for span in box.timeline.spans)
        assert "destroy" in [span.name for span in box.timeline.spans]

    async def test_an_unknown_image_is_misuse_and_leaves_nothing(self) -> None:
        for image in ("no-such-image-anywhere", "/no/such/rootfs"):
            with pytest.raises(Misuse, match="image"):
                await self.box(image=image)
        async with self.box() as box:
            assert not await is_lost(box)

    async def test_what_is_not_declared_is_unsupported(self) -> None:
        async with self.box() as box:
            offered = box.capabilities
            if not offered.snapshot:
                with pytest.raises(Unsupported, match="snapshot"):
                    await box.snapshot()
            if not offered.fork:
                with pytest.raises(Unsupported, match="fork"):
                    await box.fork(1)
            if not offered.reset:
                with pytest.raises(Unsupported, match="reset"):
                    await box.reset()


class EndOfLifeSuite(Suite):
    async def test_a_lifetime_ends_the_sandbox_whatever_it_does(self) -> None:
        async with self.box(lifetime_s=0.5) as box:
            with pytest.raises(SandboxLost):
                await box.run(["sleep", "60"])
            assert await is_lost(box)

    async def test_an_idle_sandbox_is_destroyed(self) -> None:
        async with self.box(idle_s=0.5) as box:
            await asyncio.sleep(0.6)  # idleness itself is what is tested
            await until(lambda: is_lost(box))

    async def test_a_sandbox_that_works_is_not_idle(self) -> None:
        async with self.box(idle_s=0.5) as box:
            assert (await box.run(["sleep", "1.2"])).ok
            assert (await box.run(["true"])).ok

    async def test_destroying_ends_a_running_command_with_sandbox_lost(self) -> None:
        box = await self.box()
        running = asyncio.create_task(box.run(["sleep", "60"]))
        assert (await box.run(["true"])).ok
        await box.destroy()
        with pytest.raises(SandboxLost):
            await running

    async def test_cancelling_at_any_moment_of_creation_leaves_nothing(self) -> None:
        for steps in (0, 1, 2, 3, 5, 8):
            task = asyncio.ensure_future(_create(self))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                box = await task
            except asyncio.CancelledError:
                continue
            await box.destroy()
        async with self.box() as box:
            assert (await box.run(["true"])).ok

    async def test_cancelling_a_transfer_leaves_nothing_and_the_sandbox_usable(self, tmp_path: Path) -> None:
        (tmp_path / "large").write_bytes(bytes(32 << 20))
        async with self.box() as box:
            remote = f"{self.scratch(box)}/large"
            for work in (
                lambda: box.upload(tmp_path / "large", remote),
                lambda: box.write(remote, bytes(32 << 20)),
                lambda: box.read(remote),
                lambda: box.download(remote, tmp_path / "back"),
            ):
                task = asyncio.ensure_future(work())
                for _ in range(5):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()
                await box.write(remote, bytes(32 << 20))
            assert (await box.run(["true"])).ok
        assert {path.name for path in tmp_path.iterdir()} <= {"large", "back"}

    async def test_processes_in_the_background_end_with_their_sandbox(self) -> None:
        async with self.box() as box:
            await box.run("sleep 61 >/dev/null 2>&1 &", background=True)


async def _create(suite: Suite) -> Sandbox:
    return await suite.box()
